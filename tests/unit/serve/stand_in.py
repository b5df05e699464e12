"""A query service in the test's own process: real DuckDB over rows that came as OTLP, no lake and no WAL."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from google.protobuf.message import Message
from prometheus_client import CollectorRegistry

from frazil.config import MaintainConfig
from frazil.errors import FrazilError, QueryInvalid
from frazil.lake.facts import FileFacts
from frazil.lake.health import TableState, health
from frazil.otlp.decode import Decoder, conform
from frazil.query.cache import SizedCache
from frazil.query.model import Answer, ColumnInfo, Format, Progress, Question, ResultColumn, Stats, TableInfo
from frazil.tables import SIGNALS, Signal, table_spec

_MACRO = (
    "CREATE MACRO search(text, words) AS "
    "list_bool_and([contains(lower(text), word) FOR word IN string_split(lower(words), ' ')])"
)
_DECODERS: dict[Signal, Decoder] = {signal: Decoder(signal) for signal in SIGNALS}


class StandIn:
    """Add what a tenant sent, then ask. Questions raise `failure`; `broken_after` breaks their answers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rows: dict[Signal, list[pa.Table]] = {signal: [] for signal in SIGNALS}
        self.asked: list[Question] = []
        self.failure: Exception | None = None
        self.broken_after: FrazilError | None = None
        self.running: dict[str, Progress] = {}
        self.trouble: dict[str, str] = {}
        self.closed_answers = 0
        self.forgotten: list[SizedCache[Any, Any]] = []
        self.started = self.closed = False
        self._connection = duckdb.connect(config={"threads": 1})
        self._connection.execute(_MACRO)
        self.hang = asyncio.Event()
        self.hang.set()

    def add(self, signal: Signal, request: Message, tenant: str = "default", received: int = 1) -> None:
        decoded = _DECODERS[signal].decode([request.SerializeToString()], [tenant], [received * 10**9])
        assert decoded.rejected.sum() == 0, decoded.reasons
        self.rows[signal].append(conform(decoded.table, table_spec(signal)))

    def forget_also(self, cache: SizedCache[Any, Any]) -> None:
        self.forgotten.append(cache)

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.closed = True

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        await self.hang.wait()
        if self.failure is not None:
            raise self.failure
        table = await asyncio.to_thread(self._run, question)
        columns = [ResultColumn(field.name, str(field.type)) for field in table.schema]
        stats = Stats(id=question.id or "made", files=1, files_total=2, tail_rows=len(table))
        return Answer(columns, stats, self._content(table, question.format, stats), question.format)

    def _run(self, question: Question) -> pa.Table:
        with self._connection.cursor() as cursor:
            for signal in SIGNALS:
                if signal in question.sql:
                    cursor.register(signal, self._of_tenant(signal, question.tenant))
            try:
                return cursor.execute(question.sql, list(question.params)).to_arrow_table()
            except duckdb.Error as error:
                raise QueryInvalid(str(error), position=3) from None

    def _of_tenant(self, signal: Signal, tenant: str) -> pa.Table:
        tables = [rows.filter(pa.compute.equal(rows["tenant_id"], tenant)) for rows in self.rows[signal]]
        return pa.concat_tables([*tables, table_spec(signal).arrow_schema.empty_table()])

    async def _content(self, table: pa.Table, format: Format, stats: Stats) -> AsyncIterator[bytes]:
        try:
            body = _body(table, format, stats)
            yield body[: len(body) // 2]
            await asyncio.sleep(0)
            if self.broken_after is not None:
                raise self.broken_after
            yield body[len(body) // 2 :]
        finally:
            self.closed_answers += 1

    async def tables(self, tenant: str, *, whole: bool = False) -> Sequence[TableInfo]:
        columns = [ColumnInfo(c.name, str(c.type), c.doc, c.source) for c in table_spec("logs").columns]
        rows = len(self._of_tenant("logs", tenant))
        facts = [
            "logs",
            "One row a log record.",
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
            for row in range(len(self._of_tenant("logs", tenant)))
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


def _body(table: pa.Table, format: Format, stats: Stats) -> bytes:
    sink: Any = io.BytesIO()
    if format == "json":
        rows = [list(row.values()) for row in table.to_pylist()]
        columns = [{"name": f.name, "type": str(f.type)} for f in table.schema]
        return orjson.dumps({"columns": columns, "rows": rows, "stats": asdict(stats)}, default=str)
    if format == "csv":
        pyarrow.csv.write_csv(table, sink)
    elif format == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())
