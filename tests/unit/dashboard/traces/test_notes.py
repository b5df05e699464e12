from __future__ import annotations

from frazil.dashboard.traces.read import CLIENT, SERVER, SpanRecord, Trace
from frazil.dashboard.traces.tree import build_tree, trace_notes
from tests.unit.dashboard.traces.test_tree import span

MS = 1_000_000


def noted(*spans: SpanRecord) -> list[str]:
    return trace_notes(Trace("t", spans, ()), build_tree(spans))


def test_of_a_trace_as_it_should_be_there_is_nothing_to_say() -> None:
    assert noted(span("a", "", 0, 10), span("b", "a", 1, 9)) == []
    assert noted() == []


def test_work_after_the_root_is_told_with_how_long_both_took() -> None:
    spans = span("a", "", 0, 300 * MS), span("b", "a", 10 * MS, 900 * MS)
    assert noted(*spans) == ["The root span took 300 ms; work continued for 600 ms after it ended."]


def test_a_clock_that_is_ahead_is_not_work_after_the_root() -> None:
    here, there = (
        {"attributes": [{"key": "host.name", "value": {"stringValue": host}}]} for host in ("here", "there")
    )
    client = span("a", "", 0, 300 * MS, kind=CLIENT, resource=here)
    server = span("b", "a", 800 * MS, 900 * MS, kind=SERVER, resource=there)
    assert noted(client, server) == ["1 span is outside its parent's time: clocks differ."]


def test_a_missing_root_and_missing_parents_are_told() -> None:
    assert noted(span("a", "gone", 0, 9), span("b", "gone", 1, 8)) == [
        "The root span is missing: it was not sent, or has not arrived yet.",
        "2 spans with a missing parent.",
    ]


def test_several_roots_and_odd_spans_are_counted() -> None:
    spans = (
        span("a", "", 10, 90),
        span("b", "", 11, 20),
        span("b", "", 12, 20),
        span("c", "c", 13, 20),
        span("early", "a", 5, 20),
        span("odd", "a", 20, 20, is_timed=False),
        span("odder", "a", 20, 20, is_timed=False),
    )
    assert noted(*spans) == [
        "3 spans have no parent; the critical path is shown for the longest.",
        "1 span is outside its parent's time: clocks differ.",
        "1 span has the ID of another span.",
        "1 span is its own ancestor: each cycle is cut at its first span.",
        "2 spans have invalid times.",
    ]
