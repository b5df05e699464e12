"""Deleting segments that have landed, and finding out which closed streams have left nothing behind.

A tombstone goes last: until then it fences a writer that wakes up. Afterwards the writer's own clock does
(see stream.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from frazil.tables import Signal
from frazil.wal.position import Position
from frazil.wal.reader import Segment, WalReader
from frazil.wal.store import Store


@dataclass(frozen=True)
class CleanUp:
    """`gone_streams` are closed and have nothing left in the store: the next landing may drop them."""

    deleted: int
    bytes: int
    gone_streams: frozenset[str]


def clean_up(store: Store, signal: Signal, position_old_enough: Position, limit: int = 10_000) -> CleanUp:
    """Deletes what lies below a position that no running query begins before; at most `limit`, oldest first.

    Streams that the position does not name are left alone. May fail anywhere and be done again.
    """
    reader = WalReader(store)
    there = [name for name in reader.streams(signal) if name in position_old_enough.streams]
    landed = list(islice(_landed(reader, signal, there, position_old_enough), limit))
    tombstones = [segment for segment in landed if _is_tombstone(segment, position_old_enough)]
    others = [segment for segment in landed if not _is_tombstone(segment, position_old_enough)]
    for segments in (others, tombstones):
        if segments:
            store.delete_all([segment.name.path for segment in segments])
    closed = {name for name, stream in position_old_enough.streams.items() if stream.closed}
    return CleanUp(len(landed), sum(segment.size for segment in landed), _gone(store, signal, closed))


def _landed(reader: WalReader, signal: Signal, streams: list[str], position: Position) -> Iterator[Segment]:
    for stream in streams:
        for segment in reader.stream(signal, stream):
            if segment.name.sequence >= position.streams[stream].sequence:
                break
            yield segment


def _is_tombstone(segment: Segment, position: Position) -> bool:
    stream = position.streams[segment.name.stream]
    return stream.closed and segment.name.sequence == stream.sequence - 1


def _gone(store: Store, signal: Signal, closed: set[str]) -> frozenset[str]:
    """Confirmed by looking, after the deletions; and what was deleted stays so after a power loss."""
    reader = WalReader(store)
    there = set(reader.streams(signal))
    gone = {
        stream
        for stream in closed
        if stream not in there or next(reader.stream(signal, stream), None) is None
    }
    for stream in sorted(gone):
        store.remove_folder(f"{signal}/{stream}/")
    return frozenset(gone)
