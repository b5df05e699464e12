from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frazil.dashboard.traces.read import SpanRecord
from frazil.dashboard.traces.tree import Row, Tree, build_tree, rows


def span(id: str, parent: str = "", start: int = 0, end: int = 10, **given: Any) -> SpanRecord:
    held: dict[str, Any] = {
        "name": id,
        "service": "shop",
        "kind": 1,
        "is_error": False,
        "status_message": "",
        "otlp": {},
        "resource": {},
        "scope": {},
    }
    return SpanRecord(handle=id, id=id, parent_id=parent, start_nano=start, end_nano=end, **held | given)


def shown(tree: Tree) -> list[str]:
    """As a person would see it."""
    return [
        "  " * row.depth + (f"? {row.missing}" if row.index is None else tree.spans[row.index].id)
        for row in rows(tree)
    ]


def test_children_stand_below_their_parent_in_order_of_their_start() -> None:
    tree = build_tree([span("a"), span("b", "a", 1), span("c", "b", 2), span("d", "a", 3), span("e", "b", 4)])
    assert shown(tree) == ["a", "  b", "    c", "    e", "  d"]
    assert [row.below for row in rows(tree)] == [4, 2, 0, 0, 0]
    assert tree.main == 0
    assert tree.notes == {}


def test_spans_whose_parent_is_missing_stand_below_a_row_that_says_so() -> None:
    tree = build_tree(
        [span("a"), span("b", "gone", 5), span("c", "gone", 6), span("d", "b", 7), span("e", "lost", 8)]
    )
    assert shown(tree) == ["a", "? gone", "  b", "    d", "  c", "? lost", "  e"]
    assert [row.below for row in rows(tree)] == [0, 3, 1, 0, 0, 1, 0]
    assert tree.orphans == {"gone": [1, 2], "lost": [4]}


def test_without_a_root_the_longest_orphan_is_the_main_span() -> None:
    tree = build_tree([span("a", "gone", 0, 5), span("b", "gone", 1, 9)])
    assert tree.roots == []
    assert tree.main == 1


def test_of_several_roots_the_longest_is_the_main_span_and_the_first_of_equals() -> None:
    assert build_tree([span("a", end=5), span("b", end=9), span("c", end=9)]).main == 1


def test_no_spans_make_no_rows() -> None:
    tree = build_tree([])
    assert rows(tree) == []
    assert tree.main is None


def test_a_span_that_is_its_own_parent_is_a_root_and_is_noted() -> None:
    tree = build_tree([span("a", "a"), span("b", "a", 1)])
    assert shown(tree) == ["a", "  b"]
    assert tree.notes == {0: ["is its own ancestor"]}


def test_a_circle_is_cut_at_its_first_span_and_what_hangs_on_it_stays() -> None:
    tree = build_tree([span("tail", "b", 0), span("a", "c", 1), span("b", "a", 2), span("c", "b", 3)])
    assert shown(tree) == ["a", "  b", "    tail", "    c"]
    assert tree.roots == [1]
    assert tree.notes[1] == ["is its own ancestor"]


def test_children_of_an_id_that_two_spans_have_stand_once_below_the_first() -> None:
    tree = build_tree([span("a"), span("x", "a", 1), span("x", "a", 2), span("b", "x", 3)])
    assert shown(tree) == ["a", "  x", "    b", "  x"]
    assert tree.notes == {2: ["has the same ID as another span"]}


def test_a_child_that_starts_before_its_parent_is_said_to_have_another_clock() -> None:
    tree = build_tree([span("early", "a", 1_000_000), span("a", "", 3_500_000, 9_000_000)])
    assert tree.notes == {0: ["starts 2.5 ms before its parent: their clocks differ"]}


def test_a_chain_as_long_as_a_trace_may_be_is_laid_out() -> None:
    chain = [span("0")] + [span(str(n), str(n - 1), n) for n in range(1, 20_000)]
    laid = rows(build_tree(chain))
    assert laid[-1] == Row(19_999, 19_999, 0)
    assert laid[0].below == 19_999


ids = st.sampled_from(["a", "b", "c", "d", "e", "f", ""])


@given(st.lists(st.tuples(ids, ids, st.integers(0, 20)), max_size=12))
def test_whatever_is_sent_each_span_is_in_exactly_one_row(sent: list[tuple[str, str, int]]) -> None:
    spans = [span(id, parent, start) for id, parent, start in sorted(sent, key=lambda item: item[2])]
    laid = rows(build_tree(spans))
    assert sorted(row.index for row in laid if row.index is not None) == list(range(len(spans)))
    for at, row in enumerate(laid):
        under = laid[at + 1 : at + 1 + row.below]
        assert len(under) == row.below
        assert all(other.depth > row.depth for other in under)
        after = laid[at + 1 + row.below :]
        assert not after or after[0].depth <= row.depth
