"""Traces counted by their start and their duration."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from frazil.query.reads.filters import SpanFilter
from frazil.query.reads.time_range import TimeRange
from frazil.query.reads.trace_durations import BINS_MS, DurationCounting, TraceDurations, count_durations
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, spans

MS = 10**6
SECOND = 10**9
RANGE = TimeRange(BEGIN * 10**6, (BEGIN + 60) * 10**6)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def counted(engine: Engine, range: TimeRange = RANGE, buckets: int = 60, **filter: Any) -> TraceDurations:
    return engine.run(count_durations(DurationCounting(SpanFilter(**filter), range, buckets)))


def span(trace: int, number: int, parent: int = 0, **fields: Any) -> dict[str, Any]:
    above = {"parent_span_id": parent.to_bytes(8)} if parent else {}
    return {"trace_id": trace.to_bytes(16), "span_id": number.to_bytes(8), **above, **fields}


def test_a_trace_is_counted_once_at_its_start_with_the_duration_of_all_its_spans(engine: Engine) -> None:
    engine.add("spans", spans(span(1, 1, nanos=SECOND, took=MS), span(1, 2, 1, nanos=9 * SECOND, took=MS)))
    (cell,) = counted(engine).cells
    assert (cell.bucket, cell.traces, cell.errors, cell.longest_ms) == (1, 1, 0, 8001)
    assert BINS_MS[cell.bin : cell.bin + 2] == (7000, 10_000)


def test_cells_add_up_their_traces_errors_and_longest_durations(engine: Engine) -> None:
    failed = span(2, 3, 2, took=MS, status={"code": 2})
    engine.add("spans", spans(span(1, 1, took=21 * MS), span(2, 2, took=29 * MS), failed))
    engine.add("spans", spans(span(3, 4, took=500 * MS), span(4, 5, nanos=2 * SECOND, took=25 * MS)))
    found = counted(engine)
    assert [(cell.bucket, BINS_MS[cell.bin]) for cell in found.cells] == [(0, 20), (0, 500), (2, 20)]
    assert [(cell.traces, cell.errors, cell.longest_ms) for cell in found.cells] == [
        (2, 1, 29),
        (1, 0, 500),
        (1, 0, 25),
    ]
    assert found.total == 4


def test_every_duration_is_in_the_bin_whose_bounds_hold_it(engine: Engine) -> None:
    """At each bound, and one nanosecond below it."""
    bounds = [round(bin * MS) for bin in BINS_MS[1:]]
    took = [0, *bounds, *(bound - 1 for bound in bounds), 10**15]
    engine.add("spans", spans(*(span(n, n, took=nanos) for n, nanos in enumerate(took, 1))))
    cells = {cell.bin: cell for cell in counted(engine).cells}
    assert sorted(cells) == list(range(len(BINS_MS)))
    for bin, (low, high) in enumerate(pairwise([0, *bounds, 10**18])):
        held = [nanos for nanos in took if low <= nanos < high]
        assert (cells[bin].traces, cells[bin].longest_ms) == (len(held), max(held) / MS), bin


def test_a_trace_that_started_before_the_range_is_not_a_short_trace_in_it(engine: Engine) -> None:
    early = [span(1, 1, nanos=-5 * SECOND, took=9 * SECOND), span(1, 2, 1, nanos=SECOND, took=MS)]
    engine.add("spans", spans(*early, span(2, 3, nanos=SECOND, took=MS)))
    assert counted(engine).total == 1
    assert counted(engine, name="GET /cart").total == 1


def test_the_number_of_cells_has_a_bound(engine: Engine) -> None:
    many = (
        span(n, n, nanos=n * 50 * MS, took=round(BINS_MS[1 + n % (len(BINS_MS) - 1)] * MS))
        for n in range(1, 1150)
    )
    engine.add("spans", spans(*many))
    found = counted(engine, buckets=5)
    assert found.buckets.count <= 5
    assert found.total == 1149
    assert 200 < len(found.cells) <= found.buckets.count * len(BINS_MS)


def test_clocks_that_disagree_and_spans_without_times_break_nothing(engine: Engine) -> None:
    request = spans(span(1, 1, took=-MS), span(2, 2), span(3, 3, took=3 * MS), span(3, 4, 3))
    _, alone, _, beside = request.resource_spans[0].scope_spans[0].spans
    for one in (alone, beside):
        one.start_time_unix_nano = one.end_time_unix_nano = 0
    engine.add("spans", request, received=BEGIN + 50)
    cells = counted(engine).cells
    assert [(cell.bucket, cell.bin, cell.traces) for cell in cells] == [
        (0, 0, 1),
        (0, BINS_MS.index(3), 1),
        (50, 0, 1),
    ]
