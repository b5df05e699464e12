"""Compares what a source holds of past days with what a derived table has of them, before they are derived
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table

from frazil.lake.counted import counted_in, rows_by_source
from frazil.lake.live_files import live_files, partition_of
from frazil.pipeline.derive.source import SourceFile, known, position_of
from frazil.position import NewRows
from frazil.tables import TableSpec


@dataclass
class SurveyedDay:
    """Rows of the source up to the table's position, and rows of the derived table, by tenant. A table that
    does not count rows of its source has its own number of rows.
    """

    day: int
    source_files: int = 0
    source_bytes: int = 0
    source_rows: Counter[str] = field(default_factory=Counter)
    derived_rows: Counter[str] = field(default_factory=Counter)
    is_counted: bool = False

    @property
    def losses(self) -> Mapping[str, tuple[int, int]]:
        """The tenants whose rows would get lost, with the rows that the table has and that the source holds.
        If the table does not count rows, only those tenants of whom the source holds none.
        """
        found = {}
        for tenant, rows in sorted(self.derived_rows.items()):
            held = self.source_rows[tenant]
            if rows > held if self.is_counted else held == 0 < rows:
                found[tenant] = rows, held
        return found


def survey(
    source: Table,
    table: Table,
    spec: TableSpec,
    days: Collection[int],
    tenant: str | None = None,
) -> list[SurveyedDay]:
    """Returns the days with rows (of one tenant), newest first; of the source, rows up to the derived table's
    position. Reads no rows of the source, except for one column of files that were written after it.
    """
    derived = spec.derived
    assert derived is not None  # noqa: S101
    found: dict[int, SurveyedDay] = {}

    def at(day: int | None) -> SurveyedDay:
        return found.setdefault(day or 0, SurveyedDay(day or 0, is_counted=bool(derived.counts)))

    cut = known(source, position_of(table), days, tenant)
    for each in cut.files:
        if rows := _known_rows(source, each, cut.new_rows):
            owner, day = each.partition
            surveyed = at(day)
            surveyed.source_rows[owner or ""] += rows
            surveyed.source_files += 1
            surveyed.source_bytes += each.bytes
    for live in live_files(table):
        owner, day = partition_of(live.file)
        if day in days and (tenant is None or owner == tenant):
            count = counted_in(table, [live.file], derived) if derived.counts else live.file.record_count
            at(day).derived_rows[owner or ""] += count
    return sorted(found.values(), key=lambda each: -each.day)


def _known_rows(source: Table, file: SourceFile, new_rows: NewRows) -> int:
    if file.part == "all":
        return int(file.file.record_count)
    try:
        found = rows_by_source(source.io, file.file.file_path)
    except FileNotFoundError:  # merged just now
        return 0
    return sum(
        rows for name, rows in found.items() if not new_rows.is_uncertain(name) and not new_rows.is_new(name)
    )
