"""Searches of traces: which traces are found, in which order, and what is said of each."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.query.reads import traces
from frazil.query.reads.filters import LogFilter, SpanFilter
from frazil.query.reads.time_range import TimeRange
from frazil.query.reads.traces import FoundTraces, ServiceSpans, TraceOrder, TraceSearch, find_traces
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, spans

MS = 10**6
SECOND = 10**9
HOUR = 3600 * SECOND
RANGE = TimeRange((BEGIN - 10) * 10**6, (BEGIN + 100) * 10**6)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def found(engine: Engine, order: TraceOrder = "newest", limit: int = 50, **filter: Any) -> FoundTraces:
    return engine.run(find_traces(TraceSearch(SpanFilter(**filter), RANGE, order, limit)))


def ids(engine: Engine, **given: Any) -> list[int]:
    """In the result's order, the numbers that `span` was given."""
    return [int(trace.trace_id, 16) for trace in found(engine, **given).traces]


def span(trace: int, number: int, parent: int = 0, **fields: Any) -> dict[str, Any]:
    above = {"parent_span_id": parent.to_bytes(8)} if parent else {}
    return {"trace_id": trace.to_bytes(16), "span_id": number.to_bytes(8), **above, **fields}


def test_events_are_read_only_for_words_and_attributes() -> None:
    """The column is the largest of the table where spans have many of them."""
    assert "events" not in SpanFilter(services=["cart"], name="GET /cart").where(RANGE).sql
    assert "events" in SpanFilter(words="kaboom").where(RANGE).sql
    logs = LogFilter(words="kaboom", regex="ka.*m", attributes=[("k", "v")])
    assert "events" not in logs.where(RANGE).sql


def test_the_newest_traces_are_ordered_by_the_start_that_they_show(engine: Engine) -> None:
    """Not by their matching spans: the first trace has the newest of all."""
    engine.add("spans", spans(span(1, 1, nanos=SECOND), span(1, 2, 1, name="x", nanos=30 * SECOND)))
    engine.add("spans", spans(span(2, 3, nanos=2 * SECOND), span(2, 4, 3, name="x", nanos=3 * SECOND)))
    engine.add("spans", spans(span(3, 5, name="x"), span(4, 6, nanos=2 * SECOND + 1)))
    assert ids(engine) == [4, 2, 1, 3]
    assert ids(engine, name="x") == [2, 1, 3]
    assert [ids(engine, limit=limit) for limit in (1, 2, 3)] == [[4], [4, 2], [4, 2, 1]]
    assert [ids(engine, limit=limit, name="x") for limit in (1, 2)] == [[2], [2, 1]]


def test_traces_that_started_at_once_have_one_order(engine: Engine) -> None:
    engine.add("spans", spans(*(span(number, number) for number in (5, 3, 9, 1, 7))))
    assert ids(engine) == [1, 3, 5, 7, 9]
    assert ids(engine, limit=2) == [1, 3]


def test_more_traces_than_the_limit_are_not_complete(engine: Engine) -> None:
    engine.add("spans", spans(*(span(number, number, nanos=number) for number in range(1, 5))))
    for order in ("newest", "slowest"):
        assert [found(engine, limit=limit, order=order).complete for limit in (1, 3, 4, 5)] == [
            False,
            False,
            True,
            True,
        ]
        assert len(found(engine, limit=3, order=order).traces) == 3


def test_the_slowest_traces_are_compared_as_a_whole(engine: Engine) -> None:
    """The second has the slower span, the first takes longer in all."""
    engine.add("spans", spans(span(1, 1, took=2 * MS), span(1, 2, 1, nanos=SECOND, took=2 * MS)))
    engine.add("spans", spans(span(2, 3, nanos=2 * SECOND, took=500 * MS), span(3, 4, took=MS)))
    assert ids(engine, order="slowest") == [1, 2, 3]
    assert ids(engine, order="slowest", limit=1) == [1]


def test_of_too_many_traces_those_with_the_slowest_matching_spans_are_compared(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the documentation says: the longer trace is not found when its own spans are all short."""
    monkeypatch.setattr(traces, "_COMPARED_PER_TRACE", 1)
    engine.add("spans", spans(span(1, 1, took=2 * MS), span(1, 2, 1, nanos=SECOND, took=2 * MS)))
    engine.add("spans", spans(span(2, 3, took=500 * MS)))
    answer = found(engine, order="slowest", limit=1)
    assert [int(trace.trace_id, 16) for trace in answer.traces] == [2]
    assert not answer.complete


def test_only_so_many_spans_are_looked_at(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_SPANS_PER_TRACE", 3)
    large = (span(1, number, nanos=number) for number in range(1, 6))
    engine.add("spans", spans(*large, span(2, 9, nanos=-1)))
    answer = found(engine, limit=1)
    (trace,) = answer.traces
    assert (trace.matched, trace.spans) == (3, 5)
    assert (answer.complete, answer.matched_is_exact) == (False, False)


def test_spans_of_the_trace_are_found_an_hour_around_those_that_match(engine: Engine) -> None:
    """Outside of the range that was asked for too. What lies further away is not counted."""
    near = [span(1, 1, name="root", nanos=-HOUR + 1_000), span(1, 2, 1, nanos=HOUR - 1_000)]
    far = [span(1, 3, 1, nanos=-HOUR - 1_000), span(1, 4, 1, nanos=HOUR)]
    engine.add("spans", spans(*near, *far, span(1, 5, 1, name="match")))
    (trace,) = found(engine, name="match").traces
    assert (trace.spans, trace.root_name, trace.root_missing) == (3, "root", False)


def test_without_a_root_the_earliest_span_stands_for_it(engine: Engine) -> None:
    engine.add("spans", spans(span(1, 2, 9, name="second", nanos=MS), service="a"))
    engine.add("spans", spans(span(1, 3, 9, name="first"), service="b"))
    (trace,) = found(engine).traces
    assert (trace.root_service, trace.root_name, trace.root_missing) == ("b", "first", True)


def test_of_several_roots_the_earliest_is_named(engine: Engine) -> None:
    engine.add("spans", spans(span(1, 1, name="late", nanos=MS), service="a"))
    engine.add("spans", spans(span(1, 2, name="early"), span(1, 3, 2, name="skewed", nanos=-MS), service="b"))
    (trace,) = found(engine).traces
    assert (trace.root_service, trace.root_name, trace.root_missing) == ("b", "early", False)
    assert trace.start_time_unix_nano == str(BEGIN * SECOND - MS)


def test_clocks_that_disagree_break_nothing(engine: Engine) -> None:
    """A span that ends before it began, alone and beside others."""
    engine.add("spans", spans(span(1, 1, nanos=SECOND, took=-MS)))
    engine.add("spans", spans(span(2, 2, took=10 * MS), span(2, 3, 2, nanos=-5 * MS, took=-MS)))
    by_id = {int(trace.trace_id, 16): trace for trace in found(engine).traces}
    assert by_id[1].duration_ms == 0
    assert by_id[2].duration_ms == 15
    assert by_id[2].root_missing is False


def test_spans_without_times_do_not_stretch_their_trace(engine: Engine) -> None:
    request = spans(span(1, 1, took=3 * MS), span(1, 2, 1), span(1, 3, 1), span(2, 4))
    _, unknown, unended, alone = request.resource_spans[0].scope_spans[0].spans
    for one in (unknown, alone):
        one.start_time_unix_nano = one.end_time_unix_nano = 0
    unended.end_time_unix_nano = 0
    engine.add("spans", request, received=BEGIN + 50)
    for order in ("newest", "slowest"):
        by_id = {int(trace.trace_id, 16): trace for trace in found(engine, order=order).traces}
        assert (by_id[1].duration_ms, by_id[1].spans, by_id[1].matched) == (3, 3, 3)
        assert (by_id[2].duration_ms, by_id[2].start_time) == (0, "2026-09-21T14:14:10.000000Z")


def test_services_and_operations_without_a_name_have_an_empty_one(engine: Engine) -> None:
    request = spans(span(1, 1, name=""))
    del request.resource_spans[0].resource.attributes[:]
    engine.add("spans", request)
    (trace,) = found(engine).traces
    assert (trace.root_service, trace.root_name, trace.root_missing) == ("", "", False)
    assert trace.services == [ServiceSpans("", 1, 0)]
