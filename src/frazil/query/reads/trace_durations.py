"""Counts traces by their start and their duration, over a whole time range.

Takes one statement, which reads four narrow columns of the spans and groups them by trace. The filters are
those of `traces`: a trace is counted if one of its spans matches.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from frazil.query.reads.filters import STATUS_ERROR, SpanFilter
from frazil.query.reads.statement import Conditions, Read, Statement
from frazil.query.reads.time_range import MICRO, Buckets, TimeRange

_STEPS = (1, 1.5, 2, 3, 5, 7)
"""The lower bounds of the bins of each decade."""
_FIRST_DECADE, _END_DECADE = 3, 12
"""Powers of ten, in nanoseconds: bins from 1 µs to 1,000 s. A bin below and a bin above hold the rest."""
BINS_MS = (
    0.0,
    *(step * 10**power / 1e6 for power in range(_FIRST_DECADE, _END_DECADE) for step in _STEPS),
    10**_END_DECADE / 1e6,
)
"""The lower bound of each bin. A bin ends where the next one begins; the last one has no end."""
_BIN = (
    f"CASE WHEN nanos < 1e{_FIRST_DECADE} THEN 0 WHEN nanos >= 1e{_END_DECADE} THEN {len(BINS_MS) - 1} "
    f"ELSE 1 + {len(_STEPS)} * (CAST(floor(log10(nanos)) AS INTEGER) - {_FIRST_DECADE}) + "
    + " + ".join(f"CAST(nanos / pow(10, floor(log10(nanos))) >= {step} AS INTEGER)" for step in _STEPS[1:])
    + " END"
)
_BEFORE = 60 * MICRO
"""Microseconds before the range in which spans are read, to recognize traces that started earlier."""


@dataclass(frozen=True)
class DurationCounting:
    filter: SpanFilter
    range: TimeRange
    buckets_max: int = 60


@dataclass(frozen=True)
class DurationCell:
    """The traces of one time bucket and one duration bin."""

    bucket: int
    bin: int
    traces: int
    errors: int
    """Traces with at least one failed span."""
    longest_ms: float


@dataclass(frozen=True)
class TraceDurations:
    buckets: Buckets
    cells: list[DurationCell]
    """Ordered by bucket and bin. Cells without traces are left out."""
    total: int


def count_durations(counting: DurationCounting) -> Read[TraceDurations]:
    """Count the traces that start in the range. Spans that start after the range are not read."""
    buckets = Buckets.of(counting.range, counting.buckets_max)
    table = yield _statement(counting, buckets)
    return TraceDurations(buckets, _cells(table), sum(table["traces"].to_pylist()))


def _statement(counting: DurationCounting, buckets: Buckets) -> Statement:
    """Group by a hash, which takes 8 bytes in place of 32. The probability that two of 10 million traces have
    the same hash is below 1:100,000.
    """
    range = counting.range
    where = Conditions.within(TimeRange(range.begin - _BEFORE, range.end))
    where.add("trace_id IS NOT NULL")
    matching = counting.filter.where(range)
    if matching.sql != Conditions.within(range).sql:
        found = f"SELECT hash(trace_id) FROM spans WHERE {matching.sql}"
        where.add(f"hash(trace_id) IN ({found})", *matching.params)
    started = "coalesce(start_time_unix_nano, end_time_unix_nano)"
    ended = "coalesce(end_time_unix_nano, start_time_unix_nano)"
    traces = (
        f"SELECT coalesce(min({started}), min(epoch_us(time)) * 1000) AS start, max({ended}) AS ended, "
        f"bool_or(coalesce(status_code = {STATUS_ERROR}, false)) AS is_error "
        f"FROM spans WHERE {where.sql} GROUP BY hash(trace_id)"
    )
    timed = (
        "SELECT start // 1000 AS micros, greatest(coalesce(ended - start, 0), 0) AS nanos, is_error "
        f"FROM ({traces})"
    )
    sql = (
        f"SELECT (micros - CAST(? AS BIGINT)) // CAST(? AS BIGINT) AS bucket, {_BIN} AS bin, "
        "count(*) AS traces, count(*) FILTER (is_error) AS errors, max(nanos) AS longest "
        f"FROM ({timed}) WHERE micros >= CAST(? AS BIGINT) AND micros < CAST(? AS BIGINT) "
        "GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return Statement(sql, (buckets.first, buckets.width, *where.params, range.begin, range.end))


def _cells(table: pa.Table) -> list[DurationCell]:
    columns = (table[name].to_pylist() for name in ("bucket", "bin", "traces", "errors", "longest"))
    return [
        DurationCell(bucket, bin, traces, errors, longest / 1e6)
        for bucket, bin, traces, errors, longest in zip(*columns, strict=True)
    ]
