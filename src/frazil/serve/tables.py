"""`GET /api/v1/tables`: the tables that queries can read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, get_args

import orjson
from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import PlainTextResponse

from frazil.lake.state.health import TableHealth
from frazil.query.model import TableInfo
from frazil.serve.auth import Reader
from frazil.serve.describe import errors
from frazil.serve.errors import NotFound, suggestion
from frazil.serve.parameters import choice, only_known
from frazil.serve.state import ConfigDep, QueryServiceDep
from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from frazil.sql.merging import Dialect, merging_select
from frazil.tables import table_specs
from frazil.tables.promoted import promoted
from frazil.times import iso

router = APIRouter(prefix="/api/v1", tags=["Tables"], dependencies=[Depends(only_known)])

_DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
_TIMES = ("first_time", "last_time", "landed_at", "newest_time")
_HEALTH = {
    "files": 12,
    "bytes": 48_000_000,
    "rows": 1_200_000,
    "sizes": [
        {"bytes_max": 65_536, "files": 3, "bytes": 60_000},
        {"bytes_max": None, "files": 9, "bytes": 47_940_000},
    ],
    "small_files": 12,
    "files_per_moment": 1.04,
    "oldest_time": "2026-11-01T00:00:00.000000Z",
    "waiting_files": 0,
    "waiting_bytes": 0,
    "lag_seconds": 0.0,
    "monthly_cost": 0.0011,
}
_WHOLE = _HEALTH | {
    "snapshots": 124,
    "manifests": 31,
    "orphan_bytes": 0,
    "old_bytes": 1_000_000,
    "runs": {"compacted_at": "2026-11-15T10:00:00.000000Z"},
}
_EXAMPLE = {
    "name": "log_rollups",
    "doc": "Number and size of log records by service and severity.",
    "rows": 1_200_000,
    "tail_rows": 340,
    "files": 12,
    "bytes": 48_000_000,
    "first_time": "2026-11-01T00:00:00.000000Z",
    "last_time": "2026-11-15T10:00:00.000000Z",
    "landed_at": "2026-11-15T10:00:02.000000Z",
    "newest_time": "2026-11-15T10:00:31.000000Z",
    "snapshot_id": "1234",
    "is_view": False,
    "derived": {"source": "logs", "enabled": True, "days_left": 0, "lag_seconds": 12.5},
    "columns": [
        {"name": "time", "type": "TIMESTAMP WITH TIME ZONE", "doc": "When it happened", "source": "…"}
    ],
    "health": _HEALTH | {"whole": _WHOLE},
}
_VIEW = "SELECT tenant_id, resolution, …\nFROM frazil.otel.log_rollups\nGROUP BY …\n"
_FUNCTIONS = [
    {"name": function.name, "arguments": function.arguments, "doc": function.doc}
    for function in (*FUNCTIONS, *TABLE_FUNCTIONS)
]
_ERRORS = errors(401, 403, 503)


def _described(example: Any) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"example": example}}
    return {200: {"description": "Rows and files are those of this tenant.", "content": content}}


@router.get(
    "/tables",
    summary="List tables",
    description="Lists the tables and views for SQL: columns, rows of this tenant, freshness, and health of "
    "the files. `health` covers this tenant's files; `health.whole` covers all tenants' files, and is null "
    "without the role `admin`. `functions` are frazil's SQL functions, besides those of DuckDB.",
    response_class=Response,
    responses=_described({"tables": [_EXAMPLE], "functions": _FUNCTIONS[:1]}) | _ERRORS,
)
async def tables(caller: Reader, queries: QueryServiceDep) -> Response:
    found = await queries.tables(caller.tenant, whole="admin" in caller.roles)
    return _json({"tables": [table_json(table) for table in found], "functions": _FUNCTIONS})


@router.get(
    "/tables/{name}",
    summary="Describe a table",
    description="Describes one table or view.",
    response_class=Response,
    responses=_described(_EXAMPLE) | _ERRORS | errors(404),
)
async def table(
    caller: Reader,
    queries: QueryServiceDep,
    config: ConfigDep,
    name: Annotated[str, Path(description="Such as `logs` or `otel.logs`.", examples=["logs"])],
) -> Response:
    found = {
        table.name: table for table in await queries.tables(caller.tenant, whole="admin" in caller.roles)
    }
    plain = name.removeprefix(f"{config.lake.namespace}.")
    if plain not in found:
        raise NotFound(f"unknown table `{name[:100]}`.{suggestion(plain, list(found))}")
    return _json(table_json(found[plain]))


_VIEWED: dict[int | str, dict[str, Any]] = {
    200: {"description": "The SELECT.", "content": {"text/plain": {"example": _VIEW}}}
}


@router.get(
    "/tables/{name}/merging-view",
    summary="SQL of a merging view",
    description="Returns the SELECT with which another engine reads a derived table as queries of this API "
    "do: one row for each key.",
    response_class=PlainTextResponse,
    responses=_VIEWED | errors(400, 401, 403, 404),
)
async def merging_view(
    _: Reader,
    config: ConfigDep,
    name: Annotated[str, Path(description="A derived table.", examples=["service_edges"])],
    dialect: Annotated[str, Query(description="`spark`, `trino` or `duckdb`.")] = "spark",
    table: Annotated[
        str,
        Query(
            description="The table's name there. Default: `frazil.` and the name with its namespace.",
            max_length=200,
            examples=["frazil.otel.service_edges"],
        ),
    ] = "",
) -> str:
    plain = name.removeprefix(f"{config.lake.namespace}.")
    specs = {spec.name: spec for spec in table_specs(promoted(config)).values() if spec.derived is not None}
    if plain not in specs:
        raise NotFound(f"unknown derived table `{name[:100]}`.{suggestion(plain, list(specs))}")
    source = table or f"frazil.{config.lake.namespace}.{plain}"
    return merging_select(specs[plain], choice("dialect", dialect, _DIALECTS), source) + "\n"


def table_json(table: TableInfo) -> dict[str, Any]:
    body = asdict(table)
    del body["whole"]
    if table.health is not None:
        whole = None if table.whole is None else _health_json(table.whole)
        body["health"] = _health_json(table.health) | {"whole": whole}
    for name in _TIMES:
        body[name] = None if body[name] is None else iso(body[name])
    if table.snapshot_id is not None:
        body["snapshot_id"] = str(table.snapshot_id)  # JavaScript numbers cannot hold 64 bits
    return body


def _health_json(health: TableHealth) -> dict[str, Any]:
    body = asdict(health)
    oldest, state = body.pop("oldest_micros"), body.pop("table")
    body["oldest_time"] = None if oldest is None else iso(oldest)
    if state is not None:
        runs = {name: iso(int(seconds * 1_000_000)) for name, seconds in state["runs"].items()}
        del state["metadata_bytes"]  # only the pipeline measures it
        body |= state | {"runs": runs}
    return body


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
