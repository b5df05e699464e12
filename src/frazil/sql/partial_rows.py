"""Which stored rows of a derived table a query needs, whose conditions are on merged rows."""

from __future__ import annotations

from collections.abc import Sequence

from frazil.sql.constraint import Constraint, Constraints, widened
from frazil.tables.columns import RESOLUTION, TIME, TableSpec
from frazil.tables.derived.rules import PENDING_RESOLUTIONS, Derived

_MICROS = 1_000_000


def on_partial_rows(spec: TableSpec, use: Constraints) -> Sequence[Constraints]:
    """Return alternatives: each stored row that is needed meets one of them.

    Only conditions on the key also hold for each partial row of a merged row. If `time` is not part of the
    key, the partial rows of a key are spread over some time around the merged one. None of the conditions on
    the key holds for pending rows.
    """
    derived = spec.derived
    if derived is None:
        return [use]
    found = {name: constraint for name, constraint in use.items() if name in spec.key}
    if TIME in use and TIME not in spec.key:
        found[TIME] = widened(use[TIME], derived.spread_seconds * _MICROS)
    longest = max((each for each in derived.resolutions if _may_be(use.get(RESOLUTION), each)), default=None)
    if derived.pending is None or longest is None:
        return [found]
    pending: dict[str, Constraint] = {RESOLUTION: Constraint(values=frozenset(PENDING_RESOLUTIONS))}
    if TIME in use:
        pending[TIME] = _around(use[TIME], longest, derived)
    return [found, pending]


def has_pending(spec: TableSpec) -> bool:
    return spec.derived is not None and spec.derived.pending is not None


def completed_rows(spec: TableSpec) -> str:
    """Return the SELECT of the rows that follow from the pending ones among `partial_rows`; empty if a table
    has none."""
    pending = None if spec.derived is None else spec.derived.pending
    return "" if pending is None else pending.complete("duckdb", "partial_rows")


def _may_be(constraint: Constraint | None, resolution: int) -> bool:
    if constraint is None:
        return True
    lower, upper, values = constraint.lower, constraint.upper, constraint.values
    return (
        (not isinstance(lower, int | float) or resolution >= lower)
        and (not isinstance(upper, int | float) or resolution <= upper)
        and (values is None or resolution in values)
    )


def _around(buckets: Constraint, resolution: int, derived: Derived) -> Constraint:
    """Return the range of the pending rows from which rows follow whose buckets begin in a range."""
    assert derived.pending is not None  # noqa: S101
    margin = derived.pending.spread_seconds * _MICROS
    around = widened(buckets, margin)
    upper = around.upper + resolution * _MICROS if isinstance(around.upper, int | float) else None
    return Constraint(around.lower, upper)
