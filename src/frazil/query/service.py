"""The query service: parses a query, plans it, waits for a worker, runs it and streams the result."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from frazil import telemetry
from frazil.config import Config
from frazil.dependencies import Checked
from frazil.errors import FrazilError, Overloaded, QueryInvalid, StoreUnavailable
from frazil.paths import OwnFolder
from frazil.position import WalPosition
from frazil.query.audit import AuditLog
from frazil.query.cache import SizedCache
from frazil.query.errors import FilesUnreadable
from frazil.query.execution import Executor
from frazil.query.inventory import health_of, inventory
from frazil.query.lake import Lake, TableVersion
from frazil.query.metrics import QueryMetrics
from frazil.query.model import Progress, Query, QueryResult, ResultColumn, Stats, TableInfo
from frazil.query.plan import Plan, Planner
from frazil.query.pool import Pool, WorkerProcess
from frazil.query.prepare import ParserDied, Prepared, Preparer
from frazil.query.render import json_end
from frazil.query.running import ResultBody, RunningQuery
from frazil.query.sandbox_settings import sandbox_settings
from frazil.query.spool import Spool
from frazil.query.tail import KEPT_SECONDS, Tail
from frazil.query.validate import check
from frazil.tables import SIGNALS

_RETRIES_WITHOUT_FILES = 3
_REFRESH_SECONDS = 2.0
_IDLE_REFRESH_SECONDS = 60.0
"""Refresh interval without queries, while caches hold data that may have been erased."""
_TABLE_METRICS_SECONDS = 60.0
_CATALOG_CHECK_SECONDS = 1.0

log = structlog.get_logger("frazil.query")


@dataclass(frozen=True)
class _CachedResult:
    columns: Sequence[ResultColumn]
    body: bytes
    stats: Stats


class QueryService:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._own = OwnFolder(config.query.temp_dir, "frazil-query-")
        self._folder: Path | None = None
        self._metrics = QueryMetrics(config)
        self._audit = AuditLog(config.query.audit_file)
        self._running: dict[tuple[str, str], RunningQuery] = {}
        self._open_queries: Counter[str] = Counter()
        self._tasks: set[asyncio.Future[None]] = set()
        self._results: SizedCache[str, _CachedResult] = SizedCache(config.query.result_cache_bytes_max)
        self._external_caches: list[SizedCache[Any, Any]] = []
        tenants_share = len({key.tenant for key in config.auth.keys}) > 1
        self._pool = Pool(config.query.workers, queue_max=config.query.queue_max, tenants_share=tenants_share)
        self._lake: Lake
        self._tail: Tail | None = None
        self._planner: Planner
        self._executor: Executor
        self._preparer = Preparer(config, lambda: self._planner, self._worker_lost)
        self._refreshing: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}
        self._catalog_check = Checked(self._check_catalog, age_max_seconds=_CATALOG_CHECK_SECONDS)
        self._is_stale = False
        self._last_query_at = -math.inf
        self._erasures: frozenset[str] = frozenset()

    def clear_on_erasure(self, cache: SizedCache[Any, Any]) -> None:
        """Clear `cache` whenever rows of a table were erased."""
        self._external_caches.append(cache)

    @property
    def registry(self) -> CollectorRegistry:
        self._metrics.running.set(self._pool.running)
        self._metrics.waiting.set(self._pool.waiting)
        self._metrics.cache_bytes.set(self._results.bytes)
        if self._tail is not None:
            self._metrics.tail_bytes.set(self._tail.bytes)
        return self._metrics.registry

    async def start(self) -> None:
        self._folder = await asyncio.to_thread(self._own.take)
        self._lake = Lake(self._config)
        if self._config.wal.type != "kafka":
            self._tail = Tail(self._config, self._folder / "tail")
        self._planner = Planner(self._config, self._lake, self._tail)
        self.clear_on_erasure(self._planner.bloom_cache)
        spill = self._folder / "spill"
        spill.mkdir()
        self._executor = Executor(self._config, self._planner, self._metrics, spill)
        settings = await asyncio.to_thread(sandbox_settings, self._config, spill)
        await self._pool.start(settings, self._planner.declarations())
        self._refreshing = asyncio.create_task(self._refresh_caches())

    async def close(self) -> None:
        if self._folder is None:
            return
        for running in list(self._running.values()):
            if running.task is not None:
                running.task.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self._pool.close()
        await asyncio.to_thread(self._close_readers)
        self._folder = None

    def _close_readers(self) -> None:
        self._planner.close()
        self._lake.close()
        if self._tail is not None:
            self._tail.close()
        self._own.give_back()

    # Caches

    async def _refresh_caches(self) -> None:
        """Prefetch table metadata, then follow the tables and the WAL while queries arrive."""
        with contextlib.suppress(FrazilError, OSError):
            await asyncio.to_thread(self._lake.warm)
        refreshed_at, measured_at = time.monotonic(), -_TABLE_METRICS_SECONDS
        while True:
            now = time.monotonic()
            await asyncio.to_thread(self._planner.find_views)
            if now - measured_at >= _TABLE_METRICS_SECONDS:
                measured_at = now
                with contextlib.suppress(FrazilError, OSError):
                    await asyncio.to_thread(self.update_table_metrics)
            # A little longer than the tail keeps rows, so that the last refresh drops them.
            active_seconds = KEPT_SECONDS + 2 * _REFRESH_SECONDS
            is_active = self._tail is not None and now - self._last_query_at < active_seconds
            if is_active or (self._has_cached_data and now - refreshed_at >= _IDLE_REFRESH_SECONDS):
                refreshed_at = now
                with contextlib.suppress(FrazilError, OSError):
                    await asyncio.to_thread(self._refresh)
            await asyncio.sleep(_REFRESH_SECONDS)

    @property
    def _has_cached_data(self) -> bool:
        caches = (self._results, *self._external_caches, *(() if self._tail is None else (self._tail,)))
        return any(cache.bytes > 0 for cache in caches)

    def _refresh(self) -> None:
        versions: dict[str, TableVersion | None] = {}
        for name in self._planner.specs:
            with contextlib.suppress(FrazilError, OSError):  # an unreadable table must not block the others
                versions[name] = self._lake.version(name)
        self._clear_if_erased(version.erased for version in versions.values() if version is not None)
        if self._tail is not None:
            self._tail.follow(
                {
                    signal: WalPosition() if (found := versions[signal]) is None else found.position
                    for signal in SIGNALS
                    if signal in versions
                }
            )

    def _clear_if_erased(self, seen: Iterable[frozenset[str]]) -> None:
        """Clear all caches after new erasures: cached results, SQL and statistics may hold erased values."""
        new = frozenset[str]().union(*seen) - self._erasures
        if new:
            if self._has_cached_data:
                log.info("caches cleared after erasure", erasures=sorted(new))
            self._erasures |= new
            self._results.clear()
            self._preparer.clear()
            for cache in self._external_caches:
                cache.clear()
            self._lake.forget_manifests()

    # Execution

    async def execute(self, query: Query) -> QueryResult:
        """Run a query. Returns when the first megabytes of the result, or all of it, are there.

        Raises the query's error if it fails before that; later errors are raised by `QueryResult.content`.
        """
        check(query, self._config.query.sql_bytes_max)
        if self._folder is None:
            raise StoreUnavailable("the query service is closing")
        self._admit(query.tenant)
        running = RunningQuery(query, query.id or uuid.uuid4().hex, Spool(self._folder))
        running.release = lambda: self._release(query.tenant)
        key = (query.tenant, running.id)
        if key in self._running:
            running.release()
            running.spool.abandon()
            raise QueryInvalid(f"a query with the id {running.id} is already running: choose another id")
        self._running[key] = running
        self._last_query_at = running.begin
        running.stats = dataclasses.replace(running.stats, id=running.id)
        running.task = asyncio.create_task(self._run_to_spool(running))
        running.task.add_done_callback(lambda _: self._finish(key, running))
        try:
            await running.spool.ready()
        except BaseException:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
            running.release()
            running.spool.abandon()
            raise
        return QueryResult(running.columns, running.stats, ResultBody(running), query.format)

    def _admit(self, tenant: str) -> None:
        """Count a query until its result is read. Raises Overloaded if the tenant has too many."""
        if self._open_queries[tenant] >= self._config.query.queue_max + self._config.query.workers:
            self._metrics.queries.labels("Overloaded").inc()
            raise Overloaded(
                f"{self._open_queries[tenant]} queries of this tenant are waiting, running or not read yet "
                "(query.queue_max): wait for one to finish",
                bound="query.queue_max",
            )
        self._open_queries[tenant] += 1

    def _release(self, tenant: str) -> None:
        self._open_queries[tenant] -= 1
        if not self._open_queries[tenant]:
            del self._open_queries[tenant]

    def _finish(self, key: tuple[str, str], running: RunningQuery) -> None:
        self._running.pop(key, None)
        if not running.spool.has_ended:  # cancelled before its first step, or in its last
            self._start_task(running.spool.end(running.stop_error or QueryInvalid("the query was cancelled")))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background. asyncio itself keeps only weak references to tasks."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_to_spool(self, running: RunningQuery) -> None:
        """Run the query into the spool. Ends the spool and writes the audit log in any case."""
        query = running.query
        with telemetry.span("query", id=running.id, tenant=query.tenant, sql=query.sql) as span:
            outcome, error = await self._run_safely(running)
            running.stats = dataclasses.replace(running.stats, seconds=running.seconds)
            stats = running.stats
            span.set(outcome=outcome, rows=stats.rows, files=stats.files, files_total=stats.files_total)
            span.set(bytes=stats.bytes, tail_rows=stats.tail_rows, cached=stats.cached)
            if error is not None and outcome != "cancelled":
                span.fail(outcome)
        self._count(running, outcome)
        last = json_end(running.stats) if error is None and query.format == "json" else b""
        await running.spool.end(error, last)

    async def _run_safely(self, running: RunningQuery) -> tuple[str, Exception | None]:
        """Return the outcome as a label, and the error for the client."""
        outcome = "ok"
        error: Exception | None = None
        try:
            await self._run(running)
        except asyncio.CancelledError:
            outcome = "cancelled"
            error = running.stop_error or QueryInvalid("the query was cancelled")
        except FrazilError as failed:
            outcome, error = type(failed).__name__, failed
        except OSError as failed:
            log.error("query failed with an I/O error", id=running.id, reason=str(failed))
            is_full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
            what = (
                "the server's disk for temporary files is full: free space in query.temp_dir"
                if is_full
                else "the server cannot read or write files now: retry later"
            )
            outcome, error = "StoreUnavailable", StoreUnavailable(what)
        except Exception:
            log.exception("query failed with an internal error", id=running.id)
            outcome, error = "defect", RuntimeError("defect")
        return outcome, error

    def _count(self, running: RunningQuery, outcome: str) -> None:
        stats, metrics = running.stats, self._metrics
        metrics.queries.labels(outcome).inc()
        metrics.seconds.observe(running.seconds)
        metrics.cached.inc(stats.cached)
        metrics.incomplete.labels("stale").inc(stats.stale is not None)
        metrics.incomplete.labels("missing").inc(bool(stats.missing))
        if not stats.cached:
            metrics.files.inc(stats.files)
            metrics.bytes.inc(stats.bytes)
            metrics.tail_rows.inc(stats.tail_rows)
        self._audit.record(running.query, running.audit_sql, outcome, stats)

    async def _run(self, running: RunningQuery) -> None:
        prepared = await self._preparer.prepared(running)
        if prepared is not None:  # it can be planned, and perhaps served from the cache, without a worker
            with await self._plan(running, prepared) as plan:
                if not await self._serve_cached(running, plan):
                    async with self._worker(running) as worker:
                        await self._run_plan(running, worker, plan)
            return
        for is_last in (False, True):  # the worker may have died for another reason: try once more
            try:
                async with self._worker(running) as worker:
                    await self._prepare_and_run(running, worker)
                return
            except ParserDied:
                if is_last:
                    raise QueryInvalid("the SQL cannot be parsed: it crashes the parser") from None

    async def _prepare_and_run(self, running: RunningQuery, worker: WorkerProcess) -> None:
        with await self._plan(running, await self._preparer.prepare(running, worker)) as plan:
            if not await self._serve_cached(running, plan):
                await self._run_plan(running, worker, plan)

    @contextlib.asynccontextmanager
    async def _worker(self, running: RunningQuery) -> AsyncIterator[WorkerProcess]:
        begin = time.monotonic()
        running.state = "waiting"
        async with self._pool.worker(running.query.tenant, self._config.query.queue_seconds_max) as worker:
            running.stats = dataclasses.replace(running.stats, queued_seconds=time.monotonic() - begin)
            telemetry.past("query.wait", begin, time.monotonic())
            running.worker = worker
            try:
                yield worker
            finally:
                running.worker = None

    async def _worker_lost(self, running: RunningQuery, worker: WorkerProcess) -> None:
        await self._executor.worker_lost(running, worker)

    async def _plan(self, running: RunningQuery, prepared: Prepared) -> Plan:
        running.state = "planning"
        begin = time.monotonic()
        planning = asyncio.create_task(
            asyncio.to_thread(self._planner.plan, prepared.statement, running.query, prepared.uses)
        )
        try:
            with telemetry.span("query.plan"):
                plan = await asyncio.shield(planning)
        except asyncio.CancelledError:
            planning.add_done_callback(_release_plan)
            raise
        self._clear_if_erased([plan.erased])
        running.erasures = self._erasures
        self._metrics.planned(time.monotonic() - begin)
        running.set_stats(plan.stats)
        return plan

    async def _serve_cached(self, running: RunningQuery, plan: Plan) -> bool:
        cached = None if plan.key is None else self._results.get(plan.key)
        if cached is None:
            return False
        running.columns = cached.columns
        running.set_stats(dataclasses.replace(cached.stats, cached=True))
        await running.spool.write(cached.body)
        return True

    async def _run_plan(self, running: RunningQuery, worker: WorkerProcess, plan: Plan) -> None:
        """Run a plan and cache its result. If the query allows it, leave out files that cannot be read."""
        for attempt in range(_RETRIES_WITHOUT_FILES + 1):
            try:
                await self._executor.run(running, worker, plan)
            except FilesUnreadable as error:
                if not running.query.partial or running.spool.size or attempt == _RETRIES_WITHOUT_FILES:
                    raise StoreUnavailable(f"data files cannot be read now: {error.reason}") from None
                one_by_one = error.files and attempt + 1 < _RETRIES_WITHOUT_FILES
                reduced = plan.without_files(error.files if one_by_one else None, error.reason)
                plan.stats, plan.tables, plan.key = reduced.stats, reduced.tables, None
                running.set_stats(plan.stats)
            else:
                break
        size = running.spool.size + 500
        if running.erasures != self._erasures:
            return  # rows were erased during the query: the result may still hold them
        if (
            plan.key is not None
            and self._results.fits(size)
            and (body := running.spool.read_all()) is not None
        ):
            self._results.put(plan.key, _CachedResult(running.columns, body, running.stats), size)

    # Monitoring

    def progress(self, tenant: str, id: str) -> Progress | None:
        running = self._running.get((tenant, id))
        if running is None:
            return None
        percent = None
        if running.worker is not None:
            percent = running.worker.percent
            self._start_task(running.worker.request_progress())
        return Progress(id, tenant, running.state, percent, running.seconds)

    def cancel(self, tenant: str, id: str) -> bool:
        running = self._running.get((tenant, id))
        if running is None or running.task is None:
            return False
        if not running.task.cancelling():  # a second cancel would interrupt the clean-up
            running.stop_error = QueryInvalid("the query was cancelled")
            running.task.cancel()
        return True

    def problems(self) -> dict[str, str]:
        """Return problems by component, for health checks."""
        problems = dict(self._problems)
        if not self._pool.alive:
            problems["workers"] = "no query worker is running"
        return problems

    async def check(self) -> dict[str, str]:
        """Check the catalog, then return `problems`: with `stale` if results come from cached metadata, with
        `catalog` if queries fail.
        """
        found: dict[str, str] = {}
        if problem := await asyncio.to_thread(self._catalog_check.problem):
            found["stale" if self._is_stale else "catalog"] = problem
        self._problems = found
        return self.problems()

    def _check_catalog(self) -> str:
        try:
            stale = self._lake.lookup("logs").stale
        except Exception:
            self._is_stale = False
            raise
        self._is_stale = stale is not None
        return stale or ""

    # Tables

    async def tables(self, tenant: str, *, whole: bool = False) -> list[TableInfo]:
        """List tables. `whole`, for admins, adds rows without a tenant and health over all tenants."""
        return await asyncio.to_thread(inventory, self._planner, tenant, self._config, whole=whole)

    async def is_complete(self, table: str) -> bool:
        """Return whether a derived table may be read in place of its source. False if that cannot be found
        out."""
        return await asyncio.to_thread(self._is_complete, table)

    def _is_complete(self, table: str) -> bool:
        try:
            info = self._planner.derived_info(table, self._lake.version(table))
        except (FrazilError, OSError):
            return False
        return info is not None and info.is_complete

    def update_table_metrics(self) -> None:
        """Publish the health of the tables as metrics, unless API keys are configured: /metrics needs no key,
        and totals over all tenants are for admins. The pipeline's metrics have them.
        """
        if self._config.auth.keys:
            return
        for name, spec in self._planner.specs.items():
            version = self._lake.version(name)
            found = None if version is None else health_of(version, spec, self._config.maintain, None)
            if found is not None:
                self._metrics.tables.show(name, found)


def _release_plan(planning: asyncio.Task[Plan]) -> None:
    if not planning.cancelled() and planning.exception() is None:
        planning.result().release()
