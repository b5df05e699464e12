"""Rows of the tail as files that query workers read: written once, merged, deleted when nobody reads them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import StoreUnavailable
from frazil.tables.encoding import with_dictionary
from frazil.wal.rowgroups import coded_table

_CHUNK_BYTES_MAX = 64 * 2**20
_CHUNKS_MIN = 16
_ROW_GROUP_ROWS = 32_768


class ChunkFile:
    """Made by `ChunkFolder`, which alone changes it."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size
        self.pins = 0
        self.dropped = False


@dataclass
class Run:
    """Rows of one tenant from one stream, by sequence. `starts` has the sequence and the first row of each
    segment; rows before the first of them have been dropped. In memory, or in a file, or in both.
    """

    starts: list[tuple[int, int]]
    end: int
    memory_bytes: int
    time_min: int
    time_max: int
    table: pa.Table | None = None
    file: ChunkFile | None = None
    passed_at: float | None = None
    """Since when everybody's position is behind it."""

    @property
    def bytes(self) -> int:
        return self.file.size if self.file is not None else self.memory_bytes

    @property
    def first(self) -> int:
        return self.starts[0][0]

    @property
    def last(self) -> int:
        return self.starts[-1][0]

    @property
    def rows(self) -> int:
        return self.end - self.starts[0][1]

    def at(self, sequence: int) -> int:
        """Which of `starts` is the first from that sequence on."""
        return bisect_left(self.starts, (sequence, -1))


def run_of(pieces: Sequence[tuple[int, pa.Table]]) -> Run:
    """One run of the rows of consecutive segments. No piece is empty."""
    starts, end = [], 0
    for sequence, piece in pieces:
        starts.append((sequence, end))
        end += piece.num_rows
    table = joined([piece for _, piece in pieces])
    times = pc.min_max(table["time"].cast(pa.int64()))
    return Run(starts, end, table.nbytes, times["min"].as_py(), times["max"].as_py(), table)


def merged(runs: Sequence[Run], tables: Sequence[pa.Table]) -> Run:
    """One run, in memory, of neighbours whose rows are in `tables`."""
    starts: list[tuple[int, int]] = []
    kept, end = [], 0
    for run, table in zip(runs, tables, strict=True):
        dropped = run.starts[0][1]
        starts += [(sequence, row - dropped + end) for sequence, row in run.starts]
        kept.append(table.slice(dropped))
        end += run.end - dropped
    return Run(
        starts,
        end,
        sum(run.memory_bytes for run in runs),
        min(run.time_min for run in runs),
        max(run.time_max for run in runs),
        joined(kept),
    )


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def chunk_bytes_max(tail_bytes_max: int) -> int:
    """Rows in memory that become one chunk: what a merge holds, and what is dropped when room is needed."""
    return min(_CHUNK_BYTES_MAX, tail_bytes_max // _CHUNKS_MIN)


def to_merge(runs: Sequence[Run], bytes_max: int) -> int:
    """How many runs at the end should become one: as long as the next is no larger than those behind it.

    So each is larger than all behind it together, which makes them few, and a row is written again only when
    what it is in doubles.
    """
    count, size = 0, 0
    for run in reversed(runs):
        if count and (run.memory_bytes > size or size + run.memory_bytes > bytes_max):
            break
        count, size = count + 1, size + run.memory_bytes
    return count


class ChunkFolder:
    """Owns a folder that only this user can look into. Safe to use from any thread."""

    def __init__(self, folder: Path, chunk_bytes_max: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder = folder
        self.chunk_bytes_max = chunk_bytes_max
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def write(self, name: str, table: pa.Table) -> ChunkFile:
        """As Parquet. Measured: DuckDB takes 10 to 20 times as long for the maps of an Arrow file."""
        path = self._folder / f"{name}-{next(self._numbers):08d}.parquet"
        try:
            pq.write_table(
                table,
                path,
                row_group_size=_ROW_GROUP_ROWS,
                compression="lz4",
                use_dictionary=with_dictionary(table.schema),
                write_statistics=["time"],
                store_schema=False,
            )
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreUnavailable(
                f"{self._folder} cannot take rows: {error.strerror or error}; free some space, or set "
                "query.temp_dir"
            ) from error
        return ChunkFile(path, path.stat().st_size)

    def read(self, file: ChunkFile, schema: pa.Schema) -> pa.Table:
        """All rows, as they were written. The file must be pinned."""
        return coded_table(pq.read_table(file.path, partitioning=None, use_threads=False), schema)

    def pin(self, file: ChunkFile) -> None:
        with self._lock:
            file.pins += 1

    def unpin(self, file: ChunkFile) -> None:
        with self._lock:
            file.pins -= 1
            gone = file.dropped and file.pins == 0
        if gone:
            self._remove(file)

    @contextlib.contextmanager
    def pinned(self, files: Sequence[ChunkFile]) -> Iterator[None]:
        """They were pinned by the caller; afterwards they are not."""
        try:
            yield
        finally:
            for file in files:
                self.unpin(file)

    def drop(self, file: ChunkFile) -> None:
        """Deletes it, now or when it is no longer pinned."""
        with self._lock:
            gone = file.pins == 0 and not file.dropped
            file.dropped = True
        if gone:
            self._remove(file)

    def _remove(self, file: ChunkFile) -> None:
        with contextlib.suppress(OSError):
            file.path.unlink()
