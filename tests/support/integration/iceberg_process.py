"""Run the Iceberg catalog alone: python -m tests.support.integration.iceberg_process PORT CONFIG."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path

from fastapi import FastAPI
from granian.constants import Interfaces
from granian.server.embed import Server
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.serve.auth import Authenticator, require_admin
from frazil.serve.iceberg.catalog import iceberg_router


def application(config: Config) -> FastAPI:
    @cache
    def catalog() -> Catalog:
        return open_catalog(config)

    app = FastAPI()
    app.state.authenticator = Authenticator(config)
    app.include_router(iceberg_router(config, catalog, require_admin), prefix="/iceberg")
    return app


if __name__ == "__main__":
    config = Config.model_validate_json(Path(sys.argv[2]).read_text())
    server = Server(application(config), "127.0.0.1", int(sys.argv[1]), interface=Interfaces.ASGI)
    asyncio.run(server.serve())
