"""`GET /api/v1/tables`: what can be asked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Path, Response

from frazil.lake.state.health import TableHealth
from frazil.query.model import TableInfo
from frazil.serve.auth import Caller, Reader
from frazil.serve.describe import errors
from frazil.serve.errors import NotFound, suggestion
from frazil.serve.parameters import only_known
from frazil.serve.state import RunningQuery, Settings
from frazil.times import iso

router = APIRouter(prefix="/api/v1", tags=["Tables"], dependencies=[Depends(only_known)])

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
    "name": "logs",
    "doc": "One row per log record.",
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
    "columns": [{"name": "time", "type": "TIMESTAMP", "doc": "When it happened", "source": "…"}],
    "health": _HEALTH | {"whole": _WHOLE},
}
_ERRORS = errors(401, 403, 503)


def _described(example: Any) -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"example": example}}
    return {200: {"description": "As this tenant sees it.", "content": content}}


@router.get(
    "/tables",
    summary="List tables",
    description="The tables and views that SQL can name: columns, rows of this tenant, how fresh they are, "
    "and how their files do. `health` is of this tenant's files; `health.whole` is of all tenants', and null "
    "without the role `admin`.",
    response_class=Response,
    responses=_described({"tables": [_EXAMPLE]}) | _ERRORS,
)
async def tables(caller: Reader, queries: RunningQuery) -> Response:
    found = await queries.tables(caller.tenant, whole=_may_know(caller))
    return _json({"tables": [shown(table) for table in found]})


@router.get(
    "/tables/{name}",
    summary="Describe a table",
    description="One of them.",
    response_class=Response,
    responses=_described(_EXAMPLE) | _ERRORS | errors(404),
)
async def table(
    caller: Reader,
    queries: RunningQuery,
    config: Settings,
    name: Annotated[str, Path(description="Such as `logs` or `otel.logs`.", examples=["logs"])],
) -> Response:
    there = await queries.tables(caller.tenant, whole=_may_know(caller))
    found = {table.name: table for table in there}
    plain = name.removeprefix(f"{config.lake.namespace}.")
    if plain not in found:
        raise NotFound(f"there is no table `{name[:100]}`.{suggestion(plain, list(found))}")
    return _json(shown(found[plain]))


def _may_know(caller: Caller) -> bool:
    """How much other tenants have. Without keys everyone is an admin."""
    return "admin" in caller.roles


def shown(table: TableInfo) -> dict[str, Any]:
    """As JSON."""
    shown = asdict(table)
    del shown["whole"]
    if table.health is not None:
        whole = None if table.whole is None else _health(table.whole)
        shown["health"] = _health(table.health) | {"whole": whole}
    for name in _TIMES:
        shown[name] = None if shown[name] is None else iso(shown[name])
    if table.snapshot_id is not None:
        shown["snapshot_id"] = str(table.snapshot_id)  # beyond what JavaScript holds exactly
    return shown


def _health(health: TableHealth) -> dict[str, Any]:
    shown = asdict(health)
    oldest, state = shown.pop("oldest_micros"), shown.pop("table")
    shown["oldest_time"] = None if oldest is None else iso(oldest)
    if state is not None:
        runs = {name: iso(int(seconds * 1_000_000)) for name, seconds in state["runs"].items()}
        del state["metadata_bytes"]  # only the pipeline looks, and has a metric for it
        shown |= state | {"runs": runs}
    return shown


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
