"""Schemas and examples of responses, only for the OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from frazil.query.model import ResultColumn, Stats
from frazil.query.reads.counts import CountSeries, OtherServices
from frazil.query.reads.trace_durations import DurationCell
from frazil.query.reads.traces import FoundTraces

Responses = dict[int | str, dict[str, Any]]


class _Body(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class SqlResult(_Body):
    columns: list[ResultColumn]
    rows: list[list[Any]]
    stats: Stats


class QueryProgress(_Body):
    id: str
    state: Literal["waiting", "planning", "running"]
    percent: float | None
    seconds: float


class RecordPage(_Body):
    records: list[dict[str, Any]]
    """Columns by name. NULL values are left out."""
    next: str | None
    """The `cursor` of the next page; null on the last page."""
    stats: Stats


class _OverTime(_Body):
    begin: str = Field(alias="from")
    to: str
    first_bucket: str
    """Start time of the first bucket."""
    bucket_seconds: int


class CountsOverTime(_OverTime):
    series: list[OtherServices | CountSeries]
    total: int
    stats: Stats


class DurationsOverTime(_OverTime):
    bins_ms: list[float]
    """The lower bound of each duration bin. A bin ends where the next one begins; the last one has no end."""
    cells: list[DurationCell]
    total: int
    stats: Stats


@dataclass(frozen=True)
class TraceList(FoundTraces):
    stats: Stats


class TraceData(_Body):
    """A trace as OTLP/JSON."""

    resourceSpans: list[dict[str, Any]]  # noqa: N815
    resourceLogs: list[dict[str, Any]] = []  # noqa: N815


class ErrorFacts(_Body):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)
    code: str
    """A stable code, for programs."""
    message: str
    position: int | None = None
    """Position of the error in the SQL, in characters."""
    limit: str | None = None
    """Configuration key of the limit."""
    parameter: str | None = None
    """The invalid query parameter."""


class ErrorBody(_Body):
    error: ErrorFacts


def described(
    model: Any, description: str, example: Any, others: Responses | None = None, status: int = 200
) -> Responses:
    """Describe the response of a status, and add `others`."""
    content = {"application/json": {"example": example}}
    return {status: {"model": model, "description": description, "content": content}, **(others or {})}


_ERRORS = {
    400: ("Invalid SQL or an invalid parameter.", "query_invalid", "there is no column servce_name"),
    401: ("No valid API key.", "unauthenticated", "no API key: send `Authorization: Bearer fz_…`"),
    403: (
        "The key lacks the role, or the SQL accesses more than the tables.",
        "query_refused",
        "read_csv() is not available",
    ),
    404: ("Does not exist for this tenant.", "not_found", "no span of the trace was found"),
    413: ("The request is too large.", "too_large", "the request is larger than 1441792 bytes"),
    415: ("Unsupported content type.", "unsupported_type", "the content type must be application/json"),
    422: (
        "A limit was reached; `limit` is its configuration key.",
        "limit_reached",
        "the query reached its time limit of 30 s",
    ),
    429: ("Too many queries are waiting; retry after `Retry-After`.", "overloaded", "64 queries are waiting"),
    503: ("The store or the catalog does not respond.", "store_unavailable", "the store does not respond"),
}
QUERY_ERRORS = (400, 401, 403, 413, 422, 429, 503)
"""Status codes that any query can have."""


def errors(*codes: int) -> Responses:
    found: Responses = {}
    for status in codes:
        description, code, message = _ERRORS[status]
        example = {"error": {"code": code, "message": message}}
        found |= described(ErrorBody, description, example, status=status)
    return found


_STATS = {"rows": 1, "files": 2, "files_total": 500, "tail_rows": 120}
PAGE = described(
    RecordPage,
    "A page of records; `next` is null on the last page. NULL values are left out. Integers beyond 2^53 and "
    "nanosecond times are text.",
    {
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
        "stats": _STATS,
    },
    errors(*QUERY_ERRORS),
)
COUNTS = described(
    CountsOverTime,
    "`counts` has one number per bucket. The first bucket begins at `first_bucket`; each is `bucket_seconds` "
    "long. Series without records are left out.",
    {
        "from": "2026-11-15T10:00:20.000000Z",
        "to": "2026-11-15T10:02:50.000000Z",
        "first_bucket": "2026-11-15T10:00:00.000000Z",
        "bucket_seconds": 60,
        "series": [{"name": "info", "counts": [412, 630, 501]}, {"name": "error", "counts": [0, 3, 1]}],
        "total": 1547,
        "stats": _STATS | {"rows": 5},
    },
    errors(*QUERY_ERRORS),
)
TRACES = described(
    TraceList,
    "Each trace once. `complete`: no other trace matches. `matched_is_exact`: all matching spans were "
    "counted; otherwise `matched` is a lower bound.",
    {
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
        "stats": _STATS,
    },
    errors(*QUERY_ERRORS),
)
DURATIONS = described(
    DurationsOverTime,
    "A cell has the traces of one time bucket and one duration bin, numbered from 0. The first bucket begins "
    "at `first_bucket`; each is `bucket_seconds` long. Cells without traces are left out.",
    {
        "from": "2026-11-15T10:00:20.000000Z",
        "to": "2026-11-15T10:02:50.000000Z",
        "first_bucket": "2026-11-15T10:00:00.000000Z",
        "bucket_seconds": 60,
        "bins_ms": [0.0, 0.001, 0.0015, 0.002],
        "cells": [{"bucket": 2, "bin": 31, "traces": 12, "errors": 1, "longest_ms": 148.2}],
        "total": 12,
        "stats": _STATS,
    },
    errors(*QUERY_ERRORS),
)
_SPAN = {
    "traceId": "5b8efff798038103d269b633813fc60c",
    "spanId": "eee19b7ec3c1b174",
    "name": "GET /cart",
    "startTimeUnixNano": "1790000000000000000",
}
_RESOURCE = {"attributes": [{"key": "service.name", "value": {"stringValue": "cart"}}]}
TRACE = described(
    TraceData,
    "The trace in OTLP/JSON, which any OTLP receiver accepts.",
    {"resourceSpans": [{"resource": _RESOURCE, "scopeSpans": [{"spans": [_SPAN]}]}]},
    errors(404, *QUERY_ERRORS),
)
