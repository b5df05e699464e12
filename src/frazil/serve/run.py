"""`frazil serve`: runs the API on granian, in one worker process."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from granian import Granian

from frazil import listen, telemetry, tls
from frazil.config import Config
from frazil.paths import check_writable, keep_private
from frazil.ports import check_free, with_ports
from frazil.process import die_with_parent

if TYPE_CHECKING:
    from fastapi import FastAPI

_HEADER_SECONDS_MAX = 10.0
_HEADER_BYTES_MAX = 64 * 1024
_STOP_SECONDS_MAX = 10
_GRACE_SECONDS = 3.0
"""How long running queries may take to finish."""
_FLUSH_SECONDS = 0.5
"""How long the last responses may take to reach their clients."""

log = structlog.get_logger("frazil.serve")


def run(config: Config) -> int:
    """Run until SIGINT or SIGTERM. A worker that dies is replaced."""
    config = with_ports(config)
    check_free("serve.listen", config.serve.listen)
    tls.check("serve.tls", config.serve.tls)
    check_writable("data_dir", config.data_dir)
    keep_private(config)
    listen.allow_many_files()
    multiprocessing.set_start_method("spawn", force=True)  # threads do not survive a fork
    server = Granian(
        "frazil",
        workers=1,
        workers_kill_timeout=_STOP_SECONDS_MAX,
        **listen.settings(
            config.serve.listen,
            config.serve.tls,
            header_timeout_seconds=_HEADER_SECONDS_MAX,
            header_bytes_max=_HEADER_BYTES_MAX,
        ),
    )
    listen.watch_certificates(config.serve.tls)
    log.info("api started", url=config.serve.url)
    server.serve(target_loader=partial(_load_worker, config), wrap_loader=False)
    return 0


def _load_worker(config: Config) -> Any:
    """Load the application in a worker process. Imports here keep the memory of the parent process small."""
    from frazil.log import configure_logging
    from frazil.query.service import QueryService
    from frazil.role_metrics import describe_role
    from frazil.serve.app import create_app

    die_with_parent()
    configure_logging(config.log)
    queries = QueryService(config)
    describe_role(queries.registry, "api", config, root=os.getppid())
    telemetry.start(config, "api", queries.registry)
    try:
        return Worker(create_app(config, queries))
    except OSError as error:  # most likely a full disk; the supervisor restarts this process
        log.error("api not started", reason=str(error))
        raise SystemExit(1) from None


class Worker:
    """The application, which shuts down when it receives the signal. granian ends the lifespan only when all
    connections have closed, which a slow client can delay indefinitely.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._ending: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self._handle_signals()
        await self._app(scope, receive, send)

    def _handle_signals(self) -> None:
        """Install signal handlers. granian's handler runs too: uvloop calls it from its own list."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._begin_end))

    def _begin_end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        lifecycle = self._app.state.lifecycle
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await lifecycle.drain()
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX / 2):
                await asyncio.shield(lifecycle.end())
        except Exception:
            log.exception("query service not closed")
        log.info("api stopped")
        await asyncio.to_thread(telemetry.stop)
        await asyncio.sleep(_FLUSH_SECONDS)
        os._exit(0)
