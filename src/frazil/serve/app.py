"""The API as an ASGI application."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware

from frazil import __version__
from frazil.config import Config
from frazil.dependencies import Dependencies, checks_of
from frazil.lake.catalog import open_catalog
from frazil.role_status import RoleStatus
from frazil.serve import health, page, reads, sql, status, tables
from frazil.serve.auth import Authenticator, require_admin
from frazil.serve.errors import add_error_handlers
from frazil.serve.iceberg.catalog import iceberg_router
from frazil.serve.ledger_cache import LedgerCache
from frazil.serve.middleware import ResponseMiddleware
from frazil.serve.state import Lifecycle
from frazil.serve.streams import ClientGone
from frazil.status import Sampler

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from frazil.query.service import QueryService

_DESCRIPTION = (
    "SQL over OpenTelemetry data: rows in Apache Iceberg tables, and rows acknowledged moments ago that have "
    "not landed yet. An API key can only read its own tenant's data."
)
_EXPOSED = ["X-Frazil-Query-Id", "X-Frazil-Stats", "Retry-After"]


def create_app(config: Config, queries: QueryService) -> FastAPI:
    """Create the application. Its lifespan starts and stops the query service."""
    catalog = _LazyCatalog(config)
    app = FastAPI(
        title="frazil",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(queries, catalog),
    )
    app.state.config = config
    app.state.queries = queries
    app.state.authenticator = Authenticator(config)
    app.state.lifecycle = Lifecycle(queries)
    # Queries do not read from Kafka: results have only landed rows.
    stores = ("warehouse",) if config.wal.type == "kafka" else ("wal", "warehouse")
    app.state.dependencies = Dependencies(checks_of(config, *stores))
    app.state.role_status = RoleStatus(lambda: queries.registry.collect(), os.getppid())
    app.state.role_status.begin()
    app.state.sampler = Sampler(config)
    app.state.ledger = LedgerCache(config)
    for part in (sql, tables, reads, status, health, page):
        app.include_router(part.router)
    iceberg = iceberg_router(config, catalog, require_admin, queries.clear_on_erasure)
    app.include_router(iceberg, prefix="/iceberg")
    add_error_handlers(app)
    app.add_exception_handler(ClientGone, _client_gone)
    if config.serve.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.serve.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key"],
            expose_headers=_EXPOSED,
            max_age=7200,
        )
    app.add_middleware(ResponseMiddleware, registry=queries.registry, lifecycle=app.state.lifecycle)
    return app


def _lifespan(
    queries: QueryService, catalog: _LazyCatalog
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await queries.start()
        app.state.sampler.start()
        try:
            yield
        finally:
            await app.state.sampler.stop()
            await app.state.lifecycle.end()
            catalog.close()

    return lifespan


class _LazyCatalog:
    """The Iceberg catalog for other engines, opened at the first request."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None

    def __call__(self) -> Catalog:
        with self._lock:
            if self._catalog is None:
                self._catalog = open_catalog(self._config)
            return self._catalog

    def close(self) -> None:
        with self._lock:
            if self._catalog is not None:
                self._catalog.close()


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
