"""The WAL of one receiver process: lanes for each signal, and recovery after store failures."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from frazil.config import Config
from frazil.errors import FrazilError, StoreUnavailable, StoreUnsafe
from frazil.otlp.decode import Decoder
from frazil.otlp.wire import GROUPS_MAX_ON_STACK
from frazil.storage import Store
from frazil.storage.local import LocalStore
from frazil.tables import SIGNALS, Signal
from frazil.tables.promoted import promoted
from frazil.wal.clock import Clock, ClockWatch, boot_seconds
from frazil.wal.group import Observer, Receipt
from frazil.wal.names import new_stream
from frazil.wal.segment_lane import SegmentLane, SegmentSettings
from frazil.wal.store import open_store, probe_store

_RECOVERY_SECONDS = 1.0
_START_SECONDS = 5.0
"""How long a start waits for the store probe before it continues as not ready."""
_REMOVE_ABANDONED_SECONDS = 600.0
_CLOCK_SECONDS = 60.0
"""Interval between measurements of the store's clock. Each takes three requests on S3."""

log = structlog.get_logger("frazil.wal")


def decoders(config: Config) -> dict[Signal, Decoder]:
    """Returns a decoder for each signal, with the configured promoted columns.

    Raises ValueError if a promoted column has the name of a built-in column.
    """
    extra = promoted(config)
    depth_max = config.receive.limits.nesting_depth_max
    return {
        signal: Decoder(signal, extra, depth_max=depth_max, groups_max=GROUPS_MAX_ON_STACK)
        for signal in SIGNALS
    }


class Journal(Protocol):
    """Makes requests durable."""

    async def start(self) -> None:
        """Checks the store. If it does not respond yet, requests are refused until it does."""

    async def append(
        self, signal: Signal, body: bytes, tenant: str, received_unix_nano: int, records: int = 0
    ) -> Receipt:
        """Returns when the request's records are durable. `records` is the counted number of records."""
        ...

    async def close(self) -> None:
        """Returns when all appended requests are durable or refused. Idempotent; needs no start."""

    @property
    def failure(self) -> FrazilError | None:
        """The reason why no request can be made durable now, or None."""
        ...

    @property
    def clock_skew_seconds(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the store's; None if unknown."""
        ...


def open_journal(config: Config, observer: Observer) -> Journal:
    if config.wal.type == "kafka":
        from frazil.wal.kafka.journal import KafkaJournal  # loads the Kafka client only when needed

        return KafkaJournal(config, observer)
    return SegmentJournal(config, open_store(config), observer)


class SegmentJournal:
    """Writes segments. While the store fails, it refuses requests and retries every second."""

    def __init__(
        self,
        config: Config,
        store: Store,
        observer: Observer,
        *,
        stream_ids: Callable[[], str] = new_stream,
        clock: Clock = boot_seconds,
        wall: Callable[[], float] = time.time,
    ) -> None:
        settings = SegmentSettings(
            group_wait_seconds=config.wal.group_wait,
            group_bytes_max=config.wal.segment_bytes_max,
            records_per_request_max=config.receive.limits.records_per_request_max,
            compression_level=config.wal.compression_level,
            stream_use_seconds=config.land.stream_idle_seconds / 2,
        )
        self._store = store
        self._lanes: dict[Signal, list[SegmentLane]] = {
            signal: [
                SegmentLane(store, decoder, settings, observer, stream_ids=stream_ids, clock=clock)
                for _ in range(config.wal.lanes)
            ]
            for signal, decoder in decoders(config).items()
        }
        self._watch = ClockWatch(store.now, config.receive.clock_skew_seconds_max, wall=wall)
        self._tasks: list[asyncio.Task[None]] = []
        self._recovery: asyncio.Task[None] | None = None
        self._measured = 0.0
        self._was_skewed = False
        self._probe_failure: FrazilError | None = StoreUnavailable("the receiver is starting")

    async def start(self) -> None:
        """Probes the store. Raises StoreUnsafe if its conditional writes do not work."""
        probing = asyncio.create_task(asyncio.to_thread(self._probe))
        await asyncio.wait({probing}, timeout=_START_SECONDS)
        try:
            if probing.done():
                probing.result()
            else:
                raise StoreUnavailable(f"{self._store.describe()} has not responded yet")
        except StoreUnavailable as error:
            self._probe_failure = error
            log.warning("store probe failed; requests refused until the store responds", reason=str(error))
        await asyncio.to_thread(self._warm_up)
        self._tasks = [asyncio.create_task(lane.run()) for lane in self._all_lanes()]
        self._recovery = asyncio.create_task(self._recover(None if probing.done() else probing))

    async def append(
        self, signal: Signal, body: bytes, tenant: str, received_unix_nano: int, records: int = 0
    ) -> Receipt:
        if self._probe_failure is not None:
            raise self._probe_failure.again()
        if (skewed := self._watch.failure) is not None:
            raise skewed
        lane = min(self._lanes[signal], key=lambda lane: lane.load_bytes)
        return await lane.append(body, tenant, received_unix_nano, records)

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
            self._recovery = None
        for lane in self._all_lanes():
            await lane.close()
        await asyncio.gather(*self._tasks)
        self._tasks = []

    @property
    def failure(self) -> FrazilError | None:
        return self._store_failure or self._watch.failure

    @property
    def clock_skew_seconds(self) -> float | None:
        return self._watch.skew_seconds

    @property
    def _store_failure(self) -> FrazilError | None:
        return self._probe_failure or next(
            (lane.failure for lane in self._all_lanes() if lane.failure is not None), None
        )

    def _all_lanes(self) -> list[SegmentLane]:
        return [lane for lanes in self._lanes.values() for lane in lanes]

    async def _recover(self, probing: asyncio.Task[None] | None) -> None:
        """Retries the store while it fails. `probing` is the start's probe, if it is still running."""
        removed, logged = time.monotonic(), ""
        while True:
            if probing is None:
                await asyncio.sleep(_RECOVERY_SECONDS)
            if self._store_failure is None and probing is None:
                await self._watch_clock()
                if time.monotonic() - removed > _REMOVE_ABANDONED_SECONDS:
                    removed = time.monotonic()
                    await asyncio.to_thread(self._remove_abandoned)
                continue
            attempt = probing or asyncio.to_thread(self._probe if self._probe_failure else self._try_store)
            probing = None
            try:
                await attempt
            except StoreUnsafe as error:
                # Do not probe again: a store whose conditional writes fail sometimes may pass the next probe.
                self._probe_failure = error
                log.error("store rejected as unsafe; fix it and restart the receiver", reason=str(error))
                return
            except StoreUnavailable as error:
                if self._probe_failure is not None:
                    self._probe_failure = error
                if str(error) != logged:  # log each reason once, not every second
                    log.warning("store check failed", reason=str(error))
                logged = str(error)
                continue
            except asyncio.CancelledError:
                raise
            except BaseException:  # a bug must not keep the receiver unready for ever
                log.exception("store check failed unexpectedly")
                continue
            for lane in self._all_lanes():
                lane.failure = None
            log.info("store recovered", store=self._store.describe())

    async def _watch_clock(self) -> None:
        """Measures the clock skew once a minute, and on every call while the skew is over the limit."""
        skewed = self._watch.failure
        if skewed is None and time.monotonic() < self._measured + _CLOCK_SECONDS:
            return
        try:
            await asyncio.to_thread(self._measure)
        except StoreUnavailable as error:
            log.debug("store clock not measured", reason=str(error))
        before, self._was_skewed = self._was_skewed, self._watch.failure is not None
        if self._was_skewed and not before:
            log.error("clock skew exceeded the limit; requests refused", reason=str(self._watch.failure))
        elif before and not self._was_skewed:
            log.info("clock skew returned within the limit", skew_seconds=self._watch.skew_seconds)

    def _measure(self) -> None:
        self._measured = time.monotonic()
        self._watch.measure()

    def _remove_abandoned(self) -> None:
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned()

    def _warm_up(self) -> None:
        """Decodes an empty request per signal: the first decoding builds descriptor tables (0.1 s)."""
        for signal in SIGNALS:
            Decoder(signal).decode([b""], [""], [1])

    def _probe(self) -> None:
        result = probe_store(self._store)
        self._remove_abandoned()
        self._measure()
        self._probe_failure = None
        log.info(
            "store probed",
            store=self._store.describe(),
            writers=result.writers,
            seconds=round(result.seconds, 3),
        )

    def _try_store(self) -> None:
        path = f"probe/{secrets.token_hex(16)}"
        self._store.create(path, secrets.token_bytes(4096))
        self._store.delete(path)
