"""Names in the WAL: `<signal>/<stream>/<sequence>.parquet`.

A stream belongs to one writer. Its id is a time followed by random bits, so that ids sort by age and no name
is ever reused, even after clean-up.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass

from frazil.tables import SIGNALS, Signal

_STREAM = r"[0-9]{8}T[0-9]{9}-[0-9a-f]{16}"
_SIGNALS: dict[str, Signal] = {name: name for name in SIGNALS}
_PATH = re.compile(rf"(logs|spans|metrics)/({_STREAM})/([0-9]{{20}})\.parquet")


def new_stream(now_seconds: float | None = None) -> str:
    """Returns an id such as `20261115T081823123-9f86d081884c7d65`: UTC in milliseconds, 64 random bits."""
    now = time.time() if now_seconds is None else now_seconds
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
    return f"{stamp}{int(now * 1000) % 1000:03d}-{secrets.token_hex(8)}"


def is_stream(name: str) -> bool:
    """Returns whether the folder name is a stream's id; the WAL may contain other folders."""
    return re.fullmatch(_STREAM, name) is not None


@dataclass(frozen=True, order=True)
class SegmentName:
    signal: Signal
    stream: str
    sequence: int

    @property
    def path(self) -> str:
        return f"{self.signal}/{self.stream}/{self.sequence:020d}.parquet"

    @property
    def next(self) -> SegmentName:
        return SegmentName(self.signal, self.stream, self.sequence + 1)

    @classmethod
    def parse(cls, path: str) -> SegmentName | None:
        """Returns None if the path is not a segment's."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        return cls(_SIGNALS[match[1]], match[2], int(match[3]))
