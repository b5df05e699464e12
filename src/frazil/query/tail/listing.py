"""Lists the WAL segments of a table after a position. Lists the store, and reads no segment."""

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
"""How long to remember a stream that disappeared: a running query may have an older position."""


class PositionTooOld(Transient):
    """Segments after a position of `table` have landed and were deleted: read the table's metadata again."""

    def __init__(self, table: str, segment: str) -> None:
        super().__init__(f"{segment} has landed and was deleted: read the position of {table} again")
        self.table = table
        self.segment = segment

    def __reduce__(self) -> tuple[type[PositionTooOld], tuple[str, str]]:
        return type(self), (self.table, self.segment)


@dataclass(frozen=True)
class Waiting:
    """The segments after a position: sequence numbers by stream."""

    swept: int
    """How many rows had landed when an erasure last deleted segments without the usual delay."""
    streams: dict[str, range] = field(default_factory=dict)
    gaps: list[SegmentName] = field(default_factory=list)
    """Missing segments that are followed by others of their stream. The following ones are left out."""

    def __contains__(self, segment: tuple[str, int]) -> bool:
        stream, sequence = segment
        return stream in self.streams and sequence in self.streams[stream]


@dataclass
class _Stream:
    """A known stream. All segments from `listed` up to `next` existed when listed."""

    listed: int
    next: int
    gap: bool = False
    """The segment `next` is missing, but a later one exists."""
    seen: int = 0
    """The ticket of the listing that listed the stream last."""
    begun: int = 0
    """The ticket of the last listing that found the stream's first segment."""
    absent_since: float | None = None

    def covers(self, sequence: int) -> bool:
        return self.listed <= sequence <= self.next


class Listing:
    """Lists the segments of one table. Remembers known streams, so that it lists only the end of each stream.

    Thread-safe. One listing runs at a time, and waiting callers share the next one. A caller never gets a
    listing that began before the call, because rows acknowledged by then might not be in it.
    """

    def __init__(
        self,
        signal: Signal,
        store: Store,
        pool: ThreadPoolExecutor,
        clock: Clock,
        on_erased: Callable[[], None],
    ) -> None:
        """`on_erased` is called when an erasure deleted segments without the usual delay."""
        self._signal: Signal = signal
        self._reader = WalReader(store)
        self._pool = pool
        self._clock = clock
        self._on_erased = on_erased
        self._lock = threading.Lock()
        self._tickets = itertools.count(1)
        self._refreshed = 0
        self._failed: tuple[int, StoreUnavailable] | None = None
        self._present: frozenset[str] = frozenset()
        self.swept = 0
        self._streams: dict[str, _Stream] = {}
        self._furthest: dict[str, int] = {}
        """By stream, the furthest sequence of all positions seen."""

    def waiting(self, position: WalPosition, landed: WalPosition | None = None) -> Waiting:
        """Return all segments after the position that were durable at the call, and perhaps later ones.

        `landed` is a later position, up to which rows have landed and may be deleted. Raises
        StoreUnavailable, and PositionTooOld if segments after the position were deleted.
        """
        arrived = next(self._tickets)
        with self._lock:
            if self._failed is not None and self._failed[0] > arrived:
                raise self._failed[1].again()
            began = next(self._tickets)
            try:
                self._refresh(arrived, began)
                found = self._after(position, arrived, began)
                if landed is not None and (stream := _deleted(position, landed, found)) is not None:
                    raise PositionTooOld(self._signal, f"a segment of stream {stream}")
                return found
            except StoreUnavailable as error:
                self._failed = (began, error)
                raise

    def forget(self) -> None:
        """Forget all streams, because a listed segment is missing. The next call lists everything."""
        with self._lock:
            self._streams.clear()

    def _refresh(self, arrived: int, began: int) -> None:
        if self._refreshed > arrived:
            return
        streams, swept = self._reader.streams_and_swept_rows(self._signal)
        self._present = frozenset(streams)
        is_erased, self.swept = swept > self.swept, swept
        if is_erased:  # after `swept` is set: a load that ends now must see the new value
            self._on_erased()
        self._refreshed = began
        now = self._clock()
        for name, stream in list(self._streams.items()):
            stream.absent_since = None if name in self._present else stream.absent_since or now
            if stream.absent_since is not None and now - stream.absent_since > _ABSENT_SECONDS:
                del self._streams[name]
        known = self._present | self._streams.keys()
        self._furthest = {name: sequence for name, sequence in self._furthest.items() if name in known}

    def _after(self, position: WalPosition, arrived: int, began: int) -> Waiting:
        if self.swept > position.rows:
            raise PositionTooOld(self._signal, f"a segment of {self._signal}")
        for name, at in position.streams.items():
            self._furthest[name] = max(self._furthest.get(name, 0), at.sequence)
        names = sorted(self._present | (self._streams.keys() & position.streams.keys()))
        positions = [position.streams.get(name) for name in names]
        open_streams = [
            (name, at) for name, at in zip(names, positions, strict=True) if at is None or not at.closed
        ]
        found = self._pool.map(lambda each: self._stream(each[0], each[1], arrived, began), open_streams)
        waiting = Waiting(self.swept)
        for (name, _), (segments, gap) in zip(open_streams, found, strict=True):
            if gap:
                self._add_gap(waiting, SegmentName(self._signal, name, segments.stop))
            if segments:
                waiting.streams[name] = segments
        return waiting

    def _add_gap(self, waiting: Waiting, segment: SegmentName) -> None:
        if self._furthest.get(segment.stream, 0) > segment.sequence:
            raise PositionTooOld(self._signal, segment.path)
        waiting.gaps.append(segment)

    def _stream(self, name: str, at: StreamPosition | None, arrived: int, began: int) -> tuple[range, bool]:
        """Return the sequence numbers of one stream, and whether they end at a gap.

        A stream that the position does not name counts only while its first segment exists. Otherwise the
        stream has landed, and was deleted and dropped from the position.
        """
        begin = 0 if at is None else at.sequence
        stream = self._streams.get(name)
        if stream is not None and stream.covers(begin):
            if at is None and stream.begun < arrived:
                if not self._begins(name):
                    return range(0), False
                stream.begun = began
            if stream.seen < arrived and name in self._present:
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
        """List a stream, twice if there is a gap: segments may have been written during the first listing."""
        end, gap = self._listed(stream, first)
        return self._listed(stream, first) if gap else (end, gap)

    def _listed(self, stream: str, first: int) -> tuple[int, bool]:
        """Return where the segments from `first` on end, and whether there are more after a gap."""
        end = first
        for segment in self._reader.stream(self._signal, stream, first):
            if segment.name.sequence != end:
                return end, end > 0
            end += 1
        return end, False


def _deleted(position: WalPosition, landed: WalPosition, found: Waiting) -> str | None:
    """Return a stream with rows between the two positions of which not all segments were found; None if there
    is none. Row counts decide, because the last segment of a closed stream has no rows and may be gone.
    """
    for name, until in landed.streams.items():
        since = position.streams.get(name, StreamPosition())
        segments = found.streams.get(name, range(0))
        if until.rows > since.rows and not (
            segments.start <= since.sequence and segments.stop >= until.sequence - until.closed
        ):
            return name
    gone = position.streams.keys() - landed.streams.keys()
    if landed.left.rows - position.left.rows > sum(position.streams[name].rows for name in gone):
        return "that has ended"
    return None
