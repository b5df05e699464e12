"""The layout of the map: layers from callers to callees, without overlaps, the same for the same graph."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.dashboard.services.graph import CALLS_MAX, NODES_MAX, Node
from frazil.dashboard.services.layout import NODE_HEIGHT, NODE_WIDTH, Ends, Layout, layout

GAP = 60.0


def node(name: str) -> Node:
    return Node("service", name)


def ends(*calls: str) -> list[Ends]:
    return [(node(call[0]), node(call[1])) for call in calls]


def placed(*calls: str) -> Layout:
    found = ends(*calls)
    return layout([each for pair in found for each in pair], found, GAP)


def columns(found: Layout) -> dict[str, int]:
    lefts = sorted({x for x, _ in found.centres.values()})
    return {node.name: lefts.index(x) for node, (x, _) in found.centres.items()}


def test_a_callee_is_right_of_all_its_callers() -> None:
    assert columns(placed("ab", "bc", "ac", "cd")) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_calls_that_close_a_cycle_go_back() -> None:
    found = placed("ab", "bc", "ca")
    assert columns(found) == {"a": 0, "b": 1, "c": 2}
    back = found.lines[node("c"), node("a")]
    assert back[0][0] > back[-1][0]


def test_a_service_that_calls_itself_has_no_line() -> None:
    found = placed("aa", "ab")
    assert list(found.lines) == ends("ab")


def test_a_call_over_several_layers_passes_beside_the_nodes_between() -> None:
    found = placed("ab", "bc", "ac")
    _, (x, y), _ = found.lines[node("a"), node("c")]
    assert x == found.centres[node("b")][0]
    assert abs(y - found.centres[node("b")][1]) > NODE_HEIGHT / 2


def test_nothing_has_no_size() -> None:
    assert layout([], [], GAP) == Layout(0, 0, {}, {})


def test_lines_do_not_cross_where_they_need_not() -> None:
    """In the order of names, each of them would cross another one."""
    found = placed("ax", "aw", "bv", "bu")
    heights = {node.name: y for node, (_, y) in found.centres.items()}
    assert (heights["a"] < heights["b"]) == (max(heights[n] for n in "xw") < min(heights[n] for n in "vu"))


graphs = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(pairs=graphs, seed=st.integers(0, 99))
def test_any_graph_is_laid_out_without_overlaps_and_whatever_the_order_of_its_calls(
    pairs: list[tuple[int, int]], seed: int
) -> None:
    calls = [(node(f"s{a}"), node(f"s{b}")) for a, b in pairs]
    nodes = [each for pair in calls for each in pair]
    found = layout(nodes, calls, GAP)
    shuffled = random.Random(seed).sample(calls, len(calls))
    assert layout(nodes[::-1], shuffled, GAP) == found
    places = list(found.centres.values())
    for at, (x, y) in enumerate(places):
        assert NODE_WIDTH / 2 <= x <= found.width - NODE_WIDTH / 2
        assert NODE_HEIGHT / 2 <= y <= found.height - NODE_HEIGHT / 2 + 1e-6
        for other_x, other_y in places[at + 1 :]:
            assert abs(x - other_x) >= NODE_WIDTH or abs(y - other_y) >= NODE_HEIGHT
    assert set(found.lines) == {pair for pair in calls if pair[0] != pair[1]}
    for (caller, callee), line in found.lines.items():
        assert line[0][1] == found.centres[caller][1]
        assert line[-1][1] == found.centres[callee][1]


def test_the_largest_graph_that_is_drawn_ends() -> None:
    chosen = random.Random(1)
    nodes = [node(f"s{number:02}") for number in range(NODES_MAX)]
    calls = [(chosen.choice(nodes), chosen.choice(nodes)) for _ in range(CALLS_MAX)]
    assert len(layout(nodes, calls, GAP).centres) == NODES_MAX
