"""Runs a planned query on a worker, within its time limit."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from frazil import telemetry
from frazil.config import Config
from frazil.errors import FrazilError, LimitReached, QueryInvalid
from frazil.query.errors import FilesUnreadable, query_error, worker_died
from frazil.query.metrics import QueryMetrics
from frazil.query.model import ResultColumn
from frazil.query.plan import Plan, Planner
from frazil.query.pool import WorkerDied, WorkerProcess
from frazil.query.running import RunningQuery
from frazil.query.sandbox_settings import sandbox_settings

_INTERRUPT_SECONDS = 1.0
"""How long an interrupted query may take to stop before its worker is killed."""

log = structlog.get_logger("frazil.query")


class Executor:
    """Sends jobs to workers and writes their output to the spool of the query."""

    def __init__(self, config: Config, planner: Planner, metrics: QueryMetrics, spill: Path) -> None:
        self._config = config
        self._planner = planner
        self._metrics = metrics
        self._spill = spill

    async def run(self, running: RunningQuery, worker: WorkerProcess, plan: Plan) -> None:
        """Raises FilesUnreadable if DuckDB cannot read a data file, or the error of the query."""
        running.state = "running"
        query, limits = running.query, self._config.query
        job = {
            "settings": await asyncio.to_thread(sandbox_settings, self._config, self._spill),
            "tables": plan.tables,
            "now": running.now,
            "columns": self._planner.column_names([table["name"] for table in plan.tables]),
            "sql": query.sql,
            "params": list(query.params),
            "format": query.format,
            "rows_max": limits.rows_max,
            "rows_kept": None if query.rows_max is None else min(query.rows_max, limits.rows_max),
            "bytes_max": limits.result_bytes_max,
        }
        reading = asyncio.create_task(self._read(running, worker, job))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps never awaited
        guard = asyncio.create_task(self._enforce_time_limit(running, worker))
        try:
            with telemetry.span("query.run"):
                await asyncio.shield(reading)
        except asyncio.CancelledError:
            # The reader continues to the end: the rest of a frame read in part would be lost.
            guard.cancel()
            guard = asyncio.create_task(self._stop(running, worker))
            await asyncio.wait([reading])
            raise
        finally:
            guard.cancel()

    async def worker_lost(self, running: RunningQuery, worker: WorkerProcess) -> None:
        """Count a worker that ended while it ran a query. Logs it unless the pool killed the worker."""
        self._metrics.killed.inc()
        has_crashed = not worker.is_killed
        await worker.kill()
        if has_crashed:
            facts = {"tenant": running.query.tenant, "id": running.id, "pid": worker.pid}
            log.warning("query worker crashed", exit_code=worker.exit_code, **facts)

    async def _read(self, running: RunningQuery, worker: WorkerProcess, job: Mapping[str, Any]) -> None:
        error: Exception | None = None
        try:
            async for event in worker.run(job):
                try:
                    await self._handle(running, event)
                except (FrazilError, FilesUnreadable) as found:
                    error = found
        except WorkerDied:
            await self.worker_lost(running, worker)
            raise running.stop_error or worker_died() from None
        if error is not None:
            raise error

    async def _handle(self, running: RunningQuery, event: Mapping[str, Any] | bytes) -> None:
        if isinstance(event, bytes):
            await running.spool.write(event)
        elif event["event"] == "columns":
            running.columns = [ResultColumn(**column) for column in event["columns"]]
        elif event["event"] == "done":
            running.stats = dataclasses.replace(running.stats, rows=event["rows"], cut=event["cut"])
        elif event["kind"] == "interrupted":
            raise running.stop_error or QueryInvalid("the query was cancelled")
        elif event["kind"] == "store":
            raise FilesUnreadable(event["message"], event["files"])
        else:
            raise query_error(event, self._config.query)

    async def _enforce_time_limit(self, running: RunningQuery, worker: WorkerProcess) -> None:
        limits = self._config.query
        seconds_max = min(running.query.seconds_max or limits.seconds_max, limits.seconds_max)
        running.running_since = running.running_since or time.monotonic()
        await asyncio.sleep(running.running_since + seconds_max - time.monotonic())
        running.stop_error = LimitReached(
            f"the query reached its time limit of {seconds_max:g} s (query.seconds_max): select a shorter "
            "time range or fewer columns",
            limit="query.seconds_max",
        )
        await self._stop(running, worker)

    async def _stop(self, running: RunningQuery, worker: WorkerProcess) -> None:
        """Interrupt the query, and kill the worker if the query does not stop."""
        await worker.interrupt()
        await asyncio.sleep(_INTERRUPT_SECONDS)
        log.warning(
            "query worker killed: the query did not stop when interrupted",
            tenant=running.query.tenant,
            id=running.id,
            pid=worker.pid,
        )
        await worker.kill()
