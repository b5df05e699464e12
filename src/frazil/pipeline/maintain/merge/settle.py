"""Settles the pending rows of a tenant and day of a derived table: puts the rows that follow from them in
their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile

from frazil.errors import StoreUnavailable
from frazil.pipeline.datafile import DataFileWriter, Layout, file_name
from frazil.pipeline.inputs import Input
from frazil.pipeline.maintain.merge.combined import with_other_columns
from frazil.pipeline.maintain.merge.order import row_keys, sorted_by_key
from frazil.pipeline.maintain.merge.sorted_runs import SortedMerge
from frazil.tables.columns import RESOLUTION
from frazil.tables.derived.combine import combine, completed, rolled_up
from frazil.tables.derived.rules import PENDING_RESOLUTIONS

_ROWS_AT_ONCE = 65_536
_MADE_BYTES_MAX = 64 * 2**20
"""Rows of results in memory. They are few: one for each key. More are written, and merged later."""


class Settling:
    """Reads pending rows sorted by `Pending.by`, so that the rows of a group are adjacent, and keeps the last
    group until the next rows are read. Rows of results that are in the same files are combined with those
    that are made.
    """

    def __init__(
        self, layout: Layout, inputs: Sequence[Input], row_group_bytes: int, settled_until: float
    ) -> None:
        self._spec = with_other_columns(layout)
        derived = self._spec.derived
        assert derived is not None and derived.pending is not None  # noqa: S101, PT018
        self._pending = derived.pending
        self._latest = int(settled_until * 1_000_000)
        order = sorted(self._spec.sort_by, key=lambda name: name != self._pending.by)
        self._merge = SortedMerge(layout, inputs, row_group_bytes, order)
        self._names = layout.coded.names
        self.rows_per_group = self._merge.rows_per_group
        self._results: list[pa.Table] = []
        self._waiting: dict[int, list[pa.Table]] = {}
        self._rows_out = 0
        self.made = 0
        """By how many rows there are more."""
        self.combined = 0
        """By how many rows there are fewer. At most one of both numbers is not zero."""

    def groups(self) -> Iterator[pa.Table]:
        """Yields row groups of one resolution each. Those of a resolution are sorted, and pending ones among
        each other too. Can be called once.
        """
        for rows in self._whole_groups():
            self._settle(rows)
            yield from self._ready()
        yield from self._ready(is_end=True)
        more = self._rows_out - self._merge.rows
        self.made, self.combined = max(0, more), max(0, -more)

    def _whole_groups(self) -> Iterator[pa.Table]:
        """Yields all rows, never a part of a group of pending ones."""
        held: pa.Table | None = None
        for group in self._merge.groups():
            for first in range(0, group.num_rows, _ROWS_AT_ONCE):
                rows = completed(group.slice(first, _ROWS_AT_ONCE), self._spec)
                rows = rows if held is None else pa.concat_tables([held, rows])
                ids = rows[self._pending.by]
                last = ids[rows.num_rows - 1]
                is_last = pc.is_null(ids) if not last.is_valid else pc.fill_null(pc.equal(ids, last), False)
                held = rows.filter(is_last) if last.is_valid else None
                if held is not None and held.num_rows > _ROWS_AT_ONCE:  # a made-up id that occurs very often
                    held = combine(held, self._spec)
                yield rows.filter(pc.invert(is_last)) if last.is_valid else rows
        if held is not None:
            yield held

    def _settle(self, rows: pa.Table) -> None:
        is_pending = pc.is_in(rows[RESOLUTION], pa.array(PENDING_RESOLUTIONS, pa.int32()))
        results, pending = rows.filter(pc.invert(is_pending)), rows.filter(is_pending)
        if results.num_rows:
            self._results.append(results)
        if pending.num_rows:
            made, pending = self._pending.settle(combine(pending, self._spec), self._latest)
            if made.num_rows:
                self._results.append(completed(rolled_up(made, self._spec), self._spec))
            self._wait(combine(pending, self._spec))

    def _wait(self, rows: pa.Table) -> None:
        for resolution in pc.unique(rows[RESOLUTION]).to_pylist():
            part = rows.filter(pc.equal(rows[RESOLUTION], resolution))
            self._waiting.setdefault(resolution, []).append(self._sorted(part))

    def _ready(self, *, is_end: bool = False) -> Iterator[pa.Table]:
        if sum(each.nbytes for each in self._results) >= _MADE_BYTES_MAX or is_end:
            self._results = [combine(pa.concat_tables(self._results), self._spec)] if self._results else []
        if self._results and (self._results[0].nbytes >= _MADE_BYTES_MAX // 2 or is_end):
            self._wait(self._results.pop(0))
        for resolution in sorted(self._waiting):
            rows = sum(each.num_rows for each in self._waiting[resolution])
            if rows >= self.rows_per_group or is_end or resolution not in PENDING_RESOLUTIONS:
                found = pa.concat_tables(self._waiting.pop(resolution)).select(self._names)
                self._rows_out += rows
                for first in range(0, rows, self.rows_per_group):
                    yield found.slice(first, self.rows_per_group)

    def _sorted(self, rows: pa.Table) -> pa.Table:
        (key,) = row_keys([rows], self._spec.sort_by)
        return sorted_by_key([rows], key)


def write_by_resolution(
    layout: Layout,
    tenant: str | None,
    day: int | None,
    settling: Settling,
    is_full: Callable[[DataFileWriter], bool],
) -> list[DataFile]:
    """Writes each resolution to files of its own, which are open at the same time. Deletes all files if
    writing fails."""
    name, written = file_name(layout), list[DataFile]()
    files: dict[int, DataFileWriter] = {}
    count = 0
    try:
        with contextlib.ExitStack() as unfinished:
            for group in settling.groups():
                resolution = int(group[RESOLUTION][0].as_py())
                file = files.get(resolution)
                if file is None:
                    file = DataFileWriter(layout, tenant, day, f"{name}-{count:05d}", settling.rows_per_group)
                    files[resolution] = unfinished.enter_context(file)
                    count += 1
                file.write(group)
                if is_full(file):
                    written.append(_finished(files.pop(resolution), resolution))
            for resolution, file in files.items():
                written.append(_finished(file, resolution))
    except BaseException:
        for done in written:
            with contextlib.suppress(StoreUnavailable):  # the file becomes an orphan
                layout.io.delete(done.file_path)
        raise
    return written


def _finished(file: DataFileWriter, resolution: int) -> DataFile:
    return file.finish(is_sorted=file.row_groups == 1 or resolution in PENDING_RESOLUTIONS)
