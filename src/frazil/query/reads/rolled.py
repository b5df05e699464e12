"""Which rows of a rollup answer for a time range.

A chart needs enough points, and no more: reading the coarsest resolution that has them is what makes weeks
quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frazil.query.reads.time_range import MICRO, Buckets, TimeRange
from frazil.tables import table_specs

RAW_SECONDS_MAX = 3600
"""Up to this length, raw rows are read: they are few."""
POINTS_MIN = 24
"""How many buckets of a resolution a range must have. Sketches of a finer one would only be merged again."""
_BUCKETS_MAX = 60
_DAY = 86_400


@dataclass(frozen=True)
class Rolled:
    """A time range in whole buckets of one resolution, so that rollups and raw rows agree on it."""

    range: TimeRange
    resolution: int
    buckets: Buckets
    """Of a chart; each is one or several buckets of the resolution."""


def rolled(range: TimeRange, table: str, now: int, points_min: int = POINTS_MIN) -> Rolled | None:
    """Return which rows of a rollup to read, or None if raw rows are better: for a short range, or if the
    rows of fitting resolutions are so old that they have been removed. `now`, in microseconds, ends the last
    bucket. `points_min` is how many buckets of the resolution the range must have.
    """
    if range.seconds <= RAW_SECONDS_MAX:
        return None
    kept = _kept(table, range.begin, now)
    if not kept or kept[0] > range.seconds:
        return None
    fitting = [each for each in kept if range.seconds / each >= points_min]
    resolution = fitting[-1] if fitting else kept[0]
    whole = aligned(range, resolution, now)
    return Rolled(whole, resolution, _buckets(whole, resolution))


def aligned(range: TimeRange, resolution: int, now: int) -> TimeRange:
    """Return the range in whole buckets. A bucket that lasts until after `now` ends then, or with the
    range."""
    step = resolution * MICRO
    end = -(-range.end // step) * step
    return TimeRange(range.begin // step * step, min(end, max(range.end, now)))


def pieces(range: TimeRange, resolutions: Sequence[int]) -> list[tuple[int, TimeRange]]:
    """Cover a range that is aligned to the finest resolution: the coarsest buckets that fit inside, and finer
    ones at both ends. Each moment is covered once.
    """
    finest, *coarser = sorted(resolutions)
    if not coarser:
        return [(finest, range)] if range.end > range.begin else []
    step = coarser[-1] * MICRO
    begin, end = -(-range.begin // step) * step, range.end // step * step
    rest = (finest, *coarser[:-1])
    if begin >= end:
        return pieces(range, rest)
    inside = [(coarser[-1], TimeRange(begin, end))]
    return [
        *pieces(TimeRange(range.begin, begin), rest),
        *inside,
        *pieces(TimeRange(end, range.end), rest),
    ]


def finest(table: str, begin: int, now: int) -> int | None:
    """Return the finest resolution of which a table still has rows at that time."""
    kept = _kept(table, begin, now)
    return kept[0] if kept else None


def _kept(table: str, begin: int, now: int) -> list[int]:
    """Return the resolutions that have not been removed by age since `begin`, finest first."""
    derived = table_specs()[table].derived
    assert derived is not None  # noqa: S101
    found = []
    for resolution in sorted(derived.resolutions):
        days = derived.kept_days_of(resolution)
        if days is None or begin > now - (days - 1) * _DAY * MICRO:
            found.append(resolution)
    return found


def _buckets(range: TimeRange, resolution: int) -> Buckets:
    """Return buckets of whole resolutions."""
    at_most = _BUCKETS_MAX
    buckets = Buckets.of(range, at_most)
    while buckets.seconds % resolution:
        at_most -= 1
        buckets = Buckets.of(range, at_most)
    return buckets
