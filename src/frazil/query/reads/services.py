"""Figures by service: rate, errors and duration of requests (RED), errors in logs, names of operations."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import TimeRange

UNNAMED = "(no name)"
_ERROR_SEVERITY = 17


@dataclass(frozen=True)
class Figures:
    requests: int = 0
    errors: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None

    @property
    def error_share(self) -> float:
        return self.errors / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class BucketFigures:
    time: dt.datetime
    figures: Figures
    seconds: float
    """Of the bucket's part that lies in the range."""

    @property
    def requests_per_second(self) -> float:
        return self.figures.requests / self.seconds


@dataclass(frozen=True)
class ServiceFigures:
    whole: Figures
    by_service: Mapping[str, Figures]
    by_time: Mapping[str, Mapping[dt.datetime, Figures]]

    def over_time(self, service: str, range: TimeRange, width_seconds: int) -> list[BucketFigures]:
        """Every bucket of the range: one without requests is a 0, not a gap that a line is drawn across."""
        known, width = self.by_time.get(service, {}), dt.timedelta(seconds=width_seconds)
        start, end = range.start_time, range.end_time
        return [
            BucketFigures(
                time, known.get(time, Figures()), (min(end, time + width) - max(start, time)).total_seconds()
            )
            for time in bucket_times(range, width_seconds)
        ]


def red(range: TimeRange, width_seconds: int) -> Statement:
    """Of spans of servers and consumers, and of roots: what a service was asked to do, or began by itself."""
    where = Conditions.within(range)
    sql = f"""
SELECT service_name,
       time_bucket(to_seconds({width_seconds}), time, TIMESTAMPTZ '1970-01-01 00:00:00+00') AS step,
       count(*) AS requests, count(*) FILTER (status_code = 2) AS errors,
       approx_quantile(duration_nano, [0.5, 0.95, 0.99]) AS quantiles
FROM spans
WHERE {where.sql} AND (kind IN (2, 5) OR parent_span_id IS NULL)
GROUP BY GROUPING SETS ((service_name), (service_name, step), ())
"""
    return Statement(sql, tuple(where.params))


def service_figures(rows: Iterable[Mapping[str, Any]]) -> ServiceFigures:
    """The result of `red`. A row without a service may be the whole, or of spans without a service name."""
    whole, by_service = Figures(), {}
    by_time: dict[str, dict[dt.datetime, Figures]] = defaultdict(dict)
    without: list[Figures] = []
    for row in rows:
        figures, service, at = _figures(row), row["service_name"], row["step"]
        if at is not None:
            by_time[service or UNNAMED][at.replace(tzinfo=at.tzinfo or dt.UTC)] = figures
        elif service is not None:
            by_service[service] = figures
        else:
            without.append(figures)
    if without:  # the whole is the larger of the two
        without.sort(key=lambda figures: figures.requests)
        whole = without[-1]
        if len(without) > 1:
            by_service[UNNAMED] = without[0]
    return ServiceFigures(whole, by_service, by_time)


def bucket_times(range: TimeRange, width_seconds: int) -> list[dt.datetime]:
    """The start of every bucket from before the range's start to before its end."""
    width, found = dt.timedelta(seconds=width_seconds), []
    start = range.start_time
    time = start - (start - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) % width
    while time < range.end_time:
        found.append(time)
        time += width
    return found


def log_errors(range: TimeRange) -> Statement:
    """Log records, and errors among them, by service."""
    where = Conditions.within(range)
    sql = (
        "SELECT service_name, count(*) AS logs, "
        f"count(*) FILTER (severity_number >= {_ERROR_SEVERITY}) AS errors FROM logs "
        f"WHERE {where.sql} GROUP BY ALL"
    )
    return Statement(sql, tuple(where.params))


def log_services(range: TimeRange) -> Statement:
    """The 200 services with the most log records."""
    where = Conditions.within(range)
    sql = (
        f"SELECT service_name, count(*) AS records FROM logs WHERE {where.sql} AND service_name IS NOT NULL "
        "GROUP BY ALL ORDER BY records DESC, service_name LIMIT 200"
    )
    return Statement(sql, tuple(where.params))


def operations(range: TimeRange) -> Statement:
    """The 1,000 most frequent names of spans, by service."""
    where = Conditions.within(range)
    sql = (
        f"SELECT service_name, name, count(*) AS spans FROM spans WHERE {where.sql} "
        "GROUP BY ALL ORDER BY spans DESC, service_name, name LIMIT 1000"
    )
    return Statement(sql, tuple(where.params))


def _figures(row: Mapping[str, Any]) -> Figures:
    p50, p95, p99 = (
        None if nanos is None else nanos / 1e6 for nanos in row["quantiles"] or (None, None, None)
    )
    return Figures(row["requests"], row["errors"], p50, p95, p99)
