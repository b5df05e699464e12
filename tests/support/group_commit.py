"""A lane of group commits over a store in memory that can be held and made to fail."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.errors import FrazilError, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.group import Receipt, SegmentWritten
from frazil.wal.reader import WalReader
from frazil.wal.segment_lane import SegmentLane, SegmentSettings
from tests.support.wal_stores import MemoryStore

DECODER = Decoder("logs", depth_max=64)


def logs(*texts: str, records: int = 0, **fields: Any) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for text in texts or ("x",) * records:
        record = LogRecord(**fields)
        record.body.string_value = text
        scope.log_records.append(record)
    return request.SerializeToString()


class Gate(MemoryStore):
    """A store that waits, when told to, before a segment becomes durable."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self.before_create = self._wait

    def _wait(self, path: str, data: bytes) -> None:
        self.entered.release()
        assert self._open.wait(30)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Returns when somebody is in `create`."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=30)


class Seen:
    def __init__(self) -> None:
        self.written: list[SegmentWritten] = []
        self.failed: list[FrazilError] = []

    def segment_written(self, segment: SegmentWritten) -> None:
        self.written.append(segment)

    def segment_failed(self, error: FrazilError) -> None:
        self.failed.append(error)


class Bench:
    """A lane with all that it was given."""

    def __init__(self, store: MemoryStore, clock: Clock = boot_seconds, **settings: Any) -> None:
        numbers = itertools.count()
        defaults = {
            "group_wait_seconds": 0.0,
            "group_bytes_max": 8 << 20,
            "compression_level": 1,
            "records_per_request_max": 1000,
            "stream_use_seconds": 1800.0,
        }
        self.store, self.seen = store, Seen()
        self.lane = SegmentLane(
            store,
            DECODER,
            SegmentSettings(**(defaults | settings)),
            self.seen,
            stream_ids=lambda: f"20261115T08182312{next(numbers)}-9f86d081884c7d65",
            clock=clock,
        )

    def send(self, body: bytes, tenant: str = "t", received: int = 7) -> asyncio.Task[Receipt]:
        return asyncio.create_task(self.lane.append(body, tenant, received))

    async def begun(self, tenant: str) -> None:
        """Returns when a group of this tenant is under way."""
        while not any(tenant in job.tenants for job in self.lane._jobs):
            await turns(1)

    async def outcome(self, body: bytes) -> Receipt | FrazilError:
        try:
            return await self.lane.append(body, "t", 7)
        except FrazilError as error:
            return error

    def bodies(self) -> list[list[str]]:
        """What is durable, a list a segment, streams and sequences in order."""
        reader = WalReader(self.store)
        names = [segment.name for segment in reader.pending("logs")]
        return [reader.rows(name, DECODER.spec)[1].column("body").to_pylist() for name in names]


@asynccontextmanager
async def bench(
    store: MemoryStore | None = None, clock: Clock = boot_seconds, **settings: Any
) -> AsyncIterator[Bench]:
    made = Bench(store or MemoryStore(), clock, **settings)
    running = asyncio.create_task(made.lane.run())
    try:
        yield made
    finally:
        if isinstance(made.store, Gate):
            made.store.open()
        await made.lane.close()
        await asyncio.wait_for(running, 30)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test as a coroutine on a real event loop, within bounded time."""

    def bounded() -> None:
        async def timed() -> None:
            async with asyncio.timeout(60):
                await test()

        asyncio.run(timed())

    bounded.__name__, bounded.__doc__ = test.__name__, test.__doc__
    return bounded


async def turns(count: int = 20) -> None:
    """Lets everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled(*tasks: Awaitable[Receipt]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


def failing(store: MemoryStore) -> None:
    def fail(path: str, data: bytes) -> None:
        raise StoreUnavailable("disk full", retry_after_seconds=5)

    store.before_create = fail
