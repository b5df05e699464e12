"""How far a derived table is, from metadata that the planner has in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frazil.config import Config
from frazil.lake.derived_days import DAYS_GUARDED, days_left, days_of, lag_seconds
from frazil.lake.views import is_off
from frazil.query.lake import TableVersion
from frazil.tables import TableSpec
from frazil.times import utc_text

_DAY_MICROS = 86_400_000_000


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
    enabled = config.derive.enabled and not config.derive.is_off(spec.name)
    if spec.derived.view is not None:
        enabled = enabled and metadata is not None and not is_off(metadata)
    days = 0 if metadata is None else len(days_left(metadata))
    source_metadata = None if source is None else source.metadata
    return DerivedInfo(spec.derived.source, enabled, days, lag_seconds(metadata, source_metadata))


def still_to_derive(
    spec: TableSpec, version: TableVersion | None, lower: int | None, upper: int | None
) -> list[str]:
    """Return the reason why rows in a time range may be missing, if some of its days are still to be derived
    in the background. Days of a backfill have the rows of before.
    """
    metadata = None if version is None else version.metadata
    left = set() if metadata is None else {*days_left(metadata)} - {*days_of(metadata, DAYS_GUARDED)}
    first = -math.inf if lower is None else lower // _DAY_MICROS
    last = math.inf if upper is None else upper // _DAY_MICROS
    days = sum(first <= day <= last for day in left)
    return (
        [f"rows of {days} past days of {spec.name} are still to be derived (see `frazil status`)"]
        if days
        else []
    )


def not_derived(spec: TableSpec, version: TableVersion | None) -> str:
    """Return the reason why rows are missing: derivation is later than the WAL reaches back."""
    assert spec.derived is not None  # noqa: S101
    committed = None if version is None else version.committed_at
    since = "" if committed is None else f" that arrived after about {utc_text(committed / 1e6)}"
    return (
        f"rows of {spec.derived.source}{since} are not yet in {spec.name}: its derivation is late, "
        "and the WAL no longer has all of them (see `frazil status`)"
    )
