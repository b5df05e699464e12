"""Duplicate spans are merged only if they are equal in every field that a client sends."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from bench.payloads import spans_request
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge.merge import Merged, MergeSettings
from tests.unit.pipeline.maintain.test_merge import NOON, landed, layout_of, merged, multiset, read, rows_of

ON = MergeSettings(2**30, 40_000, 3, True)
"""Several row groups: copies are found over all of them."""
OFF = MergeSettings(2**30, 40_000, 3, False)
LATER = NOON + 5_000_000


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return layout_of(tmp_path_factory.mktemp("lake"), "spans")


def spans(layout: Layout, body: bytes, segment: str, received: int = NOON) -> pa.Table:
    return rows_of(layout, body, segment, [NOON], received)


def changed(**fields: Any) -> bytes:
    """Returns the request with one span changed."""
    request = ExportTraceServiceRequest.FromString(spans_request(1, 40))
    span = request.resource_spans[0].scope_spans[0].spans[20]
    for name, value in fields.items():
        if name == "attribute":
            span.attributes[3].value.string_value = value
        elif name == "event":
            span.events[0].attributes[1].value.string_value = value
        elif name == "link":
            span.links[0].flags = value
        elif name == "no_events":
            del span.events[:]
        else:
            setattr(span, name, value)
    return request.SerializeToString()


def both(layout: Layout, first: bytes, second: bytes, settings: MergeSettings = ON) -> Merged:
    """The second request came later, and is the first input."""
    files = [landed(layout, spans(layout, second, "b/7", LATER)), landed(layout, spans(layout, first, "a/0"))]
    return merged(layout, files, settings)


def test_a_request_that_was_sent_twice_is_there_once_as_it_came_first(layout: Layout) -> None:
    body = spans_request(1, 400)
    result = both(layout, body, body)
    got = read(result.added, layout.coded)
    assert multiset(got) == multiset(read([landed(layout, spans(layout, body, "a/0"))], layout.coded))
    assert result.removed == Counter({"b/7": 400})
    assert result.rows == 400


def test_identical_spans_are_kept_unless_merging_is_enabled(layout: Layout) -> None:
    body = spans_request(1, 40)
    result = both(layout, body, body, OFF)
    assert (result.rows, result.removed) == (80, Counter())


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"end_time_unix_nano": 5},
        {"trace_state": "a=b"},
        {"attribute": "other"},
        {"event": "other"},
        {"link": 7},
        {"no_events": True},
        {"parent_span_id": b"12345678"},
        {"dropped_links_count": 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_spans_that_differ_in_any_field_both_stay(layout: Layout, fields: dict[str, Any]) -> None:
    result = both(layout, changed(), changed(**fields))
    assert result.removed == Counter({"b/7": 39})
    assert result.rows == 41


def test_among_many_of_one_id_only_those_alike_become_one(layout: Layout) -> None:
    bodies = [changed(name=name) for name in ("x", "y", "x", "z", "y", "x")]
    files = [
        landed(layout, spans(layout, body, f"s/{number}", NOON + number))
        for number, body in enumerate(bodies)
    ]
    result = merged(layout, files, ON)
    assert result.removed == Counter({"s/1": 39, "s/2": 40, "s/3": 39, "s/4": 40, "s/5": 40})
    got = read(result.added, layout.coded)
    names = Counter(zip(got["name"].to_pylist(), got["_segment"].to_pylist(), strict=True))
    assert [names["x", "s/0"], names["y", "s/1"], names["z", "s/3"]] == [1, 1, 1]
    assert result.rows == 42


def test_copies_received_at_once_leave_the_first_by_segment(layout: Layout) -> None:
    body = spans_request(2, 40)
    files = [landed(layout, spans(layout, body, segment)) for segment in ("b/1", "a/1", "c/1")]
    assert merged(layout, files, ON).removed == Counter({"b/1": 40, "c/1": 40})


def test_copies_within_a_file_count_too(layout: Layout) -> None:
    body = spans_request(3, 40)
    one = landed(layout, spans(layout, body, "a/0"), spans(layout, body, "a/1"))
    assert merged(layout, [one], ON).removed == Counter({"a/1": 40})


@pytest.mark.parametrize("column", ["trace_id", "span_id"])
def test_spans_without_ids_are_never_merged(layout: Layout, column: str) -> None:
    """Receivers refuse them; other engines may have written them."""
    rows = spans(layout, spans_request(4, 40), "a/0")
    at = rows.schema.get_field_index(column)
    rows = rows.set_column(at, rows.schema.field(at), pa.array([""] * 40))
    files = [landed(layout, rows), landed(layout, rows)]
    result = merged(layout, files, ON)
    assert (result.rows, result.removed) == (80, Counter())


@pytest.mark.slow
def test_many_copies_are_compared_some_at_a_time(layout: Layout) -> None:
    """A small row group limits how many spans are compared at once: no duplicate is missed."""
    body = spans_request(5, 600)
    result = both(layout, body, body, MergeSettings(2**30, 4_000, 3, True))
    assert result.removed == Counter({"b/7": 600})
    got = read(result.added, layout.coded)
    assert len(set(zip(got["trace_id"].to_pylist(), got["span_id"].to_pylist(), strict=True))) == 600


def test_ids_of_other_lengths_are_distinguished(tmp_path: Path, layout: Layout) -> None:
    rows = spans(layout, spans_request(6, 40), "a/0")
    at = rows.schema.get_field_index("span_id")
    ids = ["".join(digits) for digits in itertools.islice(itertools.product("ab", repeat=6), 40)]
    rows = rows.set_column(at, rows.schema.field(at), pa.array(ids))
    result = merged(layout, [landed(layout, rows), landed(layout, rows)], ON)
    assert result.removed == Counter({"a/0": 40})
