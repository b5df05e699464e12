"""`GET /api/v1/traces`: traces that have a span which matches.

Two questions, both bounded. The first takes the newest, or the slowest, spans that match, and the traces that
they are of; the second reads a few columns of those traces' spans, near the times of the spans that matched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Query, Request, Response

from frazil.query.model import Stats
from frazil.serve import parameters
from frazil.serve.auth import Caller, Reader
from frazil.serve.describe import ERRORS
from frazil.serve.find import From, SpanFilter, To
from frazil.serve.search import Filter, Range, ask, time_range, together
from frazil.serve.state import Asked
from frazil.serve.streams import json_unless_gone
from frazil.times import iso

if TYPE_CHECKING:
    from frazil.query.service import Queries

router = APIRouter(prefix="/api/v1", tags=["Traces"], dependencies=[Depends(parameters.only_known)])

_SPANS_LOOKED_AT = 100
"""Spans that match, for each trace that is to be shown. Of all that it reads DuckDB keeps so many in a heap:
of 2 million spans the newest 20,000 took about twice as long as the newest 5,000.
"""
_SLOWEST_LOOKED_AT = 4
"""Traces that are compared for each that is shown, when the slowest are asked for."""
_AROUND = 3_600 * 1_000_000
"""Microseconds before and after the spans that matched in which the rest of their traces is looked for."""
_ORDERS = ("newest", "slowest")
_STATUS_ERROR = 2
_RANKED = {
    "newest": ("time DESC", "newest DESC, trace_id"),
    "slowest": ("duration_nano DESC NULLS LAST, time DESC", "longest DESC NULLS LAST, trace_id"),
}
"""SQL: which spans are looked at, and which of their traces come first."""

_TRACES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Each trace once. `complete`: no other trace matches. `matched_is_exact`: all spans "
        "that match were counted; else `matched` is the least that it can be.",
        "content": {
            "application/json": {
                "example": {
                    "traces": [
                        {
                            "trace_id": "5b8efff798038103d269b633813fc60c",
                            "start_time": "2026-11-15T10:00:00.000000Z",
                            "start_time_unix_nano": "1794736800000000123",
                            "duration_ms": 412.7,
                            "root_service": "shop",
                            "root_name": "GET /cart",
                            "root_missing": False,
                            "spans": 12,
                            "errors": 1,
                            "services": [
                                {"name": "shop", "spans": 7, "errors": 0},
                                {"name": "cart", "spans": 5, "errors": 1},
                            ],
                            "matched": 1,
                        }
                    ],
                    "complete": True,
                    "matched_is_exact": True,
                    "stats": {"rows": 1, "files": 2, "files_total": 500, "tail_rows": 120},
                }
            }
        },
    }
}


@dataclass(frozen=True)
class TraceSearch:
    filter: Filter
    begin: str
    end: str
    order: str
    limit: int


@dataclass(frozen=True)
class _Candidates:
    """Traces that have spans which match, first ones first. Times are microseconds."""

    matched: Mapping[str, int]
    """By trace id, how many."""
    around: Range
    has_all_spans: bool
    has_all_traces: bool


@router.get(
    "/traces",
    summary="Find traces",
    description="Traces that have a span which matches all filters (those of `/api/v1/spans`; `duration_min` "
    "and `duration_max` are of that span). A trace is looked at from an hour before to an hour after the "
    "spans that match; what lies further away is not counted. `slowest` takes the traces with the slowest "
    "matching spans, and puts them in the order of the traces' own durations.",
    response_class=Response,
    responses=_TRACES | ERRORS,
)
async def traces(
    request: Request,
    caller: Reader,
    queries: Asked,
    filter: SpanFilter,
    begin: From = "-1h",
    to: To = "now",
    limit: Annotated[int, Query(description="The most traces.", ge=1, le=200)] = 50,
    order: Annotated[
        str, Query(description="newest or slowest first.", json_schema_extra={"enum": list(_ORDERS)})
    ] = "newest",
) -> Response:
    search = TraceSearch(filter, begin, to, parameters.choice("order", order, _ORDERS), limit)
    return await json_unless_gone(request, find_traces(queries, caller, search))


async def find_traces(queries: Queries, caller: Caller, search: TraceSearch) -> bytes:
    """The traces as JSON."""
    started = time.perf_counter()
    found, stats = await _candidates(queries, caller, search)
    shown: list[dict[str, Any]] = []
    if found.matched:
        rows, second = await _parts(queries, caller, found)
        stats = _larger(stats, second)
        shown = await asyncio.to_thread(_summaries, rows, found.matched)
    if search.order == "slowest":
        shown.sort(key=lambda trace: (-trace["duration_ms"], trace["trace_id"]))
    is_cut = not found.has_all_spans or not found.has_all_traces or len(shown) > search.limit
    shown = shown[: search.limit]
    seconds = round(time.perf_counter() - started, 6)
    answer = {
        "traces": shown,
        "complete": not is_cut,
        "matched_is_exact": found.has_all_spans,
        "stats": asdict(replace(stats, rows=len(shown), seconds=seconds)),
    }
    return orjson.dumps(answer)


def _larger(first: Stats, second: Stats) -> Stats:
    """Either may have read more, mostly of the same files: their sum would count those twice."""
    return replace(
        together(first, second),
        files=max(first.files, second.files),
        bytes=max(first.bytes, second.bytes),
        tail_rows=max(first.tail_rows, second.tail_rows),
    )


async def _candidates(queries: Queries, caller: Caller, search: TraceSearch) -> tuple[_Candidates, Stats]:
    whole = time_range(search.begin, search.end)
    where, params = whole.where(search.filter)
    spans_first, traces_first = _RANKED[search.order]
    spans_max = search.limit * _SPANS_LOOKED_AT
    traces_max = search.limit * (_SLOWEST_LOOKED_AT if search.order == "slowest" else 1)
    sql = (
        "SELECT trace_id, epoch_us(min(time)) AS oldest, epoch_us(max(time)) AS newest, "  # noqa: S608
        "max(duration_nano) AS longest, count(*) AS matched, "
        "CAST(sum(count(*)) OVER () AS BIGINT) AS spans_seen, count(*) OVER () AS traces_seen "
        f"FROM (SELECT trace_id, time, duration_nano FROM spans WHERE {where} AND trace_id IS NOT NULL "
        f"ORDER BY {spans_first} LIMIT ?) GROUP BY trace_id ORDER BY {traces_first} LIMIT ?"
    )
    table, stats = await ask(queries, caller, sql, [*params, spans_max, traces_max], "the list of traces")
    if not len(table):
        return _Candidates({}, whole, has_all_spans=True, has_all_traces=True), stats
    matched = dict(zip(table["trace_id"].to_pylist(), table["matched"].to_pylist(), strict=True))
    around = Range(
        min(table["oldest"].to_pylist()) - _AROUND,
        max(table["newest"].to_pylist()) + _AROUND,
    )
    has_all_spans = table["spans_seen"][0].as_py() < spans_max
    has_all_traces = table["traces_seen"][0].as_py() <= len(table)
    return _Candidates(matched, around, has_all_spans, has_all_traces), stats


async def _parts(queries: Queries, caller: Caller, found: _Candidates) -> tuple[pa.Table, Stats]:
    """Of each trace a row for each of its services: one a span would be far more."""
    ids = Filter()
    ids.add(f"trace_id IN ({', '.join('?' for _ in found.matched)})", *found.matched)
    where, params = found.around.where(ids)
    first = "min({'moment': moment, 'name': name})"
    sql = (
        "SELECT trace_id, service, count(*) AS spans, count(*) FILTER (WHERE is_error) AS errors, "  # noqa: S608
        "min(moment) AS seen, min(started) AS started, max(ended) AS ended, "
        f"{first} AS first, {first} FILTER (WHERE is_root) AS root FROM ("
        "SELECT trace_id, coalesce(service_name, '') AS service, coalesce(name, '') AS name, "
        f"coalesce(status_code = {_STATUS_ERROR}, false) AS is_error, parent_span_id IS NULL AS is_root, "
        "coalesce(start_time_unix_nano, end_time_unix_nano) AS started, "
        "coalesce(end_time_unix_nano, start_time_unix_nano) AS ended, "
        "coalesce(start_time_unix_nano, end_time_unix_nano, epoch_us(time) * 1000) AS moment "
        f"FROM spans WHERE {where}) GROUP BY trace_id, service ORDER BY trace_id, spans DESC, service"
    )
    return await ask(queries, caller, sql, params, "the list of traces")


def _summaries(rows: pa.Table, matched: Mapping[str, int]) -> list[dict[str, Any]]:
    """In the order of `matched`. A trace that has gone between the questions is left out."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for part in rows.to_pylist():
        parts.setdefault(part["trace_id"], []).append(part)
    return [_summary(id, parts[id], count) for id, count in matched.items() if id in parts]


def _summary(id: str, parts: Sequence[Mapping[str, Any]], matched: int) -> dict[str, Any]:
    """Without a root the earliest span stands for it; without any known time, when it was received."""
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
    return {
        "trace_id": id,
        "start_time": iso(start // 1_000),
        "start_time_unix_nano": str(start),
        "duration_ms": max(0, end - start) / 1e6,
        "root_service": service,
        "root_name": name,
        "root_missing": not roots,
        "spans": sum(part["spans"] for part in parts),
        "errors": sum(part["errors"] for part in parts),
        "services": [
            {"name": part["service"], "spans": part["spans"], "errors": part["errors"]} for part in parts
        ],
        "matched": matched,
    }
