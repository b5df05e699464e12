"""Random telemetry of all signals as OTLP requests, and a lake in which it lands in random parts and order,
while derivation, merging, expiry, restarts and crashes run."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from frazil.lake.upkeep.expire import expire
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.tables import SIGNALS, Signal
from frazil.tables.specs import derived_specs
from tests.support.calls import CLIENT, CONSUMER, DAY, HOUR, PRODUCER, SERVER, Span, hex16
from tests.support.derived_lake import Crash, DerivedLake, crashing_at

TENANTS = ("acme", "globex")
SERVICES = ("web", "cart", "stock", None)
_TARGETS: Sequence[dict[str, str]] = (
    {"server_address": "api.example.com"},
    {"db_system_name": "postgresql", "db_namespace": "orders"},
    {"messaging_system": "kafka", "messaging_destination_name": "orders"},
    {"peer_service": "billing", "http_request_method": "GET"},
    {"rpc_system": "grpc", "rpc_service": "shop.Cart"},
    {},
)
_BODIES = ("user {} paid {} EUR", "cache miss for key {:x}", 'cannot open "{}"', "ready")
_DEADLINE_SECONDS = 20 * HOUR
"""Both sides of a call land within a day of each other."""


def spans_request(spans: Sequence[Span]) -> bytes:
    request = ExportTraceServiceRequest()
    for each in spans:
        batch = request.resource_spans.add()
        if each.service_name is not None:
            batch.resource.attributes.add(key="service.name").value.string_value = each.service_name
            version = f"1.{len(each.service_name)}.{each.span_id[-1]}"
            batch.resource.attributes.add(key="service.version").value.string_value = version
        begin = round(each.at * 1e9)
        span = batch.scope_spans.add().spans.add(
            name=f"op {each.kind}",
            kind=each.kind,  # type: ignore[arg-type]
            trace_id=bytes.fromhex(each.trace_id),
            span_id=bytes.fromhex(each.span_id),
            parent_span_id=bytes.fromhex(each.parent_span_id or ""),
            start_time_unix_nano=begin,
            end_time_unix_nano=begin + (each.duration_nano or 0),
        )
        span.status.code = each.status_code or 0  # type: ignore[assignment]
        for name, value in each.attributes.items():
            span.attributes.add(key=name.replace("_", ".")).value.string_value = value
    return request.SerializeToString()


@dataclasses.dataclass(frozen=True)
class Item:
    """What is sent together: a span, a log record, or a request of metrics."""

    signal: Signal
    tenant: str
    what: Any
    deadline: float


class RandomLake(DerivedLake):
    """Begins three hours after a midnight, six days ago, and goes on from there."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, derive={"cardinality_attributes": ["shard", "service.name"]})
        self.chance = random.Random(seed)
        self.now = self.now // DAY * DAY - 6 * DAY + 3 * HOUR
        self.waiting: list[Item] = []
        self.spans: list[Span] = []
        """All that have landed."""
        self.crashes = 0
        self._made = 0

    # Telemetry

    def make(self) -> None:
        """Adds telemetry, mostly of the last five hours, late and out of order, to what is to be sent."""
        chance = self.chance
        for _ in range(chance.randint(1, 3)):
            before_midnight = self.now % DAY + 20
            age = chance.choice([5, 200, 4000, 3 * HOUR, 5 * HOUR, before_midnight, before_midnight])
            tenant, at = chance.choice(TENANTS), self.now - age
            for span in self._call(tenant, at):
                self._add("spans", tenant, span, at)
            for _ in range(chance.randint(0, 3)):
                self._add("logs", tenant, self._record(at), at)
            if chance.random() < 0.7:
                self._add("metrics", tenant, self._points(at), at)

    def add_span(self, span: Span) -> None:
        self._add("spans", span.tenant_id, span, span.at)

    def _add(self, signal: Signal, tenant: str, what: Any, at: float) -> None:
        self.waiting.append(Item(signal, tenant, what, at + _DEADLINE_SECONDS))

    def _call(self, tenant: str, at: float) -> list[Span]:
        """A client and the spans that it is the parent of, or one side alone. No two spans have the same
        start or duration."""
        chance = self.chance
        self._made += 1
        serial = self._made * 10
        at += serial / 1e5
        trace, attributes = f"{self._made // 2 + 1:032x}", chance.choice(_TARGETS)
        kind = PRODUCER if "messaging_system" in attributes and chance.random() < 0.5 else CLIENT
        client = Span(
            hex16(self._made * 100),
            hex16(self._made * 100 - 50) if chance.random() < 0.5 else None,
            kind,
            chance.choice(SERVICES),
            at,
            duration_nano=chance.choice([0, 10**6, 3 * 10**9]) + serial,
            status_code=chance.choice([0, 0, 2]),
            trace_id=trace,
            tenant_id=tenant,
            attributes=attributes,
        )
        servers = chance.choice([0, 1, 1, 1] if kind == CLIENT else [0, 1, 3])
        found = [
            Span(
                hex16(self._made * 100 + 1 + number),
                client.span_id,
                CONSUMER if kind == PRODUCER else SERVER,
                chance.choice(SERVICES),
                min(self.now, at + chance.choice([0, 1, 59, 700, 3599])) + (number + 1) / 1e5,
                duration_nano=serial + number + 1,
                status_code=chance.choice([0, 2]),
                trace_id=trace,
                tenant_id=tenant,
            )
            for number in range(servers)
        ]
        return found if chance.random() < 0.1 else [client, *found]

    def _record(self, at: float) -> ExportLogsServiceRequest:
        chance, request = self.chance, ExportLogsServiceRequest()
        resource = request.resource_logs.add()
        if (service := chance.choice(SERVICES)) is not None:
            resource.resource.attributes.add(key="service.name").value.string_value = service
        record = resource.scope_logs.add().log_records.add(
            time_unix_nano=round(at * 1e9) + chance.randrange(10**9),
            severity_number=chance.choice([5, 9, 17]),
        )
        numbers = chance.randrange(1000), chance.randrange(1000)
        record.body.string_value = chance.choice(_BODIES).format(*numbers)
        return request

    def _points(self, at: float) -> ExportMetricsServiceRequest:
        """A point of each type. Numbers are halves, so that their sums do not depend on the order."""
        chance, request = self.chance, ExportMetricsServiceRequest()
        batch = request.resource_metrics.add()
        batch.resource.attributes.add(key="service.name").value.string_value = chance.choice(["web", "cart"])
        metrics, nanos = batch.scope_metrics.add().metrics, round(at * 1e9) + chance.randrange(10**9)
        start = nanos - chance.choice([10, 5000]) * 10**9
        number = chance.randrange(100) / 2
        queue = metrics.add(name="queue").gauge.data_points.add(time_unix_nano=nanos, as_double=number)
        queue.attributes.add(key="shard").value.int_value = chance.randrange(2)
        for temporality in (1, 2):
            total = metrics.add(name=f"total.{temporality}").sum
            total.aggregation_temporality, total.is_monotonic = temporality, True  # type: ignore[assignment]
            total.data_points.add(time_unix_nano=nanos, start_time_unix_nano=start, as_double=number)
        seconds = metrics.add(name="seconds").histogram
        seconds.aggregation_temporality = 1  # type: ignore[assignment]
        seconds.data_points.add(
            time_unix_nano=nanos,
            start_time_unix_nano=start,
            count=3,
            sum=number,
            explicit_bounds=[0.5, 2.5],
            bucket_counts=[1, 0, 2],
        )
        sizes = metrics.add(name="sizes").exponential_histogram
        sizes.aggregation_temporality = 1  # type: ignore[assignment]
        point = sizes.data_points.add(
            time_unix_nano=nanos,
            start_time_unix_nano=start,
            count=4,
            sum=number,
            scale=chance.choice([0, 1]),
            zero_count=1,
        )
        point.positive.offset = chance.choice([0, 1])
        point.positive.bucket_counts.extend([1, 2])
        waits = metrics.add(name="waits").summary.data_points.add(time_unix_nano=nanos, count=2, sum=number)
        waits.quantile_values.add(quantile=0.5, value=number)
        return request

    # Steps

    def land_some(self, wanted: Callable[[Item], bool]) -> None:
        """Lands what is wanted, each signal in a commit of its own, out of order."""
        items = [item for item in self.waiting if wanted(item)]
        self.waiting = [item for item in self.waiting if item not in items]
        self.chance.shuffle(items)
        for signal in SIGNALS:
            chosen = [item for item in items if item.signal == signal]
            if not chosen:
                continue
            if signal == "spans":
                landed = [dataclasses.replace(item.what, received=float(int(self.now))) for item in chosen]
                self.spans += landed
                requests = [(span.tenant_id, spans_request([span])) for span in landed]
            else:
                requests = [(item.tenant, item.what.SerializeToString()) for item in chosen]
            self.land_requests(signal, requests)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        self.land_some(lambda item: item.deadline < until)
        self.now = until

    def merge_files(self, table: str) -> None:
        """As compaction does in the course of days. Also settles what is due."""
        compacting = {"fan_in": 2, "file_cost_bytes": 64 * 2**20}
        maintain = self.config.maintain
        settings = maintain.model_copy(update={"compact": maintain.compact.model_copy(update=compacting)})
        config = self.config.model_copy(update={"maintain": settings})
        metrics = MaintainMetrics(CollectorRegistry())
        Maintainer(config, self.catalog, self.runner, metrics, clock=lambda: self.now).run("compact", table)

    def forget_snapshots(self, table: str) -> None:
        loaded = self.table(table)
        kept = {ref.snapshot_id for ref in loaded.metadata.refs.values()}
        ids = [each.snapshot_id for each in loaded.metadata.snapshots if each.snapshot_id not in kept]
        expire(self.catalog, loaded, ids)

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chance = self.chance
        names = [spec.name for spec in derived_specs() if self._exists(spec.name)]
        landed = [signal for signal in SIGNALS if self._exists(signal)]
        match chance.choices(
            ["make", "land", "wait", "sleep", "derive", "merge", "expire", "restart", "day", "crash"],
            [6, 8, 4, 2, 6, 4, 1, 1, 2, 2],
        )[0]:
            case "make":
                self.make()
            case "land":
                self.land_some(lambda _: chance.random() < 0.4)
            case "wait":
                self.wait(chance.choice([30, 400, 4000]))
            case "sleep":
                self.wait(chance.choice([8, 30]) * HOUR)
            case "derive":
                self.deriver(chance.choice(SIGNALS)).round()
            case "merge" if landed:
                self.merge_files(chance.choice([*landed, *names, *names]))
            case "expire" if landed:
                self.forget_snapshots(chance.choice([*landed, *names]))
            case "restart":
                self.restart(chance.choice(SIGNALS))
            case "day" if names:
                self.rederive(chance.choice(names))
            case "crash" if names:
                self._crash(monkeypatch, names)

    def rederive(self, table: str) -> None:
        source = next(spec.derived.source for spec in derived_specs() if spec.name == table and spec.derived)
        day = int(self.now // DAY) - self.chance.choice([0, 1, 2])
        self.deriver(source).rederive([table], {day})  # type: ignore[arg-type]

    def _crash(self, monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
        """Dies in the middle of a round, a merge or a past day."""
        signal, table = self.chance.choice(SIGNALS), self.chance.choice(names)
        works: Sequence[Callable[[], Any]] = (
            lambda: self.deriver(signal).round(),
            lambda: self.merge_files(table),
            lambda: self.rederive(table),
        )
        work = self.chance.choice(works)
        with crashing_at(monkeypatch, self.catalog, self.chance.randint(1, 40)), contextlib.suppress(Crash):
            try:
                work()
            except Crash:
                self.crashes += 1
                raise
        for each in SIGNALS:
            self.restart(each)

    def finish(self) -> None:
        """Lands and derives all that is left."""
        for _ in range(3):
            self.make()
        self.land_some(lambda _: True)
        for signal in SIGNALS:
            self.derive(signal)

    def _exists(self, table: str) -> bool:
        return self.catalog.table_exists((*self.config.lake.namespace.split("."), table))
