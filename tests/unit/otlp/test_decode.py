"""Decoding: what is rejected alone and why, what becomes NULL, what is refused as a whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoded, Decoder, conform, explain
from frazil.tables import SIGNALS, Promoted, Signal
from tests.support.otlp_wire import (
    delimited,
    double,
    fixed64,
    log_with_attribute,
    log_with_body,
    nested_value,
    number,
    prefixes,
    varint,
    within,
)

RECEIVED = 1_790_000_000_123_456_789
TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))
BEYOND = 2**63
each_signal = pytest.mark.parametrize("signal", SIGNALS)
TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def decode(signal: Signal, *bodies: bytes, extra: Sequence[Promoted] = (), depth_max: int = 32) -> Decoded:
    decoder = Decoder(signal, extra, depth_max=depth_max)
    decoded = decoder.decode(bodies, ["t"] * len(bodies), [RECEIVED] * len(bodies))
    conform(decoded.table, decoder.spec).validate(full=True)
    return decoded


def rows(signal: Signal, *bodies: bytes, **options: Any) -> list[dict[str, Any]]:
    decoded = decode(signal, *bodies, **options)
    assert not decoded.rejected.any(), decoded.reasons
    return decoded.table.to_pylist()


def attributes(**values: Any) -> list[KeyValue]:
    return [KeyValue(key=key.replace("__", "."), value=value) for key, value in values.items()]


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def logs(*records: LogRecord, resource: Sequence[KeyValue] = ()) -> bytes:
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.extend(resource)
    envelope.scope_logs.add().log_records.extend(records)
    return request.SerializeToString()


def spans(*items: Span) -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(items)
    return request.SerializeToString()


def a_span(**fields: Any) -> Span:
    return Span(**{"trace_id": TRACE, "span_id": SPAN} | fields)


def metrics(*items: Metric) -> bytes:
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.extend(items)
    return request.SerializeToString()


def a_point(type_name: str, **fields: Any) -> Metric:
    metric = Metric(name="m")
    getattr(metric, type_name).data_points.add(**fields)
    return metric


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
GOOD: dict[Signal, bytes] = {
    "logs": logs(LogRecord(body=text("good")), LogRecord(body=text("too"))),
    "spans": spans(a_span(name="good"), a_span(name="too")),
    "metrics": metrics(a_point("gauge", as_int=1), a_point("histogram", count=1)),
}


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


# Attributes ---------------------------------------------------------------------------------------


def test_of_a_key_that_is_twice_in_a_list_the_last_one_wins_everywhere() -> None:
    twice = [
        KeyValue(key="k", value=AnyValue(int_value=1)),
        KeyValue(key="x", value=text("x")),
        KeyValue(key="k", value=text("last")),
        KeyValue(key="k", value=AnyValue(bool_value=True)),
        KeyValue(key="x", value=text("y")),
    ]
    request = ExportTraceServiceRequest()
    envelope = request.resource_spans.add()
    envelope.resource.attributes.extend(twice)
    scope = envelope.scope_spans.add()
    scope.scope.attributes.extend(twice)
    scope.spans.append(
        a_span(attributes=twice, events=[{"attributes": twice}], links=[{"attributes": twice}])
    )
    scope.spans.append(a_span(attributes=twice[:2]))
    first, second = rows("spans", request.SerializeToString())
    for place in (first, first["events"][0], first["links"][0]):
        assert sorted(place["attributes"]) == [("k", "true"), ("x", "y")]
        assert json.loads(place["attribute_types"]) == {"k": "bool"}
    for prefix in ("resource_", "scope_"):
        assert sorted(first[f"{prefix}attributes"]) == [("k", "true"), ("x", "y")]
    assert second["attributes"] == [("k", "1"), ("x", "x")]


def test_a_repeated_key_in_one_of_many_lists_of_many_keys_is_found() -> None:
    records = [LogRecord(attributes=[KeyValue(key=f"k{n}", value=text(str(n)))]) for n in range(2000)]
    records[77].attributes.extend([KeyValue(key="k77", value=text("again"))])
    found = rows("logs", logs(*records))
    assert found[77]["attributes"] == [("k77", "again")]
    assert found[78]["attributes"] == [("k78", "78")]


def test_attribute_types_is_a_json_object_whatever_the_keys_are() -> None:
    hostile = [
        '"',
        "\\",
        '":"int","x":"',
        "\n",
        "\x00",
        "{}",
        "",
        "\u2028",
        "\U0001f468",
        "a,b",
        "null",
        "\ud7ff",
    ]
    pairs = [KeyValue(key=key, value=AnyValue(int_value=n)) for n, key in enumerate(hostile)]
    plain = KeyValue(key="plain", value=text("1"))
    (row,) = rows("logs", logs(LogRecord(attributes=[*pairs, plain])))
    assert json.loads(row["attribute_types"]) == dict.fromkeys(hostile, "int")
    assert dict(row["attributes"]) == {key: str(n) for n, key in enumerate(hostile)} | {"plain": "1"}


def test_every_kind_of_value_is_named_and_empty_ones_are_null() -> None:
    values = {
        "string": text("s"),
        "bool": AnyValue(bool_value=False),
        "int": AnyValue(int_value=-(2**63)),
        "double": AnyValue(double_value=0.1),
        "bytes": AnyValue(bytes_value=b"\xff\x00"),
        "array": AnyValue(array_value=ArrayValue(values=[text("a"), AnyValue()])),
        "kvlist": AnyValue(
            kvlist_value=KeyValueList(values=[KeyValue(key="k", value=AnyValue(int_value=1))])
        ),
        "empty": AnyValue(),
        "absent": None,
    }
    (row,) = rows("logs", logs(LogRecord(attributes=attributes(**values))))
    found = dict(row["attributes"])
    assert json.loads(row["attribute_types"]) == {
        name: name for name in ("bool", "int", "double", "bytes", "array", "kvlist")
    }
    assert (found["bool"], found["int"], found["double"]) == ("false", str(-(2**63)), "0.1")
    assert found["bytes"] == "/wA="
    assert json.loads(found["array"]) == {"arrayValue": {"values": [{"stringValue": "a"}, {}]}}
    assert json.loads(found["kvlist"]) == {
        "kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}
    }
    assert (found["empty"], found["absent"]) == (None, None)


# Promoted columns ---------------------------------------------------------------------------------


def test_promoted_columns_are_copies_in_their_own_type() -> None:
    resource = attributes(service__name=text("shop"))
    record = LogRecord(
        attributes=attributes(http__route=text("/a"), http__response__status_code=AnyValue(int_value=404))
    )
    first, second = rows("logs", logs(record, LogRecord(), resource=resource))
    assert (first["service_name"], first["http_route"], first["http_response_status_code"]) == (
        "shop",
        "/a",
        404,
    )
    assert dict(first["attributes"])["http.response.status_code"] == "404"
    assert dict(first["resource_attributes"]) == {"service.name": "shop"}
    assert (second["service_name"], second["http_route"], second["http_response_status_code"]) == (
        "shop",
        None,
        None,
    )


@pytest.mark.parametrize(
    "value",
    [text("200"), AnyValue(double_value=200.0), AnyValue(bool_value=True), AnyValue(bytes_value=b"1"), None],
)
def test_a_promoted_int_of_another_type_is_null_and_stays_in_the_map(value: AnyValue | None) -> None:
    status = attributes(http__response__status_code=value)
    other = attributes(http__response__status_code=AnyValue(int_value=7))
    first, second = rows("logs", logs(LogRecord(attributes=status), LogRecord(attributes=other)))
    assert (first["http_response_status_code"], second["http_response_status_code"]) == (None, 7)
    assert len(first["attributes"]) == 1


def test_a_promoted_string_holds_the_text_of_any_value() -> None:
    (row,) = rows("logs", logs(LogRecord(), resource=attributes(service__name=AnyValue(int_value=5))))
    assert row["service_name"] == "5"


@pytest.mark.parametrize("source", ["resource", "record"])
def test_extra_promoted_columns_of_every_type_by_configuration(source: Any) -> None:
    extra = [
        Promoted("a.int", source, "int"),
        Promoted("a.double", source, "double"),
        Promoted("a.bool", source, "bool"),
        Promoted("a.text", source, "string", "other_name"),
        Promoted("a.wrong", source, "bool"),
        Promoted("a.missing", source, "double"),
    ]
    given = attributes(
        a__int=AnyValue(int_value=-(2**63)),
        a__double=AnyValue(int_value=3),
        a__bool=AnyValue(bool_value=False),
        a__text=text("x"),
        a__wrong=text("true"),
    )
    of_resource = given if source == "resource" else []
    record = LogRecord(attributes=[] if source == "resource" else given)
    for row in rows("logs", logs(record, record, resource=of_resource), extra=extra):
        names = ("a_int", "a_double", "a_bool", "other_name", "a_wrong", "a_missing")
        assert [row[name] for name in names] == [-(2**63), 3.0, False, "x", None, None]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, 1.7976931348623157e308]
)
def test_a_promoted_double_keeps_every_bit_that_text_can(value: float) -> None:
    extra = [Promoted("d", "record", "double")]
    (row,) = rows("logs", logs(LogRecord(attributes=attributes(d=AnyValue(double_value=value)))), extra=extra)
    assert repr(row["d"]) == repr(value)


# Unusual wire -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (delimited(1, b"a") + number(3, 5), ("5", "int")),
        (number(3, 5) + delimited(1, b"a"), ("a", None)),
        (number(2, 1) + double(4, 1.5) + number(3, 5) + double(4, 2.5), ("2.5", "double")),
        (delimited(5, delimited(1, b"")) + number(2, 0), ("false", "bool")),
        (number(2, 0) + delimited(7, b"x"), ("eA==", "bytes")),
        (delimited(1, b"a") + delimited(1, b"b"), ("b", None)),
    ],
)
def test_of_a_value_that_is_on_the_wire_twice_the_last_one_counts(
    value: bytes, expected: tuple[str, str | None]
) -> None:
    (row,) = rows("logs", log_with_body(value))
    assert (row["body"], row["body_type"]) == expected
    other, row = rows("logs", GOOD["logs"][:0] + log_with_body(delimited(1, b"z")), log_with_attribute(value))
    assert dict(row["attributes"]) == {"k": expected[0]}
    assert other["body"] == "z"


@pytest.mark.parametrize("type_field", [5, 7])
def test_of_a_points_value_that_is_on_the_wire_twice_the_last_one_counts(type_field: int) -> None:
    as_double, as_int = double(4, 1.5), fixed64(6, 7)
    for point, expected in ((as_double + as_int, (None, 7)), (as_int + as_double, (1.5, None))):
        (row,) = rows("metrics", within((1, 2, 2, type_field, 1), point))
        assert (row["value_double"], row["value_int"]) == expected


def test_of_an_exemplars_value_that_is_on_the_wire_twice_the_last_one_counts() -> None:
    (row,) = rows("metrics", within((1, 2, 2, 5, 1, 5), double(3, 1.5) + fixed64(6, 7)))
    assert [(item["value_double"], item["value_int"]) for item in row["exemplars"]] == [(None, 7)]


def test_of_a_metrics_data_that_is_on_the_wire_twice_the_last_one_counts() -> None:
    gauge, total = within((5, 1), fixed64(6, 1)), within((7, 1), fixed64(6, 2))
    for data, expected in (
        (gauge + total, [("sum", 2)]),
        (total + gauge, [("gauge", 1)]),
        (total + delimited(5, b""), []),
        (gauge + gauge, [("gauge", 1), ("gauge", 1)]),  # the same member twice is merged
    ):
        found = rows("metrics", within((1, 2, 2), data))
        assert [(row["metric_type"], row["value_int"]) for row in found] == expected


def test_a_deep_neighbour_of_a_value_that_is_there_twice_is_not_refused_for_it() -> None:
    """The stock parser, which settles such values, stops at a lesser depth than decoding."""
    twice = log_with_body(delimited(1, b"a") + number(3, 5))
    deep = log_with_body(nested_value(49))
    assert [row["body_type"] for row in rows("logs", deep, twice, depth_max=64)] == ["array", "int"]


BAD_UTF8 = delimited(1, b"ok\xff")
SURROGATE = delimited(1, b"\xed\xa0\x80")


@pytest.mark.parametrize("text_field", [BAD_UTF8, SURROGATE, delimited(1, b"\xc0\x80")])
@pytest.mark.parametrize(
    "path",
    [
        (1, 2, 2, 5),  # a record's body
        (1, 2, 2, 6),  # a record's attribute key
        (1, 2, 2, 6, 2),  # and value
        (1, 2, 1),  # the scope's name
        (1, 1, 1),  # the resource's attribute key
        (1, 1, 1, 2),  # and value
        (1, 1, 3),  # an entity reference's schema
        (1, 2, 2, 5, 5, 1),  # in an array
        (1, 2, 2, 5, 6, 1),  # a key in a key-value list
        (1, 2, 2, 5, 6, 1, 2),  # and its value
        (1, 2, 2, 5, 5, 1, 5, 1),  # in an array in an array
    ],
)
def test_text_that_is_not_utf8_refuses_the_request(path: tuple[int, ...], text_field: bytes) -> None:
    with pytest.raises(RequestInvalid):
        decode("logs", within(path, text_field))


@pytest.mark.parametrize(
    ("signal", "body"),
    [
        ("logs", within((1, 2, 2), delimited(3, b"\xff"))),
        ("logs", within((1, 2, 2), delimited(12, b"\xff"))),
        ("logs", within((1,), delimited(3, b"\xff"))),
        ("logs", within((1, 2), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2), delimited(5, b"\xff"))),
        ("spans", within((1, 2, 2), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2, 11), delimited(2, b"\xff"))),
        ("spans", within((1, 2, 2, 13), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2, 15), delimited(2, b"\xff"))),
        ("metrics", within((1, 2, 2), delimited(1, b"\xff"))),
        ("metrics", within((1, 2, 2), delimited(3, b"\xff"))),
    ],
)
def test_text_of_records_that_is_not_utf8_refuses_the_request(signal: Signal, body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        decode(signal, body)


@each_signal
def test_a_truncated_request_is_refused_or_is_a_shorter_request(signal: Signal) -> None:
    request = {
        "logs": ExportLogsServiceRequest,
        "spans": ExportTraceServiceRequest,
        "metrics": ExportMetricsServiceRequest,
    }[signal]
    decoder = Decoder(signal)
    for part in prefixes(GOOD[signal]):
        if part:
            with pytest.raises(RequestInvalid):
                decoder.decode([part], ["t"], [RECEIVED])
            with pytest.raises(Exception, match="pars"):
                request.FromString(part)


@each_signal
@pytest.mark.parametrize("size", [2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 10, 2**64 - 1])
@pytest.mark.parametrize("path", [(), (1,), (1, 2), (1, 2, 2)])
def test_a_length_beyond_all_bounds_refuses_the_request_and_no_later_one(
    signal: Signal, size: int, path: tuple[int, ...]
) -> None:
    """Some make ptars panic, which is no Exception: a lane that met one would never answer again."""
    for field in (1, 2, 3):
        with pytest.raises(RequestInvalid):
            decode(signal, within(path, varint(field << 3 | 2) + varint(size) + b"x"))
    assert len(rows(signal, GOOD[signal])) == 2


# Nesting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kvlist", [False, True])
@pytest.mark.parametrize("place", [log_with_body, log_with_attribute])
def test_nesting_is_bounded_exactly(place: Any, kvlist: bool) -> None:
    value = nested_value(8, kvlist=kvlist)
    assert len(rows("logs", place(value), depth_max=8)) == 1
    with pytest.raises(RequestInvalid, match="deeper than 7"):
        decode("logs", place(value), depth_max=7)


@pytest.mark.parametrize("kvlist", [False, True])
@pytest.mark.parametrize(
    "path",
    [(1, 2, 2, 5), (1, 2, 2, 6, 2), (1, 1, 1, 2), (1, 2, 1, 3, 2)],
    ids=["body", "attribute", "resource", "scope"],
)
def test_200_000_levels_are_refused_and_the_process_lives(path: tuple[int, ...], kvlist: bool) -> None:
    with pytest.raises(RequestInvalid):
        decode("logs", within(path, nested_value(200_000, kvlist=kvlist)), depth_max=90)


def test_200_000_levels_beside_a_value_that_is_there_twice_are_refused() -> None:
    twice = log_with_body(delimited(1, b"a") + number(3, 5))
    with pytest.raises(RequestInvalid):
        decode("logs", log_with_body(nested_value(200_000)), twice)


def test_200_000_nested_groups_are_refused_and_the_process_lives() -> None:
    groups = varint(100 << 3 | 3) * 200_000 + varint(100 << 3 | 4) * 200_000
    with pytest.raises(RequestInvalid):
        decode("logs", groups)


# Amplification ------------------------------------------------------------------------------------


def test_many_records_that_share_a_large_resource_are_refused_before_memory_is_taken() -> None:
    resource = b"".join(within((1,), delimited(1, b"k%d" % number_)) for number_ in range(1000))
    body = delimited(1, delimited(1, resource) + delimited(2, delimited(2, b"") * 200_000))
    with pytest.raises(RequestTooLarge):
        decode("logs", body)
    resource = delimited(1, delimited(1, b"k") + within((2, 1), b"x" * 200_000))
    with pytest.raises(RequestTooLarge):
        decode("logs", delimited(1, delimited(1, resource) + delimited(2, delimited(2, b"") * 20_000)))
