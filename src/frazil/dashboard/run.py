"""`frazil dashboard`: serves Streamlit's application, login and health endpoints with uvicorn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog
from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from frazil import telemetry, tls
from frazil.config import Config, split_listen
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.app_state import AppState, open_app_state
from frazil.dashboard.pages import PATHS
from frazil.health import PATHS as HEALTH_PATHS
from frazil.health import Health
from frazil.ports import check_free, with_ports
from frazil.role_metrics import RoleCollector
from frazil.role_status import RoleStatus

_STOP_SECONDS_MAX = 3
_SCRIPT = Path(__file__).parent / "script" / "main.py"
_BASE_URL = '<script>window.__streamlit={BACKEND_BASE_URL:new URL(".",location.href).href}</script>'

_LIGHT = {
    "primaryColor": "#0b7a99",
    "backgroundColor": "#f7fafc",
    "secondaryBackgroundColor": "#e9f0f4",
    "textColor": "#10222f",
    "borderColor": "#d3dfe6",
    "linkColor": "#0b7a99",
}
_DARK = {
    "primaryColor": "#4cc3e0",
    "backgroundColor": "#0b141c",
    "secondaryBackgroundColor": "#13212d",
    "textColor": "#e3edf3",
    "borderColor": "#25394a",
    "linkColor": "#67cfe8",
}
_OPTIONS: dict[str, Any] = {
    "global.developmentMode": False,
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "viewer",
    "client.showErrorDetails": "none",
    "logger.level": "error",
    "runner.magicEnabled": False,
    "runner.fastReruns": True,
    "server.enableCORS": False,  # the gate compares origin and host
    "server.enableXsrfProtection": False,  # the gate refuses uploads
    "server.enableStaticServing": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 1,
    "server.runOnSave": False,
    "theme.baseRadius": "0.5rem",
    "theme.baseFontSize": 15,
    "theme.showWidgetBorder": True,
    **{f"theme.light.{name}": value for name, value in _LIGHT.items()},
    **{f"theme.dark.{name}": value for name, value in _DARK.items()},
}

log = structlog.get_logger("frazil.dashboard")


def run(config: Config) -> int:
    """Runs until SIGINT or SIGTERM. Returns the exit code."""
    config = with_ports(config)
    check_free("dashboard.listen", config.dashboard.listen)
    tls.check_dashboard(config)
    state = open_app_state(config)
    log.info("dashboard started", url=config.dashboard.url, api=state.api_client.url)
    telemetry.start(config, "dashboard")
    try:
        asyncio.run(_serve(config, state))
    finally:
        telemetry.stop()
    log.info("dashboard stopped")
    return 0


def app(config: Config, state: AppState) -> Any:
    import streamlit as st
    from starlette.middleware import Middleware
    from streamlit.web import bootstrap

    from frazil.dashboard.assets import Assets
    from frazil.dashboard.login import Gate, Login, Sockets
    from frazil.dashboard.pages import logs, metrics, overview, pipeline, sql, traces  # noqa: F401  so that the first user does not wait for the imports

    host, port = split_listen(config.dashboard.listen)
    options = {**_OPTIONS, "server.address": host, "server.port": port}
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in options.items()})
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    login = Login(state, secure=config.dashboard.tls is not None)
    routes = [
        Route("/login", login.show, methods=["GET"]),
        Route("/login", login.take, methods=["POST"]),
        Route("/logout", login.leave, methods=["GET"]),
        *page_routes(),
        *health_routes(state, config),
    ]
    sockets = Sockets(config.dashboard.sockets_max, config.dashboard.sockets_per_address_max)
    return st.App(
        _SCRIPT,
        routes=routes,
        middleware=[Middleware(Gate, state=state, sockets=sockets), Middleware(Assets)],
    )


def page_routes() -> list[Route]:
    """Serves Streamlit's index page with the address of its server, and with the scripts that the page needs.
    Without the address, the page `/logs` first requests `/logs/_stcore/health`, which does not exist.
    """
    from frazil.dashboard.assets import preload_links, static_folder

    index = (
        (static_folder() / "index.html")
        .read_text(encoding="utf-8")
        .replace("<head>", f"<head>{_BASE_URL}", 1)
    )

    def route(path: str, elements: Sequence[str]) -> Route:
        page = index.replace("</head>", f"{preload_links(elements)}</head>", 1)

        async def show(_: Request) -> Response:
            return HTMLResponse(page, headers={"cache-control": "no-cache"})

        return Route(f"/{path}", show)

    first = next(iter(PATHS))
    return [route(path, elements) for path, elements in ({"": PATHS[first]} | PATHS).items()]


def health_routes(state: AppState, config: Config) -> list[Route]:
    own = CollectorRegistry()
    own.register(RoleCollector("dashboard", config))
    status = RoleStatus(list)  # `frazil status` shows no metrics of the dashboard

    def problems() -> dict[str, str]:
        """Checks the API: without it the dashboard shows nothing."""
        try:
            state.api_client.request("GET", "/livez", None, accept="*/*")
        except ApiError as error:
            return {"api": error.message}
        return {}

    async def health(request: Request) -> Response:
        path = request.url.path
        degraded = await to_thread.run_sync(problems) if path in ("/healthz", "/status") else {}
        health = Health("dashboard", degraded=degraded)
        if path == "/status":
            report = await to_thread.run_sync(status.report, health)
            return Response(report.model_dump_json(), media_type="application/json")
        found = health.response(path, request.headers.get("accept", ""))
        return Response(found.body, found.status, media_type=found.content_type)

    async def metrics(_: Request) -> Response:
        return Response(
            generate_latest() + generate_latest(own), headers={"content-type": CONTENT_TYPE_LATEST}
        )

    return [*(Route(path, health) for path in (*HEALTH_PATHS, "/status")), Route("/metrics", metrics)]


async def _serve(config: Config, state: AppState) -> None:
    import uvicorn

    host, port = split_listen(config.dashboard.listen)
    settings = uvicorn.Config(
        app(config, state),
        host=host,
        port=port,
        log_level="warning",
        log_config=None,
        access_log=False,
        server_header=False,
        ws_max_size=32 << 20,
        timeout_graceful_shutdown=_STOP_SECONDS_MAX,
    )
    settings.load()  # before the context is set: load would replace it with one that is never renewed
    if config.dashboard.tls is not None:
        settings.ssl = tls.renewing_context(config.dashboard.tls)
    await uvicorn.Server(settings).serve()
