"""Past days of a derived table that still have to be derived, kept in properties of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.lake.commits.metadata_commit import MetadataChange, commit_metadata
from frazil.lake.derived_days import DAYS_GUARDED, DAYS_LEFT, days_left, days_of

__all__ = ["add_days", "days_guarded", "days_left", "remove_days"]
_Days = tuple[set[int], set[int]]


def days_guarded(metadata: TableMetadata) -> list[int]:
    """Returns the days that are derived only if no rows get lost."""
    return days_of(metadata, DAYS_GUARDED)


def add_days(
    catalog: Catalog, table: Table, days: Collection[int], *, guarded: bool = False
) -> TableMetadata:
    """Adds days. A day that was added once without `guarded` is not guarded."""

    def change(left: set[int], kept: set[int]) -> _Days:
        new = {*days}
        return left | new, kept | (new - (left - kept)) if guarded else kept - new

    return _change(catalog, table, change)


def remove_days(catalog: Catalog, table: Table, days: Collection[int]) -> TableMetadata:
    return _change(catalog, table, lambda left, kept: (left - {*days}, kept - {*days}))


def _change(catalog: Catalog, table: Table, change: Callable[[set[int], set[int]], _Days]) -> TableMetadata:
    def plan(now: Table) -> MetadataChange | None:
        before = set(days_left(now.metadata)), set(days_guarded(now.metadata))
        after = change(*before)
        if after == before:
            return None
        texts = {
            name: json.dumps(sorted(days, reverse=True))
            for name, days in zip((DAYS_LEFT, DAYS_GUARDED), after, strict=True)
        }
        return MetadataChange((), (SetPropertiesUpdate(updates=texts),))

    return commit_metadata(catalog, table, plan)
