"""Decoding: what is rejected alone and why, what becomes NULL, and which time a row has."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from frazil.otlp.decode import Decoder, explain
from frazil.tables import Signal
from tests.support.otlp_decoding import (
    GOOD,
    RECEIVED,
    SPAN,
    TRACE,
    a_point,
    a_span,
    decode,
    logs,
    metrics,
    rows,
    spans,
)

BEYOND = 2**63
TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


# Rejected alone -----------------------------------------------------------------------------------

BAD_RECORDS: list[tuple[str, Signal, bytes, str]] = [
    ("log trace id", "logs", logs(LogRecord(trace_id=b"123")), "trace_id is not 16 bytes long"),
    ("log span id", "logs", logs(LogRecord(span_id=TRACE)), "span_id is not 8 bytes long"),
    ("log time", "logs", logs(LogRecord(time_unix_nano=BEYOND)), "time_unix_nano is beyond signed 64 bits"),
    (
        "log observed time",
        "logs",
        logs(LogRecord(observed_time_unix_nano=2**64 - 1)),
        "observed_time_unix_nano is beyond signed 64 bits",
    ),
    ("no trace id", "spans", spans(a_span(trace_id=b"")), "trace_id is missing"),
    ("no span id", "spans", spans(a_span(span_id=b"")), "span_id is missing"),
    ("zero trace id", "spans", spans(a_span(trace_id=bytes(16))), "trace_id is all zeros"),
    ("zero span id", "spans", spans(a_span(span_id=bytes(8))), "span_id is all zeros"),
    ("long trace id", "spans", spans(a_span(trace_id=TRACE + b"1")), "trace_id is not 16 bytes long"),
    ("short span id", "spans", spans(a_span(span_id=SPAN[:-1])), "span_id is not 8 bytes long"),
    ("parent", "spans", spans(a_span(parent_span_id=b"1")), "parent_span_id is not 8 bytes long"),
    (
        "span start",
        "spans",
        spans(a_span(start_time_unix_nano=BEYOND)),
        "start_time_unix_nano is beyond signed 64 bits",
    ),
    ("span end", "spans", spans(a_span(end_time_unix_nano=BEYOND)), "end_time_unix_nano is beyond"),
    (
        "event time",
        "spans",
        spans(a_span(events=[Span.Event(name="ok"), Span.Event(time_unix_nano=BEYOND)])),
        "an event's time_unix_nano is beyond signed 64 bits",
    ),
    (
        "link trace id",
        "spans",
        spans(a_span(links=[Span.Link(trace_id=SPAN, span_id=SPAN)])),
        "a link's trace_id is not 16 bytes long",
    ),
    (
        "link span id",
        "spans",
        spans(a_span(links=[Span.Link(trace_id=TRACE, span_id=TRACE)])),
        "a link's span_id is not 8 bytes long",
    ),
    *(
        (f"{name} {field}", "metrics", metrics(a_point(name, **{field: BEYOND})), f"{field} is beyond signed")
        for name in TYPES
        for field in ("time_unix_nano", "start_time_unix_nano")
    ),
    *(
        (f"{name} count", "metrics", metrics(a_point(name, count=BEYOND)), "count is beyond signed 64 bits")
        for name in TYPES[2:]
    ),
    (
        "zero count",
        "metrics",
        metrics(a_point("exponential_histogram", zero_count=BEYOND)),
        "zero_count is beyond signed 64 bits",
    ),
    (
        "bucket",
        "metrics",
        metrics(a_point("histogram", bucket_counts=[1, BEYOND])),
        "bucket_counts is beyond signed 64 bits",
    ),
    *(
        (
            f"{sign} bucket",
            "metrics",
            metrics(a_point("exponential_histogram", **{sign: {"bucket_counts": [BEYOND]}})),
            f"{sign} bucket_counts is beyond signed 64 bits",
        )
        for sign in ("positive", "negative")
    ),
    *(
        (
            f"exemplar {field}",
            "metrics",
            metrics(a_point("sum", exemplars=[{field: value}])),
            f"an exemplar's {field} is",
        )
        for field, value in (("time_unix_nano", BEYOND), ("trace_id", b"1"), ("span_id", b"1"))
    ),
]


@pytest.mark.parametrize(
    ("signal", "body", "reason"), [c[1:] for c in BAD_RECORDS], ids=[c[0] for c in BAD_RECORDS]
)
def test_a_record_that_is_invalid_on_its_own_is_rejected_alone(
    signal: Signal, body: bytes, reason: str
) -> None:
    good = GOOD[signal]
    decoded = decode(signal, good, body + good, good)
    assert list(decoded.seen) == [2, 3, 2]
    assert list(decoded.rejected) == [0, 1, 0]
    assert list(decoded.reasons) == [1]
    assert len(decoded.reasons[1]) == 1
    assert reason in decoded.reasons[1][0]
    assert decoded.table.num_rows == 6


def test_a_record_with_two_faults_counts_once_and_names_both() -> None:
    decoded = decode("spans", spans(a_span(trace_id=b"", span_id=bytes(8)), a_span(trace_id=b"")))
    assert (decoded.seen[0], decoded.rejected[0], decoded.table.num_rows) == (2, 2, 0)
    assert sorted(decoded.reasons[0]) == ["span_id is all zeros", "trace_id is missing"]
    message = explain("spans", 2, decoded.reasons[0] * 2)
    assert message == "2 spans rejected: trace_id is missing; span_id is all zeros"


def test_a_bad_event_rejects_its_own_span_and_no_neighbour() -> None:
    bad = a_span(name="bad", events=[Span.Event(), Span.Event(time_unix_nano=BEYOND)])
    decoded = decode("spans", spans(a_span(name="a", events=[Span.Event()]), bad, a_span(name="b")))
    assert decoded.table.column("name").to_pylist() == ["a", "b"]


def test_rejected_points_of_one_type_leave_points_of_other_types_in_place() -> None:
    body = metrics(
        a_point("sum", as_int=1),
        a_point("histogram", count=BEYOND),
        a_point("gauge", as_int=2, exemplars=[{"trace_id": b"1"}]),
        a_point("summary", count=3),
    )
    decoded = decode("metrics", body)
    assert list(decoded.rejected) == [2]
    kept = [(row["metric_type"], row["value_int"], row["count"]) for row in decoded.table.to_pylist()]
    assert sorted(kept, key=str) == [("sum", 1, None), ("summary", None, 3)]


def test_the_largest_signed_times_and_counters_are_kept() -> None:
    most = 2**63 - 1
    (row,) = rows(
        "metrics", metrics(a_point("histogram", count=most, bucket_counts=[most], time_unix_nano=most))
    )
    assert (row["count"], row["bucket_counts"], row["time_unix_nano"]) == (most, [most], most)
    (row,) = rows("logs", logs(LogRecord(time_unix_nano=most)))
    assert row["time_unix_nano"] == most


# NULLs and fallbacks ------------------------------------------------------------------------------


def test_an_all_zero_parent_and_all_zero_ids_of_logs_are_null() -> None:
    (row,) = rows("spans", spans(a_span(parent_span_id=bytes(8))))
    assert row["parent_span_id"] is None
    (row,) = rows("logs", logs(LogRecord(trace_id=bytes(16), span_id=bytes(8))))
    assert (row["trace_id"], row["span_id"]) == (None, None)


def test_links_keep_all_zero_ids_and_absent_ones_are_null() -> None:
    (row,) = rows(
        "spans", spans(a_span(links=[Span.Link(trace_id=bytes(16), span_id=bytes(8)), Span.Link()]))
    )
    assert [(link["trace_id"], link["span_id"]) for link in row["links"]] == [
        ("0" * 32, "0" * 16),
        (None, None),
    ]


def micros(row: dict[str, Any]) -> int:
    time = row["time"]
    return int(time.timestamp()) * 1_000_000 + time.microsecond


@pytest.mark.parametrize(
    ("signal", "body", "nanos"),
    [
        ("logs", logs(LogRecord(time_unix_nano=1_000, observed_time_unix_nano=2_000)), 1_000),
        ("logs", logs(LogRecord(observed_time_unix_nano=2_000)), 2_000),
        ("logs", logs(LogRecord()), RECEIVED),
        ("spans", spans(a_span(start_time_unix_nano=3_000, end_time_unix_nano=4_000)), 3_000),
        ("spans", spans(a_span(end_time_unix_nano=4_000)), 4_000),
        ("spans", spans(a_span()), RECEIVED),
        ("metrics", metrics(a_point("gauge", time_unix_nano=5_999, start_time_unix_nano=1_000)), 5_000),
        ("metrics", metrics(a_point("gauge", start_time_unix_nano=6_000)), RECEIVED),
    ],
)
def test_time_is_the_records_own_else_the_next_best_else_the_received_one(
    signal: Signal, body: bytes, nanos: int
) -> None:
    (row,) = rows(signal, body)
    assert micros(row) == nanos // 1000


def test_each_request_has_its_own_tenant_and_received_time() -> None:
    decoded = Decoder("logs").decode([GOOD["logs"]] * 2, ["a", "b"], [1_000, 2_000])
    found = [(row["tenant_id"], micros(row)) for row in decoded.table.to_pylist()]
    assert found == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]


def test_a_duration_is_null_without_both_times_and_negative_when_the_clock_went_back() -> None:
    body = spans(
        a_span(start_time_unix_nano=5, end_time_unix_nano=2),
        a_span(end_time_unix_nano=2),
        a_span(start_time_unix_nano=2),
        a_span(start_time_unix_nano=1, end_time_unix_nano=2**63 - 1),
    )
    assert [row["duration_nano"] for row in rows("spans", body)] == [-3, None, None, 2**63 - 2]
