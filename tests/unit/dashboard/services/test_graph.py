"""The graph of calls: which nodes there are, and what is drawn of it."""

from __future__ import annotations

import pytest

from frazil.dashboard.services.graph import (
    CALLS_MAX,
    NODES_MAX,
    CallGraph,
    Load,
    Node,
    around,
    call_graph,
    drawn,
    matching,
)
from frazil.query.reads.edges import Edge
from frazil.query.reads.services import Figures


def edge(caller: str, callee: str, connection: str = "service", **given: object) -> Edge:
    facts = {"protocol": "grpc", "calls": 100, "errors": 0, "p50_ms": 1.0, "p99_ms": 2.0} | given
    return Edge(caller, callee, connection, **facts)  # type: ignore[arg-type]


def graph(*edges: Edge, **services: Figures) -> CallGraph:
    return call_graph(edges, 10.0, services, 100.0)


def service(name: str) -> Node:
    return Node("service", name)


def test_the_load_of_a_service_is_its_requests_and_of_other_nodes_the_calls_to_them() -> None:
    found = graph(
        edge("shop", "cart", errors=5),
        edge("cart", "redis", "database", calls=40, errors=2, p99_ms=7.0),
        edge("shop", "redis", "database", calls=60, errors=0, p99_ms=9.0),
        cart=Figures(500, 50, 3.0, 4.0, 5.0),
    )
    assert found.nodes == {
        Node("database", "redis"): Load(10.0, 0.02, 1.0, 9.0),
        service("cart"): Load(5.0, 0.1, 3.0, 5.0),
        service("shop"): None,  # nothing calls it, and its requests were not read
    }


def test_calls_of_several_protocols_are_one_call() -> None:
    found = graph(
        edge("shop", "cart", protocol="http", calls=300, errors=4), edge("shop", "cart", p99_ms=8.0)
    )
    (call,) = found.calls
    assert (call.protocols, call.calls, call.load) == (["grpc", "http"], 400, Load(40.0, 0.01, 1.0, 8.0))


def test_messages_go_to_the_service_that_reads_them_if_it_is_known_and_to_their_queue_otherwise() -> None:
    found = graph(
        edge("shop", "mail", "messaging"),
        edge("shop", "orders", "messaging"),
        edge("mail", "smtp", "external"),
        edge("shop", "audit", "messaging", is_read_by_service=True),
    )
    assert set(found.nodes) == {
        service("shop"),
        service("audit"),
        service("mail"),
        Node("messaging", "orders"),
        Node("external", "smtp"),
    }


def test_a_database_and_a_service_of_one_name_are_two_nodes() -> None:
    assert len(graph(edge("shop", "cart"), edge("shop", "cart", "database")).nodes) == 3


def test_around_a_node_are_its_calls_or_those_of_one_caller() -> None:
    found = graph(edge("shop", "cart"), edge("cart", "redis", "database"), edge("shop", "mail"))
    ends = [(call.caller.name, call.callee.name) for call in around(found, service("cart")).calls]
    assert sorted(ends) == [("cart", "redis"), ("shop", "cart")]
    (only,) = around(found, service("cart"), caller="shop").calls
    assert only.callee == service("cart")
    assert list(around(found, service("mail"), caller="cart").nodes) == []


def test_a_search_finds_nodes_by_part_of_their_name_with_their_neighbours() -> None:
    found = graph(edge("shop", "Cart"), edge("Cart", "redis", "database"), edge("job", "mail"))
    assert {node.name for node in matching(found, "car").nodes} == {"shop", "Cart", "redis"}
    assert matching(found, "") is found
    assert not matching(found, "nothing").nodes


def test_of_too_many_nodes_the_busiest_are_drawn_and_the_others_counted() -> None:
    found = graph(*(edge("hub", f"s{number:03}", calls=1000 - number) for number in range(100)))
    shown = drawn(found)
    assert len(shown.nodes) == NODES_MAX
    assert (shown.nodes_left_out, shown.calls_left_out) == (101 - NODES_MAX, 101 - NODES_MAX)
    assert service("s000") in shown.nodes
    assert service("s099") not in shown.nodes
    assert service("s099") in drawn(found, kept=[service("s099")]).nodes


def test_of_too_many_calls_those_with_the_most_are_drawn() -> None:
    names = [f"s{number:02}" for number in range(20)]
    found = graph(
        *(edge(a, b, calls=100 + at) for at, (a, b) in enumerate((a, b) for a in names for b in names))
    )
    shown = drawn(found)
    assert len(shown.calls) == CALLS_MAX
    assert shown.calls_left_out == 400 - CALLS_MAX
    assert min(call.calls for call in shown.calls) == 100 + 400 - CALLS_MAX


@pytest.mark.parametrize(("share", "level"), [(0.0, "ok"), (0.0099, "ok"), (0.01, "warn"), (0.05, "bad")])
def test_a_level_says_how_many_calls_fail(share: float, level: str) -> None:
    assert Load(1.0, share).level == level
