"""Health with reasons, and metrics. Nothing here names a tenant or needs a key, as on every role."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from frazil import __version__
from frazil.serve.state import Asked, Living

router = APIRouter(tags=["Health"])

_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get(
    "/livez",
    summary="Is it alive",
    description="Always yes, if it answers at all.",
    response_class=Response,
    responses={200: {"description": "It lives."} | _TEXT},
)
async def livez() -> Response:
    return _text(200, "ok\n")


@router.get(
    "/readyz",
    summary="Can it answer",
    description="Whether queries can be sent here. 503 with the reason while queries fail: no worker runs, "
    "or the catalog, the log's store or the warehouse does not answer. 200 with the reason while the catalog "
    "does not answer and results come from what it said last. Results of checks are kept for 10 seconds, "
    "problems for 2.",
    response_class=Response,
    responses={200: {"description": "Ready."} | _TEXT, 503: {"description": "No query can run."} | _TEXT},
)
async def readyz(queries: Asked, life: Living, request: Request) -> Response:
    if life.stopping:
        return _text(503, f"frazil {__version__} api: not ready: shutting down\n")
    problems = await _problems(queries, request)
    failing = {part: reason for part, reason in problems.items() if part != "stale"}
    if failing:
        return _text(503, f"frazil {__version__} api: not ready: {_verdict(failing)}\n")
    return _text(200, f"frazil {__version__} api: {_verdict(problems)}\n")


@router.get(
    "/healthz",
    summary="Is all well",
    description="503 with the reasons while answers may be stale or fail.",
    response_class=Response,
    responses={200: {"description": "All is well."} | _TEXT, 503: {"description": "It is not."} | _TEXT},
)
async def healthz(queries: Asked, life: Living, request: Request) -> Response:
    problems = await _problems(queries, request)
    if life.stopping:
        problems = {**problems, "api": "shutting down"}
    return _text(503 if problems else 200, f"frazil {__version__} api: {_verdict(problems)}\n")


@router.get(
    "/metrics",
    summary="Metrics",
    description="For Prometheus.",
    response_class=Response,
    responses={200: {"description": "In Prometheus' text format."} | _TEXT},
)
async def metrics(queries: Asked) -> Response:
    text = await asyncio.to_thread(generate_latest, queries.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


async def _problems(queries: Asked, request: Request) -> dict[str, str]:
    stores = asyncio.to_thread(request.app.state.dependencies.problems)
    of_queries, of_stores = await asyncio.gather(queries.check(), stores)
    return {**of_queries, **of_stores}


def _verdict(problems: dict[str, str]) -> str:
    return "; ".join(f"{part}: {reason}" for part, reason in problems.items()) or "ok"


def _text(status: int, text: str) -> Response:
    return Response(text, status, media_type="text/plain")
