"""A query service in the test's own process: no lake, no WAL and no workers.

Checks of queries, SQL functions and rendering are the real ones; rows come as OTLP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
from prometheus_client import CollectorRegistry

from frazil.config import Config, MaintainConfig
from frazil.errors import FrazilError, QueryInvalid
from frazil.lake.live_files import FileFacts
from frazil.lake.state.health import TableState, health
from frazil.query.cache import SizedCache
from frazil.query.model import ColumnInfo, Progress, Query, QueryResult, ResultColumn, Stats, TableInfo
from frazil.query.render import json_end, renderer
from frazil.query.validate import check
from frazil.tables import table_spec
from tests.support.query.read_engine import Engine


class StandIn(Engine):
    """Add what a tenant sent, then ask. Questions raise `failure`; `broken_after` breaks their answers."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.registry = CollectorRegistry()
        self.asked: list[Query] = []
        self.failure: Exception | None = None
        self.broken_after: FrazilError | None = None
        self.running: dict[str, Progress] = {}
        self.trouble: dict[str, str] = {}
        self.closed_answers = 0
        self.forgotten: list[SizedCache[Any, Any]] = []
        self.started = self.closed = False
        self.hang = asyncio.Event()
        self.hang.set()

    def clear_on_erasure(self, cache: SizedCache[Any, Any]) -> None:
        self.forgotten.append(cache)

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.closed = True

    async def execute(self, query: Query) -> QueryResult:
        self.asked.append(query)
        check(query, self.config.query.sql_bytes_max)
        await self.hang.wait()
        if self.failure is not None:
            raise self.failure
        try:
            table, types = await asyncio.to_thread(self.run_sql, query.sql, query.params, query.tenant)
        except duckdb.Error as error:
            raise QueryInvalid(str(error), position=3) from None
        columns = [ResultColumn(*column) for column in zip(table.column_names, types, strict=True)]
        stats = Stats(id=query.id or "made", files=1, files_total=2, tail_rows=len(table))
        body = _rendered(query, table, types, stats)
        return QueryResult(columns, stats, self._content(body), query.format)

    async def _content(self, body: bytes) -> AsyncIterator[bytes]:
        try:
            yield body[: len(body) // 2]
            await asyncio.sleep(0)
            if self.broken_after is not None:
                raise self.broken_after
            yield body[len(body) // 2 :]
        finally:
            self.closed_answers += 1

    async def tables(self, tenant: str, *, whole: bool = False) -> Sequence[TableInfo]:
        columns = [ColumnInfo(c.name, str(c.type), c.doc, c.source) for c in table_spec("logs").columns]
        rows = len(self.rows_of("logs", tenant))
        facts = [
            "logs",
            "One row per log record.",
            columns,
            rows,
            0,
            0,
            0,
            None,
            1_000_000,
            2**60,
            0,
            2_000_000,
        ]
        mine = health(self.files(tenant), MaintainConfig(), 0.0)
        state = TableState(7, 3, None, 0, 100, {"expired_at": 5.0})
        all_of_it = health(self.files(*self.tenants), MaintainConfig(), 0.0, table=state) if whole else None
        return [TableInfo(*facts, health=mine, whole=all_of_it)]  # type: ignore[arg-type]

    def files(self, *tenants: str) -> list[FileFacts]:
        """One a tenant and row."""
        return [
            FileFacts(f"{tenant}-{row}.parquet", tenant, 0, 1000, 1, row, row + 9, 1)
            for tenant in tenants
            for row in range(len(self.rows_of("logs", tenant)))
        ]

    @property
    def tenants(self) -> list[str]:
        """Of all logs."""
        return sorted({tenant for rows in self.rows["logs"] for tenant in rows["tenant_id"].to_pylist()})

    def progress(self, tenant: str, id: str) -> Progress | None:
        found = self.running.get(id)
        return found if found is not None and found.tenant == tenant else None

    def cancel(self, tenant: str, id: str) -> bool:
        return self.progress(tenant, id) is not None and self.running.pop(id) is not None

    def problems(self) -> dict[str, str]:
        return self.trouble

    async def check(self) -> dict[str, str]:
        return self.trouble


def _rendered(query: Query, table: pa.Table, types: Sequence[str], stats: Stats) -> bytes:
    rendered = renderer(query.format, table.schema, types)
    parts = [rendered.begin(), *map(rendered.batch, table.to_batches()), rendered.end()]
    if query.format == "json":
        parts.append(json_end(replace(stats, rows=len(table))))
    return b"".join(parts)
