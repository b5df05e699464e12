"""A question on its way, and the body of its answer."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    why_stopped: FrazilError | None = None
    release: Callable[[], None] = lambda: None
    """Called once, when nobody waits for it any more."""
    running_since: float | None = None
    """Also when it is tried again without some files."""
    erasures: frozenset[str] = frozenset()
    """Those that the service knew of when it was planned."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin


class Content:
    """The body of an answer. Whoever closes it before its end ends the query, also before its beginning."""

    def __init__(self, running: RunningQuery) -> None:
        self._running = running
        self._chunks = running.spool.chunks()
        # Nobody closes what is forgotten.
        self._closing = weakref.finalize(self, _abandon, running)
        self._closing.atexit = False

    def __aiter__(self) -> Content:
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
