"""Which segments of a table wait in the log behind a position. Lists the store; reads no segment."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from frazil.errors import StoreUnavailable, Transient
from frazil.position import StreamPosition, WalPosition
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader

_ABSENT_SECONDS = 60.0
"""How long a stream is remembered after the store has lost it: a query may have begun with an older position.
"""


class PositionTooOld(Transient):
    """Segments behind a position of `table` have landed and were deleted. Read the table's metadata again."""

    def __init__(self, table: str, segment: str) -> None:
        super().__init__(f"{segment} has landed and was cleaned up: read the position of {table} again")
        self.table = table
        self.segment = segment

    def __reduce__(self) -> tuple[type[PositionTooOld], tuple[str, str]]:
        return type(self), (self.table, self.segment)


@dataclass(frozen=True)
class Waiting:
    """The segments behind a position: sequences by stream."""

    swept: int
    """How many rows had landed when segments were last deleted at once, because rows in them were erased."""
    streams: dict[str, range] = field(default_factory=dict)
    gaps: list[SegmentName] = field(default_factory=list)
    """Segments that are not there although later ones of their stream are. The later ones are left out."""

    def __contains__(self, segment: tuple[str, int]) -> bool:
        stream, sequence = segment
        return stream in self.streams and sequence in self.streams[stream]


@dataclass
class _Stream:
    """Segments from `listed` up to `next` are known to have been there without a gap."""

    listed: int
    next: int
    gap: bool = False
    """A segment behind `next` is there, and `next` is not."""
    seen: int = 0
    """The ticket of the look that listed it last."""
    begun: int = 0
    """The ticket of the last look that found its first segment."""
    absent_since: float | None = None

    def covers(self, sequence: int) -> bool:
        return self.listed <= sequence <= self.next


class Listing:
    """Of one table. Remembers what was listed, so that a look lists only the end of each stream.

    Thread-safe. One look at a time: callers who wait share the next one. No caller gets a look that began
    before the call: what was acked by then might not be in it.
    """

    def __init__(
        self,
        signal: Signal,
        store: Store,
        pool: ThreadPoolExecutor,
        clock: Clock,
        on_erased: Callable[[], None],
    ) -> None:
        """`on_erased` is called when segments were deleted at once, because rows in them were erased."""
        self._signal: Signal = signal
        self._reader = WalReader(store)
        self._pool = pool
        self._clock = clock
        self._on_erased = on_erased
        self._lock = threading.Lock()
        self._tickets = itertools.count(1)
        self._looked = 0
        self._failed: tuple[int, StoreUnavailable] | None = None
        self._there: frozenset[str] = frozenset()
        self.swept = 0
        self._streams: dict[str, _Stream] = {}
        self._passed: dict[str, int] = {}
        """By stream, the furthest sequence of all positions seen."""

    def waiting(self, position: WalPosition) -> Waiting:
        """All segments behind the position that were durable at the call, perhaps later ones too.

        Raises PositionTooOld and StoreUnavailable.
        """
        arrived = next(self._tickets)
        with self._lock:
            if self._failed is not None and self._failed[0] > arrived:
                raise self._failed[1].again()
            began = next(self._tickets)
            try:
                self._look(arrived, began)
                return self._behind(position, arrived, began)
            except StoreUnavailable as error:
                self._failed = (began, error)
                raise

    def forget(self) -> None:
        """After a listed segment was found to be gone: the next look lists all that is there."""
        with self._lock:
            self._streams.clear()

    def _look(self, arrived: int, began: int) -> None:
        if self._looked > arrived:
            return
        streams, swept = self._reader.streams_and_swept_rows(self._signal)
        self._there = frozenset(streams)
        is_erased, self.swept = swept > self.swept, swept
        if is_erased:  # a load that ends now sees the new mark
            self._on_erased()
        self._looked = began
        now = self._clock()
        for name, stream in list(self._streams.items()):
            stream.absent_since = None if name in self._there else stream.absent_since or now
            if stream.absent_since is not None and now - stream.absent_since > _ABSENT_SECONDS:
                del self._streams[name]
        known = self._there | self._streams.keys()
        self._passed = {name: sequence for name, sequence in self._passed.items() if name in known}

    def _behind(self, position: WalPosition, arrived: int, began: int) -> Waiting:
        if self.swept > position.rows:
            raise PositionTooOld(self._signal, f"what was in the log of {self._signal}")
        for name, at in position.streams.items():
            self._passed[name] = max(self._passed.get(name, 0), at.sequence)
        names = sorted(self._there | (self._streams.keys() & position.streams.keys()))
        positions = [position.streams.get(name) for name in names]
        wanted = [
            (name, at) for name, at in zip(names, positions, strict=True) if at is None or not at.closed
        ]
        found = self._pool.map(lambda each: self._stream(each[0], each[1], arrived, began), wanted)
        waiting = Waiting(self.swept)
        for (name, _), (segments, gap) in zip(wanted, found, strict=True):
            if gap:
                self._add_gap(waiting, SegmentName(self._signal, name, segments.stop))
            if segments:
                waiting.streams[name] = segments
        return waiting

    def _add_gap(self, waiting: Waiting, segment: SegmentName) -> None:
        if self._passed.get(segment.stream, 0) > segment.sequence:
            raise PositionTooOld(self._signal, segment.path)
        waiting.gaps.append(segment)

    def _stream(self, name: str, at: StreamPosition | None, arrived: int, began: int) -> tuple[range, bool]:
        """The sequences of one stream, and whether a gap ends them.

        A stream that the position does not name counts only while its first segment is there: without, it has
        landed, was cleaned up and was dropped from the position.
        """
        begin = 0 if at is None else at.sequence
        stream = self._streams.get(name)
        if stream is not None and stream.covers(begin):
            if at is None and stream.begun < arrived:
                if not self._begins(name):
                    return range(0), False
                stream.begun = began
            if stream.seen < arrived and name in self._there:
                end, stream.gap = self._contiguous(name, stream.next)
                stream.next, stream.seen = end, began
            return range(begin, stream.next), stream.gap
        end, gap = self._contiguous(name, begin)
        if at is None and end == 0:
            return range(0), False
        if stream is None or begin > stream.next or end >= stream.listed:
            self._streams[name] = _Stream(begin, end, gap, began, began if begin == 0 < end else 0)
        return range(begin, end), gap

    def _begins(self, stream: str) -> bool:
        first = next(self._reader.stream(self._signal, stream), None)
        return first is not None and first.name.sequence == 0

    def _contiguous(self, stream: str, first: int) -> tuple[int, bool]:
        """Listed twice before a gap is believed: a writer may have overtaken the first listing."""
        end, gap = self._listed(stream, first)
        return self._listed(stream, first) if gap else (end, gap)

    def _listed(self, stream: str, first: int) -> tuple[int, bool]:
        """Where the segments from `first` on end, and whether there are more behind a gap."""
        end = first
        for segment in self._reader.stream(self._signal, stream, first):
            if segment.name.sequence != end:
                return end, end > 0
            end += 1
        return end, False
