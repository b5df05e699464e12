"""A running query, and the body of its result."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from frazil.errors import FrazilError
from frazil.query.model import Query, ResultColumn, Stats
from frazil.query.pool import WorkerProcess
from frazil.query.spool import Spool


@dataclass
class RunningQuery:
    query: Query
    id: str
    spool: Spool
    begin: float = field(default_factory=time.monotonic)
    state: Literal["waiting", "planning", "running"] = "waiting"
    stats: Stats = field(default_factory=Stats)
    audit_sql: str = ""
    columns: Sequence[ResultColumn] = ()
    worker: WorkerProcess | None = None
    task: asyncio.Task[None] | None = None
    stop_error: FrazilError | None = None
    """Why the query is being stopped: cancelled, or over its time limit."""
    release: Callable[[], None] = lambda: None
    """Called once, when the client has read the result or is gone."""
    running_since: float | None = None
    """When the first attempt began; retries without some files count against the same time limit."""
    now: int = 0
    """The time that the SQL functions of the clock return: when the query was planned, in microseconds."""
    erasures: frozenset[str] = frozenset()
    """The erasures that were known when the query was planned."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def set_stats(self, stats: Stats) -> None:
        """Replace all statistics except those of this run: the id and the time in the queue."""
        self.stats = replace(stats, id=self.id, queued_seconds=self.stats.queued_seconds)


class ResultBody:
    """The body of a result. Closing it before its end cancels the query."""

    def __init__(self, running: RunningQuery) -> None:
        self._running = running
        self._chunks = running.spool.chunks()
        # Also cancels the query if the body is garbage-collected without being closed.
        self._closing = weakref.finalize(self, _abandon, running)
        self._closing.atexit = False

    def __aiter__(self) -> ResultBody:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._chunks)
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        self._closing()


def _abandon(running: RunningQuery) -> None:
    running.release()
    running.spool.abandon()
    if running.task is not None and not running.task.done() and not running.task.cancelling():
        running.task.cancel()
