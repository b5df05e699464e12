"""Past days of a derived table that still have to be derived, kept in a property of the table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.lake.commits.metadata_commit import MetadataChange, commit_metadata

DAYS_LEFT = "frazil.derive.days-left"
"""Table property (JSON): days since 1970 whose rows have to be computed again from the source."""


def days_left(metadata: TableMetadata) -> list[int]:
    """Returns the days, newest first."""
    try:
        found = json.loads(metadata.properties.get(DAYS_LEFT, "[]"))
    except ValueError:
        return []
    return (
        sorted((day for day in found if isinstance(day, int)), reverse=True)
        if isinstance(found, list)
        else []
    )


def add_days(catalog: Catalog, table: Table, days: Collection[int]) -> TableMetadata:
    return _change(catalog, table, lambda before: before | {*days})


def remove_days(catalog: Catalog, table: Table, days: Collection[int]) -> TableMetadata:
    return _change(catalog, table, lambda before: before - {*days})


def _change(catalog: Catalog, table: Table, change: Callable[[set[int]], set[int]]) -> TableMetadata:
    def plan(now: Table) -> MetadataChange | None:
        before = set(days_left(now.metadata))
        after = change(before)
        if after == before:
            return None
        text = json.dumps(sorted(after, reverse=True))
        return MetadataChange((), (SetPropertiesUpdate(updates={DAYS_LEFT: text}),))

    return commit_metadata(catalog, table, plan)
