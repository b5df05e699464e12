"""One receiver process: its journal, its HTTP application and its gRPC server, from start to clean end."""

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

_LAST_WORDS_SECONDS = 1.0
"""For answers to reach their clients after the last request is durable."""

_SWITCH_SECONDS = 0.001
"""Python lets a thread that counts or translates a large request run for 5 ms before another gets its turn,
and an answer needs many turns of the event loop and of the encoding thread."""
_LARGE_BYTES = 32 * 2**20

log = structlog.get_logger("frazil.receive")


def set_up_process(config: Config) -> None:
    configure_logging(config.log)
    pa.set_cpu_count(1)  # a worker is meant to fill one core; rows are decoded one slice at a time
    pa.set_io_thread_count(1)
    sys.setswitchinterval(_SWITCH_SECONDS)


def give_back_memory() -> None:
    """After large requests: allocators keep what was freed, and a receiver would seem to need it for ever."""
    gc.collect()  # a refusal's traceback and frames refer to each other, and hold the request's body
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Worker:
    """The ASGI application that granian runs; its lifespan is the receiver's."""

    def __init__(self, config: Config) -> None:
        self._config = config
        metrics = ReceiverMetrics(config)
        telemetry.start(config, "receiver", metrics.registry)
        self._journal = open_journal(config, metrics)
        self._intake = Intake.of(config, self._journal, metrics)
        self._http = HttpApp(self._intake)
        self._grpc = GrpcServer(self._intake) if config.receive.grpc.enabled else None
        self._watch: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

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
        except Exception as error:  # a defect too: granian would go on, with a receiver that never answers
            if not isinstance(error, FrazilError | OSError | RuntimeError):
                log.exception("defect while starting")
            await self._end()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self._watch = asyncio.create_task(self._report())
        self._hear_signals()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._begin_end()
        await send({"type": "lifespan.shutdown.complete"})

    def _hear_signals(self) -> None:
        """granian ends the lifespan when all connections have, which a slow client can put off for ever.

        The end begins with the signal itself. granian's handler runs too: uvloop calls it from its own list.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(self._begin_end))

    def _begin_end(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
            # All is durable and answered by then; whatever connection is still open is not worth waiting for.
            self._ending.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, os._exit, 0)
            )
        return self._ending

    async def _end(self) -> None:
        """Stop taking calls, make durable what is in, then end."""
        await asyncio.to_thread(telemetry.stop)  # first: it may be itself that has to take what is left
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
        """Waits until no request is in flight, for half the grace time: the rest is for what then still waits
        for company to become durable and be answered."""
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
                await asyncio.to_thread(give_back_memory)
            large = admission.bytes > _LARGE_BYTES
            metrics.in_flight(self._intake.admission.bytes)
            metrics.ready(self._journal.failure is None)
            metrics.clock_skew(self._journal.clock_skew_seconds)
            await asyncio.sleep(1)
