"""`GET /api/v1/status`: the status of all roles, over all tenants."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response

from frazil.errors import FrazilError, StoreUnavailable
from frazil.serve.auth import Caller, require_admin
from frazil.serve.describe import errors
from frazil.serve.ledger_cache import LedgerCache
from frazil.serve.parameters import only_known
from frazil.serve.state import LifecycleDep, QueryServiceDep
from frazil.serve.tables import table_json
from frazil.status import Sampler, Status

router = APIRouter(prefix="/api/v1", tags=["Status"], dependencies=[Depends(only_known)])

_TABLES_SECONDS_MAX = 5.0
_LEFT_OUT = ("columns", "doc")
_LATENCY = {"p50_seconds": 0.024, "p95_seconds": 0.041, "p99_seconds": 0.048, "per_second": 12.5}
_EXAMPLE = {
    "at": 1_794_744_000.0,
    "state": "degraded",
    "roles": [
        {
            "name": "pipeline",
            "url": "http://127.0.0.1:4381",
            "state": "degraded",
            "reasons": ["logs: the store does not respond"],
            "up_seconds": 3600.0,
            "version": "0.1.0",
            "memory_bytes": 812_000_000.0,
            "cpu_seconds": 74.2,
        }
    ],
    "stages": {"receive": {"total": {"records_per_second": 250.0, "ack": _LATENCY}}},
    "objectives": [{"name": "ack", "target": 0.4, "value": 0.048, "kept": True, "kept_ratio": 0.997}],
    "history": {
        "sample_seconds": 10.0,
        "times": [1_794_743_990.0, 1_794_744_000.0],
        "series": [{"name": "received_records_per_second", "of": "logs", "values": [80.0, 95.0]}],
    },
    "ledger": {
        "state": "ready",
        "ok": True,
        "tables": {"logs": {"streams": 3, "durable": 1_200_340, "landed": 1_200_000, "waiting": 340}},
        "problems": [],
        "problems_count": 0,
        "read_at": 1_794_743_995.0,
        "seconds": 0.8,
    },
    "tables": [{"name": "logs", "rows": 1_200_000, "tail_rows": 340}],
}


@router.get(
    "/status",
    summary="Status of all roles",
    description="Returns the state of every role with reasons, current figures of each stage, service level "
    "objectives, and time series of the last hour. Covers all tenants: needs the role `admin` if API keys "
    "are configured. Returns 200 also if a role is down; `state` tells.",
    response_class=Response,
    responses={
        200: {
            "description": "The status, at most 1.5 s old.",
            "model": Status,
            "content": {"application/json": {"example": _EXAMPLE}},
        },
        **errors(400, 401, 403, 503),
    },
)
async def status(
    request: Request,
    caller: Annotated[Caller, Depends(require_admin)],
    queries: QueryServiceDep,
    lifecycle: LifecycleDep,
    history: Annotated[bool, Query(description="Include time series over `status.kept_seconds`.")] = True,
    ledger: Annotated[
        bool,
        Query(
            description="Include the ledger of `frazil verify`. It reads the WAL and a column of every data "
            "file, so it is computed at most every 30 s. While `ledger.state` is `running`, request it "
            "again."
        ),
    ] = False,
) -> Response:
    if lifecycle.stopping:
        raise StoreUnavailable("the API is shutting down")
    sampler: Sampler = request.app.state.sampler
    ledgers: LedgerCache = request.app.state.ledger
    seen, tables, balance = await asyncio.gather(
        sampler.status(history=history),
        _tables(queries, caller),
        ledgers.read() if ledger else asyncio.sleep(0),
    )
    whole = dataclasses.replace(seen, tables=tables, ledger=balance)
    return Response(orjson.dumps(whole), media_type="application/json")


async def _tables(queries: Any, caller: Caller) -> Sequence[Mapping[str, Any]] | None:
    """Return the tables; None if the catalog does not respond, which the API's role reports."""
    try:
        found = await asyncio.wait_for(queries.tables(caller.tenant, whole=True), _TABLES_SECONDS_MAX)
    except (FrazilError, TimeoutError):
        return None
    return [
        {name: value for name, value in table_json(table).items() if name not in _LEFT_OUT}
        for table in found
        if not table.is_view
    ]
