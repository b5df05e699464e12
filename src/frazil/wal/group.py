"""Group commit: requests that arrive close together are made durable together.

While one group is processed, new requests queue for the next group. Each request completes when its records
are durable, or fails with its own error. Subclasses of `Lane` decide the output: a segment, or Kafka
messages.

Scheduling is fair between tenants. A large group is processed slice by slice, and groups of other tenants run
between two slices. A tenant with more than one slice to decode gets its own group.
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
from frazil.otlp.wire import STACK_BYTES, check_parsable
from frazil.wal.names import SegmentName
from frazil.wal.slices import SLICE_BYTES, PendingRequest, SliceDecoder

_GAP_SECONDS_MAX = 1.0
"""Caps each gap in the moving average of the time between requests: a burst after a pause counts soon."""
_GAP_WEIGHT = 0.2
_ISOLATION_SECONDS = 60.0
"""After a refused request, the tenant's requests are grouped separately for this long."""


@dataclass(frozen=True)
class Receipt:
    """The result of a durable request. `rejected` counts its invalid records, `reason` says why."""

    accepted: int
    rejected: int = 0
    reason: str = ""


@dataclass(frozen=True)
class SegmentWritten:
    """Event: one segment is durable."""

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
"""Work in steps. Other groups run between two steps."""


@dataclass
class QueuedRequest(Generic[ReceiptT]):
    """A request without a result yet."""

    request: PendingRequest
    done: asyncio.Future[ReceiptT]
    arrived: float = field(default_factory=time.monotonic)
    grouped: float | None = None
    """When the request's group was complete."""

    @property
    def size(self) -> int:
        return len(self.request.body)


@dataclass
class _Job(Generic[ReceiptT]):
    """A group in progress."""

    group: list[QueuedRequest[ReceiptT]]
    tenants: list[str]
    size: int
    steps: Steps[list[ReceiptT | FrazilError]]


class Lane(ABC, Generic[ReceiptT]):
    """A queue of one signal's requests, and the thread that makes them durable group by group."""

    _span_name = "wal.write"
    """The name of the trace span for processing a group."""

    def __init__(self, decoder: Decoder, settings: LaneSettings, observer: Observer) -> None:
        self._decoder = decoder
        self._slice_decoder = SliceDecoder(decoder, settings.records_per_request_max)
        self._observer = observer
        self._group_wait_seconds = settings.group_wait_seconds
        self._group_bytes_max = settings.group_bytes_max
        self._waiting: dict[str, deque[QueuedRequest[ReceiptT]]] = {}
        """Queues by tenant, in round-robin order."""
        self._refused: dict[str, float] = {}
        """The time of each tenant's last request that failed to decode."""
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
        """Makes the requests durable, in steps of about one slice, and returns a receipt for each.

        Runs in the lane's thread. Raises RequestInvalid or RequestTooLarge if some requests are at fault: the
        others are then retried without them. Raises StoreUnavailable if the store fails: requests are
        refused until `failure` is None again.
        """

    @property
    def load_bytes(self) -> int:
        """Bytes of requests that are queued or in progress."""
        return self._waiting_bytes + sum(job.size for job in self._jobs)

    async def append(self, body: bytes, tenant: str, received_unix_nano: int, records: int = 0) -> ReceiptT:
        """Returns when the request's records are durable. `records` is the counted number of records."""
        if self._closing:
            raise StoreUnavailable("the receiver is shutting down")
        if self.failure is not None:
            raise self.failure.again()
        done: asyncio.Future[ReceiptT] = asyncio.get_running_loop().create_future()
        waiting = QueuedRequest(PendingRequest(body, tenant, received_unix_nano, records), done)
        gap = min(waiting.arrived - self._last_arrival, _GAP_SECONDS_MAX)
        self._gap_seconds += (gap - self._gap_seconds) * _GAP_WEIGHT
        self._last_arrival = waiting.arrived
        self._waiting.setdefault(tenant, deque()).append(waiting)
        self._waiting_bytes += waiting.size
        self._arrived.set()
        try:
            return await done
        finally:
            if waiting.grouped is not None:
                telemetry.past("wal.wait", waiting.arrived, waiting.grouped)
                telemetry.past(self._span_name, waiting.grouped, time.monotonic())

    async def run(self) -> None:
        """Processes groups until `close` is called and the queue is empty."""
        last: _Job[ReceiptT] | None = None
        while await self._work_is_ready():
            self._begin_jobs()
            if self._jobs[0] is last:  # new jobs run before the job that ran last
                self._jobs.rotate(-1)
            last = self._jobs[0]
            await self._advance(last)

    async def _advance(self, job: _Job[ReceiptT]) -> None:
        """Runs one step of a job. After the last step, completes the job's requests."""
        loop = asyncio.get_running_loop()
        outcomes: Sequence[ReceiptT | FrazilError] | None
        try:
            outcomes = await loop.run_in_executor(self._thread, _next_step, job)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a bug, or a panic in Rust: clients retry, the lane continues
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
                continue  # the client disconnected
            if isinstance(outcome, FrazilError):
                waiting.done.set_exception(outcome.again())
            else:
                waiting.done.set_result(outcome)
        self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        """Refuses all queued requests while the store fails: each group would wait for its own timeout."""
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
        """Refuses new requests, makes the queued ones durable, and ends `run`."""
        self._closing = True
        self._arrived.set()

    async def _work_is_ready(self) -> bool:
        """Waits for a first request, then for the group wait. Returns False when closed and empty.

        Does not wait while a job is in progress.
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
        # If requests arrive less often than the group wait, batching gains nothing: use a tenth of the wait.
        wait = self._group_wait_seconds
        return wait if self._gap_seconds < wait else wait / 10

    def _begin_jobs(self) -> None:
        """Starts groups for tenants without a job in progress: one per heavy tenant, one for the rest."""
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
        """Returns whether more than a slice is queued, or a group was refused recently: it may be retried in
        halves.
        """
        refused = self._refused.get(tenant)
        if refused is not None:
            if time.monotonic() - refused < _ISOLATION_SECONDS:
                return True
            del self._refused[tenant]
        return sum(waiting.request.cost for waiting in self._waiting[tenant]) > SLICE_BYTES

    def _begin_job(self, tenants: list[str]) -> None:
        """Takes requests from the tenants in turn, up to the size of a group.

        A request larger than a slice ends the group: if it is refused, little else was decoded for nothing.
        """
        group: list[QueuedRequest[ReceiptT]] = []
        size, turns, now = 0, deque(tenants), time.monotonic()
        while turns:
            tenant = turns.popleft()
            queue = self._waiting[tenant]
            is_large = queue[0].request.cost > SLICE_BYTES
            if group and (is_large or size + queue[0].size > self._group_bytes_max):
                continue
            waiting = queue.popleft()
            waiting.grouped = now
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

    # The methods below run in the lane's thread.

    def _commit(self, group: list[PendingRequest]) -> Steps[list[ReceiptT | FrazilError]]:
        """Processes the group. If some requests are refused, retries the others without them."""
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
        refused = (yield from self._check_all(group)) if is_malformed else [None] * len(group)
        good = [request for request, error in zip(group, refused, strict=True) if error is None]
        if len(good) == len(group):  # well-formed, but refused: nested too deeply, or too large together
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

    def _check_all(self, group: list[PendingRequest]) -> Steps[list[FrazilError | None]]:
        refused, size = [], 0
        for request in group:
            size += len(request.body)
            if size > SLICE_BYTES:
                size = 0
                yield
            refused.append(self._check(request))
        return refused

    def _check(self, request: PendingRequest) -> FrazilError | None:
        """Parses with the reference parser: 10 µs for a small request; decoding it alone takes 3 ms."""
        try:
            check_parsable(self._decoder.signal, request.body)
        except RequestInvalid as error:
            return error
        return None


def _next_step(job: _Job[ReceiptT]) -> list[ReceiptT | FrazilError] | None:
    """Runs one step. Returns the outcomes after the last step, None before."""
    try:
        next(job.steps)
    except StopIteration as end:
        outcomes: list[ReceiptT | FrazilError] = end.value
        return outcomes
    return None


def _thread(name: str) -> ThreadPoolExecutor:
    """Returns one thread with a stack that decoding cannot overflow. Only touched pages use memory."""
    default = threading.stack_size(STACK_BYTES)
    try:
        thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        thread.submit(int).result()  # the executor starts its thread with the first call
    finally:
        threading.stack_size(default)
    return thread
