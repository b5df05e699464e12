"""Bounds how many pending rows one tenant adds to a table on one day, such as spans without the other side
of their call (`Derived.pending`).

A client that makes up ids of spans, or whose servers send no spans, leaves a pending row for each call.
Queries read each of them until it is settled. Beyond the bound, pending rows are given up: what follows from
each of them alone is written, so calls are still counted.

Nothing is remembered: the metadata of the table's files tells how many pending rows they hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.live_files import FilePartition, live_files, partition_of
from frazil.pipeline.derive.source import Cut, SourceFile
from frazil.tables import TableSpec
from frazil.tables.columns import RECEIVED, RESOLUTION, TENANT, TIME
from frazil.tables.derived.combine import combine, completed, rolled_up
from frazil.tables.derived.rules import OPEN

_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True)
class Room:
    """How many pending rows a job may add of one tenant and day, and how many rows of the source it reads."""

    rows: int
    source_rows: int


Rooms = Mapping[FilePartition, Room]
"""Of the tenants and days that the job could fill."""


def rooms(spec: TableSpec, table: Table, cut: Cut, rows_max: int, *, replacing: bool) -> Rooms:
    """Returns the room of each tenant and day of which the cut has more rows than there is room. `replacing`:
    the rows that the table holds of these days will be removed.
    """
    if spec.derived is None or spec.derived.pending is None:
        return {}
    source: Counter[FilePartition] = Counter()
    for each in cut.files:
        source[each.partition] += each.file.record_count
    held: Counter[FilePartition] = (
        Counter() if replacing else pending_rows(table, {each.day for each in source})
    )
    return {
        partition: Room(max(0, rows_max - held[partition]), rows)
        for partition, rows in source.items()
        if rows + held[partition] > rows_max
    }


def pending_rows(table: Table, days: Iterable[int | None]) -> Counter[FilePartition]:
    """Returns how many pending rows the table holds of each tenant and day."""
    wanted, field_id = {*days}, table.schema().find_field(RECEIVED).field_id
    found: Counter[FilePartition] = Counter()
    for each in live_files(table, days=wanted):
        if (partition := partition_of(each.file)).day in wanted:
            found[partition] += _pending_rows(each.file, field_id)
    return found


def _pending_rows(file: DataFile, field_id: int) -> int:
    """Returns how many rows have a `received_time`; all if the metadata does not tell."""
    nulls = (file.null_value_counts or {}).get(field_id, 0)
    return int(file.record_count) - nulls


class Waiting:
    """Decides in one task which pending rows are written. Each task has its share of the room."""

    def __init__(self, spec: TableSpec, found: Rooms, files: Sequence[SourceFile]) -> None:
        assert spec.derived is not None and spec.derived.pending is not None  # noqa: S101, PT018
        self._spec, self._pending = spec, spec.derived.pending
        own: Counter[FilePartition] = Counter()
        for each in files:
            own[each.partition] += each.file.record_count
        self._left = {
            partition: room.rows * own[partition] // max(1, room.source_rows)
            for partition, room in found.items()
        }
        self.given_up: Counter[FilePartition] = Counter()

    def kept(self, rows: pa.Table) -> pa.Table:
        """Returns the rows to write. Pending ones with the least ids are preferred, so that tasks that see
        halves of the same calls tend to keep the same.
        """
        excess = np.zeros(rows.num_rows, np.bool_)
        is_pending = rows[RESOLUTION].to_numpy() == OPEN
        for partition, left in self._left.items():
            places = np.flatnonzero(is_pending & _is_of(rows, partition))
            self._left[partition] = max(0, left - len(places))
            if len(places) > left:
                ids = rows[self._pending.by].to_numpy()[places]
                excess[places[np.argsort(ids, kind="stable")[left:]]] = True
                self.given_up[partition] += len(places) - left
        if not excess.any():
            return rows
        given_up = completed(rows.filter(pa.array(excess)), self._spec)
        made = rolled_up(self._pending.give_up(given_up), self._spec, coded=True)
        kept = completed(rows.filter(pa.array(~excess)), self._spec, coded=True)
        both = pa.concat_tables([kept, made]).unify_dictionaries()
        return combine(both, self._spec, within_day=True, coded=True)


def _is_of(rows: pa.Table, partition: FilePartition) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = rows[TIME].cast(pa.int64()).to_numpy() // _DAY_MICROS == partition.day
    tenants = pc.equal(rows[TENANT].cast(pa.string()), partition.tenant)
    found &= pc.fill_null(tenants, False).to_numpy(zero_copy_only=False)
    return found
