"""A lake in motion without Spark: journals that are written to, landing, clean-up, and who knows each row."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.otlp.decode import Decoder
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.position import landing_position
from frazil.tables import Signal
from frazil.wal.group import SegmentWritten
from frazil.wal.journal import Journal, SegmentJournal
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter, tombstone
from frazil.wal.store import open_store
from tests.support.local_runner import LocalRunner
from tests.support.query.small_lake import KEYS, TENANTS
from tests.support.upkeep import Upkeep

__all__ = ["KEYS", "TENANTS", "Landing", "Log", "Row", "Sent", "configured", "open_journal"]

LANDED: Sequence[Signal] = ("logs", "spans")
SERVICES = ("cart", "checkout", "search")


def configured(folder: Path, **sections: Mapping[str, Any]) -> Config:
    """Of two tenants, on local disk unless `sections` say otherwise."""
    query = {"temp_dir": folder / "temp", "threads": 1, "workers": 2, **sections.pop("query", {})}
    settings = {"data_dir": folder / "data", "auth": {"keys": KEYS}, **sections}
    return Config.model_validate({**settings, "query": query})


@dataclass(frozen=True)
class Row:
    """A record that was sent. `text` is the body of a log and the name of a span: no two are alike."""

    tenant: str
    number: int
    service: str
    micros: int
    trace: bytes
    named: str = ""

    @property
    def text(self) -> str:
        return self.named or f"{self.tenant}/{self.number}"


@dataclass
class Sent:
    """Every record, from before it is sent; and which of them were acked."""

    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    rows: dict[Signal, dict[str, list[Row]]] = field(
        default_factory=lambda: {signal: {tenant: [] for tenant in TENANTS} for signal in LANDED}
    )
    acked: dict[Signal, dict[str, list[Row]]] = field(
        default_factory=lambda: {signal: {tenant: [] for tenant in TENANTS} for signal in LANDED}
    )

    async def send(self, journal: Journal, signal: Signal, rows: Sequence[Row]) -> None:
        tenant = rows[0].tenant
        body = _body(signal, rows)
        self.rows[signal][tenant] += rows
        try:
            await journal.append(signal, body, tenant, time.time_ns())
        except StoreUnavailable:  # a write that took too long: it may be durable, and nobody was told
            return
        self.acked[signal][tenant] += rows

    def new(self, tenant: str, count: int, *, traces: Sequence[bytes] = ()) -> list[Row]:
        made = []
        for number in itertools.islice(self.numbers, count):
            trace = traces[number % len(traces)] if traces else os.urandom(16)
            micros = time.time_ns() // 1000
            made.append(Row(tenant, number, SERVICES[number % len(SERVICES)], micros, trace))
        return made


def _body(signal: Signal, rows: Sequence[Row]) -> bytes:
    return (_logs if signal == "logs" else _spans)(rows)


def _logs(rows: Sequence[Row]) -> bytes:
    request = ExportLogsServiceRequest()
    for row in rows:
        envelope = request.resource_logs.add()
        envelope.resource.attributes.add(key="service.name").value.string_value = row.service
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=row.micros * 1000)
        record.body.string_value = row.text
        record.trace_id = row.trace
        record.attributes.add(key="number").value.int_value = row.number
    return bytes(request.SerializeToString())


def _spans(rows: Sequence[Row]) -> bytes:
    request = ExportTraceServiceRequest()
    for row in rows:
        envelope = request.resource_spans.add()
        envelope.resource.attributes.add(key="service.name").value.string_value = row.service
        nanos = row.micros * 1000
        span = envelope.scope_spans.add().spans.add(
            name=row.text, start_time_unix_nano=nanos, end_time_unix_nano=nanos + 1000
        )
        span.trace_id, span.span_id = row.trace, os.urandom(8)
        span.attributes.add(key="number").value.int_value = row.number
    return bytes(request.SerializeToString())


class _Nobody:
    def segment_written(self, segment: SegmentWritten) -> None: ...

    def segment_failed(self, error: Exception) -> None: ...


@contextlib.asynccontextmanager
async def open_journal(config: Config) -> Any:
    journal = SegmentJournal(config, open_store(config), _Nobody())
    await journal.start()
    try:
        yield journal
    finally:
        await journal.close()


class Landing:
    """Landing and upkeep of logs and spans as in the pipeline, with `LocalRunner` in place of Spark."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalog = open_catalog(config)
        ensure_namespace(self.catalog, config.lake.namespace)
        self.store = open_store(config)
        self.metrics = Metrics()
        self.landers = {signal: self._lander(signal) for signal in LANDED}
        self.upkeep = Upkeep(config, self.store, self.metrics)
        self.streams_forgotten = 0
        self.derived = 0
        """Rounds of derivation that wrote rows."""
        self.merged = 0
        """Files that were merged."""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def _lander(self, signal: Signal) -> Lander:
        reader = WalReader(self.store)
        source = SegmentSource(self.config, signal, reader)
        return Lander(
            self.config,
            signal,
            self.catalog,
            source,
            LocalRunner(),
            self.metrics,
            reader=reader,
        )

    def land(self, *signals: Signal) -> None:
        for signal in signals or LANDED:
            while self.landers[signal].step(now_due=True) not in ("idle", "waiting"):
                pass

    def keep_up(self, *signals: Signal) -> None:
        for signal in signals or LANDED:
            lander = self.landers[signal]
            checkpoint = lander.checkpoint()
            lander.drop_streams(self.upkeep.round(signal, checkpoint.table.metadata))
            forgotten = landing_position(checkpoint.position).wal.left.streams
            self.streams_forgotten = max(self.streams_forgotten, forgotten)

    @contextlib.contextmanager
    def going_on(self, pause_seconds: float) -> Iterator[None]:
        """Lands and cleans up, again and again, until the block ends."""
        self._thread = threading.Thread(target=self._go_on, args=(pause_seconds,), daemon=True)
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join(60)
            self._end.clear()
        if self.error is not None:
            raise self.error

    def _go_on(self, pause_seconds: float) -> None:
        try:
            while not self._end.wait(pause_seconds):
                for signal in LANDED:
                    self.landers[signal].step(now_due=True)
                    self.keep_up(signal)
        except BaseException as error:
            self.error = error

    @contextlib.contextmanager
    def deriving(self, pause_seconds: float) -> Iterator[None]:
        """Derives, and merges derived files, beside landing: in a thread with a catalog of its own."""
        end = threading.Event()
        thread = threading.Thread(target=self._derive, args=(end, pause_seconds), daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(60)
        if self.error is not None:
            raise self.error

    def _derive(self, end: threading.Event, pause_seconds: float) -> None:
        registry, config = CollectorRegistry(), self.config
        compact = config.maintain.compact.model_copy(update={"fan_in": 2, "file_cost_bytes": 64 * 2**20})
        maintain = config.maintain.model_copy(update={"compact": compact})
        try:
            with contextlib.closing(open_catalog(config)) as catalog:
                metrics = DeriveMetrics(registry, config)
                derivers = [Deriver(config, each, catalog, LocalRunner(), metrics) for each in LANDED]
                merging = config.model_copy(update={"maintain": maintain})
                maintainer = Maintainer(merging, catalog, LocalRunner(), MaintainMetrics(registry))
                while not end.wait(pause_seconds):
                    for deriver in derivers:
                        with contextlib.suppress(StoreUnavailable):  # files were merged while they were read
                            self.derived += deriver.round() == "derived"
                    if self.derived:
                        for table in ("log_rollups", "span_metrics", "spans", "logs"):
                            self.merged += maintainer.run("compact", table).files_in
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self.catalog.close()


class Log:
    """Writes segments as a receiver does, at once and without waiting for the disk."""

    def __init__(self, config: Config, signal: Signal = "logs") -> None:
        self.signal: Signal = signal
        self.stream = new_stream()
        self.sequence = 0
        self._rows = 0
        self._config = config
        self._decoder = Decoder(signal)

    def write(self, texts: Sequence[str], tenant: str = "acme", traces: Sequence[bytes] = ()) -> SegmentName:
        """A segment of one record for each text."""
        now = time.time_ns()
        rows = [
            Row(tenant, number, "cart", now // 1000, traces[number] if traces else os.urandom(16), text)
            for number, text in enumerate(texts)
        ]
        writer = SegmentWriter(1)
        writer.write(self._decoder.decode([_body(self.signal, rows)], [tenant], [now]).table)
        name = SegmentName(self.signal, self.stream, self.sequence)
        data = writer.finish(name, stream_rows=self._rows, received=(now, now))
        self._put(name, data)
        self.sequence, self._rows = self.sequence + 1, self._rows + len(rows)
        return name

    def end(self) -> None:
        """As upkeep does with a stream that has fallen silent."""
        name = SegmentName(self.signal, self.stream, self.sequence)
        self._put(name, tombstone(name, self._rows))
        self.sequence += 1

    def _put(self, name: SegmentName, data: bytes) -> None:
        if self._config.wal.type != "local":
            open_store(self._config).create(name.path, data)
            return
        path = self._config.wal_dir / name.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
