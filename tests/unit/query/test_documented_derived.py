"""SQL of the documentation that reads derived tables runs as it is printed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.tables import derived_specs
from tests.support.calls import DAY, HOUR, SERVER, Span, expected_edges, hex16
from tests.support.integration.documented import block
from tests.support.query.small_lake import serving
from tests.support.random_telemetry import RandomLake, spans_request
from tests.support.view_lake import ViewLake

EDGES = "service_edges"
METRICS = {
    "'http.server.requests'": "'total.1'",
    "'http.server.request.duration'": "'seconds'",
    "attributes['http.route']": "metric_name",
    "INTERVAL 1 DAY": "INTERVAL 7 DAY",
    "INTERVAL 2 DAY": "INTERVAL 8 DAY",
}
"""What the documentation says, and what the lake has instead."""


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RandomLake]:
    with contextlib.closing(RandomLake(tmp_path_factory.mktemp("lake"), seed=5)) as made:
        for _ in range(8):
            made.make()
        made.land_some(lambda item: item.signal == "metrics")
        made.derive("metrics")
        yield made


@pytest.mark.parametrize(
    ("begins", "statements"),
    [("SELECT time, service_name, sum(rate)", 1), ("-- The 99th percentile of a histogram", 2)],
)
def test_queries_of_metric_steps_have_rows_with_numbers(
    metrics: RandomLake, begins: str, statements: int
) -> None:
    text = block("docs/querying.md", begins).text
    for written, here in METRICS.items():
        text = text.replace(written, here)
    queries = [each.query for each in duckdb.extract_statements(text)]
    assert len(queries) == statements
    with serving(metrics.config) as service:
        for query in queries:
            found = service.execute(query).rows
            assert any(isinstance(row[-1], float) for row in found), query


def test_the_view_of_the_page_is_derived_and_queried(tmp_path: Path) -> None:
    view = block("docs/views.md", "-- views/checkout_by_region.sql").text
    others = [spec.name for spec in derived_specs("spans")]
    with contextlib.closing(
        ViewLake(tmp_path, {"checkout_by_region": view}, derive={"disabled_tables": others})
    ) as lake:
        for region, codes in (("eu", [0, 2, 2, 2]), ("us", [0, 0])):
            spans = [
                Span(hex16(number), kind=SERVER, at=lake.now - 60, status_code=code)
                for number, code in enumerate(codes, 1)
            ]
            request = ExportTraceServiceRequest.FromString(spans_request(spans))
            for batch in request.resource_spans:
                batch.resource.attributes.add(key="cloud.region").value.string_value = region
            lake.land_requests("spans", [("acme", request.SerializeToString())])
            lake.derive("spans")
        with serving(lake.config) as service:
            found = service.execute(block("docs/views.md", "SELECT region").text).rows
    assert sorted(found) == [["eu", 0.75], ["us", 0.0]]


def test_settled_days_of_the_service_graph_need_no_view(tmp_path: Path) -> None:
    with contextlib.closing(RandomLake(tmp_path, seed=1)) as lake:
        lake.now += 9 * HOUR  # noon
        clients = [
            Span(hex16(number), at=lake.now - number, attributes={"server_address": "pay.example.com"})
            for number in range(1, 9)
        ]
        servers = [
            Span(
                hex16(100 + number), hex16(number), SERVER, "cart", lake.now - number, status_code=number % 3
            )
            for number in range(1, 6)
        ]
        for side in (clients, servers):
            for span in side:
                lake.add_span(span)
            lake.land_some(lambda item: item.signal == "spans")
            lake.derive("spans")
        lake.now += 4 * DAY
        lake.merge_files(EDGES)
        calls: Counter[Any] = Counter()
        errors: Counter[Any] = Counter()
        for key, row in expected_edges(lake.spans, lake.now).items():
            if key[1] == DAY:
                calls[key[2:4]] += row[0]
                errors[key[2:4]] += row[1]
        assert calls == {("web", "cart"): 5, ("web", "pay.example.com"): 3}
        printed = block("docs/engines.md", "-- DuckDB, Spark and Trino (with their table names)\n").text
        with duckdb.connect() as engine:
            engine.register("stored", lake.table(EDGES).scan().to_arrow())
            found = engine.execute(printed.replace(f"frazil.otel.{EDGES}", "stored")).fetchall()
        assert sorted(found) == sorted((*edge, number, errors[edge]) for edge, number in calls.items())
