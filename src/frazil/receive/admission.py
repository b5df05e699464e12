"""Which requests may come in, and how much at once: memory, requests, turns, and each tenant's rate."""

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
"""Of the budget that one tenant may use, where there are several: the rest is for the others."""
_WAITING_MAX = 256
"""Requests of one tenant that wait for room, where there are several: each is looked at for all that come."""


class Admission:
    """A budget of bytes and requests in flight. Requests wait for room in order, then are refused.

    Where there are several tenants, none can have the whole budget, and requests that wait because of their
    own tenant do not keep those of other tenants waiting.
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
        """Of each tenant with requests in flight: their bytes and their number."""
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
        """Room for a request of `size` bytes, as far as is known; it may grow."""
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

    @property
    def is_contested(self) -> bool:
        """Whether others wait for room."""
        return bool(self._queue)

    async def emptied(self) -> None:
        """Returns when no request is in flight."""
        await self._empty.wait()

    async def _wait(self, size: int, tenant: str) -> None:
        """Returns when its turn has come and its part of the budget is taken."""
        if sum(other == tenant for _, other, _ in self._queue) >= self._waiting_max:
            raise self._refusal()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, tenant, turn)
        self._queue.append(place)
        self._next()  # those before it may wait for their own tenant's requests
        try:
            await asyncio.wait_for(turn, self._limits.admission_wait_seconds)
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came at the very moment that it gave up
                self.leave(size, tenant)
            elif place in self._queue:
                self._queue.remove(place)
                self._next()  # those behind it may fit where it did not
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def grow(self, size: int, tenant: str = "") -> None:
        """More of a request that is in: refused at once if there is no room, since it holds some itself."""
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
        """Admits all waiting requests that fit; requests of one tenant never overtake each other."""
        over_share: dict[str, None] = {}
        staying: list[tuple[int, str, asyncio.Future[None]]] = []
        while self._queue:
            size, tenant, turn = self._queue[0]
            if turn.done():
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
            turn.set_result(None)
        self._queue.extendleft(reversed(staying))

    def _refusal(self) -> Overloaded:
        return Overloaded(
            f"{self.bytes} bytes in {self.requests} requests are in flight; try again shortly",
            bound="memory",
            retry_after_seconds=1,
        )


class Ticket:
    """A request's part of the budget, given back when it ends."""

    def __init__(self, admission: Admission, size: int, tenant: str = "") -> None:
        self._admission = admission
        self._size = size
        self._tenant = tenant
        self._ended = False

    def resize(self, size: int) -> None:
        """The request turned out to hold `size` bytes. If it has ended, a thread of it may not know yet."""
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


class Turns:
    """A few places that tenants take in turn; within a tenant, in the order of asking.

    A place is held from when the future of `ask` is done until `leave`. The future must not be cancelled.
    """

    def __init__(self, places: int, *, per_tenant: int, waiting_max: int) -> None:
        self._free = places
        self._per_tenant = per_tenant
        self._waiting_max = waiting_max
        self._held: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        place = self.ask(tenant)
        try:
            await asyncio.shield(place)
            yield
        finally:
            self.leave(tenant, place)

    def ask(self, tenant: str) -> asyncio.Future[None]:
        """Raises Overloaded if too many of the tenant's wait already."""
        queue = self._waiting.get(tenant, deque())
        if len(queue) >= self._waiting_max:
            raise Overloaded(
                f"{len(queue)} requests of this tenant are already waiting; try again shortly", bound="turns"
            )
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._waiting[tenant] = queue
        self._hand_out()
        return place

    def leave(self, tenant: str, place: asyncio.Future[None]) -> None:
        """Gives the place back, or gives up waiting for it."""
        if place.done():
            self._free += 1
            self._held[tenant] -= 1
            if not self._held[tenant]:
                del self._held[tenant]
        else:
            queue = self._waiting[tenant]
            queue.remove(place)
            if not queue:
                del self._waiting[tenant]
        self._hand_out()

    @property
    def is_contested(self) -> bool:
        return bool(self._waiting)

    def _hand_out(self) -> None:
        while any(self._serve(tenant) for tenant in list(self._waiting)):
            pass

    def _serve(self, tenant: str) -> bool:
        """Whether the tenant got a place. It then goes to the end of the line."""
        queue = self._waiting[tenant]
        if self._free == 0 or self._held.get(tenant, 0) >= self._per_tenant:
            return False
        self._free -= 1
        self._held[tenant] = self._held.get(tenant, 0) + 1
        queue.popleft().set_result(None)
        del self._waiting[tenant]
        if queue:
            self._waiting[tenant] = queue
        return True


class _Bucket:
    """A token bucket that may go into debt: a request is let in while it is not empty, whatever its size."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._at = burst, now

    def delay(self, now: float) -> float:
        """Seconds until it is not empty; 0 if it is not now."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
        return 0.0 if self._level > 0 else -self._level / self._rate or 1e-3

    def take(self, amount: float) -> None:
        self._level -= amount


class RateLimits:
    """Each tenant's limits on bytes and requests a second, in this worker."""

    def __init__(self, config: RateLimitsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._buckets: dict[str, list[tuple[str, _Bucket]]] = {}

    def check(self, tenant: str) -> None:
        """Raises Overloaded, with the time to wait, if the tenant has used up its rate."""
        now = self._clock()
        for what, bucket in self._of(tenant, now):
            delay = bucket.delay(now)
            if delay > 0:
                raise Overloaded(
                    f"tenant {tenant} sends more {what} a second than it may",
                    bound="rate",
                    retry_after_seconds=delay,
                )

    def spend(self, tenant: str, size: int) -> None:
        for what, bucket in self._of(tenant, self._clock()):
            bucket.take(size if what == "bytes" else 1)

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
