"""Group commit: requests that wait together become one durable segment.

A lane owns one stream of one signal. One segment is in flight at a time, so a stream has no gaps. Requests
that arrive meanwhile share the next segment; each is answered when the segment with its records is durable,
or with the error that is its own.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoded, Decoder, explain
from frazil.otlp.split import split
from frazil.otlp.wire import STACK_BYTES, check
from frazil.tables import Signal
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter
from frazil.wal.store import Store
from frazil.wal.stream import Stream

SLICE_BYTES = 2 * 2**20
"""Decoded at once. Bounds the memory beside the request itself, and how long the interpreter's lock is held.
"""
_OTHER_FIELDS_MAX = 1_000_000
"""Resources, scopes and what they hold, in a request that is cut: each costs about a microsecond."""


log = structlog.get_logger("frazil.wal")

_ATTEMPTS_MAX = 3
_GAP_SECONDS_MAX = 1.0
_GAP_WEIGHT = 0.2
"""The mean time between requests is a moving one; a burst after a pause counts soon."""


@dataclass(frozen=True)
class Receipt:
    """What became of a request that was made durable: `rejected` records were invalid on their own."""

    accepted: int
    rejected: int = 0
    reason: str = ""


@dataclass(frozen=True)
class SegmentWritten:
    """For the observer: one durable segment."""

    name: SegmentName
    requests: int
    rows: int
    bytes: int
    encode_seconds: float
    store_seconds: float


class Observer(Protocol):
    def segment_written(self, segment: SegmentWritten) -> None: ...

    def segment_failed(self, error: FrazilError) -> None: ...


@dataclass(frozen=True)
class LaneSettings:
    group_wait_seconds: float
    segment_bytes_max: int
    compression_level: int
    records_per_request_max: int
    stream_use_seconds: float = math.inf
    """See `Stream`. Without end only where no stream is written."""


@dataclass
class _Waiting:
    body: bytes
    tenant: str
    received_unix_nano: int
    done: asyncio.Future[Receipt]
    arrived: float = field(default_factory=time.monotonic)


@dataclass
class _Tally:
    seen: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def receipt(self, signal: Signal) -> Receipt:
        reason = explain(signal, self.rejected, self.reasons) if self.rejected else ""
        return Receipt(self.seen - self.rejected, self.rejected, reason)


class Lane:
    """`run` is a task for the lane's life; `append` waits for durability; `close` flushes and ends it."""

    def __init__(
        self,
        store: Store,
        decoder: Decoder,
        settings: LaneSettings,
        observer: Observer,
        *,
        stream_ids: Callable[[], str] = new_stream,
        clock: Clock = boot_seconds,
    ) -> None:
        self._store = store
        self._decoder = decoder
        self._settings = settings
        self._observer = observer
        self._stream = Stream(decoder.signal, settings.stream_use_seconds, clock, stream_ids)
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._storing_bytes = 0
        self._arrived = asyncio.Event()
        self._last_arrival = float("-inf")
        self._gap_seconds = settings.group_wait_seconds
        self._closing = False
        self._thread = _thread(f"wal-{decoder.signal}")
        self.failure: FrazilError | None = None

    @property
    def load_bytes(self) -> int:
        """What waits and what is being made durable."""
        return self._waiting_bytes + self._storing_bytes

    async def append(self, body: bytes, tenant: str, received_unix_nano: int) -> Receipt:
        """Returns when the request's records are durable."""
        if self._closing:
            raise StoreUnavailable("the receiver is shutting down")
        if self.failure is not None:
            raise self.failure.again()
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(body, tenant, received_unix_nano, done)
        gap = min(waiting.arrived - self._last_arrival, _GAP_SECONDS_MAX)
        self._gap_seconds += (gap - self._gap_seconds) * _GAP_WEIGHT
        self._last_arrival = waiting.arrived
        self._waiting.append(waiting)
        self._waiting_bytes += len(body)
        self._arrived.set()
        return await done

    async def run(self) -> None:
        while await self._group_is_ready():
            await self._settle(self._take_group())

    async def _settle(self, group: list[_Waiting]) -> None:
        """Makes a group durable and answers its requests."""
        loop = asyncio.get_running_loop()
        self._storing_bytes = sum(len(waiting.body) for waiting in group)
        try:
            outcomes = await loop.run_in_executor(self._thread, self._commit, group)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a defect, or a panic in Rust: clients retry, the lane lives on
            failure = StoreUnavailable(f"the segment could not be written: {error!r}")
            self._observer.segment_failed(failure)
            self._stream.renew()
            outcomes = [failure] * len(group)
        for waiting, outcome in zip(group, outcomes, strict=True):
            if waiting.done.done():
                continue  # the client has gone
            if isinstance(outcome, Receipt):
                waiting.done.set_result(outcome)
            else:
                waiting.done.set_exception(outcome.again())
        self._storing_bytes = 0
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """While the store fails, what waits must not try it group by group, each until its time is over."""
        if self.failure is None:
            return
        for waiting in self._waiting:
            if not waiting.done.done():
                waiting.done.set_exception(self.failure.again())
        self._waiting.clear()
        self._waiting_bytes = 0

    async def close(self) -> None:
        """No new requests; what waits becomes durable now. Ends `run`."""
        self._closing = True
        self._arrived.set()

    async def _group_is_ready(self) -> bool:
        """Waits for a first request and then for its company; False when closed and nothing is left."""
        while not self._waiting:
            if self._closing:
                self._thread.shutdown(wait=False)
                return False
            self._arrived.clear()
            await self._arrived.wait()
        deadline = self._waiting[0].arrived + self._wait_seconds()
        while not self._closing and self._waiting_bytes < self._settings.segment_bytes_max:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                break
        return True

    def _wait_seconds(self) -> float:
        """Where requests come further apart than the wait, no company is to be expected: hardly wait."""
        wait = self._settings.group_wait_seconds
        return wait if self._gap_seconds < wait else wait / 10

    def _take_group(self) -> list[_Waiting]:
        group = [self._waiting.popleft()]
        size = len(group[0].body)
        while self._waiting and size + len(self._waiting[0].body) <= self._settings.segment_bytes_max:
            group.append(self._waiting.popleft())
            size += len(group[-1].body)
        self._waiting_bytes -= size
        return group

    # What follows runs in the lane's thread.

    def _commit(self, group: list[_Waiting]) -> list[Receipt | FrazilError]:
        """Writes the group; where it cannot be decoded as a whole, writes it without the culprits."""
        try:
            return [tally.receipt(self._decoder.signal) for tally in self._write(group)]
        except (RequestInvalid, RequestTooLarge) as error:
            if len(group) == 1:
                return [error]
        except StoreUnavailable as error:
            self.failure = error
            self._observer.segment_failed(error)
            self._stream.renew()  # whether the segment is there or not is unknown: its name is not used again
            return [error for _ in group]
        refused = [self._malformed(waiting) for waiting in group]
        good = [waiting for waiting, error in zip(group, refused, strict=True) if error is None]
        if len(good) == len(group):  # well-formed, and yet refused: nested too deeply, or too much together
            half = len(group) // 2
            outcomes = self._commit(group[:half])
            if self.failure is not None:
                return [*outcomes, *(self.failure for _ in group[half:])]
            return [*outcomes, *self._commit(group[half:])]
        kept = iter(self._commit(good) if good else ())
        return [error if error is not None else next(kept) for error in refused]

    def _malformed(self, waiting: _Waiting) -> FrazilError | None:
        """By the reference parser: 10 µs for a small request, where decoding it alone takes 3 ms."""
        try:
            check(self._decoder.signal, waiting.body)
        except RequestInvalid as error:
            return error
        return None

    def _write(self, group: list[_Waiting], attempt: int = 1) -> list[_Tally]:
        begin = time.perf_counter()
        tallies = [_Tally() for _ in group]
        writer = SegmentWriter(self._settings.compression_level)
        for decoded in self._decoded(group, tallies):
            writer.write(decoded.table)
        if writer.rows == 0:
            return tallies  # nothing to keep: empty requests, or all records rejected
        times = [waiting.received_unix_nano for waiting in group]
        received = (min(times), max(times))
        name = self._stream.begin()
        data = writer.finish(name, stream_rows=self._stream.rows, received=received)
        encoded = time.perf_counter()
        try:
            self._store.create(name.path, data)
        except FileExistsError:  # fenced: this writer was taken for dead, and its stream was closed
            self._stream.renew()
            if attempt == _ATTEMPTS_MAX:
                raise StoreUnavailable("the store says that every new name exists already") from None
            return self._write(group, attempt + 1)
        self._stream.end(writer.rows)
        self.failure = None
        self._observer.segment_written(
            SegmentWritten(
                name, len(group), writer.rows, len(data), encoded - begin, time.perf_counter() - encoded
            )
        )
        return tallies

    def _decoded(self, group: list[_Waiting], tallies: list[_Tally]) -> Iterator[Decoded]:
        """The group's rows in slices of bounded size; counts what each request had into its tally."""
        fields_max = self._settings.records_per_request_max + _OTHER_FIELDS_MAX
        for owners, bodies in _slices([waiting.body for waiting in group], fields_max):
            decoded = self._decode(bodies, [group[owner] for owner in owners])
            for position, owner in enumerate(owners):
                tally = tallies[owner]
                tally.seen += int(decoded.seen[position])
                tally.rejected += int(decoded.rejected[position])
                tally.reasons += decoded.reasons.get(position, ())
                if tally.seen > self._settings.records_per_request_max:
                    bound = self._settings.records_per_request_max
                    raise RequestTooLarge(f"a request may have at most {bound} records", bytes_max=0)
            yield decoded

    def _decode(self, bodies: list[bytes], owners: list[_Waiting]) -> Decoded:
        """A defect, or a panic in Rust, is due to some request: it must not take its neighbours down."""
        try:
            return self._decoder.decode(
                bodies,
                [waiting.tenant for waiting in owners],
                [waiting.received_unix_nano for waiting in owners],
            )
        except (FrazilError, MemoryError):
            raise
        except BaseException as error:
            log.exception("defect while decoding", signal=self._decoder.signal)
            raise RequestInvalid(f"the request cannot be decoded: {type(error).__name__}") from None


def _thread(name: str) -> ThreadPoolExecutor:
    """One thread, with a stack that decoding cannot overflow. It costs memory only where it is touched."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        thread.submit(int).result()  # threads are started with the first work
    finally:
        threading.stack_size(usual)
    return thread


def _slices(bodies: Sequence[bytes], fields_max: int) -> Iterator[tuple[list[int], list[bytes]]]:
    """Bodies packed to about SLICE_BYTES, large ones cut; with the index of the body of each piece."""
    owners: list[int] = []
    pieces: list[bytes] = []
    size = 0
    for owner, body in enumerate(bodies):
        if len(body) > SLICE_BYTES:
            for piece in split(body, SLICE_BYTES, fields_max):
                yield [owner], [piece]
            continue
        if pieces and size + len(body) > SLICE_BYTES:
            yield owners, pieces
            owners, pieces, size = [], [], 0
        owners.append(owner)
        pieces.append(body)
        size += len(body)
    if pieces:
        yield owners, pieces
