"""Decoded rows as files that query workers read."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import StoreUnavailable
from frazil.query.tail.listing import Waiting

_CHUNK_BYTES_MAX = 32 * 2**20
_CHUNKS_MIN = 16
_ROW_GROUP_ROWS = 32_768


class Part(NamedTuple):
    """The rows of one segment in a file."""

    stream: str
    sequence: int
    first_row: int
    end_row: int
    rows_after: int
    """Rows of the stream up to and including this segment, of all tenants."""


@dataclass(eq=False)
class PartialRows:
    """A file of partial rows of a derived table, made from some parts of a chunk. `path` is None if there are
    no rows. The file is deleted with the object.
    """

    path: Path | None
    bytes: int

    def __post_init__(self) -> None:
        if self.path is not None:
            weakref.finalize(self, _remove, self.path).atexit = False


@dataclass(eq=False)
class Chunk:
    """A file of one tenant's rows, with `parts` in row order.

    The file is deleted with the object, when no view and no cut refers to it any more.
    """

    path: Path
    parts: Sequence[Part]
    bytes: int
    """Size of the file."""
    memory_bytes: int
    time_min: int
    time_max: int
    used_at: float
    partial_rows: dict[str, tuple[tuple[Part, ...], PartialRows]] = field(default_factory=dict)
    """By derived table: the parts from which its partial rows were made, and these rows. They live as long as
    the chunk, so what drops the chunk drops them: age, lack of space, an erasure.
    """

    def __post_init__(self) -> None:
        weakref.finalize(self, _remove, self.path).atexit = False

    @property
    def bytes_with_partial_rows(self) -> int:
        return self.bytes + sum(made.bytes for _, made in self.partial_rows.values())

    @property
    def rows(self) -> int:
        return self.parts[-1].end_row

    def waiting_parts(self, waiting: Waiting) -> list[Part]:
        """Return the parts whose segments have not landed yet."""
        return [part for part in self.parts if (part.stream, part.sequence) in waiting]


Rows = Sequence[tuple[Part, pa.Table]]
"""Parts with their rows. The row numbers in the parts may be relative to any row."""


class ChunkFolder:
    """Writes and reads chunks in a folder that only this user can access. Thread-safe."""

    def __init__(self, folder: Path, tail_bytes_max: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder = folder
        self.memory_bytes_max = min(_CHUNK_BYTES_MAX, tail_bytes_max // _CHUNKS_MIN)
        """Memory of the rows of one file. Bounds the memory of a merge, and the size of one eviction."""
        self._numbers = itertools.count()

    def write(self, rows: Rows, dictionary: Sequence[str], now: float) -> Chunk:
        """Write a Parquet file, with dictionaries for these leaf columns. Measured: DuckDB takes 10 to 20
        times as long to read the maps of an Arrow file.
        """
        table = pa.concat_tables([piece for _, piece in rows])
        path = self._written(table, dictionary)
        ends = list(itertools.accumulate(piece.num_rows for _, piece in rows))
        parts = [
            part._replace(first_row=end - piece.num_rows, end_row=end)
            for (part, piece), end in zip(rows, ends, strict=True)
        ]
        times = pc.min_max(table["time"].cast(pa.int64()))
        first, last = times["min"].as_py(), times["max"].as_py()
        return Chunk(path, parts, path.stat().st_size, table.nbytes, first, last, now)

    def write_partial_rows(self, table: pa.Table, dictionary: Sequence[str]) -> PartialRows:
        if table.num_rows == 0:
            return PartialRows(None, 0)
        path = self._written(table, dictionary)
        return PartialRows(path, path.stat().st_size)

    def _written(self, table: pa.Table, dictionary: Sequence[str]) -> Path:
        path = self._folder / f"{next(self._numbers):08d}.parquet"
        try:
            pq.write_table(
                table,
                path,
                row_group_size=_ROW_GROUP_ROWS,
                compression="lz4",
                use_dictionary=[*dictionary],
                write_statistics=["time"],
                store_schema=False,
            )
        except OSError as error:
            path.unlink(missing_ok=True)
            raise StoreUnavailable(
                f"temporary files cannot be written to {self._folder}: {error.strerror or error}: free disk "
                "space, or set query.temp_dir"
            ) from error
        return path

    def read(self, chunk: Chunk, schema: pa.Schema, parts: Iterable[Part]) -> Rows:
        table = pq.ParquetFile(chunk.path).read(use_threads=False).cast(schema)
        return [(part, table.slice(part.first_row, part.end_row - part.first_row)) for part in parts]


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
