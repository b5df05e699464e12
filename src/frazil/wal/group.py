"""Group commit: requests that wait together are made durable together.

While one group is under way, requests that arrive wait and share the next; each is answered when its records
are durable, or with the error that is its own. What a group becomes (a segment, messages of Kafka) is up to
the kind of lane.

Tenants take turns. A large group is worked on slice by slice; between two slices, groups of tenants that are
not part of it get their turn. A tenant with more than a slice to decode has a group of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from frazil import telemetry
from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.otlp.wire import STACK_BYTES, check
from frazil.wal.names import SegmentName
from frazil.wal.slices import SLICE_BYTES, PendingRequest, SliceDecoder

_GAP_SECONDS_MAX = 1.0
_GAP_WEIGHT = 0.2
_APART_SECONDS = 60.0
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
ResultT = TypeVar("ResultT")
Steps = Generator[None, None, ResultT]
"""Work in steps: between two of them, others have their turn."""


@dataclass
class Waiting(Generic[ReceiptT]):
    """A request that was not answered yet."""

    request: PendingRequest
    done: asyncio.Future[ReceiptT]
    arrived: float = field(default_factory=time.monotonic)
    taken: float | None = None
    """When its group was complete."""

    @property
    def size(self) -> int:
        return len(self.request.body)


@dataclass
class _Job(Generic[ReceiptT]):
    """A group under way."""

    group: list[Waiting[ReceiptT]]
    tenants: list[str]
    size: int
    steps: Steps[list[ReceiptT | FrazilError]]


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
        self._waiting: dict[str, deque[Waiting[ReceiptT]]] = {}
        """By tenant. A tenant that was served goes to the end."""
        self._refused: dict[str, float] = {}
        """When a request of a tenant was last refused by decoding."""
        self._waiting_bytes = 0
        self._jobs: deque[_Job[ReceiptT]] = deque()
        self._arrived = asyncio.Event()
        self._last_arrival = float("-inf")
        self._gap_seconds = settings.group_wait_seconds
        self._closing = False
        self._thread = _thread(f"wal-{decoder.signal}")
        self.failure: FrazilError | None = None

    @abstractmethod
    def _process(self, requests: Sequence[PendingRequest]) -> Steps[list[ReceiptT]]:
        """Does all of these requests' work, step by step, in the lane's thread; a receipt for each.

        A step takes as long as a slice. RequestInvalid or RequestTooLarge if some of them cannot be taken:
        the others are then tried without. StoreUnavailable if none can be: requests are refused until
        `failure` is None again.
        """

    @property
    def load_bytes(self) -> int:
        """What waits and what is being made durable."""
        return self._waiting_bytes + sum(job.size for job in self._jobs)

    async def append(self, body: bytes, tenant: str, received_unix_nano: int, records: int = 0) -> ReceiptT:
        """Returns when the request's records are durable. It was counted to have so many `records`."""
        if self._closing:
            raise StoreUnavailable("the receiver is shutting down")
        if self.failure is not None:
            raise self.failure.again()
        done: asyncio.Future[ReceiptT] = asyncio.get_running_loop().create_future()
        waiting = Waiting(PendingRequest(body, tenant, received_unix_nano, records), done)
        gap = min(waiting.arrived - self._last_arrival, _GAP_SECONDS_MAX)
        self._gap_seconds += (gap - self._gap_seconds) * _GAP_WEIGHT
        self._last_arrival = waiting.arrived
        self._waiting.setdefault(tenant, deque()).append(waiting)
        self._waiting_bytes += waiting.size
        self._arrived.set()
        try:
            return await done
        finally:
            if waiting.taken is not None:
                telemetry.past("wal.wait", waiting.arrived, waiting.taken)
                telemetry.past(self._work, waiting.taken, time.monotonic())

    async def run(self) -> None:
        last: _Job[ReceiptT] | None = None
        while await self._work_is_ready():
            self._begin_jobs()
            if self._jobs[0] is last:  # those that have just begun come before the one that had its turn
                self._jobs.rotate(-1)
            last = self._jobs[0]
            await self._advance(last)

    async def _advance(self, job: _Job[ReceiptT]) -> None:
        """One step of a job. After the last one its requests are answered."""
        loop = asyncio.get_running_loop()
        outcomes: Sequence[ReceiptT | FrazilError] | None
        try:
            outcomes = await loop.run_in_executor(self._thread, _next_step, job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a defect, or a panic in Rust: clients retry, the lane lives on
            failure = StoreUnavailable(f"the segment could not be written: {error!r}")
            self._observer.segment_failed(failure)
            outcomes = [failure] * len(job.group)
        if outcomes is None:
            return
        self._jobs.remove(job)
        for waiting, outcome in zip(job.group, outcomes, strict=True):
            if isinstance(outcome, RequestInvalid | RequestTooLarge):
                self._refused[waiting.request.tenant] = time.monotonic()
            if waiting.done.done():
                continue  # the client has gone
            if isinstance(outcome, FrazilError):
                waiting.done.set_exception(outcome.again())
            else:
                waiting.done.set_result(outcome)
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """While the store fails, what waits must not try it group by group, each until its time is over."""
        if self.failure is None:
            return
        refused = [waiting for queue in self._waiting.values() for waiting in queue]
        for job in self._jobs:
            refused += job.group
        for waiting in refused:
            if not waiting.done.done():
                waiting.done.set_exception(self.failure.again())
        self._waiting.clear()
        self._waiting_bytes = 0
        self._jobs.clear()

    async def close(self) -> None:
        """No new requests; what waits becomes durable now. Ends `run`."""
        self._closing = True
        self._arrived.set()

    async def _work_is_ready(self) -> bool:
        """Waits for a first request and then for others; False when closed and nothing is left.

        While a job is under way there is no need to wait.
        """
        while not self._waiting and not self._jobs:
            if self._closing:
                self._thread.shutdown(wait=False)
                return False
            self._arrived.clear()
            await self._arrived.wait()
        if self._jobs:
            return True
        deadline = min(queue[0].arrived for queue in self._waiting.values()) + self._wait_seconds()
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

    def _begin_jobs(self) -> None:
        """Groups of those who wait and have none under way: a tenant with much to decode has its own."""
        busy = {tenant for job in self._jobs for tenant in job.tenants}
        light = [tenant for tenant in self._waiting if tenant not in busy]
        if len(light) > 1:
            heavy = [tenant for tenant in light if self._is_heavy(tenant)]
            light = [tenant for tenant in light if tenant not in heavy]
            for tenant in heavy:
                self._begin_job([tenant])
        if light:
            self._begin_job(light)

    def _is_heavy(self, tenant: str) -> bool:
        """Also a tenant of which requests were refused lately: its group may have to be tried in halves."""
        refused = self._refused.get(tenant)
        if refused is not None:
            if time.monotonic() - refused < _APART_SECONDS:
                return True
            del self._refused[tenant]
        return sum(waiting.request.cost for waiting in self._waiting[tenant]) > SLICE_BYTES

    def _begin_job(self, tenants: list[str]) -> None:
        """One request of each tenant after the other, up to the bytes of a group.

        A request of more than a slice goes alone: if it is refused, nothing else was decoded in vain.
        """
        group: list[Waiting[ReceiptT]] = []
        size, turns, now = 0, deque(tenants), time.monotonic()
        while turns:
            tenant = turns.popleft()
            queue = self._waiting[tenant]
            is_large = queue[0].request.cost > SLICE_BYTES
            if group and (is_large or size + queue[0].size > self._group_bytes_max):
                continue
            waiting = queue.popleft()
            waiting.taken = now
            group.append(waiting)
            size += waiting.size
            del self._waiting[tenant]
            if queue:
                self._waiting[tenant] = queue
                turns.append(tenant)
            if is_large:
                break
        self._waiting_bytes -= size
        steps = self._commit([waiting.request for waiting in group])
        self._jobs.append(_Job(group, sorted({one.request.tenant for one in group}), size, steps))

    # What follows runs in the lane's thread.

    def _commit(self, group: list[PendingRequest]) -> Steps[list[ReceiptT | FrazilError]]:
        """Processes the group; where it cannot be taken as a whole, does so without the culprits."""
        try:
            return [*(yield from self._process(group))]
        except (RequestInvalid, RequestTooLarge) as error:
            if len(group) == 1:
                return [error]
            is_malformed = isinstance(error, RequestInvalid)
        except StoreUnavailable as error:
            self.failure = error
            self._observer.segment_failed(error)
            return [error for _ in group]
        refused = (yield from self._all_malformed(group)) if is_malformed else [None] * len(group)
        good = [request for request, error in zip(group, refused, strict=True) if error is None]
        if len(good) == len(group):  # well-formed, and yet refused: nested too deeply, or too much together
            half = len(group) // 2
            yield
            outcomes = yield from self._commit(group[:half])
            if self.failure is not None:
                return [*outcomes, *(self.failure for _ in group[half:])]
            yield
            return [*outcomes, *(yield from self._commit(group[half:]))]
        yield
        kept = iter((yield from self._commit(good)) if good else ())
        return [error if error is not None else next(kept) for error in refused]

    def _all_malformed(self, group: list[PendingRequest]) -> Steps[list[FrazilError | None]]:
        refused, size = [], 0
        for request in group:
            size += len(request.body)
            if size > SLICE_BYTES:
                size = 0
                yield
            refused.append(self._malformed(request))
        return refused

    def _malformed(self, request: PendingRequest) -> FrazilError | None:
        """By the reference parser: 10 µs for a small request, where decoding it alone takes 3 ms."""
        try:
            check(self._decoder.signal, request.body)
        except RequestInvalid as error:
            return error
        return None


def _next_step(job: _Job[ReceiptT]) -> list[ReceiptT | FrazilError] | None:
    """None while there are more steps."""
    try:
        next(job.steps)
    except StopIteration as end:
        outcomes: list[ReceiptT | FrazilError] = end.value
        return outcomes
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
