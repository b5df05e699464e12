"""A journal that writes one log for each line on stdin, and says `ack TEXT` or `refused TEXT`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import structlog

from frazil.config import load_config
from frazil.errors import FrazilError
from frazil.wal import open_store
from frazil.wal.journal import SegmentJournal
from tests.support.fault.records import logs_request


class _Silent:
    def segment_written(self, segment: object) -> None: ...

    def segment_failed(self, error: object) -> None: ...


async def _live(config_path: Path) -> None:
    config = load_config(config_path, environ={})
    journal = SegmentJournal(config, open_store(config), _Silent())
    await journal.start()
    while line := await asyncio.to_thread(sys.stdin.readline):
        text = line.strip()
        try:
            await journal.append("logs", logs_request([text]), "default", time.time_ns())
        except FrazilError:
            print("refused", text, flush=True)
        else:
            print("ack", text, flush=True)
    await journal.close()


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_live(Path(sys.argv[1])))
