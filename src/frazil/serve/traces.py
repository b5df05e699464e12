"""`GET /api/v1/traces/{trace_id}`: a trace as it was sent, in OTLP/JSON."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Path, Query, Request, Response

from frazil.errors import LimitReached
from frazil.otlp.encode import encode
from frazil.otlp.json import request_to_json
from frazil.query.model import Question
from frazil.serve import parameters
from frazil.serve.auth import Caller, Reader
from frazil.serve.describe import ERRORS, JSON_ERRORS
from frazil.serve.errors import NotFound
from frazil.serve.search import Searched, arrow
from frazil.serve.state import Asked
from frazil.serve.streams import unless_gone
from frazil.tables import table_spec

router = APIRouter(prefix="/api/v1", tags=["Traces"], dependencies=[Depends(parameters.only_known)])

_ROWS_MAX = 20_000
"""Of each kind. A trace with more is a mistake of its sender, and nobody could look at it."""
_EXACT: dict[Searched, str] = {"spans": "start_time_unix_nano", "logs": "time_unix_nano"}

_TRACE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "OTLP/JSON, as a receiver takes it.",
        "content": {
            "application/json": {
                "example": {
                    "resourceSpans": [
                        {
                            "resource": {
                                "attributes": [{"key": "service.name", "value": {"stringValue": "cart"}}]
                            },
                            "scopeSpans": [
                                {
                                    "spans": [
                                        {
                                            "traceId": "5b8efff798038103d269b633813fc60c",
                                            "spanId": "eee19b7ec3c1b174",
                                            "name": "GET /cart",
                                            "startTimeUnixNano": "1790000000000000000",
                                        }
                                    ]
                                }
                            ],
                        }
                    ]
                }
            }
        },
    },
    404: JSON_ERRORS[404],
}


@router.get(
    "/traces/{trace_id}",
    summary="Get a trace",
    description="All spans of a trace, whenever they arrived, in OTLP/JSON; with `logs=true` its logs too.",
    response_class=Response,
    responses=_TRACE | ERRORS,
)
async def trace(
    request: Request,
    caller: Reader,
    queries: Asked,
    trace_id: Annotated[
        str, Path(description="32 hexadecimal digits.", examples=["5b8efff798038103d269b633813fc60c"])
    ],
    logs: Annotated[bool, Query(description="Add the logs of the trace, as `resourceLogs`.")] = False,
) -> Response:
    id = parameters.trace_id(trace_id)
    signals: list[Searched] = ["spans", "logs"] if logs else ["spans"]
    tables = [await unless_gone(request, _rows(queries, caller, signal, id)) for signal in signals]
    if not any(len(table) for table in tables):
        raise NotFound(f"no span of the trace {id} is here")
    body = await asyncio.to_thread(_otlp_json, signals, tables)
    return Response(body, media_type="application/json")


async def _rows(queries: Asked, caller: Caller, signal: Searched, id: str) -> pa.Table:
    columns = ", ".join(table_spec(signal).arrow_schema.names)
    sql = f"SELECT {columns} FROM {signal} WHERE trace_id = ? ORDER BY {_EXACT[signal]}, span_id LIMIT ?"  # noqa: S608
    question = Question(sql, caller.tenant, params=(id, _ROWS_MAX + 1), format="arrow", who=caller.name)
    table = await arrow(await queries.ask(question), "the trace")
    if len(table) > _ROWS_MAX:
        raise LimitReached(
            f"the trace has more than {_ROWS_MAX} {signal}; ask POST /api/v1/sql for the part that you need",
            limit="rows",
        )
    return table


def _otlp_json(signals: list[Searched], tables: list[pa.Table]) -> bytes:
    whole: dict[str, Any] = {"resourceSpans": []}
    for signal, table in zip(signals, tables, strict=True):
        request = encode(table, table_spec(signal))
        name = "resourceSpans" if signal == "spans" else "resourceLogs"
        whole[name] = orjson.loads(request_to_json(request)).get(name, [])
    return orjson.dumps(whole)
