"""Group commit: requests that wait together are made durable together.

While one group is under way, requests that arrive wait and share the next; each is answered when its records
are durable, or with the error that is its own. What a group becomes (a segment, messages of Kafka) is up to
the kind of lane.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from frazil import telemetry
from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.otlp.wire import STACK_BYTES, check
from frazil.wal.names import SegmentName
from frazil.wal.slices import Request, SliceDecoder

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
    group_bytes_max: int
    records_per_request_max: int


ReceiptT = TypeVar("ReceiptT", bound=Receipt)


@dataclass
class Waiting(Generic[ReceiptT]):
    """A request that was not answered yet."""

    request: Request
    done: asyncio.Future[ReceiptT]
    arrived: float = field(default_factory=time.monotonic)
    taken: float | None = None
    """When its group was complete."""

    @property
    def size(self) -> int:
        return len(self.request.body)


class Lane(ABC, Generic[ReceiptT]):
    """`run` is a task for the lane's life; `append` waits for durability; `close` flushes and ends it."""

    _work = "wal.write"
    """What traces call the work on a group."""

    def __init__(self, decoder: Decoder, settings: LaneSettings, observer: Observer) -> None:
        self._decoder = decoder
        self._slice_decoder = SliceDecoder(decoder, settings.records_per_request_max)
        self._observer = observer
        self._group_wait_seconds = settings.group_wait_seconds
        self._group_bytes_max = settings.group_bytes_max
        self._waiting: deque[Waiting[ReceiptT]] = deque()
        self._waiting_bytes = 0
        self._storing_bytes = 0
        self._arrived = asyncio.Event()
        self._last_arrival = float("-inf")
        self._gap_seconds = settings.group_wait_seconds
        self._closing = False
        self._thread = _thread(f"wal-{decoder.signal}")
        self.failure: FrazilError | None = None

    @abstractmethod
    def _process(self, requests: Sequence[Request]) -> list[ReceiptT]:
        """Does all of these requests' work at once, in the lane's thread; a receipt for each.

        RequestInvalid or RequestTooLarge if some of them cannot be taken: the others are then tried without.
        StoreUnavailable if none can be: requests are refused until `failure` is None again.
        """

    @property
    def load_bytes(self) -> int:
        """What waits and what is being made durable."""
        return self._waiting_bytes + self._storing_bytes

    async def append(self, body: bytes, tenant: str, received_unix_nano: int) -> ReceiptT:
        """Returns when the request's records are durable."""
        if self._closing:
            raise StoreUnavailable("the receiver is shutting down")
        if self.failure is not None:
            raise self.failure.again()
        done: asyncio.Future[ReceiptT] = asyncio.get_running_loop().create_future()
        waiting = Waiting(Request(body, tenant, received_unix_nano), done)
        gap = min(waiting.arrived - self._last_arrival, _GAP_SECONDS_MAX)
        self._gap_seconds += (gap - self._gap_seconds) * _GAP_WEIGHT
        self._last_arrival = waiting.arrived
        self._waiting.append(waiting)
        self._waiting_bytes += waiting.size
        self._arrived.set()
        try:
            return await done
        finally:
            if waiting.taken is not None:
                telemetry.past("wal.wait", waiting.arrived, waiting.taken)
                telemetry.past(self._work, waiting.taken, time.monotonic())

    async def run(self) -> None:
        while await self._group_is_ready():
            await self._settle(self._take_group())

    async def _settle(self, group: list[Waiting[ReceiptT]]) -> None:
        """Makes a group durable and answers its requests."""
        loop = asyncio.get_running_loop()
        self._storing_bytes = sum(waiting.size for waiting in group)
        try:
            outcomes = await loop.run_in_executor(
                self._thread, self._commit, [waiting.request for waiting in group]
            )
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a defect, or a panic in Rust: clients retry, the lane lives on
            failure = StoreUnavailable(f"the segment could not be written: {error!r}")
            self._observer.segment_failed(failure)
            outcomes = [failure] * len(group)
        for waiting, outcome in zip(group, outcomes, strict=True):
            if waiting.done.done():
                continue  # the client has gone
            if isinstance(outcome, FrazilError):
                waiting.done.set_exception(outcome.again())
            else:
                waiting.done.set_result(outcome)
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
        while not self._closing and self._waiting_bytes < self._group_bytes_max:
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
        wait = self._group_wait_seconds
        return wait if self._gap_seconds < wait else wait / 10

    def _take_group(self) -> list[Waiting[ReceiptT]]:
        group = [self._waiting.popleft()]
        size = group[0].size
        while self._waiting and size + self._waiting[0].size <= self._group_bytes_max:
            group.append(self._waiting.popleft())
            size += group[-1].size
        self._waiting_bytes -= size
        now = time.monotonic()
        for waiting in group:
            waiting.taken = now
        return group

    # What follows runs in the lane's thread.

    def _commit(self, group: list[Request]) -> list[ReceiptT | FrazilError]:
        """Processes the group; where it cannot be taken as a whole, does so without the culprits."""
        try:
            return [*self._process(group)]
        except (RequestInvalid, RequestTooLarge) as error:
            if len(group) == 1:
                return [error]
        except StoreUnavailable as error:
            self.failure = error
            self._observer.segment_failed(error)
            return [error for _ in group]
        refused = [self._malformed(request) for request in group]
        good = [request for request, error in zip(group, refused, strict=True) if error is None]
        if len(good) == len(group):  # well-formed, and yet refused: nested too deeply, or too much together
            half = len(group) // 2
            outcomes = self._commit(group[:half])
            if self.failure is not None:
                return [*outcomes, *(self.failure for _ in group[half:])]
            return [*outcomes, *self._commit(group[half:])]
        kept = iter(self._commit(good) if good else ())
        return [error if error is not None else next(kept) for error in refused]

    def _malformed(self, request: Request) -> FrazilError | None:
        """By the reference parser: 10 µs for a small request, where decoding it alone takes 3 ms."""
        try:
            check(self._decoder.signal, request.body)
        except RequestInvalid as error:
            return error
        return None


def _thread(name: str) -> ThreadPoolExecutor:
    """One thread, with a stack that decoding cannot overflow. It costs memory only where it is touched."""
    usual = threading.stack_size(STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        thread.submit(int).result()  # threads are started with the first work
    finally:
        threading.stack_size(usual)
    return thread
