"""The query service: parse, plan, wait for a worker, run, hand on the answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import math
import os
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog
from prometheus_client import CollectorRegistry

from frazil import telemetry
from frazil.config import Config
from frazil.dependencies import Checked
from frazil.errors import (
    FrazilError,
    LimitReached,
    Overloaded,
    QueryInvalid,
    StoreUnavailable,
)
from frazil.paths import OwnFolder
from frazil.position import WalPosition
from frazil.query.audit import Audit
from frazil.query.cache import SizedCache
from frazil.query.errors import Unreadable, died, failure
from frazil.query.inventory import health_of, inventory
from frazil.query.lake import Lake, TableVersion
from frazil.query.metrics import QueryMetrics
from frazil.query.model import (
    Progress,
    Query,
    QueryResult,
    ResultColumn,
    Stats,
    TableInfo,
)
from frazil.query.plan import Plan, Planner
from frazil.query.pool import Pool, WorkerDied, WorkerProcess
from frazil.query.render import json_end
from frazil.query.running import Content, RunningQuery
from frazil.query.s3 import s3_options
from frazil.query.spool import Spool
from frazil.query.tail import KEPT_SECONDS, Tail
from frazil.query.validate import check
from frazil.sql.statement import Statement
from frazil.tables import SIGNALS

_PARSED_BYTES_MAX = 32 << 20
_TREE_BYTES_PER_BYTE = 6
"""Of Python's objects, for each byte of their JSON."""
_RETRIES_WITHOUT_FILES = 3
_INTERRUPT_SECONDS = 1.0
"""What does not stop by itself within this time is killed."""
_FOLLOW_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 1.0
_MEASURE_SECONDS = 60.0
_FORGET_SECONDS = 60.0
"""How often it is looked nevertheless, while something is kept: it may have been erased."""

log = structlog.get_logger("frazil.query")


class _ParserDied(Exception):
    pass


@dataclass(frozen=True)
class _Parsed:
    tree: Mapping[str, Any]
    audit_sql: str


@dataclass(frozen=True)
class _Kept:
    columns: Sequence[ResultColumn]
    body: bytes
    stats: Stats


class QueryService:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._own = OwnFolder(config.query.temp_dir, "frazil-query-")
        self._folder: Path | None = None
        self._metrics = QueryMetrics(config)
        self._audit = Audit(config.query.audit_file)
        self._running: dict[tuple[str, str], RunningQuery] = {}
        self._open: Counter[str] = Counter()
        self._endings: set[asyncio.Future[None]] = set()
        self._parsed: SizedCache[str, _Parsed] = SizedCache(_PARSED_BYTES_MAX)
        self._kept: SizedCache[str, _Kept] = SizedCache(config.query.result_cache_bytes_max)
        tenants = {key.tenant for key in config.auth.keys}
        self._pool = Pool(
            config.query.workers,
            queue_max=config.query.queue_max,
            tenants_share=len(tenants) > 1,
        )
        self._lake: Lake
        self._tail: Tail | None = None
        self._planner: Planner
        self._warming: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}
        self._catalog_checked = Checked(self._look_at_catalog, age_max_seconds=_LOOK_AGAIN_SECONDS)
        self._is_stale = False
        self._last_asked = -math.inf
        self._erasures: frozenset[str] = frozenset()
        self._kept_by_others: list[SizedCache[Any, Any]] = []

    def forget_also(self, cache: SizedCache[Any, Any]) -> None:
        """What others keep of the tables is cleared, too, when rows were erased."""
        self._kept_by_others.append(cache)

    @property
    def registry(self) -> CollectorRegistry:
        self._metrics.running.set(self._pool.running)
        self._metrics.waiting.set(self._pool.waiting)
        self._metrics.cache_bytes.set(self._kept.bytes)
        if self._tail is not None:
            self._metrics.tail_bytes.set(self._tail.bytes)
        return self._metrics.registry

    async def start(self) -> None:
        self._folder = await asyncio.to_thread(self._own.take)
        self._lake = Lake(self._config)
        if self._config.wal.type != "kafka":
            self._tail = Tail(self._config, self._folder / "tail")
        self._planner = Planner(self._config, self._lake, self._tail)
        (self._folder / "spill").mkdir()
        await self._pool.start(await asyncio.to_thread(self._settings))
        self._warming = asyncio.create_task(self._warm())

    async def close(self) -> None:
        if self._folder is None:
            return
        for running in list(self._running.values()):
            if running.task is not None:
                running.task.cancel()
        if self._warming is not None:
            self._warming.cancel()
        await self._pool.close()
        await asyncio.to_thread(self._close_readers)
        self._folder = None

    def _close_readers(self) -> None:
        self._planner.close()
        self._lake.close()
        if self._tail is not None:
            self._tail.close()
        self._own.give_back()

    async def _warm(self) -> None:
        """Reads ahead what the first queries need, then follows the tables and the log while queries come."""
        with contextlib.suppress(FrazilError, OSError):
            await asyncio.to_thread(self._lake.warm)
        looked_at, measured_at = time.monotonic(), -_MEASURE_SECONDS
        while True:
            now = time.monotonic()
            if now - measured_at >= _MEASURE_SECONDS:
                measured_at = now
                with contextlib.suppress(FrazilError, OSError):
                    await asyncio.to_thread(self.measure)
            # A little longer than rows are kept, so that the last look drops them.
            kept_seconds = KEPT_SECONDS + 2 * _FOLLOW_SECONDS
            is_asked = self._tail is not None and now - self._last_asked < kept_seconds
            if is_asked or (self._keeps_something and now - looked_at >= _FORGET_SECONDS):
                looked_at = now
                with contextlib.suppress(FrazilError, OSError):
                    await asyncio.to_thread(self._follow)
            await asyncio.sleep(_FOLLOW_SECONDS)

    @property
    def _keeps_something(self) -> bool:
        kept = (self._kept, *self._kept_by_others, *(() if self._tail is None else (self._tail,)))
        return any(each.bytes > 0 for each in kept)

    def _follow(self) -> None:
        versions: dict[str, TableVersion | None] = {}
        for name in self._planner.specs:
            with contextlib.suppress(FrazilError, OSError):  # one that cannot be read holds up no other
                versions[name] = self._lake.version(name)
        self._forget_erased(version.erased for version in versions.values() if version is not None)
        if self._tail is not None:
            self._tail.follow(
                {
                    signal: WalPosition() if (found := versions[signal]) is None else found.position
                    for signal in SIGNALS
                    if signal in versions
                }
            )

    def _forget_erased(self, seen: Iterable[frozenset[str]]) -> None:
        """Answers, questions and statistics may hold what is erased; which of them do, nobody can say."""
        new = frozenset[str]().union(*seen) - self._erasures
        if new:
            if self._keeps_something:
                log.info("what was kept is forgotten: rows were erased", erasures=sorted(new))
            self._erasures |= new
            self._kept.clear()
            self._parsed.clear()
            for cache in self._kept_by_others:
                cache.clear()
            self._lake.forget_manifests()

    def _settings(self) -> dict[str, Any]:
        query = self._config.query
        assert self._folder is not None  # noqa: S101
        return {
            "threads": query.threads or os.cpu_count() or 1,
            "memory_bytes": query.memory_bytes_max,
            "temp_bytes": query.temp_bytes_max,
            "temp_dir": str(self._folder / "spill"),
            "namespace": self._config.lake.namespace,
            "s3": s3_options(self._config),
        }

    # Asking

    async def execute(self, query: Query) -> QueryResult:
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
            raise QueryInvalid(f"a query with the id {running.id} is running")
        self._running[key] = running
        self._last_asked = running.begin
        running.stats = dataclasses.replace(running.stats, id=running.id)
        running.task = asyncio.create_task(self._answer(running))
        running.task.add_done_callback(lambda _: self._finish(key, running))
        try:
            await running.spool.ready()
        except BaseException:
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
            running.release()
            running.spool.abandon()
            raise
        return QueryResult(running.columns, running.stats, Content(running), query.format)

    def _admit(self, tenant: str) -> None:
        """Bounds what a tenant has under way: questions that are planned, wait and run, and answers that are
        not read yet.
        """
        if self._open[tenant] >= self._config.query.queue_max + self._config.query.workers:
            self._metrics.queries.labels("Overloaded").inc()
            raise Overloaded(
                f"{self._open[tenant]} queries of this tenant wait, run or are being read (query.queue_max)",
                bound="query.queue_max",
            )
        self._open[tenant] += 1

    def _release(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]  # nothing is kept of tenants that ask nothing

    def _finish(self, key: tuple[str, str], running: RunningQuery) -> None:
        self._running.pop(key, None)
        if not running.spool.has_ended:  # cancelled before its first step, or in its last
            ending = asyncio.ensure_future(
                running.spool.end(running.why_stopped or QueryInvalid("cancelled"))
            )
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def _answer(self, running: RunningQuery) -> None:
        """Fills the spool. Whatever happens, the spool ends and the audit knows."""
        query = running.query
        with telemetry.span("query", id=running.id, tenant=query.tenant, sql=query.sql) as span:
            outcome, error = await self._tried(running)
            running.stats = dataclasses.replace(running.stats, seconds=running.seconds)
            stats = running.stats
            span.set(outcome=outcome, rows=stats.rows, files=stats.files, files_total=stats.files_total)
            span.set(bytes=stats.bytes, tail_rows=stats.tail_rows, cached=stats.cached)
            if error is not None and outcome != "cancelled":
                span.fail(outcome)
        self._count(running, outcome)
        last = json_end(running.stats) if error is None and query.format == "json" else b""
        await running.spool.end(error, last)

    async def _tried(self, running: RunningQuery) -> tuple[str, Exception | None]:
        """What came of it, in a word, and the error that its client is told."""
        outcome = "ok"
        error: Exception | None = None
        try:
            await self._run(running)
        except asyncio.CancelledError:
            outcome = "cancelled"
            error = running.why_stopped or QueryInvalid("cancelled")
        except FrazilError as failed:
            outcome, error = type(failed).__name__, failed
        except OSError as failed:
            log.error("a file failed", id=running.id, reason=str(failed))
            is_full = failed.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "temporary files are full" if is_full else "files cannot be read or written now"
            outcome, error = "StoreUnavailable", StoreUnavailable(f"the server's {what}")
        except Exception:
            log.exception("defect while answering a query", id=running.id)
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
        self._audit.note(running.query, running.audit_sql, outcome, stats)

    async def _run(self, running: RunningQuery) -> None:
        query = running.query
        parsed = self._parsed.get(query.sql)
        if parsed is not None:
            # Known: it can be planned, and perhaps answered, without a worker.
            plan = await self._plan(running, parsed)
            try:
                if await self._from_cache(running, plan):
                    return
                async with self._worker(running) as worker:
                    await self._with_plan(running, worker, plan)
            finally:
                plan.release()
            return
        for is_last in (False, True):  # a worker may be killed for what another has done
            try:
                async with self._worker(running) as worker:
                    await self._from_scratch(running, worker)
                return
            except _ParserDied:
                if is_last:
                    raise QueryInvalid("this cannot be parsed: it ends the process that tries") from None

    async def _from_scratch(self, running: RunningQuery, worker: WorkerProcess) -> None:
        parsed = await self._parse(running, worker)
        plan = await self._plan(running, parsed)
        try:
            if not await self._from_cache(running, plan):
                await self._with_plan(running, worker, plan)
        finally:
            plan.release()

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

    async def _parse(self, running: RunningQuery, worker: WorkerProcess) -> _Parsed:
        running.state = "planning"
        sql = running.query.sql
        try:
            with telemetry.span("query.parse"):
                event = await worker.parse(sql)
        except WorkerDied:
            await self._lost(running, worker)
            raise _ParserDied from None
        if event["event"] == "error":
            raise failure(event, self._config.query)
        try:
            parsed = _Parsed(orjson.loads(event["tree"]), event["audit"])
        except orjson.JSONDecodeError:
            raise QueryInvalid("this is nested too deeply: write it in several parts, with WITH") from None
        self._parsed.put(sql, parsed, _TREE_BYTES_PER_BYTE * len(event["tree"]) + 1000)
        return parsed

    async def _plan(self, running: RunningQuery, parsed: _Parsed) -> Plan:
        running.state = "planning"
        running.audit_sql = parsed.audit_sql
        begin = time.monotonic()
        planning = asyncio.create_task(asyncio.to_thread(self._planned, parsed, running.query))
        try:
            with telemetry.span("query.plan"):
                plan = await asyncio.shield(planning)
        except asyncio.CancelledError:
            planning.add_done_callback(_release_plan)
            raise
        self._forget_erased([plan.erased])
        running.erasures = self._erasures
        self._metrics.planned(time.monotonic() - begin)
        running.stats = dataclasses.replace(
            plan.stats, id=running.id, queued_seconds=running.stats.queued_seconds
        )
        return plan

    def _planned(self, parsed: _Parsed, query: Query) -> Plan:
        statement = Statement(parsed.tree, self._config.lake.namespace, self._planner.specs, query.sql)
        return self._planner.plan(statement, query)

    async def _from_cache(self, running: RunningQuery, plan: Plan) -> bool:
        kept = None if plan.key is None else self._kept.get(plan.key)
        if kept is None:
            return False
        running.columns = kept.columns
        running.stats = dataclasses.replace(
            kept.stats, id=running.id, cached=True, queued_seconds=running.stats.queued_seconds
        )
        await running.spool.write(kept.body)
        return True

    async def _with_plan(self, running: RunningQuery, worker: WorkerProcess, plan: Plan) -> None:
        """Where that is allowed, what cannot be read is left out and named."""
        for attempt in range(_RETRIES_WITHOUT_FILES + 1):
            try:
                await self._execute(running, worker, plan)
            except Unreadable as error:
                if not running.query.partial or running.spool.size or attempt == _RETRIES_WITHOUT_FILES:
                    raise StoreUnavailable(f"data files cannot be read now: {error.reason}") from None
                one_by_one = error.files and attempt + 1 < _RETRIES_WITHOUT_FILES
                reduced = plan.without_files(error.files if one_by_one else None, error.reason)
                plan.stats, plan.tables, plan.key = reduced.stats, reduced.tables, None
                running.stats = dataclasses.replace(
                    plan.stats, id=running.id, queued_seconds=running.stats.queued_seconds
                )
            else:
                break
        size = running.spool.size + 500
        if running.erasures != self._erasures:
            return  # erased meanwhile: this answer may still hold it
        if plan.key is not None and self._kept.takes(size) and (body := running.spool.whole()) is not None:
            self._kept.put(plan.key, _Kept(running.columns, body, running.stats), size)

    async def _execute(self, running: RunningQuery, worker: WorkerProcess, plan: Plan) -> None:
        running.state = "running"
        query, limits = running.query, self._config.query
        rows_kept = query.rows_max
        job = {
            "settings": await asyncio.to_thread(self._settings),
            "tables": plan.tables,
            "columns": self._planner.column_names([table["name"] for table in plan.tables]),
            "sql": query.sql,
            "params": list(query.params),
            "format": query.format,
            "rows_max": limits.rows_max,
            "rows_kept": None if rows_kept is None else min(rows_kept, limits.rows_max),
            "bytes_max": limits.result_bytes_max,
        }
        reading = asyncio.create_task(self._read(running, worker, job))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # perhaps nobody waits
        guard = asyncio.create_task(self._guard(running, worker))
        try:
            with telemetry.span("query.run"):
                await asyncio.shield(reading)
        except asyncio.CancelledError:
            # A frame that is read in part would be lost, so the reader goes on to the end.
            guard.cancel()
            guard = asyncio.create_task(self._end(running, worker))
            await asyncio.wait([reading])
            raise
        finally:
            guard.cancel()

    async def _read(self, running: RunningQuery, worker: WorkerProcess, job: Mapping[str, Any]) -> None:
        error: Exception | None = None
        try:
            async for event in worker.run(job):
                try:
                    await self._take(running, event)
                except (FrazilError, Unreadable) as found:
                    error = found
        except WorkerDied:
            await self._lost(running, worker)
            raise running.why_stopped or died() from None
        if error is not None:
            raise error

    async def _lost(self, running: RunningQuery, worker: WorkerProcess) -> None:
        """Counts a worker that ended over a query, and logs whose query it was unless it was killed here."""
        self._metrics.killed.inc()
        has_crashed = not worker.is_killed
        await worker.kill()
        if has_crashed:
            facts = {"tenant": running.query.tenant, "id": running.id, "pid": worker.pid}
            log.warning("query worker crashed", exit_code=worker.exit_code, **facts)

    async def _guard(self, running: RunningQuery, worker: WorkerProcess) -> None:
        limits = self._config.query
        seconds_max = min(running.query.seconds_max or limits.seconds_max, limits.seconds_max)
        running.running_since = running.running_since or time.monotonic()
        await asyncio.sleep(running.running_since + seconds_max - time.monotonic())
        running.why_stopped = LimitReached(
            f"the query ran for {seconds_max:g} s, which is its limit (query.seconds_max): ask for a shorter "
            "time range or fewer columns",
            limit="query.seconds_max",
        )
        await self._end(running, worker)

    async def _end(self, running: RunningQuery, worker: WorkerProcess) -> None:
        """Interrupts, and kills what does not hear it."""
        await worker.interrupt()
        await asyncio.sleep(_INTERRUPT_SECONDS)
        log.warning(
            "query worker killed: the query did not stop when interrupted",
            tenant=running.query.tenant,
            id=running.id,
            pid=worker.pid,
        )
        await worker.kill()

    async def _take(self, running: RunningQuery, event: Mapping[str, Any] | bytes) -> None:
        if isinstance(event, bytes):
            await running.spool.write(event)
        elif event["event"] == "columns":
            running.columns = [ResultColumn(**column) for column in event["columns"]]
        elif event["event"] == "done":
            running.stats = dataclasses.replace(running.stats, rows=event["rows"], cut=event["cut"])
        elif event["kind"] == "interrupted":
            raise running.why_stopped or QueryInvalid("cancelled")
        elif event["kind"] == "store":
            raise Unreadable(event["message"], event["files"])
        else:
            raise failure(event, self._config.query)

    # Watching

    def progress(self, tenant: str, id: str) -> Progress | None:
        running = self._running.get((tenant, id))
        if running is None:
            return None
        percent = None
        if running.worker is not None:
            percent = running.worker.percent
            asking = asyncio.ensure_future(running.worker.ask_progress())
            self._endings.add(asking)
            asking.add_done_callback(self._endings.discard)
        return Progress(id, tenant, running.state, percent, running.seconds)

    def cancel(self, tenant: str, id: str) -> bool:
        running = self._running.get((tenant, id))
        if running is None or running.task is None:
            return False
        if not running.task.cancelling():  # a second time would end it before it has cleared up
            running.why_stopped = QueryInvalid("the query was cancelled")
            running.task.cancel()
        return True

    def problems(self) -> dict[str, str]:
        """Asked for health: what keeps questions from being answered well."""
        problems = dict(self._problems)
        if not self._pool.alive:
            problems["workers"] = "no query worker is running"
        return problems

    async def check(self) -> dict[str, str]:
        """As `problems`, after looking at the catalog: `stale` if results come from what it said last, and
        `catalog` if queries fail.
        """
        found: dict[str, str] = {}
        if problem := await asyncio.to_thread(self._catalog_checked.problem):
            found["stale" if self._is_stale else "catalog"] = problem
        self._problems = found
        return self.problems()

    def _look_at_catalog(self) -> str:
        try:
            stale = self._lake.look("logs").stale
        except Exception:
            self._is_stale = False
            raise
        self._is_stale = stale is not None
        return stale or ""

    # Tables

    async def tables(self, tenant: str, *, whole: bool = False) -> list[TableInfo]:
        """As the tenant sees them. `whole`, for admins: with rows without a tenant, and the health of all
        tenants' files.
        """
        return await asyncio.to_thread(inventory, self._planner, tenant, self._config.maintain, whole=whole)

    def measure(self) -> None:
        """Shows the health of the tables among the metrics. Not where there are keys: metrics need none, and
        how much all tenants have together is for admins. The pipeline's metrics have it.
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
