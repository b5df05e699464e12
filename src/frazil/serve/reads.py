"""`GET /api/v1/logs`, `/spans`, `/traces`, their counts, and one trace: `query/reads` over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi import Query as Parameter

from frazil.errors import RequestInvalid
from frazil.otlp.encode import encode
from frazil.otlp.json import request_to_json
from frazil.query.model import Query, Stats
from frazil.query.reads.counts import GROUPS, Counting, Counts, count
from frazil.query.reads.filters import Filter, Searched
from frazil.query.reads.records import Key, Order, Page, PageEnd, RecordSearch, page
from frazil.query.reads.statement import Read, Statement
from frazil.query.reads.time_range import Buckets as TimeBuckets
from frazil.query.reads.time_range import TimeRange, is_time
from frazil.query.reads.trace_durations import BINS_MS, DurationCounting, TraceDurations, count_durations
from frazil.query.reads.traces import FoundTraces, TraceOrder, TraceSearch, find_traces, trace_rows
from frazil.serve import parameters
from frazil.serve.auth import Caller, Reader
from frazil.serve.describe import COUNTS, DURATIONS, PAGE, TRACE, TRACES, TraceList
from frazil.serve.errors import NotFound
from frazil.serve.filters import Logs, Spans, TimeParameters, Times
from frazil.serve.records import as_json
from frazil.serve.state import QueryServiceDep
from frazil.serve.streams import cancel_on_disconnect, read_all
from frazil.tables import table_spec
from frazil.times import iso

if TYPE_CHECKING:
    from frazil.query.service import QueryService

T = TypeVar("T")
_BYTES_MAX = 64 << 20
_CURSOR_VERSION = 2
_CURSOR_CHARS_MAX = 1_000
_INT64 = 2**63
_TRACE_ORDERS: tuple[TraceOrder, ...] = get_args(TraceOrder)

router = APIRouter(
    prefix="/api/v1", dependencies=[Depends(parameters.only_known)], default_response_class=Response
)


async def run(queries: QueryService, caller: Caller, read: Read[T], what: str) -> tuple[T, Stats]:
    """Run a read for the caller's tenant. `what` names the result in errors."""
    started = time.perf_counter()
    stats: Stats | None = None
    table: pa.Table | None = None
    while isinstance(step := await asyncio.to_thread(_advance, read, table), Statement):
        query = Query(step.sql, caller.tenant, params=step.params, format="arrow", who=caller.name)
        result = await queries.execute(query)
        table = pa.ipc.open_stream(await read_all(result, _BYTES_MAX, what)).read_all()
        stats = result.stats if stats is None else _combined(stats, result.stats)
    rows = 0 if table is None else len(table)
    return step.result, replace(stats or Stats(), rows=rows, seconds=round(time.perf_counter() - started, 6))


@dataclass(frozen=True)
class _End:
    result: Any


def _advance(read: Read[Any], table: pa.Table | None) -> Statement | _End:
    """Run the next step of a read. StopIteration cannot be raised into a coroutine."""
    try:
        return next(read) if table is None else read.send(table)
    except StopIteration as end:
        return _End(end.value)


def _combined(first: Stats, second: Stats) -> Stats:
    """Combine statistics. Takes the larger numbers: both statements read mostly the same files."""
    return replace(
        second,
        queued_seconds=first.queued_seconds + second.queued_seconds,
        files=max(first.files, second.files),
        bytes=max(first.bytes, second.bytes),
        tail_rows=max(first.tail_rows, second.tail_rows),
        cached=first.cached and second.cached,
        stale=second.stale or first.stale,
        missing=tuple(dict.fromkeys([*first.missing, *second.missing])),
    )


@dataclass(frozen=True)
class _Runner:
    """Runs reads for one request, and cancels them if the client disconnects."""

    request: Request
    caller: Reader
    queries: QueryServiceDep

    async def json(self, read: Read[T], body: Callable[[T, Stats], Any], what: str) -> Response:
        result, stats = await cancel_on_disconnect(self.request, run(self.queries, self.caller, read, what))
        content = await asyncio.to_thread(lambda: orjson.dumps(body(result, stats)))
        return Response(content, media_type="application/json")


@dataclass(frozen=True)
class _Paging:
    limit: Annotated[int, Parameter(description="Records per page.", ge=1, le=1_000)] = 100
    cursor: Annotated[
        str | None, Parameter(description="`next` of the previous page. Repeat all other parameters.")
    ] = None
    order: Annotated[Order, Parameter(description="`desc`: newest first.")] = "desc"


Runner = Annotated[_Runner, Depends()]
Paging = Annotated[_Paging, Depends()]
Buckets = Annotated[
    int,
    Parameter(
        description="Maximum number of buckets; their width is a round number.", ge=1, le=400, examples=[60]
    ),
]
Services = Annotated[
    int,
    Parameter(
        description="With `by=service`: number of services with a series of their own. The others are added "
        "up.",
        ge=1,
        le=200,
    ),
]


@router.get(
    "/logs",
    tags=["Search"],
    summary="Search logs",
    description="Searches log records by time, service, severity, text and attributes. Newest first, in "
    "pages.",
    responses=PAGE,
)
async def logs(runner: Runner, filter: Logs, times: Times, paging: Paging) -> Response:
    return await _page(runner, filter, times, paging)


@router.get(
    "/spans",
    tags=["Search"],
    summary="Search spans",
    description="Searches spans by start time, service, name, duration, status and attributes. Newest first, "
    "in pages. `q` and `regex` search the name, the status message, and the names and attribute values of "
    "events, such as exceptions.",
    responses=PAGE,
)
async def spans(runner: Runner, filter: Spans, times: Times, paging: Paging) -> Response:
    return await _page(runner, filter, times, paging)


async def _page(runner: _Runner, filter: Filter, times: TimeParameters, paging: _Paging) -> Response:
    request = [filter.table, paging.order, times, filter]
    digest = hashlib.sha256(orjson.dumps(request)).hexdigest()[:16]
    cursor = None if paging.cursor is None else Cursor.parse(paging.cursor, digest)
    range = times.range() if cursor is None else cursor.range
    after = None if cursor is None else cursor.after

    def body(found: Page, stats: Stats) -> dict[str, Any]:
        next = None if found.end is None else Cursor(range, digest, found.end).text()
        records = as_json(found.rows)
        return {"records": records, "next": next, "stats": replace(stats, rows=len(records))}

    search = RecordSearch(filter, range, paging.order, paging.limit, after)
    return await runner.json(page(search), body, "the page")


@router.get(
    "/logs/counts",
    tags=["Search"],
    summary="Count logs over time",
    description="Counts matching log records in time buckets, by severity or service. The filters are those "
    "of `/api/v1/logs`.",
    responses=COUNTS,
)
async def log_counts(
    runner: Runner,
    filter: Logs,
    times: Times,
    buckets: Buckets = 60,
    by: Annotated[
        str,
        Parameter(description="severity, service or none.", json_schema_extra={"enum": list(GROUPS["logs"])}),
    ] = "severity",
    services: Services = 20,
) -> Response:
    return await _counts(runner, filter, times, by, buckets, services)


@router.get(
    "/spans/counts",
    tags=["Search"],
    summary="Count spans over time",
    description="Counts matching spans in buckets of their start time, by status or service. The filters are "
    "those of `/api/v1/spans`.",
    responses=COUNTS,
)
async def span_counts(
    runner: Runner,
    filter: Spans,
    times: Times,
    buckets: Buckets = 60,
    by: Annotated[
        str,
        Parameter(description="status, service or none.", json_schema_extra={"enum": list(GROUPS["spans"])}),
    ] = "status",
    services: Services = 20,
) -> Response:
    return await _counts(runner, filter, times, by, buckets, services)


async def _counts(
    runner: _Runner, filter: Filter, times: TimeParameters, by: str, buckets_max: int, services_max: int
) -> Response:
    range = times.range()

    def body(found: Counts, stats: Stats) -> dict[str, Any]:
        counted = {"series": found.series, "total": found.total, "stats": stats}
        return _times_of(range, found.buckets) | counted

    chosen = parameters.choice("by", by, GROUPS[filter.table])
    counting = Counting(filter, range, chosen, buckets_max, services_max)
    return await runner.json(count(counting), body, "the counts")


def _times_of(range: TimeRange, buckets: TimeBuckets) -> dict[str, Any]:
    return {
        "from": iso(range.begin),
        "to": iso(range.end),
        "first_bucket": iso(buckets.first),
        "bucket_seconds": buckets.seconds,
    }


@router.get(
    "/traces",
    tags=["Traces"],
    summary="Search traces",
    description="Finds traces with a span that matches all filters of `/api/v1/spans`; `duration_min` and "
    "`duration_max` apply to that span. Spans of a trace more than an hour before or after the matching "
    "spans are not counted. `newest` takes the traces with the newest matching spans, and sorts them by the "
    "start of the trace. `slowest` takes the traces with the slowest matching spans, and sorts them by the "
    "duration of the trace.",
    responses=TRACES,
)
async def traces(
    runner: Runner,
    filter: Spans,
    times: Times,
    limit: Annotated[int, Parameter(description="Maximum number of traces.", ge=1, le=200)] = 50,
    order: Annotated[
        str,
        Parameter(description="newest or slowest first.", json_schema_extra={"enum": list(_TRACE_ORDERS)}),
    ] = "newest",
) -> Response:
    def body(found: FoundTraces, stats: Stats) -> TraceList:
        return TraceList(**vars(found), stats=replace(stats, rows=len(found.traces)))

    chosen = parameters.choice("order", order, _TRACE_ORDERS)
    search = TraceSearch(filter, times.range(), chosen, limit)
    return await runner.json(find_traces(search), body, "the list of traces")


@router.get(
    "/traces/durations",
    tags=["Traces"],
    summary="Count traces by duration over time",
    description="Counts traces in buckets of their start time and bins of their duration, over the whole "
    "time range. The filters are those of `/api/v1/traces`. Traces that started before the range are left "
    "out.",
    responses=DURATIONS,
)
async def trace_durations(
    runner: Runner,
    filter: Spans,
    times: Times,
    buckets: Annotated[
        int,
        Parameter(description="Maximum number of time buckets; their width is a round number.", ge=1, le=200),
    ] = 60,
) -> Response:
    range = times.range()

    def body(found: TraceDurations, stats: Stats) -> dict[str, Any]:
        counted = {"bins_ms": BINS_MS, "cells": found.cells, "total": found.total, "stats": stats}
        return _times_of(range, found.buckets) | counted

    counting = DurationCounting(filter, range, buckets)
    return await runner.json(count_durations(counting), body, "the durations")


@router.get(
    "/traces/{trace_id}",
    tags=["Traces"],
    summary="Get a trace",
    description="Returns all spans of a trace in OTLP/JSON; with `logs=true` also its logs.",
    responses=TRACE,
)
async def trace(
    runner: Runner,
    trace_id: Annotated[
        str, Path(description="32 hexadecimal digits.", examples=["5b8efff798038103d269b633813fc60c"])
    ],
    logs: Annotated[bool, Parameter(description="Add the logs of the trace, as `resourceLogs`.")] = False,
) -> Response:
    id = parameters.trace_id(trace_id)

    def body(found: dict[Searched, pa.Table], stats: Stats) -> dict[str, Any]:
        if not any(map(len, found.values())):
            raise NotFound(f"no span of the trace {id} was found")
        return {"resourceSpans": _otlp(found, "spans")} | (
            {"resourceLogs": _otlp(found, "logs")} if logs else {}
        )

    return await runner.json(trace_rows(id, ("spans", "logs") if logs else ("spans",)), body, "the trace")


def _otlp(found: dict[Searched, pa.Table], table: Searched) -> list[Any]:
    """Return the resources of an OTLP/JSON request."""
    request = orjson.loads(request_to_json(encode(found[table], table_spec(table))))
    resources: list[Any] = request.get("resourceSpans" if table == "spans" else "resourceLogs", [])
    return resources


@dataclass(frozen=True)
class Cursor:
    """The cursor of a page of records: where the next page begins, and the search that it belongs to."""

    range: TimeRange
    """The time range of the first page: `-15m` must not advance between pages."""
    search: str
    """A digest of the search: a cursor is valid only for the search that it came from."""
    after: PageEnd

    def text(self) -> str:
        parts = [self.range.begin, self.range.end, self.search, self.after.key, self.after.seen]
        return urlsafe_b64encode(orjson.dumps([_CURSOR_VERSION, *parts])).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str, search: str) -> Cursor:
        """Raises RequestInvalid unless the text is a cursor of this search."""
        try:
            version, begin, end, digest, key, seen = orjson.loads(_decoded(text))
            cursor = cls(TimeRange(begin, end), digest, PageEnd(_checked(key), seen))
        except (ValueError, TypeError):
            raise RequestInvalid(
                "the cursor is invalid: send `next` of the previous page unchanged, or start without a cursor"
            ) from None
        numbers = (begin, end, seen, cursor.after.key[0])
        if version != _CURSOR_VERSION or not all(_is_int(number) for number in numbers) or seen < 1:
            raise RequestInvalid("the cursor is from another release: start without a cursor")
        if not all(is_time(micros) for micros in (begin, end, cursor.after.key[0])):
            raise RequestInvalid("the cursor is invalid: its time is out of range; start without a cursor")
        if digest != search:
            raise RequestInvalid(
                "the cursor belongs to another search: repeat all parameters of the first page"
            )
        return cursor


def _decoded(text: str) -> bytes:
    if len(text) > _CURSOR_CHARS_MAX:
        raise ValueError
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _checked(key: Any) -> Key:
    time, nanos, trace, span, hashed = key
    numbers = _is_int(time) and _is_int(nanos) and type(hashed) is int and 0 <= hashed < 2 * _INT64
    if not numbers or not isinstance(trace, str) or not isinstance(span, str):
        raise ValueError
    return time, nanos, trace, span, hashed


def _is_int(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64
