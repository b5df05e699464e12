"""Files that are each in the table's order, as row groups that are in that order over all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.inputs import Input
from frazil.pipeline.maintain.order import Longs, cuts, is_sorted, row_keys
from frazil.pipeline.maintain.rows import in_order, weight

_STRIDES_PER_GROUP = 8
_WEIGHT_MAX = 3
"""Rows in memory, as a multiple of a row group's bytes. Averages say how many rows a row group gets; where
those of one service are much larger than others, it gets fewer.
"""
_BATCH_ROWS_MIN, _BATCH_ROWS_MAX = 1024, 16_384


class Runs:
    """Only the columns to sort by are read of all inputs at once. As each input is in order, a row group
    takes the next rows of each, and every input is read once, from its beginning to its end.
    """

    is_sorted = True

    def __init__(self, layout: Layout, inputs: Sequence[Input], row_group_bytes: int) -> None:
        self._layout = layout
        self._bytes_max = _WEIGHT_MAX * row_group_bytes
        self.inputs, self.left_alone, self._keys, self._orders = self._sorted(inputs, row_group_bytes)
        self.rows = sum(each.rows for each in self.inputs)
        groups = max(1, round(sum(each.bytes for each in self.inputs) / row_group_bytes))
        self.rows_per_group = max(1, -(-self.rows // groups))
        self._strides = 1 if groups == 1 else _STRIDES_PER_GROUP

    def _sorted(
        self, inputs: Sequence[Input], bytes_max: int
    ) -> tuple[list[Input], list[Input], list[Longs], dict[int, Longs]]:
        """Inputs and the keys of their rows, in order. Of one that is in no order or in another, as other
        engines may write it, the order is made here, and it is held in memory, if it is not too large.
        """
        sort_by = self._layout.spec.sort_by
        keys = row_keys([_key_columns(each, sort_by) for each in inputs], sort_by)
        used: list[Input] = []
        left: list[Input] = []
        used_keys: list[Longs] = []
        orders: dict[int, Longs] = {}
        for each, key in zip(inputs, keys, strict=True):
            if not is_sorted(key):
                if each.bytes > bytes_max:
                    left.append(each)
                    continue
                bytes_max -= each.bytes
                order = np.argsort(key, kind="stable")
                orders[len(used)], key = order, key[order]
            used.append(each)
            used_keys.append(key)
        return used, left, used_keys, orders

    def groups(self) -> Iterator[pa.Table]:
        """Row groups, in order."""
        lines = cuts(self._keys, -(-self.rows_per_group // self._strides))
        batch_rows = self.rows_per_group // max(1, 4 * len(self.inputs))
        batch_rows = min(max(batch_rows, _BATCH_ROWS_MIN), _BATCH_ROWS_MAX)
        streams = [self._stream(number, batch_rows) for number in range(len(self.inputs))]
        first, held, held_bytes = lines[0], [], 0
        for before, line in itertools.pairwise(lines):
            for number, stream in enumerate(streams):
                for table in stream.take(int(line[number] - before[number])):
                    held.append((number, table))
                    held_bytes += weight(table)
            rows = int((line - first).sum())
            if rows >= self.rows_per_group or held_bytes >= self._bytes_max:
                yield self._group(held, first, line)
                first, held, held_bytes = line, [], 0
        if held:
            yield self._group(held, first, lines[-1])

    def _group(self, held: list[tuple[int, pa.Table]], first: Longs, last: Longs) -> pa.Table:
        held.sort(key=lambda entry: entry[0])  # stable: the pieces of an input stay in their order
        key = np.concatenate(
            [key[begin:end] for key, begin, end in zip(self._keys, first, last, strict=True)]
        )
        tables = [table for _, table in held]
        held.clear()
        return in_order(tables, key)

    def _stream(self, number: int, batch_rows: int) -> Stream:
        each = self.inputs[number]
        if number not in self._orders:
            return Stream(each.tables(batch_rows))
        whole = pa.concat_tables(each.read()).unify_dictionaries().combine_chunks()
        return Stream(iter([whole.take(pa.array(self._orders[number]))]))


class Stream:
    """Tables of any length, taken by rows."""

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
