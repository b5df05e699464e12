"""`frazil serve`: the API on granian, in one worker process, until it is told to stop."""

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
"""For queries that run to come to their end."""
_LAST_WORDS_SECONDS = 0.5
"""For what was said last to reach its client."""

log = structlog.get_logger("frazil.serve")


def run(config: Config) -> int:
    """Runs until SIGINT or SIGTERM. A worker that dies is replaced."""
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
    log.info("answering", url=config.serve.url)
    server.serve(target_loader=partial(_load_worker, config), wrap_loader=False)
    return 0


def _load_worker(config: Config) -> Any:
    """Runs in each new process. The parent does not import what only workers need: it would hold it."""
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
    except OSError as error:  # a full disk, most likely; whoever watches this process starts it again
        log.error("the API cannot start", reason=str(error))
        raise SystemExit(1) from None


class Worker:
    """The application, which begins to end with the signal itself: granian ends the lifespan when all
    connections have, which a slow client can put off for ever.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._ending: asyncio.Task[None] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            self._hear_signals()
        await self._app(scope, receive, send)

    def _hear_signals(self) -> None:
        """granian's handler runs too: uvloop calls it from its own list."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._begin_end))

    def _begin_end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        life = self._app.state.life
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await life.emptied()
        try:
            async with asyncio.timeout(_STOP_SECONDS_MAX / 2):
                await asyncio.shield(life.end())
        except Exception:
            log.exception("the query service did not close")
        log.info("api stopped")
        await asyncio.to_thread(telemetry.stop)
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        os._exit(0)
