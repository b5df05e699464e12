"""Prepares a query on a worker: parses and checks it, and finds out which rows it needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from frazil import telemetry
from frazil.config import Config
from frazil.errors import QueryInvalid
from frazil.query.cache import SizedCache
from frazil.query.errors import query_error, worker_died
from frazil.query.model import Query
from frazil.query.plan import Planner
from frazil.query.pool import WorkerDied, WorkerProcess
from frazil.query.running import RunningQuery
from frazil.sql.pushdown import Uses, unpacked
from frazil.sql.statement import Statement
from frazil.tables import TableSpec

_PARSED_BYTES_MAX = 32 << 20
_USES_BYTES_MAX = 8 << 20
_BYTES_PER_BYTE = 6
"""Memory of a syntax tree, or of constraints, per byte of its text."""
_VIEWS_SECONDS = 1.0
"""How old the list of views may be when a query names an unknown table."""
_SCANS_MAX = 300
"""Queries that read tables more often use all files: DuckDB would take seconds to describe their plan."""


class ParserDied(Exception):
    """The worker ended while it parsed the SQL."""


@dataclass(frozen=True)
class Prepared:
    statement: Statement
    uses: Uses


@dataclass(frozen=True)
class _Parsed:
    tree: Mapping[str, Any]
    audit_sql: str


class Preparer:
    """Caches syntax trees, and the constraints of queries that do not depend on the clock."""

    def __init__(
        self,
        config: Config,
        planner: Callable[[], Planner],
        worker_lost: Callable[[RunningQuery, WorkerProcess], Awaitable[None]],
    ) -> None:
        self._config = config
        self._planner = planner
        self._worker_lost = worker_lost
        self._views: Mapping[str, TableSpec] = {}
        self._parsed: SizedCache[str, _Parsed] = SizedCache(_PARSED_BYTES_MAX)
        self._uses: SizedCache[tuple[str, str], Uses] = SizedCache(_USES_BYTES_MAX)

    def clear(self) -> None:
        """Clear the caches: SQL may hold values that were erased."""
        self._parsed.clear()
        self._uses.clear()

    async def prepared(self, running: RunningQuery) -> Prepared | None:
        """Return a query that was prepared before; None if it needs a worker."""
        parsed = self._parsed.get(running.query.sql)
        if parsed is None or self._uses.get(_key(running.query)) is None:
            return None
        statement = await self._check(running, parsed)  # forgets constraints if a view has changed
        uses = self._uses.get(_key(running.query))
        return None if uses is None else Prepared(statement, uses)

    async def prepare(self, running: RunningQuery, worker: WorkerProcess) -> Prepared:
        """Raises QueryInvalid or QueryRefused if the query must not run, or ParserDied."""
        running.state = "planning"
        parsed = self._parsed.get(running.query.sql) or await self._parse(running, worker)
        statement = await self._check(running, parsed)
        return Prepared(statement, await self._constrain(running, worker, statement))

    async def _parse(self, running: RunningQuery, worker: WorkerProcess) -> _Parsed:
        sql = running.query.sql
        try:
            with telemetry.span("query.parse"):
                event = await worker.parse(sql)
        except WorkerDied:
            await self._worker_lost(running, worker)
            raise ParserDied from None
        if event["event"] == "error":
            raise query_error(event, self._config.query)
        try:
            parsed = _Parsed(orjson.loads(event["tree"]), event["audit"])
        except orjson.JSONDecodeError:
            raise QueryInvalid("the SQL is nested too deeply: split it with WITH clauses") from None
        self._parsed.put(sql, parsed, _BYTES_PER_BYTE * len(event["tree"]) + 1000)
        return parsed

    async def _check(self, running: RunningQuery, parsed: _Parsed) -> Statement:
        running.audit_sql = parsed.audit_sql
        running.now = time.time_ns() // 1000
        return await asyncio.to_thread(self._statement, parsed.tree, running.query.sql)

    def _statement(self, tree: Mapping[str, Any], sql: str) -> Statement:
        """Blocking: reads the catalog. Looks for new views again if the query names an unknown table."""
        planner, namespace = self._planner(), self._config.lake.namespace
        planner.find_views()
        if (views := planner.views) != self._views:
            self._uses.clear()
            self._views = views
        known = [*planner.specs]
        try:
            return Statement(tree, namespace, known, sql)
        except QueryInvalid:
            planner.find_views(age_max_seconds=_VIEWS_SECONDS)
            if [*planner.specs] == known:
                raise
            return Statement(tree, namespace, [*planner.specs], sql)

    async def _constrain(self, running: RunningQuery, worker: WorkerProcess, statement: Statement) -> Uses:
        """Only for checked statements: when DuckDB plans a query, it opens the files that the query names."""
        query = running.query
        if not statement.tables or statement.reads_own_clock or statement.scans > _SCANS_MAX:
            return {}
        try:
            views = self._planner().views_in(statement.tables)
            with telemetry.span("query.constrain"):
                event = await worker.constrain(query.sql, query.params, running.now, views)
        except WorkerDied:
            await self._worker_lost(running, worker)
            raise worker_died() from None
        uses = unpacked(event["uses"])
        if not statement.is_nondeterministic:
            key = _key(query)
            self._uses.put(key, uses, sum(map(len, key)) + _BYTES_PER_BYTE * len(str(uses)))
        return uses


def _key(query: Query) -> tuple[str, str]:
    return query.sql, repr(list(query.params))
