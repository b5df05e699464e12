"""A cache of the ledger for `GET /api/v1/status`, which is costly to compute."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import structlog

from frazil.config import Config
from frazil.errors import FrazilError
from frazil.ledger.balance import Ledger, balance

KEPT_SECONDS = 30.0
WAIT_SECONDS_MAX = 20.0
_PROBLEMS_MAX = 50
_NUMBERS = ("durable", "landed", "removed", "waiting", "set_aside", "segments", "bytes")
_OF_DERIVED = ("source", "complete_until", "landed", "counted", "in_source", "days_left")

log = structlog.get_logger("frazil.serve")


class LedgerCache:
    """Computes the ledger in a thread: `{"state": "ready" | "running" | "failed", …}`."""

    def __init__(self, config: Config, read: Callable[[Config], Ledger] = balance) -> None:
        self._config = config
        self._read = read
        self._reading: Future[dict[str, Any]] | None = None
        self._begun_at = 0.0
        self._known: dict[str, Any] | None = None

    async def read(self, wait_seconds: float = WAIT_SECONDS_MAX) -> dict[str, Any]:
        """Return a ledger no older than `KEPT_SECONDS` if it is computed within `wait_seconds`. Otherwise
        return the previous ledger, if any, and when the running computation began.
        """
        if self._reading is not None and self._reading.done():
            self._known, self._reading = self._reading.result(), None
        if self._reading is None:
            if self._known is not None and time.time() - self._known["read_at"] < KEPT_SECONDS:
                return self._known
            self._reading, self._begun_at = self._begin(), time.time()
        reading = asyncio.wrap_future(self._reading)
        try:
            return await asyncio.wait_for(asyncio.shield(reading), wait_seconds)
        except TimeoutError:
            return {**(self._known or {}), "state": "running", "begun_at": self._begun_at}

    def _begin(self) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        # A daemon thread, so that it does not delay the shutdown of the API.
        threading.Thread(target=lambda: future.set_result(self._work()), name="ledger", daemon=True).start()
        return future

    def _work(self) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            found = summary(self._read(self._config))
        except FrazilError as error:
            found = {"state": "failed", "error": str(error)}
        except Exception as error:
            log.exception("ledger not computed")
            found = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        return found | {"read_at": time.time(), "seconds": round(time.monotonic() - begin, 3)}


def summary(ledger: Ledger) -> dict[str, Any]:
    """Sum the ledger by table: it may have many streams."""
    tables: dict[str, dict[str, int]] = {}
    for line in ledger.lines:
        sums = tables.setdefault(line.table, dict.fromkeys(("streams", *_NUMBERS), 0))
        sums["streams"] += 1
        for name in _NUMBERS:
            sums[name] += getattr(line, name)
    problems = ledger.problems
    return {
        "state": "ready",
        "ok": not problems,
        "tables": tables,
        "derived": {
            line.table: {name: getattr(line, name) for name in _OF_DERIVED} for line in ledger.derived
        },
        "problems": problems[:_PROBLEMS_MAX],
        "problems_count": len(problems),
    }
