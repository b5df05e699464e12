"""Reading the WAL back: streams, their contiguous segments, and what has to be set aside."""

from __future__ import annotations

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
"""How the names of the marks begin that sweep.py leaves; the number of rows follows, in 20 digits."""
_SET_ASIDE = "set-aside"
_LISTINGS_AT_ONCE_MAX = 16


@dataclass(frozen=True)
class Segment:
    name: SegmentName
    size: int
    durable_seconds: float | None = field(default=None, compare=False)
    """When it was made durable, as its store says: for people."""


@dataclass(frozen=True)
class SetAsideSegment:
    """A segment that could not be read: its bytes are kept under `path`, with the reason beside them."""

    name: SegmentName
    path: str
    reason: str


class WalReader:
    """Stateless: every call looks at the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def segments(self, signal: Signal) -> Iterator[Segment]:
        """All segments of a signal, by stream and sequence."""
        for entry in self._store.list(f"{signal}/"):
            name = SegmentName.parse(entry.path)
            if name is not None:
                yield Segment(name, entry.size, entry.modified_seconds)

    def streams(self, signal: Signal) -> list[str]:
        """Those that have a segment, or had one a moment ago; oldest first."""
        return self.look(signal)[0]

    def look(self, signal: Signal) -> tuple[list[str], int]:
        """The streams, and how many rows had landed when segments were last deleted at once: a position that
        knows of fewer may lack some. 0 if that never was, or is long past.
        """
        names = self._store.children(f"{signal}/").folders
        swept = [rows for name in names if (rows := _swept_rows(name)) is not None]
        return [name for name in names if is_stream(name)], max(swept, default=0)

    def stream(self, signal: Signal, stream: str, first: int = 0) -> Iterator[Segment]:
        """The segments of one stream from a sequence on, in order. What lies before it is not listed."""
        after = SegmentName(signal, stream, first - 1).path if first > 0 else None
        for entry in self._store.list(f"{signal}/{stream}/", after):
            name = SegmentName.parse(entry.path)
            if name is not None:
                yield Segment(name, entry.size, entry.modified_seconds)

    def pending(self, signal: Signal, position: WalPosition = NOTHING_LANDED) -> Iterator[Segment]:
        """The contiguous segments of each stream from its position on.

        A sequence that is not there yet ends its stream: what lies behind it waits. A stream that the
        position does not name begins at 0; one that is closed has nothing more to give.
        """
        for stream in self.streams(signal):
            yield from self._contiguous(signal, stream, position)

    def pending_by_stream(self, signal: Signal, position: WalPosition) -> list[Iterator[Segment]]:
        """The same, each stream by itself. Streams are listed side by side, and no further than is read."""
        streams = self.streams(signal)
        return list(side_by_side(self._contiguous(signal, stream, position) for stream in streams))

    def _contiguous(self, signal: Signal, stream: str, position: WalPosition) -> Iterator[Segment]:
        at = position.streams.get(stream, StreamPosition())
        if at.closed:
            return
        for wanted, segment in enumerate(self.stream(signal, stream, at.sequence), at.sequence):
            if segment.name.sequence != wanted:
                return
            yield segment

    def strays(self, signal: Signal, position: WalPosition) -> Iterator[Segment]:
        """Segments that will never land, for the ledger.

        They are behind a stream's end, or in a stream that the position does not name and that lacks its
        beginning. Nobody was told that they are durable (a writer that woke up too late writes such a one),
        or something is wrong. The position must be one that was read after the last landing's commit.
        """
        for stream in self.streams(signal):
            at = position.streams.get(stream)
            if at is not None and at.closed:
                yield from self.stream(signal, stream, at.sequence)
            elif at is None and not self._begins(signal, stream):
                yield from self.stream(signal, stream)

    def _begins(self, signal: Signal, stream: str) -> bool:
        """Asked twice: in a first look that is overtaken by a writer, 1 may be there and 0 not yet."""
        return any(
            next((segment.name.sequence == 0 for segment in self.stream(signal, stream)), True)
            for _ in range(2)
        )

    def facts(self, name: SegmentName) -> Facts:
        """Checks every byte. FileNotFoundError means that it was cleaned up, not that it is corrupt."""
        return read_facts(name, self._store.read(name.path))

    def rows(self, name: SegmentName, spec: TableSpec) -> tuple[Facts, pa.Table]:
        return read_rows(name, self._store.read(name.path), spec)

    def set_aside(self, name: SegmentName, error: SegmentCorrupt | SegmentUnknown) -> SetAsideSegment:
        """Keeps a copy with the reason beside it, where landing does not look. The original stays until
        clean-up.
        """
        path = f"{_SET_ASIDE}/{name.path}"
        reason = str(error)
        for target, data in (
            (path, self._store.read(name.path)),
            (f"{path}.json", json.dumps({"segment": name.path, "reason": reason}).encode()),
        ):
            try:
                self._store.create(target, data)
            except FileExistsError:
                continue  # set aside before
        return SetAsideSegment(name, path, reason)

    def set_aside_segments(self) -> Iterator[SetAsideSegment]:
        for entry in self._store.list(f"{_SET_ASIDE}/"):
            if not entry.path.endswith(".json"):
                continue
            facts = json.loads(self._store.read(entry.path))
            name = SegmentName.parse(facts["segment"])
            if name is not None:
                yield SetAsideSegment(name, entry.path.removesuffix(".json"), facts["reason"])


def side_by_side(listings: Iterable[Iterator[Segment]]) -> Iterator[Iterator[Segment]]:
    """The same listings, with the first requests of several made at once: in a bucket each takes a while."""
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
