"""Derived tables are as fresh as their sources: each acknowledged row counts once, whatever runs
meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client import CollectorRegistry

from frazil.otlp.decode import Decoder
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.position import landing_position
from frazil.query import plan
from frazil.query.model import AsOf
from frazil.query.tail.derived import PartialRowsMaker
from frazil.tables import SIGNALS, Signal, table_specs
from frazil.tables.specs import derived_specs
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter
from tests.support.calls import SERVER, hex16
from tests.support.calls import Span as Call
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import DAY, holding
from tests.support.query.small_lake import Service, Told, serving
from tests.support.random_telemetry import spans_request

STREAMS = [f"20261001T08182312{number}-9f86d081884c7d65" for number in range(2)]
TENANTS = ("acme", "globex")
SERVICES = ("cart", "web")
CALLS: Sequence[tuple[Any, int, str]] = (
    (Span.SPAN_KIND_CLIENT, 0, ""),
    (Span.SPAN_KIND_SERVER, 1, ""),
    (Span.SPAN_KIND_CLIENT, 2, "postgresql"),
)
"""The kind of each span, how many spans before it its parent is, and the database that it calls."""
COUNTED = {
    "logs": "SELECT service_name, sum(records) FROM log_rollups WHERE resolution = {} GROUP BY ALL",
    "spans": "SELECT service_name, sum(calls) FROM span_metrics WHERE resolution = {} GROUP BY ALL",
    "metrics": "SELECT service_name, sum(points) FROM metric_rollups WHERE resolution = {} GROUP BY ALL",
}


CACHING = {"threads": 1, "workers": 1, "metadata_age_max_seconds": 0}


class FreshLake(DerivedLake):
    """Writes all signals in two streams each, lands, derives and cleans up when asked."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        query = {
            "temp_dir": folder / "temp",
            "threads": 1,
            "workers": 1,
            "metadata_age_max_seconds": 0,
            "result_cache_bytes_max": 0,
        }
        derive = {"cardinality_attributes": ["shard"], **settings.pop("derive", {})}
        super().__init__(folder / "data", **{"query": query, "derive": derive, **settings})
        self.ends: dict[tuple[Signal, str], tuple[int, int]] = {}
        self.written = 0

    def send(self, signal: Signal, tenant: str, rows: int, *, stream: int = 0, age_days: float = 0.0) -> None:
        body = self.request(signal, rows, int(self.now * 1e9) - int(age_days * DAY * 1e9))
        self.send_body(signal, tenant, body, rows, stream=stream)

    def send_body(self, signal: Signal, tenant: str, body: bytes, rows: int, *, stream: int = 0) -> None:
        name = STREAMS[stream]
        sequence, before = self.ends.get((signal, name), (0, 0))
        nanos = int(self.now * 1e9)
        writer = SegmentWriter(1)
        writer.write(Decoder(signal).decode([body], [tenant], [nanos]).table)
        at = SegmentName(signal, name, sequence)
        self.store.create(at.path, writer.finish(at, stream_rows=before, received=(nanos, nanos)))
        self.ends[signal, name] = (sequence + 1, before + rows)

    def request(self, signal: Signal, rows: int, nanos: int) -> bytes:
        self.written += 1
        service = SERVICES[self.written % 2]
        if signal == "logs":
            from tests.support.fault.records import logs_request

            return logs_request([f"u1 said {number}" for number in range(rows)])
        if signal == "spans":
            spans = ExportTraceServiceRequest()
            batch = spans.resource_spans.add()
            batch.resource.attributes.add(key="service.name").value.string_value = service
            scope = batch.scope_spans.add()
            for number in range(rows):
                kind, parent, system = CALLS[number % len(CALLS)]
                span = scope.spans.add(
                    name="GET",
                    kind=kind,
                    trace_id=bytes(15) + bytes([self.written % 256]),
                    span_id=(self.written * 1000 + number).to_bytes(8, "big"),
                    start_time_unix_nano=nanos,
                    end_time_unix_nano=nanos + 5000,
                )
                if parent:
                    span.parent_span_id = (self.written * 1000 + number - parent).to_bytes(8, "big")
                if system:
                    span.attributes.add(key="db.system.name").value.string_value = system
            return spans.SerializeToString()
        metrics = ExportMetricsServiceRequest()
        of_service = metrics.resource_metrics.add()
        of_service.resource.attributes.add(key="service.name").value.string_value = service
        metric = of_service.scope_metrics.add().metrics.add(name="queue", unit="1")
        for number in range(rows):
            point = metric.gauge.data_points.add(time_unix_nano=nanos, as_int=number)
            point.attributes.add(key="shard").value.int_value = number % 3
        return metrics.SerializeToString()

    def sides(self, number: int) -> tuple[bytes, bytes]:
        """Requests with the client's and the server's span of a call."""
        client = Call(hex16(number + 1), at=self.now, service_name="web")
        server = Call(hex16(number + 100), client.span_id, SERVER, f"cart{number % 2}", self.now)
        return spans_request([client]), spans_request([server])

    def clean_derived(self, signal: Signal) -> None:
        """Deletes what has landed, if all of it is derived."""
        if self.catalog.table_exists(("otel", signal)):
            self.derive(signal)
            self.clean(signal)

    def land_all(self, signal: Signal) -> None:
        reader = WalReader(self.store)
        source = SegmentSource(self.config, signal, reader)
        lander = Lander(self.config, signal, self.catalog, source, self.runner, Metrics(), reader=reader)
        while lander.step(now_due=True) != "idle":
            pass

    def clean(self, signal: Signal) -> None:
        """Deletes all segments that have landed, without the usual delay."""
        position = landing_position(self.table(signal).current_snapshot().summary["frazil.position"]).wal
        for name, at in position.streams.items():
            for sequence in range(at.sequence):
                with contextlib.suppress(FileNotFoundError):
                    self.store.delete(SegmentName(signal, name, sequence).path)

    def compact(self, table: str) -> None:
        compacting = {"fan_in": 2, "file_cost_bytes": 64 * 2**20}
        maintain = self.config.maintain
        settings = maintain.model_copy(update={"compact": maintain.compact.model_copy(update=compacting)})
        config = self.config.model_copy(update={"maintain": settings})
        Maintainer(config, self.catalog, self.runner, MaintainMetrics(CollectorRegistry())).run(
            "compact", table
        )


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[FreshLake]:
    with contextlib.closing(FreshLake(tmp_path)) as made:
        yield made


@pytest.fixture
def service(lake: FreshLake) -> Iterator[Service]:
    with serving(lake.config) as running:
        yield running


def raw(service: Service, signal: Signal, tenant: str) -> list[list[Any]]:
    return sorted(
        service.execute(f"SELECT service_name, count(*) FROM {signal} GROUP BY ALL", tenant).rows, key=str
    )


def derived(
    service: Service, signal: Signal, tenant: str, resolution: int = 60
) -> tuple[list[list[Any]], Told]:
    told = service.execute(COUNTED[signal].format(resolution), tenant)
    return sorted(told.rows, key=str), told


@pytest.mark.parametrize("seed", range(4))
def test_derived_counts_equal_the_raw_rows_at_every_moment(
    lake: FreshLake, service: Service, seed: int
) -> None:
    chance = random.Random(seed)
    told_late = 0
    for _ in range(40):
        signal = chance.choice(SIGNALS)
        match chance.choices(["send", "land", "derive", "compact", "clean", "restart"], [9, 4, 4, 1, 2, 1])[
            0
        ]:
            case "send":
                rows, stream = chance.randint(1, 5), chance.randrange(2)
                tenant, age = chance.choice(TENANTS), chance.choice([0, 0, 0, 2])
                lake.send(signal, tenant, rows, stream=stream, age_days=age)
            case "land":
                lake.land_all(signal)
            case "derive":
                lake.derive(signal)
            case "compact" if lake.catalog.table_exists(("otel", signal)):
                lake.compact(signal)
            case "clean" if lake.catalog.table_exists(("otel", signal)):
                lake.clean(signal)
            case "restart":
                lake.restart(signal)
        for signal in SIGNALS:
            tenant, resolution = chance.choice(TENANTS), chance.choice([60, 300, 3600, 86_400])
            found, told = derived(service, signal, tenant, resolution)
            if told.stats.missing:
                [reason] = told.stats.missing
                assert "derivation is late" in reason
                told_late += 1
                lake.derive(signal)
                found, told = derived(service, signal, tenant, resolution)
            assert (found, list(told.stats.missing)) == (raw(service, signal, tenant), []), (
                signal,
                resolution,
            )
    assert told_late < 60, "rows are deleted only now and then before they are derived"


def test_rows_count_once_before_and_after_they_land_and_are_derived(
    lake: FreshLake, service: Service
) -> None:
    lake.send("spans", "acme", 3)
    seen = [derived(service, "spans", "acme")]
    lake.land_all("spans")
    seen.append(derived(service, "spans", "acme"))
    lake.derive("spans")
    seen.append(derived(service, "spans", "acme"))
    assert [rows for rows, _ in seen] == [[["web", 3]]] * 3
    assert [told.stats.tail_rows for _, told in seen] == [3, 3, 0]


def test_every_derived_table_has_the_rows_of_the_tail_as_if_they_were_derived(
    lake: FreshLake, service: Service
) -> None:
    for signal in SIGNALS:
        lake.send(signal, "acme", 4)
        lake.send(signal, "acme", 3, stream=1, age_days=2)
    queries = {spec.name: f"SELECT * FROM {spec.name} ORDER BY ALL" for spec in derived_specs()}
    fresh = {name: service.execute(sql).rows for name, sql in queries.items()}
    for signal in SIGNALS:
        lake.land_all(signal)
        lake.derive(signal)
    for name, sql in queries.items():
        told = service.execute(sql)
        assert told.stats.tail_rows == 0
        assert fresh[name] == told.rows, name
        assert told.rows, name


def test_a_tenant_sees_only_its_own_fresh_rows(lake: FreshLake, service: Service) -> None:
    lake.send("spans", "acme", 3)
    assert derived(service, "spans", "globex")[0] == []


def test_rows_that_the_wal_has_no_longer_are_said_to_be_missing(lake: FreshLake, service: Service) -> None:
    lake.send("spans", "acme", 2)
    lake.land_all("spans")
    lake.derive("spans")
    lake.send("spans", "acme", 3)
    lake.land_all("spans")
    lake.clean("spans")
    rows, told = derived(service, "spans", "acme")
    assert rows == [["web", 2]]
    assert "span_metrics" in told.stats.missing[0]
    assert "derivation is late" in told.stats.missing[0]
    lake.derive("spans")
    rows, told = derived(service, "spans", "acme")
    assert sum(count for _, count in rows) == 5
    assert not told.stats.missing


def test_past_days_that_are_still_to_be_derived_are_said_to_be_missing_where_they_are_read(
    tmp_path: Path,
) -> None:
    with contextlib.closing(FreshLake(tmp_path, derive={"batch_bytes_max": "1MiB"})) as lake:
        for days in (0, 2, 3):
            lake.send("spans", "acme", 2, age_days=days)
        lake.land_all("spans")
        derive = lake.config.derive.model_copy(update={"batch_bytes_max": 1})
        lake.config = lake.config.model_copy(update={"derive": derive})
        deriver = lake.restart("spans")
        assert deriver.round() == "more"
        while deriver.round() == "more":
            pass
        assert deriver.day(), "the newest day"
        count = "SELECT sum(calls) FROM span_metrics WHERE resolution = 86400"
        today = int(lake.now) // DAY * DAY
        with serving(lake.config) as service:
            told = service.execute(count)
            assert "rows of 2 past days of span_metrics are still to be derived" in told.stats.missing[0]
            told = service.execute(f"{count} AND time >= to_timestamp({today})")
            assert (told.rows, list(told.stats.missing)) == ([[2]], [])
            while deriver.day():
                pass
            told = service.execute(count)
            assert (told.rows, list(told.stats.missing)) == ([[6]], [])


def test_calls_whose_sides_are_sent_and_derived_apart_count_once_at_every_moment(
    lake: FreshLake, service: Service
) -> None:
    raw_calls = (
        "SELECT c.service_name, s.service_name, count(*) FROM spans c JOIN spans s "
        "ON c.trace_id = s.trace_id AND c.span_id = s.parent_span_id GROUP BY ALL"
    )
    edges = (
        "SELECT caller, callee, sum(calls) FROM service_edges "
        "WHERE resolution = {} AND connection = 'service' GROUP BY ALL"
    )
    chance = random.Random(5)
    for number in range(10):
        client, server = lake.sides(number)
        sides = [("acme", client), ("acme", server)]
        chance.shuffle(sides)
        for stream, (tenant, body) in enumerate(sides):
            lake.send_body("spans", tenant, body, 1, stream=stream)
            for work in chance.sample([lake.land_all, lake.derive, lake.clean_derived], 2):
                work("spans")
            resolution = chance.choice([60, 300, 3600, 86_400])
            found, expected = service.execute(edges.format(resolution)), service.execute(raw_calls)
            assert not found.stats.missing
            assert sorted(found.rows) == sorted(expected.rows), (number, resolution)
    assert sum(row[2] for row in expected.rows) == 10


def test_planning_that_takes_long_does_not_say_that_the_catalog_is_away(
    lake: FreshLake, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.send("spans", "acme", 3)
    lake.land_all("spans")
    monkeypatch.setattr(service.queries._planner, "_safe_seconds", -1.0)
    rows, told = derived(service, "spans", "acme")
    assert (rows, list(told.stats.missing)) == ([["web", 3]], [])


def test_a_result_with_unmatched_calls_is_cached_for_seconds_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without a server becomes a call to a virtual node without a change of any table."""
    with contextlib.closing(FreshLake(tmp_path, query=CACHING | {"temp_dir": tmp_path / "temp"})) as lake:
        lake.send("spans", "acme", 3)
        with serving(lake.config) as service:
            cached = []
            for seconds in (1e9, 1e9, 1e-6, 1e-6):
                monkeypatch.setattr(plan, "_UNMATCHED_CACHED_SECONDS", seconds)
                edges, spans = (
                    service.execute(f"SELECT sum(calls) FROM {name} WHERE resolution = 3600")
                    for name in ("service_edges", "span_metrics")
                )
                cached.append((edges.stats.cached, spans.stats.cached))
    assert cached == [(False, False), (True, True), (False, True), (False, True)]


def test_a_stream_that_has_ended_with_rows_not_derived_is_said_to_be_missing(
    lake: FreshLake, service: Service
) -> None:
    """As when its segments were deleted and it left the position of the source."""
    lake.send("spans", "acme", 2)
    lake.land_all("spans")
    lake.derive("spans")
    planner = service.queries._planner
    source = planner._lake.lookup("spans")
    assert source.version is not None
    behind = source.position
    lake.send("spans", "acme", 3)
    lake.land_all("spans")
    ended = planner._lake.lookup("spans").position.without_streams({STREAMS[0]})
    tail = service.queries._tail
    assert tail is not None
    from frazil.query.tail import PositionTooOld

    spec = table_specs()["span_metrics"]
    with pytest.raises(PositionTooOld):
        tail.derived_cut(spec, behind, ended, "acme")
    all_read = behind.without_streams({STREAMS[0]})
    tail.derived_cut(spec, behind, all_read, "acme").release()


def test_an_earlier_version_and_a_disabled_table_have_no_fresh_rows(tmp_path: Path) -> None:
    settings = {"derive": {"disabled_tables": ["span_metrics"]}}
    with contextlib.closing(FreshLake(tmp_path)) as lake:
        lake.send("spans", "acme", 2)
        lake.land_all("spans")
        lake.derive("spans")
        lake.send("spans", "acme", 3)
        with serving(lake.config) as service:
            snapshot = lake.table("span_metrics").current_snapshot().snapshot_id
            sql = COUNTED["spans"].format(60)
            assert service.execute(sql, as_of=AsOf(snapshot_id=snapshot)).rows == [["web", 2]]
            assert sum(row[1] for row in service.execute(sql).rows) == 5
        disabled = type(lake.config).model_validate({**lake.config.model_dump(), **settings})
        with serving(disabled) as service:
            told = service.execute(sql)
            assert (told.rows, list(told.stats.missing)) == ([["web", 2]], [])


@pytest.mark.parametrize("resolution", [60, 300, 3600, 86_400])
def test_a_bucket_that_a_condition_on_time_selects_has_all_fresh_rows(
    lake: FreshLake, service: Service, resolution: int
) -> None:
    lake.send("metrics", "acme", 3)
    lake.send("metrics", "acme", 3, age_days=40)
    bucket = int(lake.now) // resolution * resolution
    for condition in (
        f"time <= to_timestamp({bucket})",
        f"time = to_timestamp({bucket})",
        f"time BETWEEN to_timestamp({bucket}) AND to_timestamp({bucket})",
    ):
        sql = f"SELECT sum(points) FROM metric_rollups WHERE resolution = {resolution} AND {condition}"
        assert service.execute(sql).rows == [[6 if "<=" in condition else 3]]
    day = int(lake.now) // DAY * DAY
    assert service.execute(f"SELECT count(*) FROM series WHERE time = to_timestamp({day})").rows == [[3]]


def test_rows_are_derived_once_for_many_queries_and_again_only_where_they_are_new(
    lake: FreshLake, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived_rows: list[int] = []
    real = PartialRowsMaker._derived

    def counted(self: PartialRowsMaker, spec: Any, rows: Any) -> Any:
        derived_rows.append(sum(table.num_rows for _, table in rows))
        return real(self, spec, rows)

    monkeypatch.setattr(PartialRowsMaker, "_derived", counted)
    lake.send("spans", "acme", 100)
    for _ in range(3):
        derived(service, "spans", "acme")
    assert derived_rows == [100]
    lake.send("spans", "acme", 2)
    derived(service, "spans", "acme")
    assert derived_rows == [100, 2]


def test_erased_rows_leave_the_partial_rows_that_queries_keep(
    tmp_path: Path, lake: FreshLake, service: Service
) -> None:
    marker = "zanzibar"
    lake.write([("acme", f"u42 {marker} opened", 9, 0.0), ("acme", "u1 stays here", 9, 0.0)])
    sql = "SELECT sum(records) FROM log_patterns WHERE resolution = 60"
    assert service.execute(sql).rows == [[2]]
    service.execute("SELECT * FROM log_patterns")
    assert holding(tmp_path / "temp", marker) != []
    lake.erase("attributes['user.id'] = 'u42'")
    service.queries._refresh()
    assert holding(tmp_path / "temp", marker) == []
    told = service.execute("SELECT * FROM log_patterns")
    assert marker not in told.body.decode()
    assert service.execute("SELECT sum(records) FROM log_rollups WHERE resolution = 60").rows == [[1]]


def test_partial_rows_are_counted_in_the_room_of_the_tail_and_deleted_with_it(
    lake: FreshLake, service: Service
) -> None:
    lake.send("spans", "acme", 50)
    derived(service, "spans", "acme")
    tail = service.queries._tail
    assert tail is not None
    files = list((service.folder / "tail").iterdir())
    assert len(files) == 2
    assert tail.bytes == sum(file.stat().st_size for file in files)
    for view in list(tail._views()):
        view.forget()
    assert list((service.folder / "tail").iterdir()) == []


def test_a_function_that_fails_leaves_its_rows_out_and_says_so(
    lake: FreshLake, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.send("spans", "acme", 2)
    specs = service.queries._planner.specs
    spec = specs["span_metrics"]
    assert spec.derived is not None

    def broken(rows: Any) -> Any:
        raise ValueError("no such column")

    monkeypatch.setitem(
        specs,
        "span_metrics",
        dataclasses.replace(spec, derived=dataclasses.replace(spec.derived, derive=broken)),
    )
    rows, told = derived(service, "spans", "acme")
    assert rows == []
    assert "span_metrics" in told.stats.missing[0]
    assert service.execute("SELECT count(*) FROM traces").rows == [[1]]
