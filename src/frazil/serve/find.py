"""`GET /api/v1/logs` and `/api/v1/spans`, and the filters that all searches share.

Filters are declared and compiled here alone, so that a histogram or a list of traces never means something
else by a filter than the records below it.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from frazil.serve import parameters
from frazil.serve.auth import Reader
from frazil.serve.describe import ERRORS
from frazil.serve.search import Filter, Order, Search, find
from frazil.serve.state import Asked
from frazil.serve.streams import json_unless_gone

router = APIRouter(prefix="/api/v1", tags=["Search"], dependencies=[Depends(parameters.only_known)])

_CHARS_MAX = 1_000

From = Annotated[
    str,
    Query(
        alias="from",
        description="The earliest time: ISO 8601, unix seconds, or relative such as `-15m`.",
        examples=["-15m"],
    ),
]
To = Annotated[str, Query(description="The time before which records are; as `from`.", examples=["now"])]
Services = Annotated[
    list[str] | None, Query(description="`service.name`; more than one may be given.", examples=["cart"])
]
Words = Annotated[
    str | None,
    Query(description="Words that must all occur, in any case.", examples=["refused"], max_length=_CHARS_MAX),
]
Regex = Annotated[
    str | None,
    Query(description="A regular expression (RE2) that must match.", max_length=_CHARS_MAX),
]
TraceId = Annotated[str | None, Query(description="32 hexadecimal digits.")]
Attributes = Annotated[
    list[str] | None,
    Query(
        description="`key=value` or `key:value`: an attribute of the record, of its resource, or of an event "
        "of a span. Repeatable.",
        examples=["http.route=/cart"],
        max_length=20,
    ),
]
ReceivedFrom = Annotated[
    str | None,
    Query(
        description="The earliest time of arrival, whatever time the record itself has: ISO 8601 or unix "
        "seconds. To follow what comes in, ask for what arrived since the last answer.",
        examples=["2026-11-15T10:00:00Z"],
    ),
]
Limit = Annotated[int, Query(description="Records on a page.", ge=1, le=1_000)]
Next = Annotated[str | None, Query(description="`next` of the page before, with all its other parameters.")]
Direction = Annotated[Order, Query(description="`desc`: newest first.")]


async def log_filter(
    service: Services = None,
    severity: Annotated[
        str | None, Query(description="The lowest: 1 to 24, or a name.", examples=["warn"])
    ] = None,
    q: Words = None,
    regex: Regex = None,
    trace_id: TraceId = None,
    attr: Attributes = None,
    received_from: ReceivedFrom = None,
) -> Filter:
    filter = Filter()
    filter.services(service or [])
    if severity is not None:
        filter.add("severity_number >= ?", parameters.severity(severity))
    if trace_id is not None:
        filter.add("trace_id = ?", parameters.trace_id(trace_id))
    filter.text("logs", q, regex)
    filter.attributes("logs", attr or [])
    if received_from is not None:
        since = parameters.fixed("received_from", received_from)
        filter.add("received_time >= CAST(? AS TIMESTAMPTZ)", since)
    return filter


async def span_filter(
    service: Services = None,
    name: Annotated[str | None, Query(description="The operation, exactly.", examples=["GET /cart"])] = None,
    kind: Annotated[
        str | None, Query(description="internal, server, client, producer or consumer.", examples=["server"])
    ] = None,
    status: Annotated[str | None, Query(description="error, ok or unset.", examples=["error"])] = None,
    duration_min: Annotated[
        str | None, Query(description="`250` or `250ms`, `1.5s`, `80us`.", examples=["250ms"])
    ] = None,
    duration_max: Annotated[str | None, Query(description="As `duration_min`.", examples=["2s"])] = None,
    q: Words = None,
    regex: Regex = None,
    trace_id: TraceId = None,
    attr: Attributes = None,
) -> Filter:
    filter = Filter()
    filter.services(service or [])
    if name is not None:
        filter.add("name = ?", name)
    if kind is not None:
        filter.add("kind = ?", parameters.kind(kind))
    if status is not None:
        filter.add("coalesce(status_code, 0) = ?", parameters.status(status))
    if duration_min is not None:
        filter.add("duration_nano >= ?", parameters.duration("duration_min", duration_min))
    if duration_max is not None:
        filter.add("duration_nano <= ?", parameters.duration("duration_max", duration_max))
    if trace_id is not None:
        filter.add("trace_id = ?", parameters.trace_id(trace_id))
    filter.text("spans", q, regex)
    filter.attributes("spans", attr or [])
    return filter


LogFilter = Annotated[Filter, Depends(log_filter)]
SpanFilter = Annotated[Filter, Depends(span_filter)]


_PAGE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "A page of records; `next` is null on the last one. What is NULL is left out. "
        "Integers beyond 2^53 and exact nanoseconds are text.",
        "content": {
            "application/json": {
                "example": {
                    "records": [
                        {
                            "time": "2026-11-15T10:00:00.000000Z",
                            "service_name": "cart",
                            "severity_text": "ERROR",
                            "body": "connection refused",
                            "attributes": {"http.response.status_code": 502},
                        }
                    ],
                    "next": None,
                    "stats": {"rows": 1, "files": 2, "files_total": 500, "tail_rows": 120},
                }
            }
        },
    }
}


@router.get(
    "/logs",
    summary="Find logs",
    description="Log records by time, service, severity, text and attributes; newest first, page by page.",
    response_class=Response,
    responses=_PAGE | ERRORS,
)
async def logs(
    request: Request,
    caller: Reader,
    queries: Asked,
    filter: LogFilter,
    begin: From = "-1h",
    to: To = "now",
    limit: Limit = 100,
    cursor: Next = None,
    order: Direction = "desc",
) -> Response:
    search = Search("logs", filter, begin, to, order, limit, cursor)
    return await json_unless_gone(request, find(queries, caller, search))


@router.get(
    "/spans",
    summary="Find spans",
    description="Spans by time (their start), service, name, duration, status and attributes; newest first, "
    "page by page. `q` and `regex` look at the name, the status message, and the names and attribute values "
    "of events, such as exceptions.",
    response_class=Response,
    responses=_PAGE | ERRORS,
)
async def spans(
    request: Request,
    caller: Reader,
    queries: Asked,
    filter: SpanFilter,
    begin: From = "-1h",
    to: To = "now",
    limit: Limit = 100,
    cursor: Next = None,
    order: Direction = "desc",
) -> Response:
    search = Search("spans", filter, begin, to, order, limit, cursor)
    return await json_unless_gone(request, find(queries, caller, search))
