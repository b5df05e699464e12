"""The WAL of one receiver process: lanes for every signal, and recovery when the store fails."""

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
"""How long a start waits for the store's probe before it says that it is not ready."""
_TIDY_SECONDS = 600.0
_CLOCK_SECONDS = 60.0
"""How often the store's clock is asked. Three requests on S3."""

log = structlog.get_logger("frazil.wal")


def decoders(config: Config) -> dict[Signal, Decoder]:
    """A decoder for each signal, with the promoted columns of the configuration.

    ValueError if a promoted column has the name of one that the table has already.
    """
    extra = promoted(config)
    depth_max = config.receive.limits.nesting_depth_max
    return {
        signal: Decoder(signal, extra, depth_max=depth_max, groups_max=GROUPS_MAX_ON_STACK)
        for signal in SIGNALS
    }


class Journal(Protocol):
    """Makes requests durable. Start, append, close."""

    async def start(self) -> None: ...

    async def append(
        self, signal: Signal, body: bytes, tenant: str, received_unix_nano: int, records: int = 0
    ) -> Receipt:
        """Returns when the request's records are durable. It was counted to have so many `records`."""
        ...

    async def close(self) -> None:
        """Returns when what was appended is durable or refused."""

    @property
    def failure(self) -> FrazilError | None:
        """Why nothing can be made durable now; None if it can."""
        ...

    @property
    def clock_skew_seconds(self) -> float | None:
        """How far this machine's clock is ahead of the store's; None if that is not known."""
        ...


def open_journal(config: Config, observer: Observer) -> Journal:
    if config.wal.type == "kafka":
        from frazil.wal.kafka.journal import KafkaJournal  # a receiver without Kafka need not load its client

        return KafkaJournal(config, observer)
    return SegmentJournal(config, open_store(config), observer)


class SegmentJournal:
    """Start, append, close. While the store fails, requests are refused at once and the store is tried every
    second.
    """

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
        self._unprobed: FrazilError | None = StoreUnavailable("the receiver is starting")

    async def start(self) -> None:
        """Raises StoreUnsafe on a store whose conditional writes do not hold.

        A store that does not answer yet is no reason not to start: requests are refused until it has been
        probed.
        """
        probing = asyncio.create_task(asyncio.to_thread(self._probe))
        await asyncio.wait({probing}, timeout=_START_SECONDS)
        try:
            if probing.done():
                probing.result()
            else:
                raise StoreUnavailable(f"{self._store.describe()} has not answered yet")
        except StoreUnavailable as error:
            self._unprobed = error
            log.warning("store does not answer; requests are refused until it does", reason=str(error))
        await asyncio.to_thread(self._warm_up)
        self._tasks = [asyncio.create_task(lane.run()) for lane in self._all()]
        self._recovery = asyncio.create_task(self._recover(None if probing.done() else probing))

    async def append(
        self, signal: Signal, body: bytes, tenant: str, received_unix_nano: int, records: int = 0
    ) -> Receipt:
        """Returns when the request's records are durable. It was counted to have so many `records`."""
        if self._unprobed is not None:
            raise self._unprobed.again()
        if (skewed := self._watch.failure) is not None:
            raise skewed
        lane = min(self._lanes[signal], key=lambda lane: lane.load_bytes)
        return await lane.append(body, tenant, received_unix_nano, records)

    async def close(self) -> None:
        """Makes durable what waits, then ends. Safe when never started and when called twice."""
        if self._recovery is not None:
            self._recovery.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._recovery
            self._recovery = None
        for lane in self._all():
            await lane.close()
        await asyncio.gather(*self._tasks)
        self._tasks = []

    @property
    def failure(self) -> FrazilError | None:
        """Why nothing can be made durable now; None while all is well."""
        return self._store_failure or self._watch.failure

    @property
    def clock_skew_seconds(self) -> float | None:
        """How far this machine's clock is ahead of the store's. None if it is not known."""
        return self._watch.skew_seconds

    @property
    def _store_failure(self) -> FrazilError | None:
        return self._unprobed or next(
            (lane.failure for lane in self._all() if lane.failure is not None), None
        )

    def _all(self) -> list[SegmentLane]:
        return [lane for lanes in self._lanes.values() for lane in lanes]

    async def _recover(self, probing: asyncio.Task[None] | None) -> None:
        """Tries the store while it fails; `probing` is an attempt that is under way since the start."""
        tidied, told = time.monotonic(), ""
        while True:
            if probing is None:
                await asyncio.sleep(_RECOVERY_SECONDS)
            if self._store_failure is None and probing is None:
                await self._watch_clock()
                if time.monotonic() - tidied > _TIDY_SECONDS:
                    tidied = time.monotonic()
                    await asyncio.to_thread(self._tidy)
                continue
            attempt = probing or asyncio.to_thread(self._probe if self._unprobed else self._try_store)
            probing = None
            try:
                await attempt
            except (
                StoreUnsafe
            ) as error:  # for good: a store that lets two win now and then may pass the next probe
                self._unprobed = error
                log.error("store refused; restart the receiver when it is mended", reason=str(error))
                return
            except StoreUnavailable as error:
                if self._unprobed is not None:
                    self._unprobed = error
                if str(error) != told:  # once a second would bury everything else
                    log.warning("store still fails", reason=str(error))
                told = str(error)
                continue
            except asyncio.CancelledError:
                raise
            except BaseException:  # a defect is no reason to stay unready for ever
                log.exception("defect while trying the store")
                continue
            for lane in self._all():
                lane.failure = None
            log.info("store works again", store=self._store.describe())

    async def _watch_clock(self) -> None:
        """Asks the store for its time now and then, and at once while this machine's clock seems wrong."""
        skewed = self._watch.failure
        if skewed is None and time.monotonic() < self._measured + _CLOCK_SECONDS:
            return
        try:
            await asyncio.to_thread(self._measure)
        except StoreUnavailable as error:
            log.debug("store clock not measured", reason=str(error))
        before, self._was_skewed = self._was_skewed, self._watch.failure is not None
        if self._was_skewed and not before:
            log.error("clock skew over the limit; requests are refused", reason=str(self._watch.failure))
        elif before and not self._was_skewed:
            log.info("clock skew within the limit again", skew_seconds=self._watch.skew_seconds)

    def _measure(self) -> None:
        self._measured = time.monotonic()
        self._watch.measure()

    def _tidy(self) -> None:
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned()

    def _warm_up(self) -> None:
        """The first decoding of a signal builds its tables of descriptors: a tenth of a second."""
        for signal in SIGNALS:
            Decoder(signal).decode([b""], [""], [1])

    def _probe(self) -> None:
        result = probe_store(self._store)
        self._tidy()
        self._measure()
        self._unprobed = None
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
