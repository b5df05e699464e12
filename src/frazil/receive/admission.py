"""Admission control: limits on memory and requests in flight, fair slots, and rate limits per tenant."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import TracebackType

from frazil.config import LimitsConfig, RateLimit, RateLimitsConfig
from frazil.errors import Overloaded

_SHARE = 7 / 8
"""The fraction of the budget that one of several tenants may use."""
_LARGE_BYTES = 8 * 2**20
_WAITING_MAX = 256
"""Limit on waiting requests of one of several tenants: each admission scans the queue."""


class Admission:
    """A budget of bytes and requests in flight. Requests wait in order, for a bounded time.

    If there are several tenants, none can use the whole budget, and requests that wait because their tenant
    has used its share do not block other tenants.
    """

    def __init__(self, limits: LimitsConfig, *, tenants_share: bool = False) -> None:
        self._limits = limits
        share = _SHARE if tenants_share else 1
        self._bytes_share = max(limits.request_bytes_max, int(limits.in_flight_bytes_max * share))
        self._requests_share = max(1, int(limits.requests_in_flight_max * share))
        self._waiting_max = min(self._requests_share, _WAITING_MAX) if tenants_share else self._requests_share
        self._queue: deque[tuple[int, str, asyncio.Future[None]]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()
        self._held: dict[str, list[int]] = {}
        """Bytes and number of requests in flight, by tenant."""
        self.bytes = 0
        self.requests = 0

    def _fits(self, size: int) -> bool:
        return (
            self.bytes + size <= self._limits.in_flight_bytes_max
            and self.requests < self._limits.requests_in_flight_max
        )

    def _fits_share(self, size: int, tenant: str) -> bool:
        held_bytes, held_requests = self._held.get(tenant, (0, 0))
        return held_bytes + size <= self._bytes_share and held_requests < self._requests_share

    async def enter(self, size: int, tenant: str = "") -> Ticket:
        """Reserves `size` bytes for a request; the reservation may grow. Raises Overloaded."""
        if self._queue or not self._fits(size) or not self._fits_share(size, tenant):
            await self._wait(size, tenant)
        else:
            self._take(size, tenant)
        return Ticket(self, size, tenant)

    def _take(self, size: int, tenant: str) -> None:
        self.bytes += size
        self.requests += 1
        held = self._held.setdefault(tenant, [0, 0])
        held[0] += size
        held[1] += 1
        self._empty.clear()

    def has_large(self, tenant: str) -> bool:
        """Whether large requests of the tenant use a considerable part of the budget."""
        held_bytes, held_requests = self._held.get(tenant, (0, 0))
        return (
            held_bytes >= self._limits.in_flight_bytes_max / 4 and held_bytes >= held_requests * _LARGE_BYTES
        )

    @property
    def is_contested(self) -> bool:
        """Whether requests are waiting."""
        return bool(self._queue)

    async def emptied(self) -> None:
        """Returns when no request is in flight."""
        await self._empty.wait()

    async def _wait(self, size: int, tenant: str) -> None:
        """Returns when the request is admitted and its size is reserved."""
        if sum(other == tenant for _, other, _ in self._queue) >= self._waiting_max:
            raise self._refusal()
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, tenant, admitted)
        self._queue.append(entry)
        self._next()  # requests before this one may wait for their own tenant's share
        try:
            await asyncio.wait_for(admitted, self._limits.admission_wait_seconds)
        except BaseException as error:
            if admitted.done() and not admitted.cancelled():  # admitted just as the wait ended
                self.leave(size, tenant)
            elif entry in self._queue:
                self._queue.remove(entry)
                self._next()  # smaller requests after this one may fit
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def grow(self, size: int, tenant: str = "") -> None:
        """Reserves more for an admitted request. Raises Overloaded at once: waiting could deadlock."""
        held = self._held[tenant]
        if self.bytes + size > self._limits.in_flight_bytes_max or held[0] + size > self._bytes_share:
            raise self._refusal()
        self.bytes += size
        held[0] += size

    def leave(self, size: int, tenant: str = "") -> None:
        self.bytes -= size
        self.requests -= 1
        held = self._held[tenant]
        held[0] -= size
        held[1] -= 1
        if not held[1]:
            del self._held[tenant]
        self._next()
        if not self.requests:
            self._empty.set()

    def shrink(self, size: int, tenant: str = "") -> None:
        self.bytes -= size
        self._held[tenant][0] -= size
        self._next()

    def _next(self) -> None:
        """Admits all waiting requests that fit, in order within each tenant."""
        over_share: dict[str, None] = {}
        staying: list[tuple[int, str, asyncio.Future[None]]] = []
        while self._queue:
            size, tenant, admitted = self._queue[0]
            if admitted.done():
                self._queue.popleft()
                continue
            if tenant in over_share or not self._fits_share(size, tenant):
                over_share[tenant] = None
                staying.append(self._queue.popleft())
                continue
            if not self._fits(size):
                break
            self._queue.popleft()
            self._take(size, tenant)
            admitted.set_result(None)
        self._queue.extendleft(reversed(staying))

    def _refusal(self) -> Overloaded:
        return Overloaded(
            f"the receiver has {self.bytes} bytes in {self.requests} requests in flight; retry later",
            bound="memory",
            retry_after_seconds=1,
        )


class Ticket:
    """A request's reservation in the budget, released on exit."""

    def __init__(self, admission: Admission, size: int, tenant: str = "") -> None:
        self._admission = admission
        self._size = size
        self._tenant = tenant
        self._ended = False

    def resize(self, size: int) -> None:
        """Changes the reservation to `size` bytes. Ignored after exit, since a thread may still call it."""
        if self._ended:
            return
        if size > self._size:
            self._admission.grow(size - self._size, self._tenant)
        elif size < self._size:
            self._admission.shrink(self._size - size, self._tenant)
        self._size = size

    @property
    def size(self) -> int:
        return self._size

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self._ended = True
            self._admission.leave(self._size, self._tenant)


class FairSlots:
    """Slots that are assigned to tenants in turn, and in order within a tenant.

    A slot is held from completion of the future of `request` until `release`. Do not cancel the future.
    """

    def __init__(self, slots: int, *, per_tenant: int | Callable[[str], int], waiting_max: int) -> None:
        """`per_tenant` is how many slots a tenant can have: a number, at least 1, or a function of the
        tenant, which is called when a slot is requested or released.
        """
        self._free = slots
        self._per_tenant = per_tenant
        self._waiting_max = waiting_max
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        slot = self.request(tenant)
        try:
            await asyncio.shield(slot)
            yield
        finally:
            self.release(tenant, slot)

    def request(self, tenant: str) -> asyncio.Future[None]:
        """Queues for a slot. Raises Overloaded if too many requests of the tenant are waiting."""
        queue = self._waiting.get(tenant, deque())
        if len(queue) >= self._waiting_max:
            raise Overloaded(
                f"{len(queue)} requests of this tenant are already waiting; retry later", bound="turns"
            )
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(slot)
        self._waiting[tenant] = queue
        self._assign()
        return slot

    def release(self, tenant: str, slot: asyncio.Future[None]) -> None:
        """Releases the slot, or leaves the queue."""
        if slot.done():
            self._free += 1
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
        else:
            queue = self._waiting[tenant]
            queue.remove(slot)
            if not queue:
                del self._waiting[tenant]
        self._assign()

    def _assign(self) -> None:
        while any(self._assign_to(tenant) for tenant in list(self._waiting)):
            pass

    def _assign_to(self, tenant: str) -> bool:
        """Returns whether the tenant got a slot. If so, it moves to the end of the rotation."""
        queue = self._waiting[tenant]
        most = self._per_tenant(tenant) if callable(self._per_tenant) else self._per_tenant
        if self._free == 0 or self._held.get(tenant, 0) >= most:
            return False
        self._free -= 1
        self._held[tenant] = self._held.get(tenant, 0) + 1
        queue.popleft().set_result(None)
        del self._waiting[tenant]
        if queue:
            self._waiting[tenant] = queue
        return True


class _Bucket:
    """A token bucket that may go negative: while it is positive, a request of any size is admitted."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def delay(self, now: float) -> float:
        """Returns the seconds until the bucket is positive; 0 if it is now."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._level > 0 else -self._level / self._rate or 1e-3

    def take(self, amount: float) -> None:
        self._level -= amount


class RateLimits:
    """Each tenant's limits on bytes and requests per second in this worker."""

    def __init__(self, config: RateLimitsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._buckets: dict[str, list[tuple[str, _Bucket]]] = {}

    def check(self, tenant: str) -> None:
        """Raises Overloaded, with the time to wait, if the tenant exceeds its rate."""
        now = self._clock()
        for unit, bucket in self._of(tenant, now):
            delay = bucket.delay(now)
            if delay > 0:
                raise Overloaded(
                    f"tenant {tenant} exceeds its limit of {unit} per second; retry later",
                    bound="rate",
                    retry_after_seconds=delay,
                )

    def spend(self, tenant: str, size: int) -> None:
        for unit, bucket in self._of(tenant, self._clock()):
            bucket.take(size if unit == "bytes" else 1)

    def _of(self, tenant: str, now: float) -> list[tuple[str, _Bucket]]:
        if tenant not in self._buckets:
            limit: RateLimit | None = self._config.of(tenant)
            buckets: list[tuple[str, _Bucket]] = []
            if limit is not None:
                buckets.append(("bytes", _Bucket(limit.bytes_per_second, limit.burst, now)))
                if limit.requests_per_second is not None:
                    rate = limit.requests_per_second
                    buckets.append(("requests", _Bucket(rate, max(1.0, rate), now)))
            self._buckets[tenant] = buckets
        return self._buckets[tenant]
