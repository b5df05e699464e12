"""Whether the dashboard is well, for those who watch it."""

from __future__ import annotations

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frazil.config import Config
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.app_state import AppState
from frazil.health import PATHS, Health
from frazil.role_metrics import RoleCollector
from frazil.role_status import RoleStatus


def routes(house: AppState, config: Config) -> list[Route]:
    own = CollectorRegistry()
    own.register(RoleCollector("dashboard", config))

    status = RoleStatus(list)  # `frazil status` shows none of its metrics

    def problems() -> dict[str, str]:
        """It shows nothing without the API."""
        try:
            house.door.request("GET", "/livez", None, accept="*/*")
        except ApiError as trouble:
            return {"api": trouble.message}
        return {}

    async def health(request: Request) -> Response:
        path = request.url.path
        degraded = await to_thread.run_sync(problems) if path in ("/healthz", "/status") else {}
        if path == "/status":
            report = await to_thread.run_sync(status.report, Health("dashboard", degraded=degraded))
            return Response(report.model_dump_json(), media_type="application/json")
        answer = Health("dashboard", degraded=degraded).response(path, request.headers.get("accept", ""))
        return Response(answer.body, answer.status, media_type=answer.content_type)

    async def metrics(_: Request) -> Response:
        return Response(
            generate_latest() + generate_latest(own), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    return [*(Route(path, health) for path in (*PATHS, "/status")), Route("/metrics", metrics)]
