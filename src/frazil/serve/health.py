"""Health with reasons, and metrics. Nothing here names a tenant or needs a key, as on every role."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from frazil.health import Health, HealthReport
from frazil.role_status import RoleReport
from frazil.serve.state import Lifecycle, Living, RunningQuery

if TYPE_CHECKING:
    from frazil.query.service import QueryService

router = APIRouter(tags=["Health"])

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}


def _responses(ok: str, failed: str | None = None) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, dict[str, Any]] = {200: {"description": ok, "model": HealthReport} | _TEXT}
    return found if failed is None else found | {503: {"description": failed, "model": HealthReport} | _TEXT}


@router.get(
    "/livez",
    summary="Is it alive",
    description="Always yes, if it answers at all.",
    response_class=Response,
    responses=_responses("It lives."),
)
async def livez(request: Request) -> Response:
    return _answer(Health("api"), request)


@router.get(
    "/readyz",
    summary="Can it answer",
    description="Whether queries can be sent here. 503 with the reason while queries fail: no worker runs, "
    "or the catalog, the log's store or the warehouse does not answer. 200 with the reason while the catalog "
    "does not answer and results come from what it said last. Results of checks are kept for 10 seconds, "
    "problems for 2.",
    response_class=Response,
    responses=_responses("Ready.", "No query can run."),
)
async def readyz(queries: RunningQuery, life: Living, request: Request) -> Response:
    return _answer(await _health(queries, life, request), request)


@router.get(
    "/healthz",
    summary="Is all well",
    description="503 with the reasons while answers may be stale or fail.",
    response_class=Response,
    responses=_responses("All is well.", "It is not."),
)
async def healthz(queries: RunningQuery, life: Living, request: Request) -> Response:
    return _answer(await _health(queries, life, request), request)


@router.get(
    "/status",
    summary="Status of this process",
    description="Health as `/healthz`, what the processes use, metrics, and rates of counters. For "
    "`/api/v1/status`, which merges the status of all roles.",
    response_class=Response,
    responses={200: {"description": "Whatever the health is.", "model": RoleReport}},
)
async def role_status(queries: RunningQuery, life: Living, request: Request) -> Response:
    health = await _health(queries, life, request)
    report = await asyncio.to_thread(request.app.state.role_status.report, health)
    return Response(report.model_dump_json(), media_type="application/json")


@router.get(
    "/metrics",
    summary="Metrics",
    description="For Prometheus.",
    response_class=Response,
    responses={200: {"description": "In Prometheus' text format."} | _TEXT},
)
async def metrics(queries: RunningQuery) -> Response:
    text = await asyncio.to_thread(generate_latest, queries.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _health(queries: QueryService, life: Lifecycle, request: Request) -> Health:
    if life.stopping:
        return Health("api", failing={"api": "shutting down"})
    stores = asyncio.to_thread(request.app.state.dependencies.problems)
    of_queries, of_stores = await asyncio.gather(queries.check(), stores)
    found = {**of_queries, **of_stores}
    stale = {part: found.pop(part) for part in ("stale",) if part in found}
    return Health("api", failing=found, degraded=stale)


def _answer(health: Health, request: Request) -> Response:
    answer = health.response(request.url.path, request.headers.get("accept", ""))
    return Response(answer.body, answer.status, media_type=answer.content_type)
