from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from frazil.dashboard.traces.critical_path import Share, critical_path, shares
from frazil.dashboard.traces.read import CLIENT, CONSUMER, SERVER, SpanRecord, read_trace
from frazil.dashboard.traces.tree import Tree, build_tree
from tests.unit.dashboard.traces.test_tree import span

HERE, THERE = (
    {"attributes": [{"key": "host.name", "value": {"stringValue": host}}]} for host in ("here", "there")
)


def path(spans: list[SpanRecord], root: int = 0) -> list[tuple[str, int, int]]:
    tree = build_tree(spans)
    return [(tree.spans[part.index].id, part.start_nano, part.end_nano) for part in critical_path(tree, root)]


def recorded(name: str) -> tuple[Tree, dict[str, float]]:
    """A trace as an instrumentation sends it, and the milliseconds of each operation on its critical path."""
    answer = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    tree = build_tree(read_trace("t", answer).spans)
    assert tree.main is not None
    found = critical_path(tree, tree.main)
    root = tree.spans[tree.main]
    assert (found[0].start_nano, found[-1].end_nano) == (root.start_nano, root.end_nano)
    assert all(before.end_nano == after.start_nano for before, after in pairwise(found))
    return tree, {share.name: share.nano / 1e6 for share in shares(tree, found)}


def async_spans(tree: Tree) -> set[str]:
    return {tree.spans[place].name for place in tree.async_spans}


def test_middleware_of_express_that_ends_after_its_root_is_on_the_path_with_all_below_it() -> None:
    tree, milliseconds = recorded("express")
    assert milliseconds == {
        "GET /stock/{sku}": 4.7,
        "pg.query:SELECT shop": 3.77,
        "request handler - /orders/:id": 1.45,
        "GET": 1.28,
        "GET /orders/:id": 0.29,
        "middleware - requestLogger": 0.24,
        "middleware - expressInit": 0.04,
        "middleware - query": 0.03,
    }
    assert async_spans(tree) == {"middleware - requestLogger"}


def test_the_last_send_of_fastapi_counts_until_the_root_ends() -> None:
    tree, milliseconds = recorded("fastapi")
    assert milliseconds == {"SELECT": 2.88, "GET /stock/{sku}": 2.78, "GET /stock/{sku} http send": 0.44}
    assert async_spans(tree) == {"GET /stock/{sku} http send"}


def test_a_consumer_that_starts_after_its_producer_ended_is_asynchronous_and_not_on_the_path() -> None:
    tree, milliseconds = recorded("messaging")
    assert milliseconds == {"POST /checkout": 38.3, "orders publish": 3.7}
    assert async_spans(tree) == {"orders process"}


def test_a_server_whose_clock_is_ahead_is_on_the_path_for_as_long_as_it_took() -> None:
    tree, milliseconds = recorded("skewed")
    # 12 of the client's 20 ms, of which 8 are the database's; what is left is the network's.
    assert milliseconds == {"GET /cart": 10, "SELECT": 8, "GET": 8, "GET /stock/{sku}": 4}
    assert async_spans(tree) == set()
    [(place, notes)] = tree.notes.items()
    assert (tree.spans[place].name, notes) == (
        "GET /stock/{sku}",
        ["is outside its parent's time by 35 ms: their clocks differ"],
    )


def test_a_span_alone_is_its_own_critical_path() -> None:
    assert path([span("a", "", 5, 25)]) == [("a", 5, 25)]


def test_children_one_after_the_other_are_all_on_the_path_and_the_parent_between_them() -> None:
    spans = [span("a", "", 0, 100), span("b", "a", 10, 40), span("c", "a", 50, 90)]
    assert path(spans) == [("a", 0, 10), ("b", 10, 40), ("a", 40, 50), ("c", 50, 90), ("a", 90, 100)]


def test_of_parallel_children_the_one_that_ended_last_is_waited_for() -> None:
    spans = [span("a", "", 0, 100), span("b", "a", 10, 60), span("c", "a", 12, 90), span("d", "a", 14, 70)]
    assert path(spans) == [("a", 0, 12), ("c", 12, 90), ("a", 90, 100)]


def test_a_child_that_was_still_running_is_not_what_the_next_one_waited_for() -> None:
    spans = [span("a", "", 0, 100), span("b", "a", 5, 20), span("c", "a", 10, 55), span("d", "a", 50, 100)]
    assert path(spans) == [("a", 0, 5), ("b", 5, 20), ("a", 20, 50), ("d", 50, 100)]


def test_the_path_goes_down_to_the_span_at_work() -> None:
    spans = [span("a", "", 0, 100), span("b", "a", 10, 90), span("c", "b", 20, 80), span("d", "c", 20, 50)]
    assert path(spans) == [
        ("a", 0, 10), ("b", 10, 20), ("d", 20, 50), ("c", 50, 80), ("b", 80, 90), ("a", 90, 100),
    ]  # fmt: skip


def test_a_child_that_goes_on_after_its_parent_counts_until_its_parent_ends() -> None:
    spans = [span("a", "", 0, 100, resource=HERE), span("b", "a", 10, 101, resource=dict(HERE))]
    assert path(spans) == [("a", 0, 10), ("b", 10, 100)]
    assert build_tree(spans).async_spans == {1: 100}


def test_of_what_goes_on_below_a_child_that_is_cut_only_the_part_before_the_cut_counts() -> None:
    spans = [
        span("a", "", 0, 100),
        span("b", "a", 10, 150),
        span("c", "b", 20, 140),
        span("d", "b", 110, 130),
    ]
    assert path(spans) == [("a", 0, 10), ("b", 10, 20), ("c", 20, 100)]


def test_a_call_between_clocks_is_moved_into_its_client_also_where_it_overlaps() -> None:
    spans = [
        span("a", "", 0, 100, resource=HERE, kind=CLIENT),
        span("b", "a", 60, 140, resource=THERE, kind=SERVER),
        span("c", "b", 70, 90, resource=THERE),
    ]
    assert path(spans) == [("a", 0, 10), ("b", 10, 20), ("c", 20, 40), ("b", 40, 90), ("a", 90, 100)]


def test_a_call_that_lasts_longer_than_its_client_is_cut_and_one_outside_it_starts_with_it() -> None:
    client = span("a", "", 0, 100, resource=HERE, kind=CLIENT)
    assert path([client, span("b", "a", 60, 180, resource=THERE, kind=SERVER)]) == [
        ("a", 0, 60),
        ("b", 60, 100),
    ]
    assert path([client, span("b", "a", 300, 480, resource=THERE, kind=SERVER)]) == [("b", 0, 100)]


def test_a_call_on_one_host_is_by_one_clock() -> None:
    one, other = (
        {
            "attributes": [
                {"key": "host.name", "value": {"stringValue": "web-1"}},
                {"key": "pid", "value": {}},
            ][:n]
        }
        for n in (1, 2)
    )
    spans = [
        span("a", "", 0, 100, resource=one, kind=CLIENT),
        span("b", "a", 60, 140, resource=other, kind=SERVER),
    ]
    assert path(spans) == [("a", 0, 60), ("b", 60, 100)]
    assert build_tree(spans).async_spans == {1: 100}


def test_who_takes_a_message_after_its_sender_ended_was_not_waited_for() -> None:
    spans = [span("a", "", 0, 100, resource=HERE), span("b", "a", 10, 150, resource=THERE, kind=CONSUMER)]
    assert path(spans) == [("a", 0, 100)]


def test_a_child_of_another_clock_that_ends_late_counts_until_its_parent_ends() -> None:
    spans = [
        span("a", "", 0, 100, resource=HERE),
        span("b", "a", 10, 104, resource=THERE, kind=2),
        span("c", "b", 20, 102, resource=THERE),
    ]
    assert path(spans) == [("a", 0, 10), ("b", 10, 20), ("c", 20, 100)]


def test_a_child_that_starts_before_its_parent_counts_from_its_parents_start() -> None:
    assert path([span("b", "a", 0, 60), span("a", "", 10, 100)], root=1) == [("b", 10, 60), ("a", 60, 100)]


def test_children_that_take_no_time_or_lie_outside_change_nothing() -> None:
    spans = [span("a", "", 10, 20), span("b", "a", 15, 15), span("c", "a", 30, 40), span("d", "a", 0, 5)]
    assert path(spans) == [("a", 10, 20)]


def test_a_root_that_takes_no_time_has_no_critical_path() -> None:
    tree = build_tree([span("a", "", 5, 5), span("b", "a", 5, 5)])
    assert critical_path(tree, 0) == []
    assert shares(tree, []) == []


def test_shares_are_of_operations_the_largest_first() -> None:
    spans = [
        span("a", "", 0, 100),
        span("b", "a", 0, 30, name="query", service="db"),
        span("c", "a", 40, 70, name="query", service="db"),
    ]
    tree = build_tree(spans)
    assert shares(tree, critical_path(tree, 0)) == [
        Share("db", "query", 60, 2, 0.6),
        Share("shop", "a", 40, 1, 0.4),
    ]


numbers = st.integers(0, 60)


@given(
    st.lists(
        st.tuples(st.integers(0, 11), numbers, numbers, st.booleans(), st.integers(0, CONSUMER)),
        min_size=1,
        max_size=12,
    )
)
def test_the_critical_path_has_no_overlap_and_lasts_exactly_as_long_as_the_root_whatever_the_spans_are(
    sent: list[tuple[int, int, int, bool, int]],
) -> None:
    """The first is the root; any other has any of them, or nobody, or itself, as a parent, at any time."""
    spans = [
        span(
            str(n),
            "" if n == 0 else str(parent),
            start,
            start + length,
            resource=HERE if here else THERE,
            kind=kind,
        )
        for n, (parent, start, length, here, kind) in enumerate(sent)
    ]
    tree = build_tree(spans)
    found = critical_path(tree, 0)
    root = spans[0]
    assert sum(part.end_nano - part.start_nano for part in found) == root.end_nano - root.start_nano
    assert all(root.start_nano <= part.start_nano < part.end_nano <= root.end_nano for part in found)
    assert all(before.end_nano == after.start_nano for before, after in pairwise(found))
    for part in found:  # each lies within its own span, by the clock of that span
        own = tree.spans[part.index]
        start, end = part.start_nano - part.shift_nano, part.end_nano - part.shift_nano
        assert own.start_nano <= start < end <= own.end_nano


def test_the_path_of_a_long_chain_is_found() -> None:
    count = 20_000
    chain = [span(str(n), str(n - 1) if n else "", n, 2 * count - n) for n in range(count)]
    found = path(chain)
    assert len(found) == 2 * count - 1
    assert found[count - 1] == (str(count - 1), count - 1, count + 1)
