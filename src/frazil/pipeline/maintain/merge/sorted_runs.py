"""Merges sorted files into row groups that are sorted over all files."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from frazil.errors import StoreUnavailable
from frazil.pipeline.datafile import Layout
from frazil.pipeline.inputs import Input
from frazil.pipeline.maintain.merge.order import Longs, cuts, is_sorted, memory_bytes, row_keys, sorted_by_key

_STRIDES_PER_GROUP = 8
WEIGHT_MAX = 3
"""Limit of rows in memory, as a multiple of a row group's bytes. The number of rows per row group comes from
the average row size; a row group with much larger rows gets fewer.
"""
_OPEN_MAX = 32
"""Files that are read at once. Measured: spilling to disk takes a third more CPU; hundreds of open files take
more than twice the memory.
"""
_BATCH_ROWS_MIN, _BATCH_ROWS_MAX = 1024, 16_384
_SPILLED_ROWS_MIN = 256


@dataclass(frozen=True)
class _Piece:
    """Rows of one input, in any order. `tables` can be iterated once."""

    key: Longs
    tables: Iterator[pa.Table]
    bytes: float


class SortedMerge:
    """A merge of sorted inputs. Only the sort columns of all inputs are in memory at once. Each row group
    takes the next rows of each input, so every input is read once, from beginning to end.

    An open file needs memory for each of its columns. So if there are many inputs, and for unsorted inputs of
    other engines, rows are first sorted in portions of one row group and spilled to disk.
    """

    is_sorted = True

    def __init__(
        self,
        layout: Layout,
        inputs: Sequence[Input],
        row_group_bytes: int,
        sort_by: Sequence[str] | None = None,
    ) -> None:
        """`sort_by`: another order than that of the table. Inputs that do not have it are sorted on disk."""
        self._inputs = inputs
        self._row_group_bytes = row_group_bytes
        sort_by = layout.spec.sort_by if sort_by is None else sort_by
        self._keys = row_keys([_key_columns(each, sort_by) for each in inputs], sort_by)
        self.rows = sum(each.rows for each in inputs)
        self._groups = max(1, round(sum(each.bytes for each in inputs) / row_group_bytes))
        self.rows_per_group = max(1, -(-self.rows // self._groups))

    def groups(self) -> Iterator[pa.Table]:
        """Yields the row groups in order. Can be called once."""
        if self._groups == 1:
            tables = [table for each in self._inputs for table in each.read()]
            yield sorted_by_key(tables, np.concatenate(self._keys))
            return
        with contextlib.ExitStack() as stack:
            runs = list(self._runs(stack))
            keys = [key for key, _ in runs]
            lines = cuts(keys, -(-self.rows_per_group // _STRIDES_PER_GROUP))
            first, held, held_bytes = lines[0], [], 0
            for before, line in itertools.pairwise(lines):
                for number, (_, stream) in enumerate(runs):
                    for table in stream.take(int(line[number] - before[number])):
                        held.append((number, table))
                        held_bytes += memory_bytes(table)
                rows = int((line - first).sum())
                if rows >= self.rows_per_group or held_bytes >= WEIGHT_MAX * self._row_group_bytes:
                    yield _group(keys, held, first, line)
                    first, held, held_bytes = line, [], 0
            if held:
                yield _group(keys, held, first, lines[-1])

    def _runs(self, stack: contextlib.ExitStack) -> Iterator[tuple[Longs, Stream]]:
        """Yields sorted runs of rows, with their keys."""
        waiting: list[_Piece] = []
        batch_rows = max(self.rows_per_group // (4 * len(self._inputs)), _BATCH_ROWS_MIN)
        batch_rows = min(batch_rows, _BATCH_ROWS_MAX)
        is_few = len(self._inputs) <= _OPEN_MAX
        for each, key in zip(self._inputs, self._keys, strict=True):
            if is_sorted(key) and (is_few or each.bytes >= self._row_group_bytes):
                yield key, Stream(each.tables(batch_rows))
                continue
            for piece in self._pieces(each, key):
                if waiting and sum(one.bytes for one in waiting) + piece.bytes > self._row_group_bytes:
                    yield self._spilled(waiting, stack)
                waiting.append(piece)
        if waiting:
            yield self._spilled(waiting, stack)

    def _pieces(self, each: Input, key: Longs) -> Iterator[_Piece]:
        count = max(1, -(-each.bytes // self._row_group_bytes))
        rows = -(-each.rows // count)
        stream = Stream(each.tables(rows))
        for first in range(0, each.rows, rows):
            part = key[first : first + rows]
            yield _Piece(part, stream.take(len(part)), each.bytes / count)

    def _spilled(self, pieces: list[_Piece], stack: contextlib.ExitStack) -> tuple[Longs, Stream]:
        """Sorts the pieces and writes them to disk. Empties the list."""
        key = np.concatenate([piece.key for piece in pieces])
        tables: list[pa.Table] = []
        while pieces:  # closes each file before it opens the next
            tables += pieces.pop(0).tables
        # There are about as many spilled runs as row groups.
        batch_rows = max(self.rows_per_group // (4 * self._groups), _SPILLED_ROWS_MIN)
        spilled = stack.enter_context(
            SpilledRows(sorted_by_key(tables, key), min(batch_rows, _BATCH_ROWS_MAX))
        )
        key.sort()
        return key, Stream(spilled.tables())


def _group(keys: list[Longs], held: list[tuple[int, pa.Table]], first: Longs, last: Longs) -> pa.Table:
    held.sort(key=lambda entry: entry[0])  # stable: the pieces of a run stay in their order
    key = np.concatenate([key[begin:end] for key, begin, end in zip(keys, first, last, strict=True)])
    tables = [table for _, table in held]
    held.clear()
    return sorted_by_key(tables, key)


class Stream:
    """A sequence of tables from which any number of rows can be taken."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = tables
        self._rest: pa.Table | None = None

    def take(self, rows: int) -> Iterator[pa.Table]:
        while rows:
            table = self._rest if self._rest is not None else next(self._tables)
            self._rest = None
            if table.num_rows > rows:
                table, self._rest = table.slice(0, rows), table.slice(rows)
            rows -= table.num_rows
            if table.num_rows:
                yield table


def _key_columns(each: Input, sort_by: Sequence[str]) -> pa.Table:
    tables = each.read(columns=sort_by)
    return pa.concat_tables(tables)


class SpilledRows:
    """Sorted rows in a temporary Arrow file on the local disk. Reading holds one batch in memory. The file is
    unlinked while it is open, so it is deleted even if the process is killed.
    """

    def __init__(self, table: pa.Table, batch_rows: int) -> None:
        try:
            descriptor, name = tempfile.mkstemp(prefix="frazil-")
        except OSError as error:
            raise StoreUnavailable(f"cannot create a temporary file: {error}") from None
        os.close(descriptor)
        try:
            with (
                pa.OSFile(name, "wb") as sink,
                pa.ipc.new_file(
                    sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
                ) as writer,
            ):
                writer.write_table(table, batch_rows)
            self._file = pa.OSFile(name)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot write the temporary file {name}: {error}; a merge needs free disk space there"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink()

    def tables(self) -> Iterator[pa.Table]:
        reader = pa.ipc.open_file(self._file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
