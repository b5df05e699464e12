"""The decoded rows of one tenant and some columns of a table, loaded as queries need them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from frazil.position import StreamPosition, WalPosition
from frazil.query.cache import SizedCache
from frazil.query.tail.chunks import Chunk, ChunkFolder, Part, Rows
from frazil.query.tail.decode import Bounds, SegmentDecoder, Summary
from frazil.query.tail.listing import PositionTooOld, Waiting
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName

READERS = 8
_BATCH_MAX = 8
_BATCH_BYTES = 2**18
_AHEAD_MAX = READERS + 2
_AHEAD_BYTES = 4 * 2**20
"""Bytes of encoded segments; decoded, they are several times as large."""
_SUMMARIES_MAX = 100_000
_FETCHED_MAX = 64
"""Segments per read-ahead: it shares its threads with queries."""


class Decoded(NamedTuple):
    stream: str
    sequence: int
    size: int
    summary: Summary
    table: pa.Table | None


class SegmentReader:
    """Reads and decodes segments of one table in parallel."""

    def __init__(
        self,
        signal: Signal,
        store: Store,
        decoder: SegmentDecoder,
        pool: ThreadPoolExecutor,
        cache: SizedCache[str, bytes],
    ) -> None:
        """`cache` holds the bytes of segments."""
        self.decoder = decoder
        self._signal: Signal = signal
        self._store = store
        self._pool = pool
        self._cache = cache
        self._fetched: dict[str, int] = {}
        self._summaries: SizedCache[tuple[str, int], Summary] = SizedCache(_SUMMARIES_MAX)

    def summary(self, stream: str, sequence: int) -> Summary | None:
        """Return the summary of a segment; None if it was not read, or is no longer cached."""
        return self._summaries.get((stream, sequence))

    def decoded(
        self, segments: Iterable[tuple[str, int]], tenant: str, schema: pa.Schema, bounds: Bounds
    ) -> Generator[Decoded]:
        """Decode segments in order, reading some ahead. Raises PositionTooOld if a segment is missing."""
        rest, size = iter(segments), _BATCH_BYTES
        ahead: deque[Future[list[Decoded]]] = deque()
        try:
            # Measured: submitting small segments to a thread one by one costs a tenth of decoding them.
            while batch := list(itertools.islice(rest, max(1, min(_BATCH_MAX, _BATCH_BYTES // size)))):
                ahead.append(self._pool.submit(self._decode, batch, tenant, schema, bounds))
                while len(ahead) >= min(_AHEAD_MAX, max(2, _AHEAD_BYTES // (len(batch) * size))):
                    found = ahead.popleft().result()
                    size = max(1, *(each.size for each in found))
                    yield from found
            while ahead:
                yield from ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()

    def _decode(
        self, segments: Iterable[tuple[str, int]], tenant: str, schema: pa.Schema, bounds: Bounds
    ) -> list[Decoded]:
        found = []
        for stream, sequence in segments:
            name = SegmentName(self._signal, stream, sequence)
            try:
                data = self._read(name.path)
            except FileNotFoundError:
                raise PositionTooOld(self._signal, name.path) from None
            summary, table = self.decoder.decode(name, data, tenant, schema, bounds)
            self._summaries.put((stream, sequence), summary, 1)
            found.append(Decoded(stream, sequence, len(data), summary, table))
        return found

    def _read(self, path: str) -> bytes:
        data = self._cache.get(path)
        if data is None:
            data = self._store.read(path)
            self._cache.put(path, data, len(data))
        return data

    def fetch(self, waiting: Waiting) -> None:
        """Read the newest new segments of each stream into the cache, without decoding them."""
        before, self._fetched = self._fetched, {name: each.stop for name, each in waiting.streams.items()}
        paths = [
            SegmentName(self._signal, name, sequence).path
            for name, each in waiting.streams.items()
            for sequence in range(max(each.start, before.get(name, 0), each.stop - _FETCHED_MAX), each.stop)
        ]
        with contextlib.suppress(FileNotFoundError):
            for _ in self._pool.map(lambda path: len(self._read(path)), paths[:_FETCHED_MAX]):
                pass

    def forget(self) -> None:
        self._summaries.clear()
        self._cache.clear()


class _NewestFirst:
    """Iterates segments of several streams, latest received first, estimated from segments already read."""

    def __init__(self, todo: Mapping[str, Iterable[int]]) -> None:
        self._rest = {stream: rest for stream, sequences in todo.items() if (rest := sorted(sequences))}
        self._taken: Counter[str] = Counter()
        self._read: dict[str, tuple[int, int, int]] = {}
        """By stream: when the first and the last segment read were received, and how many were read."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        while self._rest:
            is_known = self._rest.keys() <= self._read.keys()
            stream = max(self._rest, key=self._received if is_known else lambda each: -self._taken[each])
            self._taken[stream] += 1
            yield stream, self._rest[stream].pop()
            if not self._rest[stream]:
                del self._rest[stream]

    def note(self, stream: str, received: int) -> None:
        first, _, read = self._read.get(stream, (received, received, 0))
        if received:
            self._read[stream] = (first, received, read + 1)

    def _received(self, stream: str) -> int:
        """Estimate when the next segment of a stream was received. Some of the segments taken are not read
        yet.
        """
        first, last, read = self._read[stream]
        return last - (first - last) * (self._taken[stream] - read) // max(1, read - 1)


class View:
    """Decoded rows of one tenant. `lock`, shared by all views, guards `chunks` and `_floor`. `loading` is
    held while rows are loaded and cut.
    """

    def __init__(
        self,
        reader: SegmentReader,
        tenant: str,
        columns: frozenset[str] | None,
        folder: ChunkFolder,
        lock: threading.Lock,
        clock: Clock,
    ) -> None:
        self.tenant = tenant
        self.chunks: list[Chunk] = []
        self.loading = threading.Lock()
        self.used_at = clock()
        self._reader = reader
        self.schema = reader.decoder.schema(columns)
        self._folder = folder
        self._lock = lock
        self._clock = clock
        self._empty: dict[tuple[str, int], str | None] = {}
        """Decoded segments without rows of the tenant, with a problem if the segment cannot be read."""
        self._floor: dict[str, tuple[int, int]] = {}
        """By stream: the first segment that was not evicted, and how many rows the stream had before it."""

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes_with_partial_rows for chunk in self.chunks)

    def load(self, waiting: Waiting, bounds: Bounds, room_bytes: int, read_bytes_max: int) -> None:
        """Decode segments that are not loaded yet, newest first, until `room_bytes` are used."""
        todo = self._todo(waiting, bounds, room_bytes)
        order = _NewestFirst(todo)
        pending: list[tuple[Part, pa.Table]] = []
        pending_bytes = read_bytes = chunks = 0
        with contextlib.closing(self._reader.decoded(order, self.tenant, self.schema, bounds)) as found:
            for stream, sequence, size, summary, table in found:
                todo[stream].discard(sequence)
                order.note(stream, summary.received)
                read_bytes += size
                if table is not None:
                    pending.append((Part(stream, sequence, 0, 0, summary.rows_after or 0), table))
                    pending_bytes += table.nbytes
                elif not bounds.exclude(summary.time_min, summary.time_max):
                    self._empty[stream, sequence] = summary.problem
                if pending_bytes >= self._folder.memory_bytes_max:
                    self._write(pending)
                    pending, pending_bytes, chunks = [], 0, chunks + 1
                    if self.bytes >= room_bytes:
                        break
                if read_bytes >= read_bytes_max:
                    break
        if pending:
            self._write(pending if chunks else self._with_smaller(pending, pending_bytes, waiting))
        with self._lock:
            for stream, left in todo.items():
                if left:
                    first = max(left) + 1
                    above = self._reader.summary(stream, first)
                    self._floor[stream] = (first, (above.rows_before if above is not None else None) or 0)

    def _todo(self, waiting: Waiting, bounds: Bounds, room_bytes: int) -> dict[str, set[int]]:
        """Return the segments to load: evicted ones only while at most half of the room is used."""
        self._empty = {segment: problem for segment, problem in self._empty.items() if segment in waiting}
        with self._lock:
            if self.bytes * 2 <= room_bytes:
                self._floor.clear()
            known = {(part.stream, part.sequence) for chunk in self.chunks for part in chunk.parts}
            first = {stream: sequence for stream, (sequence, _) in self._floor.items()}
        known |= self._empty.keys()
        return {
            stream: {
                sequence
                for sequence in range(max(segments.start, first.get(stream, 0)), segments.stop)
                if (stream, sequence) not in known and not self._is_outside(stream, sequence, bounds)
            }
            for stream, segments in waiting.streams.items()
        }

    def _is_outside(self, stream: str, sequence: int, bounds: Bounds) -> bool:
        summary = None if bounds == Bounds() else self._reader.summary(stream, sequence)
        return summary is not None and bounds.exclude(summary.time_min, summary.time_max)

    def _with_smaller(self, pending: Rows, size: int, waiting: Waiting) -> Rows:
        """Merge the last chunks into the pending rows while each has no more rows than those after it
        together.

        So there are few chunks, and a row is rewritten only when its chunk at least doubles.
        """
        merged: list[Chunk] = []
        rows = sum(table.num_rows for _, table in pending)
        with self._lock:
            while self.chunks and (last := self.chunks[-1]).rows <= rows:
                size += last.memory_bytes
                if size > self._folder.memory_bytes_max:
                    break
                rows += last.rows
                merged.append(self.chunks.pop())
        found = [*pending]
        for chunk in merged:
            found += self._folder.read(chunk, self.schema, chunk.waiting_parts(waiting))
        return found

    def _write(self, rows: Rows) -> None:
        in_order = sorted(rows, key=lambda row: (row[0].stream, row[0].sequence))
        chunk = self._folder.write(in_order, self._reader.decoder.dictionary, self._clock())
        with self._lock:
            self.chunks.append(chunk)

    # The callers of the following methods hold the lock.

    def evict_oldest(self) -> None:
        """Evict the chunk with the oldest rows. The view must have a chunk."""
        oldest = min(self.chunks, key=lambda chunk: chunk.time_max)
        for part in oldest.parts:
            self._floor[part.stream] = max(
                self._floor.get(part.stream, (0, 0)), (part.sequence + 1, part.rows_after)
            )
        self.chunks.remove(oldest)

    def forget(self) -> None:
        self.chunks.clear()
        self._floor.clear()

    def problems(self, waiting: Waiting) -> list[str]:
        return [
            problem
            for segment, problem in sorted(self._empty.items())
            if problem is not None and segment in waiting
        ]

    def left_out(self, position: WalPosition, waiting: Waiting) -> int | None:
        """Return how many rows, of all tenants, were left out to bound memory; None if there are none."""
        found: list[int] = []
        for stream, (first, rows_before) in self._floor.items():
            if stream in waiting.streams and waiting.streams[stream].start < first:
                landed = position.streams.get(stream, StreamPosition()).durable_rows
                found.append(max(0, rows_before - landed))
        return sum(found) if found else None
