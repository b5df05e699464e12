"""`POST /api/v1/sql`, and progress and cancellation of queries."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated, get_args

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from frazil.errors import RequestInvalid
from frazil.query.model import CONTENT_TYPES, Format, Stats
from frazil.serve.auth import Reader
from frazil.serve.body import SqlRequest, read_query
from frazil.serve.describe import QUERY_ERRORS, QueryProgress, SqlResult, described, errors
from frazil.serve.errors import NotFound
from frazil.serve.parameters import choice, only_known
from frazil.serve.state import ConfigDep, QueryServiceDep
from frazil.serve.streams import StreamedResult, cancel_on_disconnect

router = APIRouter(prefix="/api/v1", tags=["SQL"], dependencies=[Depends(only_known)])

_MISSING_MAX = 5
_FORMATS: tuple[Format, ...] = get_args(Format)
_BY_TYPE: dict[str, Format] = {
    **{content_type.partition(";")[0]: name for name, content_type in CONTENT_TYPES.items()},
    "application/*": "json",
    "text/*": "csv",
    "*/*": "json",
}
_EXAMPLE = {
    "sql": "SELECT service_name, count(*) AS n FROM logs WHERE severity_number >= ? GROUP BY ALL",
    "params": [17],
}
_REQUEST = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": SqlRequest.model_json_schema(), "example": _EXAMPLE},
            "application/sql": {"schema": {"type": "string"}, "example": "SELECT count(*) FROM spans"},
            "text/plain": {"schema": {"type": "string"}},
        },
    }
}
_RESULT = described(
    SqlResult,
    "The rows, streamed. `X-Frazil-Query-Id` is the query's id, `X-Frazil-Stats` has its statistics. If the "
    "query fails after the first byte, the connection is closed before the body is complete.",
    {
        "columns": [{"name": "service_name", "type": "VARCHAR"}, {"name": "n", "type": "BIGINT"}],
        "rows": [["cart", 12]],
        "stats": {"id": "q1", "rows": 1, "seconds": 0.02, "files": 3, "files_total": 500},
    },
    errors(*QUERY_ERRORS, 415),
)
_RESULT[200]["content"] |= {
    "text/csv": {"schema": {"type": "string"}},
    CONTENT_TYPES["arrow"]: {"schema": {"type": "string", "format": "binary"}},
    CONTENT_TYPES["parquet"]: {"schema": {"type": "string", "format": "binary"}},
}


@router.post(
    "/sql",
    summary="Run SQL",
    description="Runs one SELECT over the tenant's tables, including rows that have not landed yet. The "
    "format is `?format=`, else the best match of `Accept`, else JSON. Closing the connection cancels the "
    "query.",
    response_class=Response,
    responses=_RESULT,
    openapi_extra=_REQUEST,
)
async def run_sql(
    request: Request,
    caller: Reader,
    queries: QueryServiceDep,
    config: ConfigDep,
    format: Annotated[
        str | None,
        Query(description="`json`, `csv`, `arrow` or `parquet`; overrides `Accept`.", examples=["csv"]),
    ] = None,
) -> Response:
    query = await read_query(request, caller, config, _format(format, request.headers.get("accept")))
    result = await cancel_on_disconnect(request, queries.execute(query))
    headers = {"x-frazil-query-id": result.stats.id, "x-frazil-stats": _compact(result.stats)}
    return StreamedResult(result.content, headers, CONTENT_TYPES[result.format])


def _format(parameter: str | None, accept: str | None) -> Format:
    if parameter is not None:
        return choice("format", parameter, _FORMATS)
    if not accept:
        return "json"
    for quality, _, content_type in sorted((_weighted(part) for part in accept.split(",")), reverse=True):
        if quality > 0 and content_type in _BY_TYPE:
            return _BY_TYPE[content_type]
    raise RequestInvalid(
        f"no format in `Accept` is supported; supported are {', '.join(CONTENT_TYPES.values())}"
    )


def _weighted(part: str) -> tuple[float, int, str]:
    """Return quality, specificity and type, in sort order."""
    name, *arguments = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for argument in arguments:
        if argument.startswith("q="):
            try:
                quality = float(argument[2:])
            except ValueError:
                quality = 0.0
    return quality, -name.count("*"), name


def _compact(stats: Stats) -> str:
    """Render statistics for a header: short, in ASCII, on one line."""
    stats = replace(stats, missing=tuple(stats.missing)[:_MISSING_MAX])
    known = {name: value for name, value in asdict(stats).items() if value not in (None, (), [], {}, "")}
    return json.dumps(known, separators=(",", ":"))


_PROGRESS = described(
    QueryProgress,
    "The state of the query.",
    {"id": "q1", "state": "running", "percent": 42.0, "seconds": 1.3},
    errors(401, 403, 404),
)
_QueryId = Annotated[str, Path(description="The query's id: `id` of the request, or `X-Frazil-Query-Id`.")]


@router.get(
    "/queries/{query_id}",
    summary="Get query progress",
    description="Returns the state of a waiting or running query of the same tenant.",
    response_class=Response,
    responses=_PROGRESS,
)
async def progress(query_id: _QueryId, caller: Reader, queries: QueryServiceDep) -> Response:
    found = queries.progress(caller.tenant, query_id)
    if found is None:
        raise _no_query()
    body = asdict(found)
    del body["tenant"]
    return Response(orjson.dumps(body), media_type="application/json")


@router.delete(
    "/queries/{query_id}",
    summary="Cancel a query",
    description="Cancels a query of the same tenant; its client gets an error.",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "The query is being cancelled."}, **errors(401, 403, 404)},
)
async def cancel(query_id: _QueryId, caller: Reader, queries: QueryServiceDep) -> Response:
    if not queries.cancel(caller.tenant, query_id):
        raise _no_query()
    return Response(status_code=204)


def _no_query() -> NotFound:
    return NotFound("no query with that id is waiting or running")
