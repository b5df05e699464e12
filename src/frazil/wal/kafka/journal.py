"""The WAL of one receiver process with `wal.type: kafka`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator

import structlog

from frazil import telemetry
from frazil.config import Config
from frazil.errors import ConfigError, FrazilError, StoreUnavailable
from frazil.tables import SIGNALS, Signal
from frazil.wal.group import Observer, Receipt, SegmentWritten
from frazil.wal.journal import decoders
from frazil.wal.kafka.messages import key_and_headers
from frazil.wal.kafka.prepare import PreparingLane
from frazil.wal.kafka.producer import KafkaProducer, RequestMessages
from frazil.wal.kafka.topics import Topics
from frazil.wal.names import SegmentName, new_stream

_RECOVERY_SECONDS = 1.0
_START_SECONDS = 5.0
"""How long a start waits for the brokers before it continues as not ready."""
_PROBE_SECONDS = 2.0

log = structlog.get_logger("frazil.wal.kafka")


class KafkaJournal:
    """Writes to Kafka. While the brokers fail, it refuses requests and retries every second.

    It reports each durable request to the observer as one segment.
    """

    def __init__(self, config: Config, observer: Observer) -> None:
        if config.wal.kafka is None:
            raise ValueError("the configuration has no section wal.kafka")
        self._config = config
        self._kafka = config.wal.kafka
        self._observer = observer
        self._topics = Topics(self._kafka, timeout_seconds=_PROBE_SECONDS)
        self._producer = KafkaProducer(
            self._kafka,
            write_timeout_seconds=config.wal.write_timeout_seconds,
            bytes_max=config.receive.limits.in_flight_bytes_max,
            on_brokers_down=self._request_probe,
        )
        self._lanes = {
            signal: PreparingLane(decoder, config, self._kafka, observer)
            for signal, decoder in decoders(config).items()
        }
        self._stream, self._numbers = new_stream(), itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._recovery: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._probe_requested = asyncio.Event()
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False
        self._failure: FrazilError | None = StoreUnavailable("the receiver is starting")

    async def start(self) -> None:
        """Creates missing topics. Raises ConfigError if the settings are invalid."""
        self._check_tenants()
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._producer.start)
        self._tasks = [asyncio.create_task(lane.run()) for lane in self._lanes.values()]
        probing = asyncio.create_task(self._probe())
        # The first decoding of each signal builds descriptor tables (0.1 s).
        await asyncio.gather(*(lane.append(b"", "", 1) for lane in self._lanes.values()))
        await asyncio.wait({probing}, timeout=_START_SECONDS)
        self._recovery = asyncio.create_task(self._recover(probing))

    async def append(
        self, signal: Signal, body: bytes, tenant: str, received_unix_nano: int, records: int = 0
    ) -> Receipt:
        """Returns when all in-sync replicas have every message. Raises as `KafkaProducer.deliver` does."""
        if self._closing:
            raise StoreUnavailable("the receiver is shutting down")
        if self._failure is not None:
            raise self._failure.again()
        with self._counted():
            begin = time.perf_counter()
            prepared = await self._lanes[signal].append(body, tenant, received_unix_nano, records)
            if prepared.values:
                key, headers = key_and_headers(tenant, received_unix_nano, self._kafka)
                topic = self._kafka.topic(signal)
                ready = time.perf_counter()
                with telemetry.span("wal.deliver", messages=len(prepared.values)):
                    await self._deliver(
                        RequestMessages(topic, prepared.values, key, headers, received_unix_nano // 1_000_000)
                    )
                name = SegmentName(signal, self._stream, next(self._numbers))
                size = sum(map(len, prepared.values))
                stored = time.perf_counter() - ready
                self._observer.segment_written(
                    SegmentWritten(name, 1, prepared.accepted, size, ready - begin, stored)
                )
            return Receipt(prepared.accepted, prepared.rejected, prepared.reason)

    async def close(self) -> None:
        self._closing = True
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
            self._recovery = None
        for lane in self._lanes.values():
            await lane.close()
        await asyncio.gather(*self._tasks)
        self._tasks = []
        await self._idle.wait()
        await asyncio.to_thread(self._producer.close, self._config.wal.write_timeout_seconds)

    @property
    def failure(self) -> FrazilError | None:
        return self._failure

    @property
    def clock_skew_seconds(self) -> float | None:
        """Always None: brokers' clocks are not measured."""
        return None

    def _check_tenants(self) -> None:
        """Refuses a fixed tenant if there are API keys of other tenants: their data would change tenants."""
        default = self._config.tenants.default
        others = sorted({key.tenant for key in self._config.auth.keys} - {default})
        if self._kafka.tenant.source == "fixed" and others:
            raise ConfigError(
                f"wal.kafka.tenant.source is fixed, so all data would belong to {default}, but there are API "
                f"keys of {', '.join(others)}; use header or key"
            )

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _deliver(self, messages: RequestMessages) -> None:
        try:
            await self._producer.deliver(messages)
        except StoreUnavailable as error:
            self._observer.segment_failed(error)
            self._failure = error.again()
            self._probe_requested.set()
            raise

    def _request_probe(self) -> None:
        """Requests a probe of the brokers. Thread-safe."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._probe_requested.set)

    async def _recover(self, probing: asyncio.Task[None] | None) -> None:
        """Probes the brokers on request, and every second while they fail. `probing` is the start's probe."""
        while True:
            if probing is None and self._failure is None:
                await self._probe_requested.wait()
            self._probe_requested.clear()
            await (probing or self._probe())
            probing = None
            if self._failure is not None:
                await asyncio.sleep(_RECOVERY_SECONDS)

    async def _probe(self) -> None:
        """Checks that all topics have leaders and updates `failure`."""
        before = self._failure
        try:
            for signal in SIGNALS:
                await asyncio.to_thread(self._topics.ensure, signal)
        except StoreUnavailable as error:
            self._failure = error
            log.warning("Kafka probe failed; requests refused until Kafka responds", reason=str(error))
        except Exception as error:  # a bug must not keep the receiver unready for ever
            self._failure = StoreUnavailable(f"the Kafka probe failed: {error!r}")
            log.exception("Kafka probe failed unexpectedly")
        else:
            self._failure = None
            if before is not None:
                log.info("Kafka available", brokers=self._kafka.brokers)
