"""The decoded rows of one tenant and some columns of a table, loaded as queries need them."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import pyarrow as pa

from frazil.query.cache import SizedCache
from frazil.query.tail.chunks import Chunk, ChunkFolder, Part, Rows
from frazil.query.tail.decode import SegmentDecoder, Summary
from frazil.query.tail.listing import PositionTooOld, Waiting
from frazil.tables import Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName
from frazil.wal.position import Position, StreamPosition
from frazil.wal.store import Store

READERS = 8
_IN_FLIGHT_MAX = 2 * READERS
_IN_A_ROW = 8
_SUMMARIES_MAX = 100_000


class Bounds(NamedTuple):
    """Of `time`, in microseconds, both included."""

    lower: int | None = None
    upper: int | None = None


class Decoded(NamedTuple):
    stream: str
    sequence: int
    size: int
    summary: Summary
    table: pa.Table | None


class SegmentReader:
    """Reads and decodes segments of one table, several at once. Remembers what their footers say."""

    def __init__(
        self,
        signal: Signal,
        store: Store,
        decoder: SegmentDecoder,
        pool: ThreadPoolExecutor,
        fetched: SizedCache[str, bytes] | None,
    ) -> None:
        """`fetched` keeps bytes of segments where reading them again takes long."""
        self.decoder = decoder
        self._signal: Signal = signal
        self._store = store
        self._pool = pool
        self._fetched = fetched
        self._summaries: SizedCache[tuple[str, int], Summary] = SizedCache(_SUMMARIES_MAX)

    def is_outside(self, stream: str, sequence: int, bounds: Bounds) -> bool:
        """False also if the segment was not read yet."""
        summary = None if bounds == (None, None) else self._summaries.get((stream, sequence))
        return summary is not None and summary.is_outside(*bounds)

    def rows_before(self, stream: str, sequence: int) -> int | None:
        """Of the stream, all tenants, as far as it is known."""
        summary = self._summaries.get((stream, sequence))
        return None if summary is None else summary.rows_before

    def decoded(
        self, segments: Iterable[tuple[str, int]], tenant: str, schema: pa.Schema, bounds: Bounds
    ) -> Generator[Decoded]:
        """In the order of `segments`, of which some are taken ahead. PositionTooOld if one is gone."""
        waiting: deque[Future[Decoded]] = deque()
        try:
            for segment in segments:
                waiting.append(self._pool.submit(self._decode, *segment, tenant, schema, bounds))
                if len(waiting) >= _IN_FLIGHT_MAX:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()

    def _decode(self, stream: str, sequence: int, tenant: str, schema: pa.Schema, bounds: Bounds) -> Decoded:
        name = SegmentName(self._signal, stream, sequence)
        try:
            data = self._read(name.path)
        except FileNotFoundError:
            raise PositionTooOld(self._signal, name.path) from None
        summary, table = self.decoder.decode(name, data, tenant, schema, *bounds)
        self._summaries.put((stream, sequence), summary, 1)
        return Decoded(stream, sequence, len(data), summary, table)

    def _read(self, path: str) -> bytes:
        if self._fetched is None:
            return self._store.read(path)
        data = self._fetched.get(path)
        if data is None:
            data = self._store.read(path)
            self._fetched.put(path, data, len(data))
        return data

    def fetch(self, segments: Iterable[tuple[str, int]]) -> None:
        """Reads bytes ahead, without decoding, where `fetched` keeps them."""
        if self._fetched is not None:
            names = (SegmentName(self._signal, *segment) for segment in segments)
            with contextlib.suppress(FileNotFoundError):
                for _ in self._pool.map(lambda name: len(self._read(name.path)), names):
                    pass

    def forget(self) -> None:
        self._summaries.clear()
        if self._fetched is not None:
            self._fetched.clear()


class _NewestFirst:
    """Segments of several streams, the latest received first as far as that is known from those read."""

    def __init__(self, todo: Mapping[str, Sequence[int]]) -> None:
        self._rest = {stream: list(sequences) for stream, sequences in todo.items() if sequences}
        self._taken: Counter[str] = Counter()
        self.received: dict[str, int] = {}
        """By stream, of the segment that was read last."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        while self._rest:
            newest = max(self._rest, key=lambda each: (self.received.get(each, math.inf), -self._taken[each]))
            rest = self._rest[newest]
            for _ in range(min(_IN_A_ROW, len(rest))):
                self._taken[newest] += 1
                yield newest, rest.pop()
            if not rest:
                del self._rest[newest]


class View:
    """`lock` guards `chunks` and `floor`, and is shared by all views. `loading` is held while rows are loaded
    and taken; `users` counts who waits for it or holds it.
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
        self.users = 0
        self.used_at = clock()
        self._reader = reader
        self._schema = reader.decoder.schema(columns)
        self._folder = folder
        self._lock = lock
        self._clock = clock
        self._empty: dict[tuple[str, int], str | None] = {}
        """Decoded segments without rows of the tenant, and why if they cannot be read."""
        self._floor: dict[str, tuple[int, int | None]] = {}
        """By stream, the first segment that there was room for, and how many rows the stream had before."""

    @property
    def bytes(self) -> int:
        return sum(chunk.bytes for chunk in self.chunks)

    def load(self, waiting: Waiting, bounds: Bounds, room_bytes: int, read_bytes_max: int) -> None:
        """Decodes what is not kept yet, the newest first, until `room_bytes` are taken."""
        todo = self._todo(waiting, bounds, room_bytes)
        order = _NewestFirst(todo)
        left = {stream: set(sequences) for stream, sequences in todo.items()}
        pending: list[tuple[Part, pa.Table]] = []
        pending_bytes = read_bytes = 0
        has_written = False
        with contextlib.closing(self._reader.decoded(order, self.tenant, self._schema, bounds)) as found:
            for stream, sequence, size, summary, table in found:
                left[stream].discard(sequence)
                order.received[stream] = summary.received
                read_bytes += size
                if table is not None:
                    pending.append((Part(stream, sequence, 0, 0, summary.rows_after or 0), table))
                    pending_bytes += table.nbytes
                elif not summary.is_outside(*bounds):
                    self._empty[stream, sequence] = summary.problem
                if pending_bytes >= self._folder.memory_bytes_max:
                    self._write(pending)
                    pending, pending_bytes, has_written = [], 0, True
                    if self.bytes >= room_bytes:
                        break
                if read_bytes >= read_bytes_max:
                    break
        if pending:
            self._write(pending if has_written else self._with_smaller(pending, pending_bytes, waiting))
        self._set_floor(left)

    def _todo(self, waiting: Waiting, bounds: Bounds, room_bytes: int) -> dict[str, list[int]]:
        """What was dropped for want of room is loaded again only while there is ample room."""
        self._empty = {segment: problem for segment, problem in self._empty.items() if segment in waiting}
        with self._lock:
            if self.bytes * 2 <= room_bytes:
                self._floor.clear()
            kept = {(part.stream, part.sequence) for chunk in self.chunks for part in chunk.parts}
            first = {stream: sequence for stream, (sequence, _) in self._floor.items()}
        return {
            stream: [
                sequence
                for sequence in range(max(segments.start, first.get(stream, 0)), segments.stop)
                if (stream, sequence) not in kept
                and (stream, sequence) not in self._empty
                and not self._reader.is_outside(stream, sequence, bounds)
            ]
            for stream, segments in waiting.streams.items()
        }

    def _with_smaller(self, pending: Rows, size: int, waiting: Waiting) -> Rows:
        """With the rows of the last chunks, as long as each has no more rows than those behind it together.

        So chunks stay few, and a row is written again only when the chunk that holds it doubles.
        """
        taken: list[Chunk] = []
        rows = sum(table.num_rows for _, table in pending)
        with self._lock:
            while self.chunks and (last := self.chunks[-1]).rows <= rows:
                size += last.memory_bytes
                if size > self._folder.memory_bytes_max:
                    break
                rows += last.rows
                taken.append(self.chunks.pop())
        found = [*pending]
        for chunk in taken:
            found += self._folder.read(chunk, self._schema, self.parts(chunk, waiting))
            self._folder.drop(chunk)
        return found

    def _write(self, rows: Rows) -> None:
        chunk = self._folder.write(sorted(rows, key=_order), self._reader.decoder.dictionary, self._clock())
        with self._lock:
            self.chunks.append(chunk)

    def _set_floor(self, left: Mapping[str, set[int]]) -> None:
        with self._lock:
            for stream, sequences in left.items():
                if sequences:
                    first = max(sequences) + 1
                    self._floor[stream] = (first, self._reader.rows_before(stream, first))

    def drop(self, chunk: Chunk) -> None:
        """Under the lock."""
        self.chunks.remove(chunk)
        self._folder.drop(chunk)

    def evict_oldest(self) -> None:
        """Makes room. Under the lock; there is a chunk."""
        oldest = min(self.chunks, key=lambda chunk: chunk.time_max)
        for part in oldest.parts:
            first, _ = self._floor.get(part.stream, (0, None))
            if part.sequence >= first:
                self._floor[part.stream] = (part.sequence + 1, part.rows_after)
        self.drop(oldest)

    def forget(self) -> None:
        """Drops all rows. Under the lock."""
        for chunk in [*self.chunks]:
            self.drop(chunk)
        self._floor.clear()

    def problems(self, waiting: Waiting) -> list[str]:
        found = sorted((segment, problem) for segment, problem in self._empty.items() if problem is not None)
        return [problem for segment, problem in found if segment in waiting]

    def left_out(self, position: Position, waiting: Waiting) -> int | None:
        """How many rows of all tenants wait and are not loaded for want of room. None: none are."""
        found: list[int] = []
        for stream, (first, rows_before) in self._floor.items():
            if stream in waiting.streams and waiting.streams[stream].start < first:
                landed = position.streams.get(stream, StreamPosition()).durable_rows
                found.append(max(0, (rows_before or 0) - landed))
        return sum(found) if found else None

    def parts(self, chunk: Chunk, waiting: Waiting) -> list[Part]:
        return [part for part in chunk.parts if (part.stream, part.sequence) in waiting]


def ranges(parts: Iterable[Part]) -> list[tuple[int, int]]:
    """The rows of parts in the order of their file; neighbours are one range."""
    found: list[tuple[int, int]] = []
    for part in parts:
        if found and found[-1][1] == part.first_row:
            found[-1] = (found[-1][0], part.end_row)
        else:
            found.append((part.first_row, part.end_row))
    return found


def _order(row: tuple[Part, pa.Table]) -> tuple[str, int]:
    return row[0].stream, row[0].sequence
