"""Health, status and metrics of the API process. Needs no API key and names no tenant, as on every role."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from frazil.health import Health, HealthReport
from frazil.role_status import RoleReport
from frazil.serve.state import Lifecycle, LifecycleDep, QueryServiceDep

if TYPE_CHECKING:
    from frazil.query.service import QueryService

router = APIRouter(tags=["Health"])

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def _responses(ok: str, failed: str | None = None) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {200: {"description": ok, "model": HealthReport} | _TEXT}
    return found if failed is None else found | {503: {"description": failed, "model": HealthReport} | _TEXT}


@router.get(
    "/livez",
    summary="Liveness",
    description="Returns 200 while the process runs.",
    response_class=Response,
    responses=_responses("The process runs."),
)
async def livez(request: Request) -> Response:
    return _response(Health("api"), request)


@router.get(
    "/readyz",
    summary="Readiness",
    description="Returns 503 with the reason while queries fail: no worker runs, or the catalog, the store "
    "of the WAL or the warehouse does not respond. Returns 200 with the reason while the catalog does not "
    "respond and results come from its last known state. Check results are cached for 10 seconds, problems "
    "for 2.",
    response_class=Response,
    responses=_responses("Queries can run.", "Queries fail."),
)
async def readyz(queries: QueryServiceDep, lifecycle: LifecycleDep, request: Request) -> Response:
    return _response(await _health(queries, lifecycle, request), request)


@router.get(
    "/healthz",
    summary="Health",
    description="Returns 503 with the reasons while queries fail or results may be stale.",
    response_class=Response,
    responses=_responses("Healthy.", "Degraded or failing."),
)
async def healthz(queries: QueryServiceDep, lifecycle: LifecycleDep, request: Request) -> Response:
    return _response(await _health(queries, lifecycle, request), request)


@router.get(
    "/status",
    summary="Status of this process",
    description="Health as in `/healthz`, resource usage, metrics and rates. `/api/v1/status` merges the "
    "status of all roles.",
    response_class=Response,
    responses={200: {"description": "The status, also of an unhealthy process.", "model": RoleReport}},
)
async def role_status(queries: QueryServiceDep, lifecycle: LifecycleDep, request: Request) -> Response:
    health = await _health(queries, lifecycle, request)
    report = await asyncio.to_thread(request.app.state.role_status.report, health)
    return Response(report.model_dump_json(), media_type="application/json")


@router.get(
    "/metrics",
    summary="Metrics",
    description="Metrics for Prometheus.",
    response_class=Response,
    responses={200: {"description": "Metrics in the Prometheus text format."} | _TEXT},
)
async def metrics(queries: QueryServiceDep) -> Response:
    text = await asyncio.to_thread(generate_latest, queries.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _health(queries: QueryService, lifecycle: Lifecycle, request: Request) -> Health:
    if lifecycle.stopping:
        return Health("api", failing={"api": "shutting down"})
    stores = asyncio.to_thread(request.app.state.dependencies.problems)
    of_queries, of_stores = await asyncio.gather(queries.check(), stores)
    found = {**of_queries, **of_stores}
    stale = {part: found.pop(part) for part in ("stale",) if part in found}
    return Health("api", failing=found, degraded=stale)


def _response(health: Health, request: Request) -> Response:
    found = health.response(request.url.path, request.headers.get("accept", ""))
    return Response(found.body, found.status, media_type=found.content_type)
