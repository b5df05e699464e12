"""A budget of requests and bytes, and tests of it in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from frazil.config import RateLimit, RateLimitsConfig
from frazil.errors import Overloaded
from frazil.receive.admission import Admission, RateLimits, Ticket

KIB = 1024


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(bounded())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def assert_empty(of: Admission) -> None:
    assert (of.bytes, of.requests, len(of._queue)) == (0, 0, 0)


def leave(ticket: Ticket) -> None:
    ticket.__exit__(None, None, None)


# Rates --------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def limits(clock: Clock, **limit: Any) -> RateLimits:
    config = RateLimitsConfig(by_tenant={"shop": RateLimit(**limit)})
    return RateLimits(config, clock)


def delay(rates: RateLimits, tenant: str = "shop") -> float:
    try:
        rates.check(tenant)
    except Overloaded as error:
        return error.retry_after_seconds if error.bound == "rate" else -1
    return 0.0
