"""Counts logs or spans over time, by severity, status or service.

Takes one statement, which reads the columns of the filters, the time and the group. The filters are those of
`records`, so the counts of a chart add up to the records of the list below it.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from frazil.query.reads.filters import SEVERITIES, STATUSES, Filter, Searched
from frazil.query.reads.statement import Read, Statement
from frazil.query.reads.time_range import Buckets, TimeRange

GROUPS: dict[Searched, tuple[str, ...]] = {
    "logs": ("severity", "service", "none"),
    "spans": ("status", "service", "none"),
}
"""The groups by which the records of each table can be counted."""
_NUMBERED: dict[str, tuple[str, Sequence[str]]] = {
    "severity": (
        "CASE WHEN severity_number BETWEEN 1 AND 24 THEN (severity_number + 3) // 4 ELSE 0 END",
        ("unset", *SEVERITIES),
    ),
    "status": ("CASE WHEN status_code IN (1, 2) THEN status_code ELSE 0 END", STATUSES),
    "none": ("0", ("all",)),
}
"""SQL for the group number of a record, and the group names by number."""


@dataclass(frozen=True)
class Counting:
    filter: Filter
    range: TimeRange
    by: str
    """One of `GROUPS`."""
    buckets_max: int = 60
    services_max: int = 20
    """The number of services with a series of their own."""


@dataclass(frozen=True)
class CountSeries:
    name: str
    counts: list[int]
    """One number per bucket, also where it is 0."""


@dataclass(frozen=True)
class OtherServices(CountSeries):
    """The sum over all services except the largest."""

    services: int
    """The number of services in the sum."""


@dataclass(frozen=True)
class Counts:
    buckets: Buckets
    series: list[CountSeries]
    """Ordered by group number, or largest service first. Groups without records are left out."""
    total: int


def count(counting: Counting) -> Read[Counts]:
    buckets = Buckets.of(counting.range, counting.buckets_max)
    is_by_service = counting.by == "service"
    group = "coalesce(service_name, '')" if is_by_service else _NUMBERED[counting.by][0]
    where = counting.filter.where(counting.range)
    grouped = (
        f"SELECT {Buckets.SQL} AS bucket, {group} AS series, count(*) AS counted "
        f"FROM {counting.filter.table} WHERE {where.sql} GROUP BY 1, 2"
    )
    sql = _largest_services(grouped, counting.services_max) if is_by_service else grouped
    table = yield Statement(sql, (buckets.first, buckets.width, *where.params))
    if is_by_service:
        series = _services(table, buckets, counting.services_max)
    else:
        series = _numbered(table, buckets, counting.by)
    return Counts(buckets, series, sum(table["counted"].to_pylist()))


def _largest_services(grouped: str, services_max: int) -> str:
    """Rank services by size, and add up the small ones in the engine."""
    summed = (
        f"SELECT bucket, series, counted, sum(counted) OVER (PARTITION BY series) AS total FROM ({grouped})"
    )
    ranked = (
        "SELECT bucket, series, counted, dense_rank() OVER (ORDER BY total DESC, series) AS rank "
        f"FROM ({summed})"
    )
    return (
        f"SELECT bucket, least(rank, {services_max + 1}) AS rank, min(series) AS series, "
        f"max(rank) AS rank_max, CAST(sum(counted) AS BIGINT) AS counted FROM ({ranked}) GROUP BY 1, 2"
    )


def _numbered(table: pa.Table, buckets: Buckets, by: str) -> list[CountSeries]:
    counts, names = _filled(table, "series", buckets), _NUMBERED[by][1]
    return [CountSeries(names[number], counts[number]) for number in sorted(counts)]


def _services(table: pa.Table, buckets: Buckets, services_max: int) -> list[CountSeries]:
    counts = _filled(table, "rank", buckets)
    names = dict(zip(table["rank"].to_pylist(), table["series"].to_pylist(), strict=True))
    series = [CountSeries(names[rank], counts[rank]) for rank in sorted(counts) if rank <= services_max]
    if (rest := counts.get(services_max + 1)) is not None:
        series.append(OtherServices("other", rest, max(table["rank_max"].to_pylist()) - services_max))
    return series


def _filled(table: pa.Table, key: str, buckets: Buckets) -> dict[int, list[int]]:
    counts: dict[int, list[int]] = {}
    columns = (table[name].to_pylist() for name in (key, "bucket", "counted"))
    for series, bucket, counted in zip(*columns, strict=True):
        counts.setdefault(series, [0] * buckets.count)[bucket] = counted
    return counts
