"""How far a derived table is, from metadata that the planner has in memory."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.config import Config
from frazil.lake.derived_days import days_left, lag_seconds
from frazil.lake.views import is_off
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
    metadata = None if table is None else table.metadata
    enabled = config.derive.enabled and spec.name not in config.derive.disabled_tables
    if spec.derived.view is not None:
        enabled = enabled and metadata is not None and not is_off(metadata)
    days = 0 if metadata is None else len(days_left(metadata))
    return DerivedInfo(
        spec.derived.source, enabled, days, lag_seconds(metadata, None if source is None else source.metadata)
    )
