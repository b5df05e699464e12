"""One receiver process: its journal, its HTTP application and its gRPC server, from start to clean end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pyarrow as pa
import structlog

from frazil.config import Config
from frazil.errors import FrazilError
from frazil.log import configure_logging
from frazil.receive.grpc_server import GrpcServer
from frazil.receive.http import HttpApp, Receive, Scope, Send
from frazil.receive.intake import Intake
from frazil.receive.metrics import ReceiverMetrics
from frazil.wal import open_store
from frazil.wal.journal import Journal

log = structlog.get_logger("frazil.receive")


def load(config: Config, target: str = "") -> Worker:
    """What granian calls in each new process."""
    configure_logging(config.log)
    pa.set_cpu_count(1)  # a worker is meant to fill one core; rows are decoded one slice at a time
    pa.set_io_thread_count(1)
    return Worker(config)


class Worker:
    """The ASGI application that granian runs; its lifespan is the receiver's."""

    def __init__(self, config: Config) -> None:
        self._config = config
        metrics = ReceiverMetrics()
        self._journal = Journal(config, open_store(config), metrics)
        self._intake = Intake.of(config, self._journal, metrics)
        self._http = HttpApp(self._intake)
        self._grpc = GrpcServer(self._intake) if config.receive.grpc.enabled else None
        self._watch: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._journal.start()
            if self._grpc is not None:
                await self._grpc.start()
        except (FrazilError, OSError, RuntimeError) as error:
            await self._end()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._watch = asyncio.create_task(self._report())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._end()
        await send({"type": "lifespan.shutdown.complete"})

    async def _end(self) -> None:
        """Stop taking calls, make durable what is in, then end."""
        self._http.stopping = True
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        stopping: list[Any] = [self._journal_after_requests()]
        if self._grpc is not None:
            stopping.append(self._grpc.stop(self._config.receive.shutdown_grace_seconds))
        await asyncio.gather(*stopping)
        await self._journal.close()
        log.info("receiver stopped")

    async def _journal_after_requests(self) -> None:
        """Waits until no request is in flight, for the grace time at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.receive.shutdown_grace_seconds):
                while self._intake.admission.requests:
                    await asyncio.sleep(0.01)

    async def _report(self) -> None:
        metrics = self._intake.metrics
        while True:
            metrics.in_flight(self._intake.admission.bytes)
            metrics.ready(self._journal.failure is None)
            await asyncio.sleep(1)
