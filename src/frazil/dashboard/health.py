"""Whether the dashboard is well, for those who watch it."""

from __future__ import annotations

from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frazil import __version__
from frazil.config import Config
from frazil.dashboard.ask import Trouble
from frazil.dashboard.house import House
from frazil.role_metrics import RoleCollector


def routes(house: House, config: Config) -> list[Route]:
    own = CollectorRegistry()
    own.register(RoleCollector("dashboard", config))

    async def livez(_: Request) -> Response:
        return _text(200, f"frazil {__version__} dashboard: ok\n")

    async def healthz(_: Request) -> Response:
        """It shows nothing without the API."""
        try:
            await to_thread.run_sync(lambda: house.door.request("GET", "/livez", None, accept="*/*"))
        except Trouble as trouble:
            return _text(503, f"frazil {__version__} dashboard: api: {trouble.message}\n")
        return _text(200, f"frazil {__version__} dashboard: ok\n")

    async def metrics(_: Request) -> Response:
        return Response(
            generate_latest() + generate_latest(own), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    return [
        Route("/livez", livez),
        Route("/readyz", livez),
        Route("/healthz", healthz),
        Route("/metrics", metrics),
    ]


def _text(status: int, text: str) -> Response:
    return Response(text, status, media_type="text/plain")
