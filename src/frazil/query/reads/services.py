"""Statistics by service: rate, errors and duration of requests (RED), errors in logs, names of operations."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.filters import SEVERITIES, SPAN_KINDS, STATUS_ERROR
from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import Buckets, TimeRange

UNNAMED = "(no name)"
_ERROR_SEVERITY = 4 * SEVERITIES.index("error") + 1
_REQUEST_KINDS = f"{SPAN_KINDS.index('server')}, {SPAN_KINDS.index('consumer')}"


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
    """Length of the part of the bucket that is within the range."""

    @property
    def requests_per_second(self) -> float:
        return self.figures.requests / self.seconds


@dataclass(frozen=True)
class ServiceFigures:
    whole: Figures
    by_service: Mapping[str, Figures]
    by_bucket: Mapping[str, Mapping[int, Figures]]
    """By service and bucket number."""

    def over_time(self, service: str, range: TimeRange, buckets: Buckets) -> list[BucketFigures]:
        """Return every bucket of the range; a bucket without requests is 0, not a gap."""
        known, width = self.by_bucket.get(service, {}), dt.timedelta(microseconds=buckets.width)
        start, end = range.start_time, range.end_time
        return [
            BucketFigures(
                time,
                known.get(number, Figures()),
                (min(end, time + width) - max(start, time)).total_seconds(),
            )
            for number, time in enumerate(buckets.times)
        ]


def red(range: TimeRange, buckets: Buckets) -> Statement:
    """Count requests: spans of kind server or consumer, and root spans."""
    sql = f"""
SELECT service_name, {Buckets.SQL} AS bucket, grouping(service_name) = 1 AS is_whole,
       count(*) AS requests, count(*) FILTER (status_code = {STATUS_ERROR}) AS errors,
       approx_quantile(duration_nano, [0.5, 0.95, 0.99]) AS quantiles
FROM spans
WHERE {{where}} AND (kind IN ({_REQUEST_KINDS}) OR parent_span_id IS NULL)
GROUP BY GROUPING SETS ((service_name), (service_name, bucket), ())"""
    return _within(range, sql, buckets.first, buckets.width)


def log_errors(range: TimeRange) -> Statement:
    errors = f"count(*) FILTER (severity_number >= {_ERROR_SEVERITY}) AS errors"
    return _within(
        range, f"SELECT service_name, count(*) AS logs, {errors} FROM logs WHERE {{where}} GROUP BY ALL"
    )


def operations(range: TimeRange) -> Statement:
    """List the 1,000 most frequent span names by service."""
    sql = """
SELECT service_name, name, count(*) AS spans FROM spans WHERE {where}
GROUP BY ALL ORDER BY spans DESC, service_name, name LIMIT 1000"""
    return _within(range, sql)


def _within(range: TimeRange, sql: str, *params: Any) -> Statement:
    where = Conditions.within(range)
    return Statement(sql.format(where=where.sql), (*params, *where.params))


def service_figures(rows: Iterable[Mapping[str, Any]]) -> ServiceFigures:
    """Read the result of `red`."""
    whole, by_service = Figures(), {}
    by_bucket: dict[str, dict[int, Figures]] = defaultdict(dict)
    for row in rows:
        figures, service = _figures(row), row["service_name"] or UNNAMED
        if row["is_whole"]:
            whole = figures
        elif row["bucket"] is None:
            by_service[service] = figures
        else:
            by_bucket[service][row["bucket"]] = figures
    return ServiceFigures(whole, by_service, by_bucket)


def _figures(row: Mapping[str, Any]) -> Figures:
    p50, p95, p99 = (
        None if nanos is None else nanos / 1e6 for nanos in row["quantiles"] or (None, None, None)
    )
    return Figures(row["requests"], row["errors"], p50, p95, p99)
