"""Asks all roles: once, for a command, or again and again, inside the API."""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from frazil.config import Config
from frazil.status.model import Status
from frazil.status.poll import Poller, places
from frazil.status.watcher import Watcher

PAUSE_SECONDS_MIN = 0.5
"""Between looks, however long they take."""
_BEFORE_FIRST_SECONDS = 1.0
"""The API is itself among those that are asked, and answers only when it has started."""
FRESH_SECONDS = 1.5
"""Who asks gets what was seen no longer ago than this."""

APART_SECONDS = 1.0
"""Between the two looks that rates need, if a role was not asked before."""

log = structlog.get_logger("frazil.status")


class Sampler:
    """`start` and `stop` belong to one event loop; `stop` is safe without `start`, and twice."""

    def __init__(self, config: Config) -> None:
        self._seconds = config.status.sample_seconds
        self._asker = Poller(config.status)
        self._places = places(config)
        self._watcher = Watcher(config)
        self._looking = asyncio.Lock()
        self._looked_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._asker.close()

    async def status(self, *, history: bool = True) -> Status:
        """As things are now: looks again, if the last look was a while ago."""
        await self._look(FRESH_SECONDS)
        return self._watcher.status(history=history)

    async def _run(self) -> None:
        """Whatever goes wrong here is no reason for the API to end, or for this to."""
        await asyncio.sleep(_BEFORE_FIRST_SECONDS)
        while True:
            begin = time.monotonic()
            try:
                await self._look(0.0)
                self._watcher.sample()
            except Exception:
                log.exception("polling the roles failed")
            await asyncio.sleep(max(PAUSE_SECONDS_MIN, begin + self._seconds - time.monotonic()))

    async def _look(self, age_max_seconds: float) -> None:
        async with self._looking:
            now = time.monotonic()
            if self._looked_at is not None and now - self._looked_at < age_max_seconds:
                return
            # In threads of its own: queries must not wait for those that wait for a role.
            heard = await asyncio.gather(*map(asyncio.wrap_future, self._asker.asking(self._places)))
            self._looked_at = time.monotonic()
            self._watcher.take(heard)


class Looker:
    """For a caller without an event loop, that keeps no history."""

    def __init__(self, config: Config) -> None:
        self._asker = Poller(config.status)
        self._places = places(config)
        self._watcher = Watcher(config)
        self._looks = 0

    def look(self) -> Status:
        """The first takes a second longer, unless nothing runs."""
        found = self._once()
        if self._looks == 1 and found.state != "down":
            time.sleep(APART_SECONDS)
            found = self._once()
        return found

    def close(self) -> None:
        self._asker.close()

    def _once(self) -> Status:
        self._watcher.take(self._asker.ask_all(self._places))
        self._looks += 1
        return self._watcher.status(history=False)
