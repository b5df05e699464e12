"""Searches traces by their spans, and reads the rows of one trace.

A search takes two bounded statements. The first finds the newest, or the slowest, matching spans and their
traces; the second reads a few columns of these traces' spans, near the times of the matching spans. The start
and the duration of a trace are known only then: the first statement finds more traces than are shown.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from frazil.errors import LimitReached
from frazil.query.reads.filters import STATUS_ERROR, Searched, SpanFilter
from frazil.query.reads.statement import Conditions, Read, Statement
from frazil.query.reads.time_range import TimeRange
from frazil.tables import table_spec
from frazil.times import iso

TraceOrder = Literal["newest", "slowest"]

_SPANS_PER_TRACE = 100
"""Matching spans to read for each trace to show. DuckDB keeps that many in a heap: of 2 million spans, the
newest 20,000 took about twice as long as the newest 5,000.
"""
_COMPARED_PER_TRACE = 4
"""Traces to compare for each trace to show."""
_AROUND = 3_600 * 1_000_000
"""Microseconds before and after the matching spans in which the rest of their traces is searched."""
_RANKED: dict[TraceOrder, tuple[str, str]] = {
    "newest": ("time DESC", "oldest DESC, trace_id"),
    "slowest": ("duration_nano DESC NULLS LAST, time DESC", "longest DESC NULLS LAST, trace_id"),
}
"""SQL for the order of spans, and for the order of their traces. A trace starts at or before its oldest
matching span.
"""
_ROWS_MAX = 20_000
"""The most spans, and the most logs, of one trace. A trace with more is most likely an error of its sender.
"""
_EXACT_TIME: dict[Searched, str] = {"spans": "start_time_unix_nano", "logs": "time_unix_nano"}


@dataclass(frozen=True)
class TraceSearch:
    filter: SpanFilter
    range: TimeRange
    order: TraceOrder = "newest"
    limit: int = 50

    @property
    def spans_max(self) -> int:
        return self.limit * _SPANS_PER_TRACE


@dataclass(frozen=True)
class ServiceSpans:
    name: str
    spans: int
    errors: int


@dataclass(frozen=True)
class TraceSummary:
    """The part of a trace within an hour of its matching spans. Times are those of its spans."""

    trace_id: str
    start_time: str
    start_time_unix_nano: str
    duration_ms: float
    root_service: str
    root_name: str
    root_missing: bool
    """There is no span without a parent: service and name are those of the earliest span."""
    spans: int
    errors: int
    services: list[ServiceSpans]
    """The service with the most spans first."""
    matched: int
    """Number of matching spans."""


@dataclass(frozen=True)
class FoundTraces:
    traces: list[TraceSummary]
    complete: bool
    """No other trace matches."""
    matched_is_exact: bool
    """All matching spans were counted; otherwise `matched` is a lower bound."""


_SORTED: dict[TraceOrder, Callable[[TraceSummary], tuple[float, str]]] = {
    "newest": lambda trace: (-int(trace.start_time_unix_nano), trace.trace_id),
    "slowest": lambda trace: (-trace.duration_ms, trace.trace_id),
}


def find_traces(search: TraceSearch) -> Read[FoundTraces]:
    candidates = yield _candidates_statement(search)
    if not len(candidates):
        return FoundTraces([], complete=True, matched_is_exact=True)
    matched = dict(zip(candidates["trace_id"].to_pylist(), candidates["matched"].to_pylist(), strict=True))
    around = TimeRange(
        min(candidates["oldest"].to_pylist()) - _AROUND, max(candidates["newest"].to_pylist()) + _AROUND
    )
    shown = _summaries((yield _services_statement(list(matched), around)), matched)
    shown.sort(key=_SORTED[search.order])
    has_all_spans = candidates["spans_seen"][0].as_py() < search.spans_max
    has_all_traces = candidates["traces_seen"][0].as_py() <= len(candidates)
    is_complete = has_all_spans and has_all_traces and len(shown) <= search.limit
    return FoundTraces(shown[: search.limit], is_complete, has_all_spans)


def trace_rows(trace_id: str, tables: Sequence[Searched]) -> Read[dict[Searched, pa.Table]]:
    """Read all spans of a trace, and its logs. Raises LimitReached if there are too many."""
    found: dict[Searched, pa.Table] = {}
    for table in tables:
        columns = ", ".join(table_spec(table).arrow_schema.names)
        sql = (
            f"SELECT {columns} FROM {table} WHERE trace_id = ? ORDER BY {_EXACT_TIME[table]}, span_id LIMIT ?"
        )
        found[table] = yield Statement(sql, (trace_id, _ROWS_MAX + 1))
        if len(found[table]) > _ROWS_MAX:
            raise LimitReached(
                f"the trace has more than {_ROWS_MAX} {table}: read a part of it with POST /api/v1/sql",
                limit="rows",
            )
    return found


def _candidates_statement(search: TraceSearch) -> Statement:
    """Find traces with matching spans, in the order of the search."""
    where = search.filter.where(search.range)
    where.add("trace_id IS NOT NULL")
    spans_first, traces_first = _RANKED[search.order]
    sql = (
        "SELECT trace_id, epoch_us(min(time)) AS oldest, epoch_us(max(time)) AS newest, "
        "max(duration_nano) AS longest, count(*) AS matched, "
        "CAST(sum(count(*)) OVER () AS BIGINT) AS spans_seen, count(*) OVER () AS traces_seen "
        f"FROM (SELECT trace_id, time, duration_nano FROM spans WHERE {where.sql} "
        f"ORDER BY {spans_first} LIMIT ?) GROUP BY trace_id ORDER BY {traces_first} LIMIT ?"
    )
    return Statement(sql, (*where.params, search.spans_max, search.limit * _COMPARED_PER_TRACE))


def _services_statement(trace_ids: Sequence[str], around: TimeRange) -> Statement:
    """Read one row per service of each trace: one row per span would be far more."""
    where = Conditions.within(around)
    where.add_in("trace_id", trace_ids)
    first = "min({'moment': moment, 'name': name})"
    sql = (
        "SELECT trace_id, service, count(*) AS spans, count(*) FILTER (WHERE is_error) AS errors, "
        "min(moment) AS seen, min(started) AS started, max(ended) AS ended, "
        f"{first} AS first, {first} FILTER (WHERE is_root) AS root FROM ("
        "SELECT trace_id, coalesce(service_name, '') AS service, coalesce(name, '') AS name, "
        f"coalesce(status_code = {STATUS_ERROR}, false) AS is_error, parent_span_id IS NULL AS is_root, "
        "coalesce(start_time_unix_nano, end_time_unix_nano) AS started, "
        "coalesce(end_time_unix_nano, start_time_unix_nano) AS ended, "
        "coalesce(start_time_unix_nano, end_time_unix_nano, epoch_us(time) * 1000) AS moment "
        f"FROM spans WHERE {where.sql}) GROUP BY trace_id, service ORDER BY trace_id, spans DESC, service"
    )
    return Statement(sql, tuple(where.params))


def _summaries(rows: pa.Table, matched: Mapping[str, int]) -> list[TraceSummary]:
    """Return the summaries, without traces that were deleted between the statements."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for part in rows.to_pylist():
        parts.setdefault(part["trace_id"], []).append(part)
    return [_summary(id, parts[id], count) for id, count in matched.items() if id in parts]


def _summary(id: str, parts: Sequence[Mapping[str, Any]], matched: int) -> TraceSummary:
    """Use the earliest span if there is no root, and the time of arrival if no span has a time."""
    roots = [
        (part["root"]["moment"], part["service"], part["root"]["name"]) for part in parts if part["root"]
    ]
    firsts = [(part["first"]["moment"], part["service"], part["first"]["name"]) for part in parts]
    _, service, name = min(roots or firsts)
    start = min(
        (part["started"] for part in parts if part["started"] is not None),
        default=min(part["seen"] for part in parts),
    )
    end = max((part["ended"] for part in parts if part["ended"] is not None), default=start)
    return TraceSummary(
        trace_id=id,
        start_time=iso(start // 1_000),
        start_time_unix_nano=str(start),
        duration_ms=max(0, end - start) / 1e6,
        root_service=service,
        root_name=name,
        root_missing=not roots,
        spans=sum(part["spans"] for part in parts),
        errors=sum(part["errors"] for part in parts),
        services=[ServiceSpans(part["service"], part["spans"], part["errors"]) for part in parts],
        matched=matched,
    )
