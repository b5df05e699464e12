"""Statistics by service: rate, errors and duration of requests (RED), errors in logs, names of operations."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.filters import SEVERITIES, SPAN_KINDS, STATUS_ERROR
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.sketches import SHARES, measured
from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import Buckets, TimeRange

UNNAMED = "(no name)"
_ERROR_SEVERITY = 4 * SEVERITIES.index("error") + 1
OPERATIONS_MAX = 200
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
        return _over_time(self.by_bucket.get(service, {}), range, buckets)


def red(range: TimeRange, buckets: Buckets, rolled: Rolled | None = None) -> Statement:
    """Count requests: spans of kind server or consumer, and root spans. With `rolled`, of its range and
    buckets, from `span_metrics`.
    """
    return _requests(
        range,
        buckets,
        rolled,
        ("service_name", "bucket"),
        (("service_name",), ("service_name", "bucket"), ()),
    )


def of_service(service: str, range: TimeRange, buckets: Buckets, rolled: Rolled | None = None) -> Statement:
    """Count the requests of one service: as a whole, by bucket, and by operation (the most frequent ones)."""
    keys, groups = ("bucket", "operation", "kind"), (("bucket",), ("operation", "kind"), ())
    every = _requests(range, buckets, rolled, keys, groups, service)
    rank = "row_number() OVER (PARTITION BY part ORDER BY requests DESC, operation, kind)"
    return Statement(f"SELECT * FROM ({every.sql}) QUALIFY {rank} <= {OPERATIONS_MAX}", every.params)


def _requests(
    range: TimeRange,
    buckets: Buckets,
    rolled: Rolled | None,
    keys: Sequence[str],
    groups: Sequence[Sequence[str]],
    service: str | None = None,
) -> Statement:
    if rolled is not None:
        range, buckets = rolled.range, rolled.buckets
    where = Conditions.within(range)
    if service is not None:
        where.add("service_name = ?", service)
    operation = "name AS operation" if rolled is None else "operation"
    selected = f"service_name, {Buckets.SQL} AS bucket, {operation}, kind"
    if rolled is None:
        where.add(f"(kind IN ({_REQUEST_KINDS}) OR parent_span_id IS NULL)")
        sets, names = ", ".join(f"({', '.join(group)})" for group in groups), ", ".join(keys)
        sql = f"""
SELECT {names}, grouping({names}) AS part, count(*) AS requests,
       count(*) FILTER (status_code = {STATUS_ERROR}) AS errors,
       approx_quantile(duration_nano, {list(SHARES)}) AS quantiles
FROM (SELECT {selected}, status_code, duration_nano FROM spans WHERE {where.sql})
GROUP BY GROUPING SETS ({sets})"""
    else:
        where.add("resolution = ?", rolled.resolution)
        where.add("is_request")
        figures = "calls, errors, duration_codes, duration_counts"
        rows = f"SELECT {selected}, {figures} FROM span_metrics WHERE {where.sql}"
        sql = measured(rows, keys, groups)
    return Statement(sql, (buckets.first, buckets.width, *where.params))


def log_errors(range: TimeRange, rolled: Rolled | None = None) -> Statement:
    """Count logs, and those of severity error and above. With `rolled`, from `log_rollups`."""
    if rolled is None:
        counts = f"count(*) AS logs, count(*) FILTER (severity_number >= {_ERROR_SEVERITY}) AS errors"
        return _within(range, f"SELECT service_name, {counts} FROM logs WHERE {{where}} GROUP BY ALL")
    counts = (
        "CAST(sum(records) AS BIGINT) AS logs, CAST(coalesce(sum(records) FILTER "
        f"(severity_number >= {_ERROR_SEVERITY}), 0) AS BIGINT) AS errors"
    )
    sql = f"SELECT service_name, {counts} FROM log_rollups WHERE {{where}} AND resolution = ? GROUP BY ALL"
    statement = _within(rolled.range, sql)
    return Statement(statement.sql, (*statement.params, rolled.resolution))


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
        match row["part"]:
            case 0:
                by_bucket[service][row["bucket"]] = figures
            case 1:
                by_service[service] = figures
            case 3:
                whole = figures
    return ServiceFigures(whole, by_service, by_bucket)


@dataclass(frozen=True)
class Operation:
    name: str
    kind: int | None
    figures: Figures


@dataclass(frozen=True)
class OneService:
    """The requests of one service."""

    whole: Figures
    operations: Sequence[Operation]
    """The most frequent ones first, at most `OPERATIONS_MAX`."""
    by_bucket: Mapping[int, Figures]

    def over_time(self, range: TimeRange, buckets: Buckets) -> list[BucketFigures]:
        """Return every bucket of the range; a bucket without requests is 0, not a gap."""
        return _over_time(self.by_bucket, range, buckets)


def one_service(rows: Iterable[Mapping[str, Any]]) -> OneService:
    """Read the result of `of_service`."""
    whole, operations, by_bucket = Figures(), [], {}
    for row in rows:
        figures = _figures(row)
        match row["part"]:
            case 3:
                by_bucket[row["bucket"]] = figures
            case 4:
                operations.append(Operation(row["operation"] or UNNAMED, row["kind"], figures))
            case 7:
                whole = figures
    operations.sort(key=lambda each: (-each.figures.requests, each.name))
    return OneService(whole, operations, by_bucket)


def _over_time(known: Mapping[int, Figures], range: TimeRange, buckets: Buckets) -> list[BucketFigures]:
    width = dt.timedelta(microseconds=buckets.width)
    start, end = range.start_time, range.end_time
    return [
        BucketFigures(
            time,
            known.get(number, Figures()),
            (min(end, time + width) - max(start, time)).total_seconds(),
        )
        for number, time in enumerate(buckets.times)
    ]


def _figures(row: Mapping[str, Any]) -> Figures:
    p50, p95, p99 = (
        None if nanos is None else nanos / 1e6 for nanos in row["quantiles"] or (None, None, None)
    )
    return Figures(row["requests"], row["errors"], p50, p95, p99)
