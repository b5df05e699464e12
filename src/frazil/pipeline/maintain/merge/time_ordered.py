"""Merges files into row groups that follow each other in time, each sorted in the table's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.pipeline.datafile import Layout
from frazil.pipeline.inputs import Input
from frazil.pipeline.maintain.merge.identical import Mask
from frazil.pipeline.maintain.merge.order import row_keys, sorted_by_key

_GROUP_MAX = 2
"""How many times larger than the average a row group may be."""


@dataclass(frozen=True)
class _Unit:
    """An input row group, the smallest unit of the merge: row groups of landed files cover short time
    ranges.
    """

    input: int
    row_group: int
    first_row: int
    rows: int
    bytes: int
    first_micros: int


class TimeOrderedMerge:
    """A merge that orders the inputs' row groups by time and sorts the rows within each output row group."""

    is_sorted = False

    def __init__(
        self,
        layout: Layout,
        inputs: Sequence[Input],
        row_group_bytes: int,
        kept: Sequence[Mask] | None = None,
    ) -> None:
        """`kept` has a mask of the rows to write for each input; None writes all rows."""
        self._layout = layout
        self._inputs = inputs
        self._kept = kept
        self._units = sorted(_units(inputs), key=lambda unit: (unit.first_micros, unit.input, unit.row_group))
        self.rows = sum(unit.rows for unit in self._units)
        total = sum(unit.bytes for unit in self._units)
        self._groups = max(1, round(total / row_group_bytes))
        self._bytes_per_group = total / self._groups
        self.rows_per_group = max((sum(unit.rows for unit in group) for group in self._grouped()), default=1)

    def _grouped(self) -> Iterator[list[_Unit]]:
        """Yields the units of each row group: as many as come closest to its target size."""
        group: list[_Unit] = []
        size = 0
        for unit in self._units:
            if group and size + unit.bytes / 2 > self._bytes_per_group:
                yield group
                group, size = [], 0
            group.append(unit)
            size += unit.bytes
        if group:
            yield group

    def groups(self) -> Iterator[pa.Table]:
        for group in self._grouped():
            if sum(unit.bytes for unit in group) > _GROUP_MAX * self._bytes_per_group:
                # Row groups of other engines that are too large for memory are split.
                pieces: Iterator[list[pa.Table]] = (
                    [table] for unit in group for table in self._read(unit, self._rows_at_once(unit))
                )
            else:
                pieces = iter([[table for unit in group for table in self._read(unit, unit.rows)]])
            for tables in pieces:
                tables = [table for table in tables if table.num_rows]
                if tables:
                    key = np.concatenate(row_keys(tables, self._layout.spec.sort_by))
                    yield sorted_by_key(tables, key)

    def _rows_at_once(self, unit: _Unit) -> int:
        return max(1, int(unit.rows * self._bytes_per_group / max(1, unit.bytes)))

    def _read(self, unit: _Unit, rows_at_once: int) -> Iterator[pa.Table]:
        kept, row = self._kept[unit.input] if self._kept is not None else None, unit.first_row
        for table in self._inputs[unit.input].tables(rows_at_once, row_groups=[unit.row_group]):
            yield table if kept is None else table.filter(pa.array(kept[row : row + table.num_rows]))
            row += table.num_rows


def _units(inputs: Sequence[Input]) -> Iterator[_Unit]:
    for number, each in enumerate(inputs):
        first_row = 0
        for group in each.row_groups:
            first = group.first_micros
            if first is None:
                first = _first_micros(each, group.number)
            yield _Unit(number, group.number, first_row, group.rows, group.bytes, first)
            first_row += group.rows


def _first_micros(each: Input, row_group: int) -> int:
    times = pa.concat_tables(each.read(row_groups=[row_group], columns=["time"]))["time"]
    return pc.min(times.cast(pa.int64())).as_py() or 0
