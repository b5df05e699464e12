"""One receiver process: its journal, HTTP application and gRPC server, and their lifecycle."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import sys
from typing import Any

import pyarrow as pa
import structlog

from frazil import telemetry
from frazil.config import Config
from frazil.errors import FrazilError
from frazil.log import configure_logging
from frazil.receive.grpc_server import GrpcServer
from frazil.receive.http import HttpApp, Receive, Scope, Send
from frazil.receive.intake import Intake
from frazil.receive.metrics import ReceiverMetrics
from frazil.wal.journal import open_journal

_RESPONSE_SECONDS = 1.0
"""Time for responses to reach their clients after the last request is durable."""

_SWITCH_SECONDS = 0.001
"""With the default of 5 ms, a thread that counts or converts a large request delays other requests, which
need many switches between the event loop and the encoding thread."""
_LARGE_BYTES = 32 * 2**20

log = structlog.get_logger("frazil.receive")


def set_up_process(config: Config) -> None:
    configure_logging(config.log)
    pa.set_cpu_count(1)  # a worker uses one core, and decodes one slice at a time
    pa.set_io_thread_count(1)
    sys.setswitchinterval(_SWITCH_SECONDS)


def release_memory() -> None:
    """Returns freed memory to the system after large requests: allocators would keep it."""
    gc.collect()  # a refusal's traceback and frames form a cycle that holds the request's body
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Worker:
    """The ASGI application that granian runs in each worker."""

    def __init__(self, config: Config) -> None:
        self._config = config
        metrics = ReceiverMetrics(config)
        telemetry.start(config, "receiver", metrics.registry)
        self._journal = open_journal(config, metrics)
        self._intake = Intake.of(config, self._journal, metrics)
        self._http = HttpApp(self._intake)
        self._grpc = GrpcServer(self._intake) if config.receive.grpc.enabled else None
        self._watch: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._journal.start()
            if self._grpc is not None:
                await self._grpc.start()
        except Exception as error:  # bugs too: granian would continue with a receiver that never responds
            if not isinstance(error, FrazilError | OSError | RuntimeError):
                log.exception("receiver start failed unexpectedly")
            await self._shut_down()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._watch = asyncio.create_task(self._report())
        self._handle_signals()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._begin_shutdown()
        await send({"type": "lifespan.shutdown.complete"})

    def _handle_signals(self) -> None:
        """Starts the shutdown with the signal itself: granian waits until all connections have ended, which a
        slow client can delay for ever. granian's own handler runs too, called by uvloop.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._begin_shutdown))

    def _begin_shutdown(self) -> asyncio.Task[None]:
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._shut_down())
            # All requests are durable and acknowledged by then; open connections are not waited for.
            self._shutdown.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(_RESPONSE_SECONDS, os._exit, 0)
            )
        return self._shutdown

    async def _shut_down(self) -> None:
        """Refuses new requests and makes the accepted ones durable."""
        await asyncio.to_thread(telemetry.stop)  # first: this receiver may be the target of its own telemetry
        self._http.stopping = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        stopping: list[Any] = [self._close_journal()]
        if self._grpc is not None:
            stopping.append(self._grpc.stop(self._config.receive.shutdown_grace_seconds))
        await asyncio.gather(*stopping)
        log.info("receiver stopped")

    async def _close_journal(self) -> None:
        """Waits up to half the grace time until no request is in flight; the other half is for the requests
        that the journal has queued.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.receive.shutdown_grace_seconds / 2):
                await self._intake.admission.emptied()
        await self._journal.close()

    async def _report(self) -> None:
        metrics, admission = self._intake.metrics, self._intake.admission
        large = False
        await asyncio.to_thread(metrics.status.begin)
        while True:
            if large:
                await asyncio.to_thread(release_memory)
            large = admission.bytes > _LARGE_BYTES
            metrics.in_flight(self._intake.admission.bytes)
            metrics.ready(self._journal.failure is None)
            metrics.clock_skew(self._journal.clock_skew_seconds)
            await asyncio.sleep(1)
