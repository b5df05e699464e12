"""Deleting segments that have landed, and finding out which closed streams have left nothing behind.

A tombstone goes last: until then it fences a writer that wakes up. Afterwards the writer's own clock does
(see stream.py).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from frazil.errors import DeleteRefused
from frazil.position import WalPosition
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.reader import Segment, WalReader, side_by_side

SEGMENTS_AT_ONCE_MAX = 10_000
"""Bounds memory, and the time until a pass can be stopped."""


@dataclass(frozen=True)
class CleanUp:
    """`gone_streams` are closed and have nothing left in the store: the next landing may drop them."""

    deleted: int
    bytes: int
    gone_streams: frozenset[str]


@dataclass(frozen=True)
class Batch:
    """Segments that were deleted. `first` has the lowest sequence that may be left in each of their
    streams.
    """

    deleted: int
    bytes: int
    first: Mapping[str, int]


CleanUpPass = Generator[Batch, None, frozenset[str]]


def clean_up(
    store: Store, signal: Signal, position_old_enough: WalPosition, limit: int | None = None
) -> CleanUp:
    """Deletes all segments below a position that no running query begins before, oldest first.

    `limit` bounds their number. Streams that the position does not name are left alone. May fail anywhere
    and be done again.
    """
    steps, deleted, size = clean_up_pass(store, signal, position_old_enough, limit), 0, 0
    while True:
        try:
            batch = next(steps)
        except StopIteration as end:
            return CleanUp(deleted, size, end.value)
        deleted, size = deleted + batch.deleted, size + batch.bytes


def clean_up_pass(
    store: Store, signal: Signal, position_old_enough: WalPosition, limit: int | None = None
) -> CleanUpPass:
    """Does the same batch by batch, and returns the streams that are gone. The caller may stop anywhere.

    If the store refuses to delete some segments, all the others go, tombstones stay, and DeleteRefused comes
    at the end.
    """
    reader = WalReader(store)
    there = [name for name in reader.streams(signal) if name in position_old_enough.streams]
    tombstones: list[Segment] = []
    refused: DeleteRefused | None = None
    landed = islice(_landed(reader, signal, there, position_old_enough), limit)
    others = _without_tombstones(landed, position_old_enough, tombstones)
    while batch := list(islice(others, SEGMENTS_AT_ONCE_MAX)):
        try:
            yield _delete(store, batch)
        except DeleteRefused as error:
            refused = refused or error
    if refused is not None:
        raise refused
    while batch := tombstones[:SEGMENTS_AT_ONCE_MAX]:
        yield _delete(store, batch)
        del tombstones[: len(batch)]
    closed = {name for name, stream in position_old_enough.streams.items() if stream.closed}
    return _gone(store, signal, closed)


def _landed(
    reader: WalReader, signal: Signal, streams: list[str], position: WalPosition
) -> Iterator[Segment]:
    listings = side_by_side(reader.stream(signal, stream) for stream in streams)
    for stream, listing in zip(streams, listings, strict=True):
        for segment in listing:
            if segment.name.sequence >= position.streams[stream].sequence:
                break
            yield segment


def _without_tombstones(
    segments: Iterator[Segment], position: WalPosition, tombstones: list[Segment]
) -> Iterator[Segment]:
    """Puts the tombstones into the list: at most one for each stream."""
    for segment in segments:
        stream = position.streams[segment.name.stream]
        if stream.closed and segment.name.sequence == stream.sequence - 1:
            tombstones.append(segment)
        else:
            yield segment


def _delete(store: Store, segments: list[Segment]) -> Batch:
    store.delete_all([segment.name.path for segment in segments])
    return Batch(
        len(segments),
        sum(segment.size for segment in segments),
        {segment.name.stream: segment.name.sequence + 1 for segment in segments},
    )


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
