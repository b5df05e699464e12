"""Reads the WAL: lists streams and their contiguous segments, and sets unreadable segments aside."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice

import pyarrow as pa

from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.position import StreamPosition, WalPosition
from frazil.storage import Store
from frazil.tables import Signal, TableSpec
from frazil.wal.names import SegmentName, is_stream
from frazil.wal.segment import Facts, read_facts, read_rows

NOTHING_LANDED = WalPosition()
SWEPT = "swept-"
"""Prefix of the marks of immediate_delete.py, followed by the number of rows in 20 digits."""
SET_ASIDE = "set-aside"
_LISTINGS_AT_ONCE_MAX = 16


@dataclass(frozen=True)
class Segment:
    name: SegmentName
    size: int
    durable_seconds: float | None = field(default=None, compare=False)
    """When it became durable, by the store's clock. For display only."""


class WalReader:
    """Reads a WAL's store. Stateless: every call reads the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def segments(self, signal: Signal) -> Iterator[Segment]:
        """Yields all segments of a signal, by stream and sequence."""
        return self._list(f"{signal}/")

    def streams(self, signal: Signal) -> list[str]:
        """Returns the streams that have a segment, or had one recently; oldest first."""
        return self.streams_and_swept_rows(signal)[0]

    def streams_and_swept_rows(self, signal: Signal) -> tuple[list[str], int]:
        """Returns the streams, and the number of landed rows at the last immediate deletion of segments.

        A position with fewer rows may miss deleted segments. 0 if there was no recent immediate deletion.
        """
        names = self._store.children(f"{signal}/").folders
        swept = [rows for name in names if (rows := _swept_rows(name)) is not None]
        return [name for name in names if is_stream(name)], max(swept, default=0)

    def stream(self, signal: Signal, stream: str, first: int = 0) -> Iterator[Segment]:
        """Yields the segments of one stream from sequence `first`, in order."""
        after = SegmentName(signal, stream, first - 1).path if first > 0 else None
        return self._list(f"{signal}/{stream}/", after)

    def _list(self, prefix: str, after: str | None = None) -> Iterator[Segment]:
        for entry in self._store.list(prefix, after):
            name = SegmentName.parse(entry.path)
            if name is not None:
                yield Segment(name, entry.size, entry.modified_seconds)

    def pending(self, signal: Signal, position: WalPosition = NOTHING_LANDED) -> Iterator[Segment]:
        """Yields the contiguous segments of each stream from its position.

        A missing sequence ends the stream's listing: segments after the gap wait. A stream that the position
        does not name starts at 0. Closed streams are skipped.
        """
        for stream in self.streams(signal):
            yield from self._contiguous(signal, stream, position)

    def pending_by_stream(self, signal: Signal, position: WalPosition) -> list[Iterator[Segment]]:
        """Returns `pending` as one iterator per stream. Streams are listed concurrently, page by page."""
        streams = self.streams(signal)
        return list(prefetched(self._contiguous(signal, stream, position) for stream in streams))

    def _contiguous(self, signal: Signal, stream: str, position: WalPosition) -> Iterator[Segment]:
        at = position.streams.get(stream, StreamPosition())
        if at.closed:
            return
        for expected, segment in enumerate(self.stream(signal, stream, at.sequence), at.sequence):
            if segment.name.sequence != expected:
                return
            yield segment

    def strays(self, signal: Signal, position: WalPosition) -> Iterator[Segment]:
        """Yields segments that will never land: after a stream's end, or in an unknown stream without
        sequence 0.

        Such a segment was never acknowledged (a suspended writer that resumed too late writes one), or
        something is wrong. `position` must have been read after the last landing's commit.
        """
        for stream in self.streams(signal):
            at = position.streams.get(stream)
            if at is not None and at.closed:
                yield from self.stream(signal, stream, at.sequence)
            elif at is None and not self._has_first(signal, stream):
                yield from self.stream(signal, stream)

    def _has_first(self, signal: Signal, stream: str) -> bool:
        """Lists twice: a listing concurrent with a writer may contain sequence 1 and not 0."""
        return any(
            next((segment.name.sequence == 0 for segment in self.stream(signal, stream)), True)
            for _ in range(2)
        )

    def facts(self, name: SegmentName) -> Facts:
        """Reads and verifies a segment. FileNotFoundError means that it was cleaned up, not corrupt."""
        return read_facts(name, self._store.read(name.path))

    def rows(self, name: SegmentName, spec: TableSpec) -> tuple[Facts, pa.Table]:
        return read_rows(name, self._store.read(name.path), spec)

    def set_aside(self, name: SegmentName, error: SegmentCorrupt | SegmentUnknown) -> str:
        """Copies an unreadable segment, and the reason as JSON, to a folder that landing does not read.

        Returns the path of the copy. The original stays until clean-up.
        """
        path = f"{SET_ASIDE}/{name.path}"
        for target, data in (
            (path, self._store.read(name.path)),
            (f"{path}.json", json.dumps({"segment": name.path, "reason": str(error)}).encode()),
        ):
            with contextlib.suppress(FileExistsError):  # set aside before
                self._store.create(target, data)
        return path


def prefetched(listings: Iterable[Iterator[Segment]]) -> Iterator[Iterator[Segment]]:
    """Returns the same listings with their first items read concurrently: on S3 each takes a request."""
    rest = iter(listings)
    while group := list(islice(rest, _LISTINGS_AT_ONCE_MAX)):
        if len(group) == 1:
            yield group[0]
            continue
        with ThreadPoolExecutor(len(group), thread_name_prefix="wal-list") as pool:
            firsts = list(pool.map(lambda listing: list(islice(listing, 1)), group))
        yield from map(chain, firsts, group)


def _swept_rows(name: str) -> int | None:
    digits = name.removeprefix(SWEPT)[:20]
    return int(digits) if name.startswith(SWEPT) and digits.isdecimal() else None
