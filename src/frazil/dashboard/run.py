"""`frazil dashboard`: Streamlit's application on uvicorn, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import structlog

from frazil import telemetry, tls
from frazil.config import Config, split_listen
from frazil.dashboard.app_state import AppState, open_house
from frazil.ports import check_free, with_ports

_STOP_SECONDS_MAX = 3
_SCRIPT = Path(__file__).parent / "script" / "main.py"

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
    "server.enableCORS": False,  # the gate compares origin and host, whatever names lead here
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
    """Runs until SIGINT or SIGTERM."""
    config = with_ports(config)
    check_free("dashboard.listen", config.dashboard.listen)
    tls.check_dashboard(config)
    house = open_house(config)
    log.info("dashboard started", url=config.dashboard.url, api=house.door.url)
    telemetry.start(config, "dashboard")
    try:
        asyncio.run(_serve(config, house))
    finally:
        telemetry.stop()
    log.info("dashboard stopped")
    return 0


def app(config: Config, house: AppState) -> Any:
    import streamlit as st
    from starlette.middleware import Middleware
    from starlette.routing import Route
    from streamlit.web import bootstrap

    from frazil.dashboard import health
    from frazil.dashboard.assets import CompressedAssets
    from frazil.dashboard.login import Gate, Login, Sockets
    from frazil.dashboard.pages import logs, metrics, overview, pipeline, sql, traces  # noqa: F401  the first to come need not wait for them

    host, port = split_listen(config.dashboard.listen)
    options = {**_OPTIONS, "server.address": host, "server.port": port}
    bootstrap.load_config_options({name.replace(".", "_"): value for name, value in options.items()})
    logging.getLogger("streamlit").setLevel(logging.ERROR)
    login = Login(house, secure=config.dashboard.tls is not None)
    routes = [
        Route("/login", login.show, methods=["GET"]),
        Route("/login", login.take, methods=["POST"]),
        Route("/logout", login.leave, methods=["GET"]),
        *health.routes(house, config),
    ]
    sockets = Sockets(config.dashboard.sockets_max, config.dashboard.sockets_per_address_max)
    return st.App(
        _SCRIPT,
        routes=routes,
        middleware=[Middleware(Gate, house=house, sockets=sockets), Middleware(CompressedAssets)],
    )


async def _serve(config: Config, house: AppState) -> None:
    import uvicorn

    host, port = split_listen(config.dashboard.listen)
    settings = uvicorn.Config(
        app(config, house),
        host=host,
        port=port,
        log_level="warning",
        log_config=None,
        access_log=False,
        server_header=False,
        ws_max_size=32 << 20,
        timeout_graceful_shutdown=_STOP_SECONDS_MAX,
    )
    settings.load()  # which would make a context of its own, that never changes
    if config.dashboard.tls is not None:
        settings.ssl = tls.renewing_context(config.dashboard.tls)
    await uvicorn.Server(settings).serve()
