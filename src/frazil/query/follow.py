"""Following the WAL of one table: each look lists what is new, reads it once, and keeps it within a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from frazil.query.chunks import ChunkFolder, Run, merged, to_merge
from frazil.query.segment_rows import SegmentDecoder, SegmentRows
from frazil.query.streams import Line, Part, part_of
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName
from frazil.wal.position import Position, StreamPosition
from frazil.wal.reader import Segment, WalReader

PASSED_SECONDS = 60.0
"""How long rows are kept after they have landed: a query may have begun with an older position."""
_BLOCK_SEGMENTS_MAX = 32
_BLOCK_SHARE = 8
"""Of a chunk's bytes, in those of segments: rows take several times as much."""
_STREAMS_AT_ONCE = 8


@dataclass
class Look:
    """What one look found besides rows."""

    begun: set[str] = field(default_factory=set)
    """Streams that were seen from their beginning, of those that a position does not name."""
    gaps: dict[str, int] = field(default_factory=dict)
    """Streams that go on behind a segment that is not there: which one that is."""
    vanished: dict[str, int] = field(default_factory=dict)
    """Listed, and then not there: the last of each stream. It has landed and was cleaned up."""
    swept: int = 0
    """So many rows had landed when all segments before them were deleted at once."""


@dataclass
class _Listing:
    first: int
    segments: list[Segment]
    begun: bool = False
    gap: bool = False

    @property
    def next(self) -> int:
        return self.first + len(self.segments)


class Follower:
    """`look` is called by one thread at a time. `lock` guards what it keeps."""

    def __init__(
        self,
        signal: Signal,
        store: Store,
        decoder: SegmentDecoder,
        folder: ChunkFolder,
        pool: ThreadPoolExecutor,
        clock: Clock,
    ) -> None:
        self.signal: Signal = signal
        self.lines: dict[str, Line] = {}
        self.passed: dict[str, int] = {}
        """By stream, the furthest sequence of all positions seen."""
        self.lock = threading.Lock()
        self.bytes = 0
        """Of all that is kept, as of the last look."""
        self.swept = 0
        """So many rows had landed when those were dropped that are not kept any longer: see `Look.swept`."""
        self._store = store
        self._reader = WalReader(store)
        self._decoder = decoder
        self._folder = folder
        self._pool = pool
        self._block_bytes = folder.chunk_bytes_max // _BLOCK_SHARE
        self._clock = clock

    def look(self, positions: Sequence[Position], bytes_max: int) -> Look:
        """Reads what is new for any of the positions. Of too much, the newest."""
        streams, swept = self._reader.look(self.signal)
        wanted = {name: [each.streams.get(name) for each in positions] for name in streams}
        wanted = {name: at for name, at in wanted.items() if any(one is None or not one.closed for one in at)}
        listings = dict(zip(wanted, self._pool.map(self._list, wanted, wanted.values()), strict=True))
        look = Look(
            {name for name, found in listings.items() if found.begun},
            {name: found.next for name, found in listings.items() if found.gap},
            swept=swept,
        )
        with self.lock:
            new = {name: segments for name, found in listings.items() if (segments := self._new(name, found))}
        self._read_new(new, bytes_max, look)
        self._read_older(wanted, bytes_max, look)
        with self.lock:
            is_known = any(position.rows >= swept for position in positions)
            self._expire(positions, frozenset(streams), at_once=is_known and swept > self.swept)
            self.swept = swept if is_known else self.swept
            self._count()
        return look

    # Listing

    def _list(self, stream: str, positions: Sequence[StreamPosition | None]) -> _Listing:
        """From where the first of the positions needs it. Of a stream that a position does not name, a look
        says whether its beginning is still there: it may be one that was cleaned up and dropped.

        Where an old position's segments are gone, the listing begins anew at the next one's.
        """
        line = self.lines.get(stream)
        asked = [at for at in positions if at is None or not at.closed]
        known = line is not None and line.listed == 0
        if line is not None and known and None in asked and not self._begins(stream):
            asked = [at for at in asked if at is not None] or [StreamPosition(line.next)]
        starts = sorted({_list_from(line, at) for at in asked})
        listing = self._contiguous(stream, starts[0])
        begun = None in asked and (known or bool(listing.segments))
        for first in starts[1:]:
            if first > listing.next:
                listing = self._contiguous(stream, first)
        listing.begun = begun
        return listing

    def _begins(self, stream: str) -> bool:
        first = next(self._reader.stream(self.signal, stream), None)
        return first is not None and first.name.sequence == 0

    def _contiguous(self, stream: str, first: int) -> _Listing:
        """Listed twice before a gap is believed: a writer may have overtaken the first look."""
        listing = self._listed(stream, first)
        return self._listed(stream, first) if listing.gap else listing

    def _listed(self, stream: str, first: int) -> _Listing:
        found: list[Segment] = []
        for wanted, segment in enumerate(self._reader.stream(self.signal, stream, first), first):
            if segment.name.sequence != wanted:
                return _Listing(first, found, gap=wanted > 0)
            found.append(segment)
        return _Listing(first, found)

    def _new(self, stream: str, listing: _Listing) -> list[Segment]:
        """The segments that are not kept yet at the end of a stream. Makes the stream's line."""
        line = self.lines.get(stream)
        if line is None or listing.first > line.next:
            if not listing.segments:
                return []
            if line is not None:
                self._drop(line.forget_before(line.next))
            self.lines[stream] = Line(listing.first, listing.first, listing.first)
            return listing.segments
        if listing.next >= line.listed:
            line.listed = min(line.listed, listing.first)
        return [segment for segment in listing.segments if segment.name.sequence >= line.next]

    # Reading

    def _read_new(self, new: Mapping[str, list[Segment]], bytes_max: int, look: Look) -> None:
        """The newest first, over all streams, until there is no more room: what is recent is complete."""
        ends = {stream: segments[-1].name.sequence + 1 for stream, segments in new.items()}
        parts: dict[str, list[Part]] = {stream: [] for stream in new}
        try:
            for names in _batched(new, _STREAMS_AT_ONCE):
                self._read_blocks(
                    {stream: _last_block(new[stream], self._block_bytes) for stream in names}, parts, look
                )
            while True:
                left = {
                    stream: rest
                    for stream, rest in ((stream, _rest(new[stream], parts[stream])) for stream in new)
                    if rest and parts[stream] and stream not in look.vanished
                }
                if not left or sum(part.bytes for found in parts.values() for part in found) >= bytes_max:
                    break
                newest = max(left, key=lambda stream: parts[stream][0].received)
                self._read_blocks({newest: _last_block(left[newest], self._block_bytes)}, parts, look)
        except BaseException:
            self._drop(run for found in parts.values() for part in found for run in part.runs.values())
            raise
        with self.lock:
            for stream, found in parts.items():
                self._append(self.lines[stream], found, ends[stream], look.vanished.get(stream))

    def _append(self, line: Line, parts: list[Part], end: int, vanished: int | None) -> None:
        first = parts[0].first if parts else end
        if first > line.next:  # what lies between is left out, and so is all before it
            self._drop(line.forget_before(first))
            line.next = first
        if vanished is not None:
            line.listed = max(line.listed, vanished + 1)
        tenants = {tenant for part in parts for tenant in part.runs}
        for part in parts:
            line.append(part)
        line.write_large(self._folder, self.signal, tenants)

    def _read_older(
        self, wanted: Mapping[str, Sequence[StreamPosition | None]], bytes_max: int, look: Look
    ) -> None:
        """Segments that were dropped, or never kept, and that a position asks for: only while there is ample
        room, or they would be dropped again.
        """
        for stream, positions in wanted.items():
            line = self.lines.get(stream)
            begins = [0 if at is None else at.sequence for at in positions if at is None or not at.closed]
            while (
                line is not None and line.listed <= min(begins) < line.first and stream not in look.vanished
            ):
                with self.lock:
                    self._count()
                if self.bytes * 2 > bytes_max:
                    break
                first = max(min(begins), line.first - _BLOCK_SEGMENTS_MAX)
                names = [SegmentName(self.signal, stream, number) for number in range(first, line.first)]
                parts: dict[str, list[Part]] = {stream: []}
                self._read_blocks({stream: [Segment(name, 0) for name in names]}, parts, look)
                with self.lock:
                    for part in parts[stream]:
                        if part.next != line.first:  # somebody needed room meanwhile
                            self._drop(part.runs.values())
                            return
                        line.prepend(part)
                        line.write_large(self._folder, self.signal, part.runs)
                    if stream in look.vanished:
                        line.listed = max(line.listed, look.vanished[stream] + 1)

    def _read_blocks(
        self, blocks: Mapping[str, Sequence[Segment]], parts: dict[str, list[Part]], look: Look
    ) -> None:
        """Puts a part in front of those of each stream; without what lies before a segment that is gone."""
        names = [segment.name for block in blocks.values() for segment in block]
        found = dict(zip(names, self._pool.map(self._read, names), strict=True))
        for stream, block in blocks.items():
            rows: list[SegmentRows] = []
            for segment in reversed(block):
                one = found[segment.name]
                if one is None:
                    look.vanished[stream] = segment.name.sequence
                    break
                rows.insert(0, one)
            if rows:
                part = part_of(block[-1].name.sequence + 1 - len(rows), rows)
                part.write_large(self._folder, self.signal)
                parts[stream].insert(0, part)

    def _read(self, name: SegmentName) -> SegmentRows | None:
        try:
            data = self._store.read(name.path)
        except FileNotFoundError:
            return None
        return self._decoder.decode(name, data)

    # Keeping

    def _expire(
        self, positions: Sequence[Position], streams: frozenset[str], *, at_once: bool = False
    ) -> None:
        """`at_once`: something was erased, and what has landed is not kept any longer."""
        kept_seconds = -1.0 if at_once else PASSED_SECONDS
        for position in positions:
            for stream, at in position.streams.items():
                self.passed[stream] = max(self.passed.get(stream, 0), at.sequence)
        self.passed = {name: at for name, at in self.passed.items() if name in streams or name in self.lines}
        now = self._clock()
        for stream, line in list(self.lines.items()):
            line.absent_since = None if stream in streams else line.absent_since or now
            if line.absent_since is not None and now - line.absent_since > kept_seconds:
                self._drop(line.forget_before(line.next))
                del self.lines[stream]
                continue
            behind = min(self.passed.get(stream, 0), _first_needed(positions, stream, line))
            gone = line.first
            for run in (run for runs in line.runs.values() for run in runs if run.last < behind):
                run.passed_at = now if run.passed_at is None else run.passed_at
                if now - run.passed_at > kept_seconds:
                    gone = max(gone, run.last + 1)
            self._drop(line.forget_before(gone))

    def evict_oldest(self) -> bool:
        """Drops the oldest rows that make up a chunk. False if there are none. Under the lock."""
        lines = [line for line in self.lines.values() if line.runs]
        if not lines:
            return False
        line = min(lines, key=lambda each: each.oldest)
        first = min((runs[0] for runs in line.runs.values()), key=lambda run: run.first)
        self._drop(line.forget_before(first.last + 1))
        self._count()
        return True

    def merge(self, stream: str, tenant: str) -> None:
        """Makes one file of small neighbours. Only the swap holds the lock."""
        with self.lock:
            line = self.lines.get(stream)
            runs = [] if line is None else line.runs.get(tenant, [])
            small = runs[len(runs) - to_merge(runs, self._folder.chunk_bytes_max) :]
            files = [run.file for run in small if run.file is not None]
            if line is None or len(small) < 2 or len(files) < len(small):
                return
            for file in files:
                self._folder.pin(file)
            snapshot = [
                Run(run.starts, run.end, run.memory_bytes, run.time_min, run.time_max) for run in small
            ]
        with self._folder.pinned(files):
            tables = [self._folder.read(file, self._decoder.schema) for file in files]
            new = merged(snapshot, tables)
            new.file, new.table = self._folder.write(self.signal, new.table), None
            with self.lock:
                replaced = self.lines.get(stream) is line and line.replace(tenant, small, new)
            self._drop(small if replaced else [new])

    def _drop(self, runs: Iterable[Run]) -> None:
        for run in runs:
            if run.file is not None:
                self._folder.drop(run.file)

    def _count(self) -> None:
        self.bytes = sum(line.bytes for line in self.lines.values())


def _list_from(line: Line | None, at: StreamPosition | None) -> int:
    """What is known to be there is not listed again."""
    sequence = 0 if at is None else at.sequence
    return line.next if line is not None and line.listed <= sequence <= line.next else sequence


def _last_block(segments: Sequence[Segment], bytes_max: int) -> list[Segment]:
    count, size = 0, 0
    for segment in reversed(segments):
        size += segment.size
        if count and (count == _BLOCK_SEGMENTS_MAX or size > bytes_max):
            break
        count += 1
    return list(segments[len(segments) - count :])


def _rest(segments: Sequence[Segment], parts: Sequence[Part]) -> Sequence[Segment]:
    """Those before the parts that have been read."""
    if not parts:
        return segments
    return segments[: max(0, parts[0].first - segments[0].name.sequence)]


def _batched(streams: Iterable[str], count: int) -> Iterator[list[str]]:
    rest = iter(streams)
    while batch := list(islice(rest, count)):
        yield batch


def _first_needed(positions: Sequence[Position], stream: str, line: Line) -> int:
    """What is asked for now does not expire, however old the position is."""
    found = [position.streams.get(stream, StreamPosition()) for position in positions]
    return min((at.sequence for at in found if not at.closed), default=line.next)
