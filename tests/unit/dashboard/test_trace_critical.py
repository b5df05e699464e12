from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from frazil.dashboard.trace_critical import Share, critical_path, shares
from frazil.dashboard.trace_read import CONSUMER, SpanRecord
from frazil.dashboard.trace_tree import build_tree
from tests.unit.dashboard.test_trace_tree import span

HERE, THERE = {"attributes": ["here"]}, {"attributes": ["there"]}


def path(spans: list[SpanRecord], root: int = 0) -> list[tuple[str, int, int]]:
    tree = build_tree(spans)
    return [(tree.spans[part.place].id, part.start_nano, part.end_nano) for part in critical_path(tree, root)]


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


def test_work_that_goes_on_after_its_parent_by_the_same_clock_was_not_waited_for() -> None:
    spans = [span("a", "", 0, 100, resource=HERE), span("b", "a", 10, 150, resource=dict(HERE))]
    assert path(spans) == [("a", 0, 100)]


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


@given(st.lists(st.tuples(st.integers(0, 11), numbers, numbers, st.booleans()), min_size=1, max_size=12))
def test_the_critical_path_lasts_exactly_as_long_as_the_root_whatever_the_spans_are(
    sent: list[tuple[int, int, int, bool]],
) -> None:
    """The first is the root; any other has any of them, or nobody, or itself, as a parent, at any time."""
    spans = [
        span(str(n), "" if n == 0 else str(parent), start, start + length, resource=HERE if here else THERE)
        for n, (parent, start, length, here) in enumerate(sent)
    ]
    found = path(spans)
    root = spans[0]
    assert sum(end - start for _, start, end in found) == root.end_nano - root.start_nano
    assert all(start < end for _, start, end in found)
    assert all(before[2] == after[1] for before, after in pairwise(found))
    times = {one.id: one for one in spans}
    assert all(times[id].start_nano <= start and end <= times[id].end_nano for id, start, end in found)


def test_the_path_of_a_long_chain_is_found() -> None:
    count = 20_000
    chain = [span(str(n), str(n - 1) if n else "", n, 2 * count - n) for n in range(count)]
    found = path(chain)
    assert len(found) == 2 * count - 1
    assert found[count - 1] == (str(count - 1), count - 1, count + 1)
