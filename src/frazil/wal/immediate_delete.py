"""Segments that go at once, and not some minutes after they landed: what is to be erased cannot wait.

Queries count on those minutes: they read a table's position first, and the log behind it afterwards. So a
mark is left in the log before anything is deleted. It says how many rows had landed by then, and a query
whose position knows of fewer reads the position again.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from frazil.position import WalPosition
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.cleanup import clean_up
from frazil.wal.reader import SWEPT, WalReader

MARK_SECONDS = 3600.0
"""How long a mark stays. Nobody has a position that is as old."""
_MARK = re.compile(SWEPT + r"([0-9]{20})-([0-9]{10})")


@dataclass(frozen=True)
class Mark:
    """`rows` had landed when everything before them was deleted."""

    rows: int
    unix_seconds: int

    @property
    def name(self) -> str:
        return f"{SWEPT}{self.rows:020d}-{self.unix_seconds:010d}"

    @classmethod
    def parse(cls, name: str) -> Mark | None:
        match = _MARK.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]))


def leave_mark(store: Store, signal: Signal, position: WalPosition, now_seconds: float) -> None:
    """Durable when it returns. `position` is the table's, and everything below it may be deleted once those
    who look at the log just now have ended.
    """
    mark = Mark(position.rows, int(now_seconds))
    if any(Mark.parse(name) == mark for name in store.children(f"{signal}/").folders):
        return
    store.create(f"{signal}/{mark.name}/{secrets.token_hex(8)}", b"swept")


def sweep(store: Store, signal: Signal, position: WalPosition) -> list[str]:
    """Deletes everything that lies below the position; the paths. `leave_mark` comes before."""
    reader = WalReader(store)
    there = [
        segment.name.path
        for stream in reader.streams(signal)
        if (at := position.streams.get(stream)) is not None
        for segment in reader.stream(signal, stream)
        if segment.name.sequence < at.sequence
    ]
    while clean_up(store, signal, position).deleted:
        pass
    return there


def remove_old_marks(store: Store, signal: Signal, now_seconds: float) -> int:
    """May fail anywhere and be done again."""
    found = [Mark.parse(name) for name in store.children(f"{signal}/").folders]
    old = [mark for mark in found if mark is not None and mark.unix_seconds + MARK_SECONDS < now_seconds]
    for mark in old:
        folder = f"{signal}/{mark.name}/"
        store.delete_all([entry.path for entry in store.list(folder)])
        store.remove_folder(folder)
    return len(old)
