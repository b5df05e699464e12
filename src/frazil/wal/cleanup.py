"""Deletes segments that have landed, and reports which closed streams are empty.

Tombstones are deleted last, because a tombstone fences a suspended writer that resumes. After that, the
writer's own clock fences it (see `Stream`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from frazil.errors import DeleteRefused
from frazil.position import WalPosition
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.reader import Segment, WalReader, prefetched

SEGMENTS_AT_ONCE_MAX = 10_000
"""Bounds memory, and the time until a pass can be stopped."""


@dataclass(frozen=True)
class Batch:
    """A batch of deleted segments. `first` maps each stream to the lowest sequence that may remain."""

    deleted: int
    bytes: int
    first: Mapping[str, int]


CleanUpPass = Generator[Batch, None, frozenset[str]]


def clean_up_pass(
    store: Store, signal: Signal, position_old_enough: WalPosition, limit: int | None = None
) -> CleanUpPass:
    """Deletes up to `limit` segments below a position, oldest first. No running query may start below it.

    Yields after each batch, and returns the closed streams that are empty: the next landing may drop them.
    Streams that the position does not name are left alone. The caller may stop anywhere, and repeat the pass.
    If the store refuses to delete some segments, deletes all others, keeps the tombstones, and then raises
    DeleteRefused.
    """
    reader = WalReader(store)
    streams = [name for name in reader.streams(signal) if name in position_old_enough.streams]
    tombstones: list[Segment] = []
    refused: DeleteRefused | None = None
    landed = islice(_landed(reader, signal, streams, position_old_enough), limit)
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
    return _remove_empty(store, signal, closed)


def _landed(
    reader: WalReader, signal: Signal, streams: list[str], position: WalPosition
) -> Iterator[Segment]:
    listings = prefetched(reader.stream(signal, stream) for stream in streams)
    for stream, listing in zip(streams, listings, strict=True):
        for segment in listing:
            if segment.name.sequence >= position.streams[stream].sequence:
                break
            yield segment


def _without_tombstones(
    segments: Iterator[Segment], position: WalPosition, tombstones: list[Segment]
) -> Iterator[Segment]:
    """Yields the segments that are not tombstones and appends the others to `tombstones`."""
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


def _remove_empty(store: Store, signal: Signal, closed: set[str]) -> frozenset[str]:
    """Lists the closed streams again, and returns those without segments.

    Their folders are removed durably: the deletions survive a power loss.
    """
    reader = WalReader(store)
    present = set(reader.streams(signal))
    empty = {
        stream
        for stream in closed
        if stream not in present or next(reader.stream(signal, stream), None) is None
    }
    for stream in sorted(empty):
        store.remove_folder(f"{signal}/{stream}/")
    return frozenset(empty)
