"""Reads data files, to rewrite or to derive from, in bounded memory, with dictionary-encoded text columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile

from frazil.errors import StoreUnavailable, reason_of
from frazil.pipeline.datafile import Layout
from frazil.tables.columns import TIMESTAMP
from frazil.tables.encoding import leaves
from frazil.tables.promoted import fingerprint_of
from frazil.wal.rowgroups import coded_table

_READ_BYTES = 16 * 2**10
"""Read buffer per column. A file has about eighty columns."""
_CHECKED_ROWS = 16_384
_STORE_FAILURES_MAX = 3
"""After this many failures the store is considered unavailable: each further file could take minutes
to fail.
"""


@dataclass(frozen=True)
class RowGroup:
    number: int
    rows: int
    bytes: int
    """Uncompressed size in Parquet's metadata."""
    first_micros: int | None
    """The smallest `time`, if there are statistics."""


class Input:
    """An open data file. Returns rows in the layout's types. Fills columns that the file does not have, and
    promoted columns that were filled from other attributes.
    """

    def __init__(self, layout: Layout, file: DataFile, path: Path) -> None:
        """Raises FileNotFoundError."""
        self.file = file
        self._layout = layout
        self._path = str(path)
        self._footer = pq.read_metadata(self._path)
        groups = (_row_group(self._footer, number) for number in range(self._footer.num_row_groups))
        self.row_groups = [group for group in groups if group.rows]
        self.rows: int = self._footer.num_rows
        self.bytes = sum(group.bytes for group in self.row_groups)

    def tables(
        self,
        batch_rows: int,
        *,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yields all rows in order, at most `batch_rows` at a time. With `columns`, yields only those that
        the file has, and fills nothing.
        """
        groups = [group.number for group in self.row_groups] if row_groups is None else list(row_groups)
        names = self._columns if columns is None else [name for name in columns if name in self._columns]
        done = 0
        with contextlib.closing(self._open(self._coded)) as file:
            try:
                for batch in file.iter_batches(batch_rows, groups, names, use_threads=False):
                    done += batch.num_rows
                    yield self._table(batch, fill=columns is None)
                return
            except pa.ArrowNotImplementedError:
                pass  # too many distinct values: only a part of the column is dictionary-encoded
        with contextlib.closing(self._open([])) as file:
            for batch in file.iter_batches(batch_rows, groups, names, use_threads=False):
                skipped = min(done, batch.num_rows)
                done -= skipped
                if skipped < batch.num_rows:
                    yield self._table(batch.slice(skipped), fill=columns is None)

    def read(
        self, *, row_groups: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> list[pa.Table]:
        return list(self.tables(max(1, self.rows), row_groups=row_groups, columns=columns))

    def damage(self) -> str | None:
        """Reads all rows. Returns why they cannot be read, or None."""
        try:
            for _ in self.tables(_CHECKED_ROWS):
                pass
        except MemoryError:
            raise
        except Exception as error:
            return reason_of(error)
        return None

    def _open(self, coded: list[str]) -> pq.ParquetFile:
        return pq.ParquetFile(
            self._path,
            metadata=self._footer,
            read_dictionary=coded,
            buffer_size=_READ_BYTES,
            pre_buffer=False,
        )

    @cached_property
    def _columns(self) -> list[str]:
        have = set(self._footer.schema.to_arrow_schema().names)
        return [name for name in self._layout.coded.names if name in have]

    @cached_property
    def _coded(self) -> list[str]:
        existing = {self._footer.schema.column(number).path for number in range(self._footer.num_columns)}
        return [
            leaf
            for leaf, type_ in leaves(self._layout.coded)
            if pa.types.is_dictionary(type_) and leaf in existing
        ]

    def _table(self, batch: pa.RecordBatch, *, fill: bool) -> pa.Table:
        table = coded_table(pa.Table.from_batches([batch]), self._layout.coded)
        if lost := set(batch.schema.names) - set(table.column_names):
            raise ValueError(
                f"{self.file.file_path} is not rewritten: its column {sorted(lost)[0]} has another type than "
                "in the table"
            )
        if not fill:
            return table
        filled = self._layout.filled(table, fingerprint_of(self.file.file_path))
        return filled.select(self._layout.coded.names)


def _row_group(footer: pq.FileMetaData, number: int) -> RowGroup:
    group, first = footer.row_group(number), None
    for column in range(footer.num_columns):
        chunk = group.column(column)
        if chunk.path_in_schema == "time":
            if chunk.statistics is not None and chunk.statistics.has_min_max:
                first = pa.scalar(chunk.statistics.min, TIMESTAMP).cast(pa.int64()).as_py()
            break
    return RowGroup(number, group.num_rows, group.total_byte_size, first)


@contextlib.contextmanager
def opened(
    layout: Layout, files: Sequence[DataFile], unreadable: dict[str, str] | None = None
) -> Iterator[tuple[list[Input], list[str]]]:
    """Yields the open files and the paths of missing files. Remote files are copied to a local disk for the
    time of the block.

    Adds unreadable files, and files with another number of rows than the table says, to `unreadable` with the
    reason. Stops early if the store fails. If `unreadable` is None, raises instead.
    """
    found: list[Input] = []
    vanished: list[str] = []
    store_failures = 0
    with contextlib.ExitStack() as copies:
        for file in files:
            try:
                each = Input(layout, file, copies.enter_context(layout.io.local(file.file_path)))
            except FileNotFoundError:
                vanished.append(file.file_path)
                continue
            except Exception as error:
                if unreadable is None or isinstance(error, MemoryError):
                    raise
                unreadable[file.file_path] = reason_of(error)
                store_failures += _is_store_error(error)
                if store_failures == _STORE_FAILURES_MAX:
                    break
                continue
            found.append(each)
            if unreadable is not None and each.rows != file.record_count:
                unreadable[file.file_path] = (
                    f"it has {each.rows} rows, but the table's metadata says {file.record_count}"
                )
        yield found, vanished


def _is_store_error(error: Exception) -> bool:
    """Arrow also raises OSError for the content of a file, but without errno."""
    return isinstance(error, StoreUnavailable) or (isinstance(error, OSError) and error.errno is not None)
