"""How far a derived table is: the property that names the past days which still have to be derived, and its
lag.
"""

from __future__ import annotations

import json
import time

from pyiceberg.table.metadata import TableMetadata

from frazil.lake.snapshots import commit_times, landed_snapshot, position_text
from frazil.position import SourcePosition, parse_position

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


def lag_seconds(derived: TableMetadata | None, source: TableMetadata | None) -> float | None:
    """Returns the seconds since the landing of the oldest rows of the source that a derived table lacks; 0 if
    there are none. None if the table has no position that this release can read, or the source does not
    exist.
    """
    landed = None if derived is None else landed_snapshot(derived)
    text = None if landed is None else position_text(landed)
    if text is None or source is None:
        return None
    try:
        position = parse_position(text)
    except ValueError:  # of a later release
        return None
    if not isinstance(position, SourcePosition):
        return None
    now = time.time()
    unread = [
        snapshot.snapshot_id
        for snapshot in source.snapshots
        if (snapshot.sequence_number or 0) > position.sequence and position_text(snapshot) is not None
    ]
    if not unread:
        return 0.0
    times = commit_times(source, int(now * 1000))
    return max(0.0, now - min(times[each] for each in unread) / 1000)
