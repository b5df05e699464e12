"""Combines the partial rows of each key of a derived table while its files are merged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge.order import row_keys, sorted_by_key
from frazil.pipeline.maintain.merge.sorted_runs import WEIGHT_MAX, SortedMerge
from frazil.tables.columns import RESOLUTION, Column, TableSpec
from frazil.tables.derived.combine import combine, completed
from frazil.tables.derived.rules import ANY

_ROWS_AT_ONCE = 65_536
"""Rows that are combined at once. Their text is not dictionary-encoded then, so a whole row group would need
several times its memory.
"""


class CombinedMerge:
    """A sorted merge with one row for each key. Equal keys are adjacent, because `sort_by` is the key. The
    last row is held back until the next rows are read, so no key is in two row groups or two files.
    """

    is_sorted = True

    def __init__(
        self, layout: Layout, merge: SortedMerge, row_group_bytes: int, *, by_resolution: bool
    ) -> None:
        """`by_resolution`: each row group has rows of one resolution."""
        self._merge = merge
        self._names = layout.coded.names
        self._spec = with_other_columns(layout)
        self._bytes_max = WEIGHT_MAX * row_group_bytes
        self._by_resolution = by_resolution
        self.rows = merge.rows
        self.rows_per_group = merge.rows_per_group
        self.combined = 0
        """The rows that became part of another row, of the groups that were read so far."""

    def groups(self) -> Iterator[pa.Table]:
        """Yields the row groups in order, each about as large as those of the inputs. Can be called once."""
        ready: list[pa.Table] = []
        rows = size = 0
        for piece in self._pieces():
            is_full = rows + piece.num_rows > self.rows_per_group or size + piece.nbytes > self._bytes_max
            if ready and (is_full or self._is_of_next_resolution(piece, ready[-1])):
                yield pa.concat_tables(ready)
                ready, rows, size = [], 0, 0
            ready.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
        if ready:
            yield pa.concat_tables(ready)

    def _pieces(self) -> Iterator[pa.Table]:
        """Yields the rows of each key once, in order. If resolutions are split, a piece has one."""
        for found in self._combined():
            rows = found.select(self._names)
            if not self._by_resolution:
                yield rows
                continue
            resolutions = rows[RESOLUTION].to_numpy()
            cuts = (np.flatnonzero(resolutions[1:] != resolutions[:-1]) + 1).tolist()
            for first, end in zip([0, *cuts], [*cuts, rows.num_rows], strict=True):
                yield rows.slice(first, end - first)

    def _combined(self) -> Iterator[pa.Table]:
        held: pa.Table | None = None
        for part in self._parts():
            rows = completed(part, self._spec)
            if held is not None:
                rows = pa.concat_tables([held, rows])
            found = self._sorted(combine(rows, self._spec))
            self.combined += rows.num_rows - found.num_rows
            last = found.num_rows - 1
            held = found.take(pa.array([last]))  # a copy: a slice would keep all rows in memory
            if last:
                yield found.slice(0, last)
        if held is not None:
            yield held

    def _parts(self) -> Iterator[pa.Table]:
        for group in self._merge.groups():
            for first in range(0, group.num_rows, _ROWS_AT_ONCE):
                yield group.slice(first, _ROWS_AT_ONCE)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        (key,) = row_keys([rows], self._spec.sort_by)
        return sorted_by_key([rows], key)

    def _is_of_next_resolution(self, piece: pa.Table, before: pa.Table) -> bool:
        return self._by_resolution and bool(piece[RESOLUTION][0] != before[RESOLUTION][0])


def with_other_columns(layout: Layout) -> TableSpec:
    """Returns the spec, also with columns that other engines added, and columns of other releases."""
    others = [
        Column(name, _plain(layout.coded.field(name).type), "", "", merge=ANY)
        for name in layout.coded.names
        if not layout.spec.has(name)
    ]
    return layout.spec.with_columns(*others)


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_
