"""The property of a derived table that names the past days which still have to be derived."""

from __future__ import annotations

import json

from pyiceberg.table.metadata import TableMetadata

DAYS_LEFT = "frazil.derive.days-left"
"""Table property (JSON): days since 1970 whose rows have to be computed again from the source."""
DAYS_GUARDED = "frazil.derive.days-guarded"
"""Table property (JSON): those of the days that are left which are derived only if no rows get lost: the
source must still hold all rows that the table has counted.
"""


def days_left(metadata: TableMetadata) -> list[int]:
    """Returns the days, newest first."""
    return days_of(metadata, DAYS_LEFT)


def days_of(metadata: TableMetadata, name: str) -> list[int]:
    """Returns the days of a property, newest first."""
    try:
        found = json.loads(metadata.properties.get(name, "[]"))
    except ValueError:
        return []
    days = found if isinstance(found, list) else []
    return sorted((day for day in days if isinstance(day, int)), reverse=True)
