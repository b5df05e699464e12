from __future__ import annotations

import datetime as dt
from typing import Any

from frazil.dashboard.traces.read import (
    Attribute,
    Event,
    Link,
    LogRecord,
    attributes,
    event_times,
    events,
    links,
    read_trace,
    to_datetime,
)

SECOND = 1_794_700_000_000_000_000


def answer(
    *spans: dict[str, Any], service: str | None = "cart", logs: list[Any] | None = None
) -> dict[str, Any]:
    named = [] if service is None else [{"key": "service.name", "value": {"stringValue": service}}]
    resource = {"attributes": named}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": {"name": "lib"}, "spans": list(spans)}]}
        ],
        "resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": logs or []}]}],
    }


def told(id: str, start: int | None = 0, end: int | None = 10, **given: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": start, "endTimeUnixNano": end}
    held = {name: str(SECOND + time) for name, time in times.items() if time is not None}
    return {"spanId": id, "name": f"op {id}"} | held | given


def test_a_span_has_its_service_scope_status_and_exact_times() -> None:
    sent = told("a", 1, 1_000_003, kind=3, parentSpanId="p", status={"code": 2, "message": "no"})
    (span,) = read_trace("t", answer(sent)).spans
    assert (span.handle, span.id, span.parent_id, span.name, span.service) == ("a", "a", "p", "op a", "cart")
    assert (span.start_nano, span.end_nano, span.kind) == (SECOND + 1, SECOND + 1_000_003, 3)
    assert span.duration_ms == 1.000002
    assert (span.is_error, span.status_message, span.is_timed) == (True, "no", True)
    assert span.scope == {"name": "lib"}


def test_spans_are_in_order_of_their_start_and_logs_of_their_time() -> None:
    logs = [
        {"timeUnixNano": str(SECOND + 9), "body": {"stringValue": "second"}},
        {
            "observedTimeUnixNano": str(SECOND + 5),
            "body": {"intValue": "7"},
            "spanId": "a",
            "severityNumber": 17,
        },
    ]
    trace = read_trace("t", answer(told("b", 5), told("a", 2), logs=logs))
    assert [span.id for span in trace.spans] == ["a", "b"]
    assert trace.logs == (
        LogRecord(SECOND + 5, "a", "cart", 17, "7", []),
        LogRecord(SECOND + 9, "", "cart", 0, "second", []),
    )
    assert (trace.start_nano, trace.end_nano) == (SECOND + 2, SECOND + 10)


def test_spans_with_the_same_id_have_handles_of_their_own() -> None:
    trace = read_trace("t", answer(told("a", 1), told("a", 2), told("", 3), told("", 4)))
    assert [span.handle for span in trace.spans] == ["a", "a~2", "~1", "~2"]


def test_a_span_without_times_is_put_where_the_trace_starts_and_one_that_ends_early_takes_no_time() -> None:
    trace = read_trace("t", answer(told("a", 7), told("b", None, None), told("c", 9, 3), told("d", None, 8)))
    found = {
        span.id: (span.start_nano - SECOND, span.end_nano - SECOND, span.is_timed) for span in trace.spans
    }
    assert found == {"a": (7, 10, True), "b": (3, 3, False), "c": (9, 9, False), "d": (8, 8, False)}


def test_what_makes_no_sense_is_not_believed() -> None:
    odd = {"spanId": None, "kind": 99, "startTimeUnixNano": "soon", "endTimeUnixNano": "-5", "status": None}
    (span,) = read_trace("t", answer(odd, service=None)).spans
    assert (span.id, span.kind, span.name, span.service) == ("", 0, "(no name)", "(no service)")
    assert (span.start_nano, span.end_nano, span.is_timed) == (0, 0, False)


def test_an_answer_without_anything_is_an_empty_trace() -> None:
    trace = read_trace("t", {})
    assert (trace.spans, trace.logs, trace.start_nano, trace.end_nano) == ((), (), 0, 0)


def test_attributes_have_text_and_the_name_of_their_type() -> None:
    sent = {
        "s": {"stringValue": "x"},
        "i": {"intValue": "9007199254740993"},
        "d": {"doubleValue": 0.5},
        "b": {"boolValue": True},
        "y": {"bytesValue": "AP8="},
        "a": {"arrayValue": {"values": [{"intValue": "1"}, {"stringValue": "two"}]}},
        "m": {"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": False}}]}},
        "e": {},
        "empty": {"arrayValue": {}},
    }
    found = attributes({"attributes": [{"key": key, "value": value} for key, value in sent.items()]})
    assert found == [
        Attribute("s", "x", "string"),
        Attribute("i", "9007199254740993", "int"),
        Attribute("d", "0.5", "double"),
        Attribute("b", "true", "bool"),
        Attribute("y", "00 ff", "bytes"),
        Attribute("a", '[1,"two"]', "array"),
        Attribute("m", '{"k":false}', "map"),
        Attribute("e", "", "empty"),
        Attribute("empty", "[]", "array"),
    ]


def test_events_are_in_order_and_links_lead_elsewhere() -> None:
    failed = {"key": "exception.type", "value": {"stringValue": "Refused"}}
    sent = told(
        "a",
        events=[
            {"timeUnixNano": str(SECOND + 5), "name": "exception", "attributes": [failed]},
            {"timeUnixNano": str(SECOND + 2), "name": "sent"},
        ],
        links=[{"traceId": "ab" * 16, "spanId": "cd" * 8}],
    )
    (span,) = read_trace("t", answer(sent)).spans
    assert events(span) == [
        Event(SECOND + 2, "sent", []),
        Event(SECOND + 5, "exception", [Attribute("exception.type", "Refused", "string")]),
    ]
    assert events(span)[1].text("exception.type") == "Refused"
    assert events(span)[0].text("exception.type") == ""
    assert sorted(event_times(span)) == [(SECOND + 2, False), (SECOND + 5, True)]
    assert links(span) == [Link("ab" * 16, "cd" * 8, [])]


def test_services_are_counted_the_busiest_first() -> None:
    one, other = answer(told("a"), told("b", status={"code": 2})), answer(told("c"), service="shop")
    trace = read_trace("t", {"resourceSpans": other["resourceSpans"] + one["resourceSpans"]})
    assert list(trace.services().items()) == [("cart", 2), ("shop", 1)]
    assert trace.errors == 1


def test_a_time_that_no_calendar_has_is_shown_as_the_first_of_all() -> None:
    assert to_datetime(1_500_000_000_123_456_789) == dt.datetime(2017, 7, 14, 2, 40, 0, 123456, tzinfo=dt.UTC)
    assert to_datetime(10**30) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
