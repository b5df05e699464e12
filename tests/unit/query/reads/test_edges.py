"""Edges of the service graph in a time range: run in DuckDB over rows that are derived from spans."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.query.reads import edges
from frazil.query.reads.edges import Edge, ServiceGraph, edges_range, service_edges, service_graph
from frazil.query.reads.time_range import MICRO, TimeRange
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, spans

MS, SECOND = 10**6, 10**9
SERVER, CLIENT = 2, 3
ERROR = {"code": 2}
MINUTE, HOUR, DAY = 60, 3600, 86_400
NOW = (BEGIN + HOUR) * MICRO


@pytest.fixture
def engine() -> Engine:
    return Engine()


def call(
    engine: Engine,
    id: int,
    caller: str,
    callee: str | None,
    *,
    took: int = MS,
    seconds: int = 0,
    **client: Any,
) -> None:
    """A call; without a callee only the caller's span, whose attributes name what is called."""
    trace, own = id.to_bytes(16), id.to_bytes(8)
    sent = {"trace_id": trace, "span_id": own, "kind": CLIENT, "took": took, "nanos": seconds * SECOND}
    engine.add("spans", spans(sent | client, service=caller))
    if callee is not None:
        answered = {"trace_id": trace, "span_id": (id + 2**32).to_bytes(8), "parent_span_id": own}
        answered |= {"kind": SERVER, "nanos": seconds * SECOND}
        engine.add("spans", spans(answered, service=callee))


def graph(engine: Engine, length: int, service: str | None = None) -> ServiceGraph:
    range = TimeRange((BEGIN - length) * MICRO, (BEGIN + 60) * MICRO)
    return service_graph(engine.records(service_edges(range, NOW, service)))


def test_an_edge_counts_calls_and_errors_and_measures_what_the_caller_saw(engine: Engine) -> None:
    for id in range(1, 4):
        call(engine, id, "shop", "cart", took=id * 10 * MS, status=ERROR if id == 1 else {})
    (edge,) = graph(engine, HOUR).edges
    assert (edge.caller, edge.callee, edge.connection) == ("shop", "cart", "service")
    assert (edge.calls, edge.errors, edge.error_share) == (3, 1, pytest.approx(1 / 3))
    assert edge.p50_ms == pytest.approx(20, rel=0.02)
    assert edge.p99_ms == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize("length", [5 * MINUTE, 3 * HOUR, DAY, 7 * DAY, 30 * DAY])
def test_calls_without_an_answer_go_to_a_virtual_node_at_each_resolution(length: int, engine: Engine) -> None:
    """Those of hours and days are made of halves, too."""
    call(engine, 1, "shop", "cart")
    call(engine, 2, "shop", None, attributes={"server.address": "api.pay.example"})
    call(engine, 3, "cart", None, attributes={"db.system.name": "redis", "db.namespace": "0"})
    found = {(edge.callee, edge.connection): edge.calls for edge in graph(engine, length).edges}
    assert found == {("cart", "service"): 1, ("api.pay.example", "external"): 1, ("redis/0", "database"): 1}


def test_calls_outside_the_range_are_not_counted(engine: Engine) -> None:
    for id, seconds in ((1, 0), (2, -2 * HOUR), (3, 2 * MINUTE)):
        call(engine, id, "shop", "cart", seconds=seconds)
    assert [edge.calls for edge in graph(engine, HOUR).edges] == [1]


def test_edges_of_a_service_come_before_busier_ones(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for id, (caller, callee) in enumerate(
        [
            ("shop", "cart"),
            ("shop", "cart"),
            ("shop", "cart"),
            ("cart", "mail"),
            ("job", "mail"),
            ("job", "mail"),
        ],
        1,
    ):
        call(engine, id, caller, callee)
    monkeypatch.setattr(edges, "EDGES_MAX", 2)
    everything, of_mail = graph(engine, HOUR), graph(engine, HOUR, "mail")
    assert [(edge.caller, edge.callee) for edge in everything.edges] == [("shop", "cart"), ("job", "mail")]
    assert [(edge.caller, edge.callee) for edge in of_mail.edges] == [("job", "mail"), ("cart", "mail")]
    assert (everything.left_out, of_mail.left_out) == (1, 1)


def test_messages_say_whether_a_service_reads_them(engine: Engine) -> None:
    for id, queue in ((1, "mail"), (2, "orders")):
        sent = {"messaging.system": "kafka", "messaging.destination.name": queue}
        call(engine, id, "shop", None, attributes=sent, kind=4)
    engine.add("spans", spans({"trace_id": b"\7" * 16, "kind": 5}, service="mail"))
    found = {edge.callee: (edge.connection, edge.is_read_by_service) for edge in graph(engine, HOUR).edges}
    assert found == {"mail": ("messaging", True), "orders": ("messaging", False)}


def test_nothing_found_is_an_empty_graph(engine: Engine) -> None:
    assert graph(engine, HOUR) == ServiceGraph([], 0)


def test_a_share_of_no_calls_is_zero() -> None:
    assert Edge("a", "b", "service", None, 0, 0).error_share == 0


@pytest.mark.parametrize(
    ("length", "finest"), [(5 * MINUTE, 60), (12 * HOUR, 300), (DAY, 3600), (30 * DAY, 3600)]
)
def test_a_longer_range_is_read_in_coarser_buckets(length: int, finest: int) -> None:
    range = TimeRange(NOW - length * MICRO, NOW)
    whole, resolutions = edges_range(range, NOW)
    assert resolutions[0] == finest
    assert whole.begin % (finest * MICRO) == 0
    assert whole.begin <= range.begin
    assert whole.end == range.end
