"""What the map and the list of services are given to draw."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.dashboard.parts.services import (
    ListedService,
    format_share,
    list_data,
    map_data,
    picked_node,
)
from frazil.dashboard.services.graph import Load, Node, call_graph
from frazil.dashboard.services.layout import layout
from frazil.dashboard.theme import service_colours
from frazil.query.reads.edges import Edge
from frazil.query.reads.services import Figures

CART, REDIS, SHOP = Node("service", "cart"), Node("database", "redis"), Node("service", "shop")


def drawn(chosen: Node | None = None, range_: str | None = "24h") -> dict[str, Any]:
    edges = [
        Edge("shop", "cart", "service", "grpc", 120, 12, 5.0, 9.0),
        Edge("cart", "redis", "database", None, 60, 0, 1.0, 2.0),
    ]
    graph = call_graph(edges, 60.0, {"cart": Figures(120, 6, 4.0, 6.0, 8.0)}, 60.0)
    placed = layout(list(graph.nodes), [(call.caller, call.callee) for call in graph.calls], 60)
    return map_data(graph, placed, chosen=chosen, range_=range_)


def test_a_node_has_its_rate_latency_and_errors_and_the_address_of_its_page() -> None:
    nodes = {(node["kind"], node["name"]): node for node in drawn(CART)["nodes"]}
    cart = nodes["service", "cart"]
    assert (cart["figures"], cart["failed"], cart["level"]) == ("2/s · 8.0 ms", "5.0%", "bad")
    assert cart["colour"] == service_colours(["cart"])["cart"]
    assert cart["chosen"]
    assert cart["address"] == "services?service=cart&range=24h"
    assert cart["title"] == "cart (service): 2/s, 5.0% failed, p50 4.0 ms, p99 8.0 ms"
    assert nodes["database", "redis"]["address"] is None
    assert (nodes["service", "shop"]["figures"], nodes["service", "shop"]["title"]) == (
        "",
        "shop (service): only calls others",
    )


def test_a_call_has_its_ends_its_figures_and_a_width_by_its_number() -> None:
    found = drawn()
    names = [node["name"] for node in found["nodes"]]
    first, second = found["calls"]
    assert [names[end] for end in first["ends"]] == ["shop", "cart"]
    assert first["title"] == "shop → cart (grpc): 2/s, 10.0% failed, p50 5.0 ms, p99 9.0 ms"
    assert first["level"] == "bad"
    assert (second["failed"], second["level"]) == ("", "ok")
    assert first["pixels"] > second["pixels"] > 0
    assert found["labelled"]


@pytest.mark.parametrize("range_", [None, ""])
def test_the_default_range_is_not_in_an_address(range_: str | None) -> None:
    assert {node["address"] for node in drawn(range_=range_)["nodes"]} == {
        "services?service=cart",
        "services?service=shop",
        None,
    }


def test_a_hostile_name_is_quoted_in_the_address_and_text_everywhere_else() -> None:
    name = '"><img src=x>&range=9d'
    row = list_data([ListedService(name, Load(1.0, 0.5), [], "1.0", "", "now")], None)[0]
    assert row["name"] == name
    assert row["address"] == "services?service=%22%3E%3Cimg+src%3Dx%3E%26range%3D9d"


def test_a_row_has_what_is_shown_and_what_rows_are_sorted_by() -> None:
    listed = ListedService(
        "cart", Load(0.5, 0.0123, None, 8.0), [1, 2], "1.2", "since", "now", can_open=False
    )
    (row,) = list_data([listed], "1h")
    assert row["rate"] == ["30/min", 0.5]
    assert row["failed"] == ["1.2%", 0.0123]
    assert (row["p50"], row["p99"]) == (["–", None], ["8.0 ms", 8.0])
    assert row["address"] is None


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0, "0%"), (0.0001, "<0.1%"), (0.001, "0.1%"), (0.5, "50.0%"), (1.0, "100.0%")]
)
def test_a_few_failures_are_not_shown_as_none(share: float, shown: str) -> None:
    assert format_share(share) == shown


@pytest.mark.parametrize(
    "given", [{}, {"kind": "service"}, {"kind": 1, "name": "a"}, {"kind": "a", "name": None}]
)
def test_what_is_no_node_is_not_read_as_one(given: dict[str, Any]) -> None:
    assert picked_node(given) is None
    assert picked_node({"kind": "database", "name": "redis"}) == REDIS
