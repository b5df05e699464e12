"""How far a derived table is, from metadata that the planner has in memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from frazil.config import Config
from frazil.lake.derived_days import days_left
from frazil.lake.snapshots import commit_times, landed_snapshot, position_text
from frazil.position import SourcePosition, parse_position
from frazil.query.lake import TableVersion
from frazil.tables import TableSpec


@dataclass(frozen=True)
class DerivedInfo:
    source: str
    """The table whose rows it is derived from."""
    enabled: bool
    """Whether the configuration of this API has the table derived. Its rows stay if not."""
    days_left: int
    """Past days that are still to be derived in the background: their rows may be incomplete."""
    lag_seconds: float | None
    """Since the landing of the oldest rows of the source that are not derived yet; 0 if there are none.
    Without past days. None if the table has no position yet, or the source has no rows.
    """

    @property
    def is_complete(self) -> bool:
        """Whether queries may read the table in place of its source: all rows are derived, but for recent
        ones."""
        return self.enabled and not self.days_left and self.lag_seconds is not None


def derived_info(
    spec: TableSpec, table: TableVersion | None, source: TableVersion | None, config: Config
) -> DerivedInfo | None:
    """Returns None for a table that is not derived."""
    if spec.derived is None:
        return None
    enabled = config.derive.enabled and spec.name not in config.derive.disabled_tables
    metadata = None if table is None else table.metadata
    days = 0 if metadata is None else len(days_left(metadata))
    return DerivedInfo(spec.derived.source, enabled, days, _lag_seconds(metadata, source))


def _lag_seconds(derived: TableMetadata | None, source: TableVersion | None) -> float | None:
    landed = None if derived is None else landed_snapshot(derived)
    text = None if landed is None else position_text(landed)
    if text is None or source is None or source.metadata is None:
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
        for snapshot in source.metadata.snapshots
        if (snapshot.sequence_number or 0) > position.sequence and position_text(snapshot) is not None
    ]
    if not unread:
        return 0.0
    times = commit_times(source.metadata, int(now * 1000))
    return max(0.0, now - min(times[each] for each in unread) / 1000)
