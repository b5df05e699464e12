"""`GET /api/v1/tables`: what can be asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Response

from frazil.query.model import TableInfo
from frazil.serve.auth import Reader
from frazil.serve.describe import JSON_ERRORS
from frazil.serve.errors import NotFound, suggestion
from frazil.serve.parameters import iso, only_known
from frazil.serve.state import Asked, Settings

router = APIRouter(prefix="/api/v1", tags=["Tables"], dependencies=[Depends(only_known)])

_TIMES = ("first_time", "last_time", "landed_at")
_EXAMPLE = {
    "name": "logs",
    "doc": "One row a log record.",
    "rows": 1_200_000,
    "tail_rows": 340,
    "files": 12,
    "bytes": 48_000_000,
    "first_time": "2026-11-01T00:00:00.000000Z",
    "last_time": "2026-11-15T10:00:00.000000Z",
    "landed_at": "2026-11-15T10:00:02.000000Z",
    "snapshot_id": "1234",
    "is_view": False,
    "columns": [{"name": "time", "type": "TIMESTAMP", "doc": "When it happened", "source": "…"}],
}
_ERRORS: dict[int | str, dict[str, Any]] = {code: JSON_ERRORS[code] for code in (401, 403, 503)}


def _described(example: Any) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"example": example}}
    return {200: {"description": "As this tenant sees it.", "content": content}}


@router.get(
    "/tables",
    summary="List tables",
    description="The tables and views that SQL can name: columns, rows of this tenant, how fresh they are.",
    response_class=Response,
    responses=_described({"tables": [_EXAMPLE]}) | _ERRORS,
)
async def tables(caller: Reader, queries: Asked) -> Response:
    found = await queries.tables(caller.tenant)
    return _json({"tables": [_shown(table) for table in found]})


@router.get(
    "/tables/{name}",
    summary="Describe a table",
    description="One of them.",
    response_class=Response,
    responses=_described(_EXAMPLE) | _ERRORS | {404: JSON_ERRORS[404]},
)
async def table(
    caller: Reader,
    queries: Asked,
    config: Settings,
    name: Annotated[str, Path(description="Such as `logs` or `otel.logs`.", examples=["logs"])],
) -> Response:
    found = {table.name: table for table in await queries.tables(caller.tenant)}
    plain = name.removeprefix(f"{config.lake.namespace}.")
    if plain not in found:
        raise NotFound(f"there is no table `{name[:100]}`.{suggestion(plain, list(found))}")
    return _json(_shown(found[plain]))


def _shown(table: TableInfo) -> dict[str, Any]:
    shown = asdict(table)
    for name in _TIMES:
        shown[name] = None if shown[name] is None else iso(shown[name])
    if table.snapshot_id is not None:
        shown["snapshot_id"] = str(table.snapshot_id)  # beyond what JavaScript holds exactly
    return shown


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
