"""`POST /api/v1/sql`, and the queries that run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated, get_args

import orjson
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from frazil.errors import RequestInvalid
from frazil.query.model import CONTENT_TYPES, Format, Stats
from frazil.serve.auth import Reader
from frazil.serve.body import SqlRequest, read_question
from frazil.serve.describe import QUERY_ERRORS, QueryProgress, SqlResult, described, errors
from frazil.serve.errors import NotFound, suggestion
from frazil.serve.parameters import only_known
from frazil.serve.state import RunningQuery, Settings
from frazil.serve.streams import StreamedAnswer, unless_gone

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
    "The rows, streamed. `X-Frazil-Query-Id` names the query, `X-Frazil-Stats` says what it reads. An answer "
    "that breaks on its way ends without the end of its body.",
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
    description="Runs one SELECT over the tenant's tables: what has landed, and what arrived a moment ago. "
    "The format is `?format=`, else what `Accept` asks for, else JSON. The query ends when the client "
    "closes the connection.",
    response_class=Response,
    responses=_RESULT,
    openapi_extra=_REQUEST,
)
async def run_sql(
    request: Request,
    caller: Reader,
    queries: RunningQuery,
    config: Settings,
    format: Annotated[
        str | None,
        Query(description="`json`, `csv`, `arrow` or `parquet`; wins over `Accept`.", examples=["csv"]),
    ] = None,
) -> Response:
    wanted = _format(format, request.headers.get("accept"))
    query = await read_question(request, caller, config, wanted)
    answer = await unless_gone(request, queries.execute(query))
    headers = {"x-frazil-query-id": answer.stats.id, "x-frazil-stats": _compact(answer.stats)}
    return StreamedAnswer(answer.content, headers, CONTENT_TYPES[answer.format])


def _format(parameter: str | None, accept: str | None) -> Format:
    if parameter is not None:
        for name in _FORMATS:
            if name == parameter.lower():
                return name
        raise RequestInvalid(f"there is no format `{parameter[:50]}`.{suggestion(parameter, _FORMATS)}")
    if not accept:
        return "json"
    for choice in sorted((_weighed(part) for part in accept.split(",")), reverse=True):
        if choice[0] > 0 and choice[2] in _BY_TYPE:
            return _BY_TYPE[choice[2]]
    raise RequestInvalid(
        f"nothing that `Accept` names can be had; there are {', '.join(CONTENT_TYPES.values())}"
    )


def _weighed(part: str) -> tuple[float, int, str]:
    """Quality, how exact it is, and the type: so that they sort."""
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
    """For a header: ASCII, one line, and not too long."""
    stats = replace(stats, missing=tuple(stats.missing)[:_MISSING_MAX])
    known = {name: value for name, value in asdict(stats).items() if value not in (None, (), [], {}, "")}
    return json.dumps(known, separators=(",", ":"))


_PROGRESS = described(
    QueryProgress,
    "The state of the query.",
    {"id": "q1", "state": "running", "percent": 42.0, "seconds": 1.3},
    errors(401, 403, 404),
)
_QueryId = Annotated[str, Path(description="The query's id, from `X-Frazil-Query-Id` or chosen by you.")]


@router.get(
    "/queries/{query_id}",
    summary="Watch a query",
    description="A query of the same tenant that waits or runs now.",
    response_class=Response,
    responses=_PROGRESS,
)
async def progress(query_id: _QueryId, caller: Reader, queries: RunningQuery) -> Response:
    found = queries.progress(caller.tenant, query_id)
    if found is None:
        raise _no_query()
    shown = asdict(found)
    del shown["tenant"]
    return Response(orjson.dumps(shown), media_type="application/json")


@router.delete(
    "/queries/{query_id}",
    summary="Cancel a query",
    description="Ends a query of the same tenant; its client gets an error.",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "It ends."}, **errors(401, 403, 404)},
)
async def cancel(query_id: _QueryId, caller: Reader, queries: RunningQuery) -> Response:
    if not queries.cancel(caller.tenant, query_id):
        raise _no_query()
    return Response(status_code=204)


def _no_query() -> NotFound:
    return NotFound("no query of that id waits or runs")
