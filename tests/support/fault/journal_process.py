"""A journal without a receiver around it, in processes that can be killed; `JournalProcess` controls them.

Commands come in on stdin, one JSON object a line; on stdout go lines of words: `pid N`, `started`,
`ack TEXT`, `refused TEXT REASON`, `done`, and at last, from the parent, `ended STATUS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.config import Config, load_config
from frazil.errors import FrazilError
from frazil.ledger import balance
from frazil.tables import Signal, table_spec
from frazil.wal import open_store
from frazil.wal.journal import Journal, SegmentJournal
from frazil.wal.reader import WalReader
from tests.support.fault.forks import Forks, forked
from tests.support.fault.records import logs_request, spans_request

LOG_CLIENTS, SPAN_CLIENTS = 2, 1
COLUMNS: dict[Signal, str] = {"logs": "body", "spans": "name"}


@dataclass
class Run:
    """What a run said. `returncode` is the child's: -9 after SIGKILL."""

    pid: int = 0
    started: bool = False
    done: bool = False
    attempted: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    returncode: int = 0


class JournalProcess(Forks):
    module = "tests.support.fault.journal_process"

    def run(
        self,
        config_path: Path,
        name: str,
        *,
        requests: int = 2,
        when_born: Callable[[Run], None] = lambda run: None,
        when_started: Callable[[Run], None] = lambda run: None,
        when_sending: Callable[[Run], None] = lambda run: None,
    ) -> Run:
        """A journal's whole life. The callbacks come in between, and may arm faults or kill the child."""
        command = {"config": str(config_path), "name": name, "requests": requests}
        self.say(json.dumps(command))
        run = Run(attempted=set(texts(name, requests)))
        while True:
            word, *rest = self.hear().split()
            match word:
                case "pid":
                    run.pid = int(rest[0])
                    when_born(run)
                case "started":
                    run.started = True
                    when_started(run)
                    self.say("go")
                    when_sending(run)
                case "ack":
                    run.acked.add(rest[0])
                case "refused":
                    run.refused[rest[0]] = " ".join(rest[1:])
                case "done":
                    run.done = True
                case "ended":
                    run.returncode = int(rest[0])
                    return run


def texts(name: str, requests: int) -> list[str]:
    """One record a request; those with "span" in them are names of spans, the others texts of logs."""
    return [
        f"{name}-{kind}{client}-{number}"
        for kind, clients in (("log", LOG_CLIENTS), ("span", SPAN_CLIENTS))
        for client in range(clients)
        for number in range(requests)
    ]


def found(config: Config) -> Counter[str]:
    """The texts of all records in the WAL, as landing would read them."""
    reader = WalReader(open_store(config))
    there: Counter[str] = Counter()
    for signal, column in COLUMNS.items():
        for segment in reader.pending(signal):
            there.update(reader.rows(segment.name, table_spec(signal))[1].column(column).to_pylist())
    return there


def streams(config: Config) -> set[str]:
    reader = WalReader(open_store(config))
    return {segment.name.stream for signal in COLUMNS for segment in reader.segments(signal)}


def check(config: Config, *runs: Run) -> None:
    """Every acked record is there once, the others at most once; the WAL is whole."""
    there = found(config)
    for run in runs:
        assert {text: there[text] for text in run.acked} == dict.fromkeys(run.acked, 1)
    assert max(there.values(), default=1) == 1
    assert set(there) <= set().union(*(run.attempted for run in runs))
    ledger = balance(config)
    assert ledger.problems == []
    assert sum(line.set_aside for line in ledger.lines) == 0


def _line() -> str:
    """Byte by byte: what comes behind belongs to another process."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return ""
        line += piece
    return line.decode()


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)).replace("\n", " ") + "\n").encode())


async def _live(command: dict[str, Any]) -> None:
    config = load_config(Path(command["config"]), environ={})
    journal = SegmentJournal(config, open_store(config), _Silent())
    await journal.start()
    _say("started")
    assert _line() == "go\n"
    name, requests = command["name"], command["requests"]

    async def client(kind: str, number: int) -> None:
        for request in range(requests):
            await _send(journal, kind, f"{name}-{kind}{number}-{request}")

    await asyncio.gather(
        *(client("log", number) for number in range(LOG_CLIENTS)),
        *(client("span", number) for number in range(SPAN_CLIENTS)),
    )
    await journal.close()
    _say("done")


async def _send(journal: Journal, kind: str, text: str) -> None:
    signal, body = ("logs", logs_request([text])) if kind == "log" else ("spans", spans_request([text]))
    try:
        await journal.append(signal, body, "default", time.time_ns())
    except FrazilError as error:
        _say("refused", text, type(error).__name__, error)
    else:
        _say("ack", text)


class _Silent:
    def segment_written(self, segment: object) -> None: ...

    def segment_failed(self, error: object) -> None: ...


def _life(command: dict[str, Any]) -> None:
    _say("pid", os.getpid())
    asyncio.run(_live(command))


def main() -> None:
    # Once, here, and not in every child. PyArrow imports pandas when it first converts something.
    import pandas  # noqa: F401
    import structlog

    import frazil.storage.s3  # noqa: F401

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    while line := _line():
        if line != "go\n":  # meant for a child that died before it could read it
            _say("ended", forked(lambda line=line: _life(json.loads(line))))


if __name__ == "__main__":
    main()
