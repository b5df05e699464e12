"""Who may come in, and how much at once: memory, requests, and each tenant's rate."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from frazil.config import LimitsConfig, RateLimit, RateLimitsConfig
from frazil.errors import Overloaded


class Admission:
    """A budget of bytes and requests in flight. Requests wait for room in order, then are refused."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._empty = asyncio.Event()
        self._empty.set()
        self.bytes = 0
        self.requests = 0

    def _fits(self, size: int) -> bool:
        return (
            self.bytes + size <= self._limits.in_flight_bytes_max
            and self.requests < self._limits.requests_in_flight_max
        )

    async def enter(self, size: int) -> Ticket:
        """Room for a request of `size` bytes, as far as is known; it may grow."""
        if self._queue or not self._fits(size):
            await self._wait(size)
        else:
            self._take(size)
        return Ticket(self, size)

    def _take(self, size: int) -> None:
        self.bytes += size
        self.requests += 1
        self._empty.clear()

    @property
    def is_contested(self) -> bool:
        """Whether others wait for room."""
        return bool(self._queue)

    async def emptied(self) -> None:
        """Returns when no request is in flight."""
        await self._empty.wait()

    async def _wait(self, size: int) -> None:
        """Returns when its turn has come and its part of the budget is taken."""
        if len(self._queue) >= self._limits.requests_in_flight_max:
            raise self._refusal()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        place = (size, turn)
        self._queue.append(place)
        try:
            await asyncio.wait_for(turn, self._limits.admission_wait_seconds)
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # its turn came at the very moment that it gave up
                self.leave(size)
            elif place in self._queue:
                self._queue.remove(place)
                self._next()  # those behind it may fit where it did not
            if isinstance(error, TimeoutError):
                raise self._refusal() from None
            raise

    def grow(self, size: int) -> None:
        """More of a request that is in: refused at once if there is no room, since it holds some itself."""
        if self.bytes + size > self._limits.in_flight_bytes_max:
            raise self._refusal()
        self.bytes += size

    def leave(self, size: int) -> None:
        self.bytes -= size
        self.requests -= 1
        self._next()
        if not self.requests:
            self._empty.set()

    def shrink(self, size: int) -> None:
        self.bytes -= size
        self._next()

    def _next(self) -> None:
        while self._queue and self._fits(self._queue[0][0]):
            size, turn = self._queue.popleft()
            if turn.done():
                continue
            self._take(size)
            turn.set_result(None)

    def _refusal(self) -> Overloaded:
        return Overloaded(
            f"{self.bytes} bytes in {self.requests} requests are in flight; try again shortly",
            bound="memory",
            retry_after_seconds=1,
        )


class Ticket:
    """A request's part of the budget, given back when it ends."""

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size
        self._ended = False

    def resize(self, size: int) -> None:
        """The request turned out to hold `size` bytes. If it has ended, a thread of it may not know yet."""
        if self._ended:
            return
        if size > self._size:
            self._admission.grow(size - self._size)
        elif size < self._size:
            self._admission.shrink(self._size - size)
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
            self._admission.leave(self._size)


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
