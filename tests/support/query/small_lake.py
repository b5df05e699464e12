"""A small lake of two tenants, landed and not, with a query service that runs beside the tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.position import LandingPosition
from frazil.query.model import Progress, Query, Stats
from frazil.query.service import QueryService
from frazil.storage.local import LocalStore
from frazil.tables import DEFAULT_PROMOTED, Signal, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.names import SegmentName
from frazil.wal.rowgroups import coded_table
from frazil.wal.segment import SegmentWriter

T = TypeVar("T")

TENANTS = ("acme", "globex")
LANDED_PER_DAY = {"acme": 60, "globex": 35}
TAIL_ROWS = {"acme": 7, "globex": 4}
DAYS = 2
STREAM = "20261115T081823120-9f86d081884c7d65"
DAY_NANOS = 86_400 * 10**9
_ANY_TIME = Horizon(10**16, 10**16)


def secret_of(tenant: str) -> str:
    """In every body and span name of a tenant, and nowhere else."""
    return f"{tenant}-secret"


def rows_of(tenant: str) -> int:
    return DAYS * LANDED_PER_DAY[tenant] + TAIL_ROWS[tenant]


def request_of(signal: Signal, tenant: str, rows: int, unix_nano: int) -> bytes:
    if signal == "logs":
        logs = ExportLogsServiceRequest()
        resource = logs.resource_logs.add()
        resource.resource.attributes.add(key="service.name").value.string_value = f"{tenant}-shop"
        scope = resource.scope_logs.add()
        for number in range(rows):
            record = scope.log_records.add(time_unix_nano=unix_nano + number * 1000, severity_number=9)
            record.body.string_value = f"{secret_of(tenant)} {number}"
            record.attributes.add(key="number").value.int_value = number
        return bytes(logs.SerializeToString())
    traces = ExportTraceServiceRequest()
    resource_spans = traces.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = f"{tenant}-shop"
    spans = resource_spans.scope_spans.add()
    for number in range(rows):
        at = unix_nano + number * 1000
        span = spans.spans.add(
            name=f"{secret_of(tenant)} {number}", start_time_unix_nano=at, end_time_unix_nano=at + 5000
        )
        span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
    return bytes(traces.SerializeToString())


def fill(config: Config, now: int | None = None) -> None:
    """Logs and spans of two days that have landed, a file for each tenant and day, and some that have not."""
    now = now or time.time_ns()
    days = [now - (1 + day) * DAY_NANOS for day in range(DAYS)]
    with closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        for signal in ("logs", "spans"):
            spec = landed_spec(signal, promoted(config))
            checkpoint = open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
            layout = Layout.of(checkpoint.table, spec, config.land.compression_level)
            for number, day in enumerate(days):
                rows = _rows(layout, signal, day)
                parts = partition_and_sort([rows], layout.spec, _ANY_TIME).parts
                files = [write_part(layout, part, f"d{number}-{at}") for at, part in enumerate(parts)]
                Committer(catalog, deadline_seconds=60).append(checkpoint, files, LandingPosition().to_text())
                checkpoint = checkpoint_of(catalog.load_table(checkpoint.table.name()))
    add_tail(config, "logs", TAIL_ROWS, now)
    add_tail(config, "spans", TAIL_ROWS, now)


def _rows(layout: Layout, signal: Signal, unix_nano: int) -> pa.Table:
    bodies = [request_of(signal, tenant, LANDED_PER_DAY[tenant], unix_nano) for tenant in TENANTS]
    table = (
        Decoder(signal, layout.spec.promoted[len(DEFAULT_PROMOTED) :])
        .decode(bodies, list(TENANTS), [unix_nano] * len(bodies))
        .table
    )
    table = table.unify_dictionaries().combine_chunks()
    return with_segment(coded_table(table, layout.coded), "made/0", layout)


def add_tail(
    config: Config,
    signal: Signal,
    rows: dict[str, int],
    unix_nano: int,
    *,
    sequence: int = 0,
    before: int = 0,
) -> None:
    """A segment of the log. `before`: the stream's rows before it."""
    bodies = [request_of(signal, tenant, count, unix_nano) for tenant, count in rows.items()]
    writer = SegmentWriter(1)
    writer.write(Decoder(signal).decode(bodies, list(rows), [unix_nano] * len(bodies)).table)
    name = SegmentName(signal, STREAM, sequence)
    data = writer.finish(name, stream_rows=before, received=(unix_nano, unix_nano))
    LocalStore(config.wal_dir).create(name.path, data)


@dataclass(frozen=True)
class Told:
    """An answer that came to its end."""

    body: bytes
    stats: Stats

    @property
    def rows(self) -> list[list[Any]]:
        rows: list[list[Any]] = orjson.loads(self.body)["rows"]
        return rows


class Service:
    """`Queries` on an event loop of its own, so that tests need not be coroutines."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.queries = QueryService(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.run(self.queries.start())

    def close(self) -> None:
        self.run(self.queries.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result(120)

    def execute(self, sql: str, tenant: str = "acme", params: Sequence[Any] = (), **facts: Any) -> Told:
        return self.run(self.told(sql, tenant, params, **facts))

    def asking(self, sql: str, tenant: str = "acme", **facts: Any) -> Future[Told]:
        return self.submit(self.told(sql, tenant, **facts))

    async def told(self, sql: str, tenant: str = "acme", params: Sequence[Any] = (), **facts: Any) -> Told:
        answer = await self.queries.execute(Query(sql, tenant, params, **facts))
        body = b"".join([chunk async for chunk in answer.content])
        stats = answer.stats
        if answer.format == "json":
            stats = Stats(**orjson.loads(body)["stats"])
        return Told(body, stats)

    def progress(self, tenant: str, id: str) -> Progress | None:
        async def found() -> Progress | None:
            return self.queries.progress(tenant, id)

        return self.run(found())

    @property
    def folder(self) -> Path:
        folder = self.queries._folder
        assert folder is not None
        return folder


@contextlib.contextmanager
def running(folder: Path, *, filled: bool = True, **query: Any) -> Iterator[Service]:
    """A service over a lake in `folder`, which is made where there is none."""
    temp = folder / "temp"
    query = {"temp_dir": temp, "threads": 1, "workers": 2, **query}
    config = Config.model_validate({"data_dir": folder / "data", "query": query, "auth": {"keys": KEYS}})
    if filled and not (folder / "data").exists():
        fill(config)
    with serving(config) as service:
        yield service


KEYS = [
    {"name": tenant, "tenant": tenant, "hash": f"sha256:{at:064x}", "roles": ["read"]}
    for at, tenant in enumerate(TENANTS, 1)
]


def files_of(config: Config, tenant: str, signal: Signal = "logs") -> list[Path]:
    return sorted((config.data_dir / "warehouse").glob(f"*/{signal}/data/tenant_id={tenant}/**/*.parquet"))


@contextlib.contextmanager
def serving(config: Config) -> Iterator[Service]:
    service = Service(config)
    service.start()
    try:
        yield service
    finally:
        service.close()
