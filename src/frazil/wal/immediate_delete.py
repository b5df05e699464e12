"""Deletes landed segments at once, for erasure, instead of some minutes after landing.

Queries rely on that delay: they read a table's position first and the WAL after it. So a mark is written to
the WAL before the deletion. It holds the number of rows landed by then, and a query whose position has fewer
rows reads the position again.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from frazil.position import WalPosition
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.cleanup import clean_up_pass
from frazil.wal.reader import SWEPT, WalReader

MARK_SECONDS = 3600.0
"""How long a mark is kept. No query holds a position that is older."""
_MARK = re.compile(SWEPT + r"([0-9]{20})-([0-9]{10})")


@dataclass(frozen=True)
class DeletionMark:
    """Records an immediate deletion. `rows` is the number of rows that had landed by then."""

    rows: int
    unix_seconds: int

    @property
    def name(self) -> str:
        return f"{SWEPT}{self.rows:020d}-{self.unix_seconds:010d}"

    @classmethod
    def parse(cls, name: str) -> DeletionMark | None:
        match = _MARK.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]))


def write_mark(store: Store, signal: Signal, position: WalPosition, now_seconds: float) -> None:
    """Writes a mark durably. Afterwards everything below the table's `position` may be deleted as soon as the
    queries that have already listed the WAL have ended.
    """
    mark = DeletionMark(position.rows, int(now_seconds))
    if any(DeletionMark.parse(name) == mark for name in store.children(f"{signal}/").folders):
        return
    store.create(f"{signal}/{mark.name}/{secrets.token_hex(8)}", b"swept")


def delete_landed_segments(store: Store, signal: Signal, position: WalPosition) -> list[str]:
    """Deletes all segments below the position and returns their paths. Call `write_mark` first."""
    reader = WalReader(store)
    paths = [
        segment.name.path
        for stream in reader.streams(signal)
        if (at := position.streams.get(stream)) is not None
        for segment in reader.stream(signal, stream)
        if segment.name.sequence < at.sequence
    ]
    while sum(batch.deleted for batch in clean_up_pass(store, signal, position)):
        pass
    return paths


def remove_old_marks(store: Store, signal: Signal, now_seconds: float) -> int:
    """Deletes expired marks and returns their number. After a failure the call can be repeated."""
    found = [DeletionMark.parse(name) for name in store.children(f"{signal}/").folders]
    old = [mark for mark in found if mark is not None and mark.unix_seconds + MARK_SECONDS < now_seconds]
    for mark in old:
        folder = f"{signal}/{mark.name}/"
        store.delete_all([entry.path for entry in store.list(folder)])
        store.remove_folder(folder)
    return len(old)
