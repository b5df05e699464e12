"""Files as row groups that follow each other in time, each in the table's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge.identical import Mask
from frazil.pipeline.maintain.merge.inputs import Input
from frazil.pipeline.maintain.merge.order import in_order, row_keys

_GROUP_MAX = 2
"""How much larger than the others a row group may be."""


@dataclass(frozen=True)
class _Unit:
    """Row groups are taken as they are: those of landed files are short stretches already."""

    input: int
    row_group: int
    first_row: int
    rows: int
    bytes: int
    first_micros: int


class Stretches:
    is_sorted = False

    def __init__(
        self,
        layout: Layout,
        inputs: Sequence[Input],
        row_group_bytes: int,
        kept: Sequence[Mask] | None = None,
    ) -> None:
        """`kept` says of each input which of its rows are written. Absent: all."""
        self._layout = layout
        self._inputs = inputs
        self._kept = kept
        self._units = sorted(_units(inputs), key=lambda unit: (unit.first_micros, unit.input, unit.row_group))
        self.rows = sum(unit.rows for unit in self._units)
        total = sum(unit.bytes for unit in self._units)
        self._groups = max(1, round(total / row_group_bytes))
        self._bytes_per_group = total / self._groups
        self.rows_per_group = max((sum(unit.rows for unit in group) for group in self._gathered()), default=1)

    def _gathered(self) -> Iterator[list[_Unit]]:
        """Units that make a row group: as many as come closest to its size."""
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
        for group in self._gathered():
            if sum(unit.bytes for unit in group) > _GROUP_MAX * self._bytes_per_group:
                # Row groups of another writer, too large to be held: cut, as they are.
                pieces: Iterator[list[pa.Table]] = (
                    [table] for unit in group for table in self._read(unit, self._rows_at_once(unit))
                )
            else:
                pieces = iter([[table for unit in group for table in self._read(unit, unit.rows)]])
            for tables in pieces:
                tables = [table for table in tables if table.num_rows]
                if tables:
                    key = np.concatenate(row_keys(tables, self._layout.spec.sort_by))
                    yield in_order(tables, key)

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
