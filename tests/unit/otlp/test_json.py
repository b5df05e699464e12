"""OTLP/JSON is read and written without loss, agrees with protobuf's mapping, and refuses what it must."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.errors import RequestInvalid
from frazil.otlp.json import any_value_from_json, any_value_to_json, request_from_json, request_to_json
from tests.support.otlp_requests import any_values, logs_requests, metrics_requests, trace_requests

DEPTH_MAX = 32
REQUEST_TYPES: dict[str, Any] = {
    "logs": ExportLogsServiceRequest,
    "spans": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
REQUESTS = {"logs": logs_requests(), "spans": trace_requests(), "metrics": metrics_requests()}
each_signal = pytest.mark.parametrize("signal", list(REQUESTS))
patient = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read(signal: str, document: Any) -> Any:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return REQUEST_TYPES[signal].FromString(request_from_json(signal, body, depth_max=DEPTH_MAX))


def read_record(record: Any) -> LogRecord:
    body = record if isinstance(record, bytes) else orjson.dumps(record)
    request = read("logs", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + body + b"]}]}]}")
    return request.resource_logs[0].scope_logs[0].log_records[0]


def read_point(point: Any) -> Any:
    body = point if isinstance(point, bytes) else orjson.dumps(point)
    head = b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"exponentialHistogram":{"dataPoints":['
    request = read("metrics", head + body + b"]}}]}]}]}")
    return request.resource_metrics[0].scope_metrics[0].metrics[0].exponential_histogram.data_points[0]


def exactly(message: Message) -> bytes:
    """Bytes that are equal if and only if messages are, with every NaN the same one."""
    copy = type(message)()
    copy.CopyFrom(message)
    _unify_nans(copy)
    return copy.SerializeToString(deterministic=True)


def _unify_nans(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _unify_nans(item)
        elif field.is_repeated:
            value[:] = [math.nan if item != item else item for item in value]
        elif value != value:
            setattr(message, field.name, math.nan)


# Without loss -------------------------------------------------------------------------------------


@each_signal
def test_a_request_comes_back_equal(signal: str) -> None:
    @patient
    @given(REQUESTS[signal])
    def check(request: Message) -> None:
        encoded = request_from_json(signal, request_to_json(request), depth_max=DEPTH_MAX)
        assert exactly(type(request).FromString(encoded)) == exactly(request)

    check()


@each_signal
def test_protobufs_own_parser_reads_what_is_written(signal: str) -> None:
    @patient
    @given(REQUESTS[signal])
    def check(request: Message) -> None:
        document = _with_ids(orjson.loads(request_to_json(request)), _base64_of_hex)
        assert exactly(json_format.ParseDict(document, type(request)())) == exactly(request)

    check()


@each_signal
def test_what_protobufs_own_writer_writes_is_read(signal: str) -> None:
    @patient
    @given(REQUESTS[signal])
    def check(request: Message) -> None:
        document = json_format.MessageToDict(request, use_integers_for_enums=True)
        assert exactly(read(signal, _with_ids(document, _hex_of_base64))) == exactly(request)

    check()


@pytest.mark.slow
@each_signal
def test_the_order_of_names_and_unknown_fields_do_not_matter(signal: str) -> None:
    @patient
    @given(REQUESTS[signal], st.integers(0, 2**32))
    def check(request: Message, seed: int) -> None:
        document = _with_strangers(orjson.loads(request_to_json(request)), random.Random(seed))
        assert exactly(read(signal, document)) == exactly(request)

    check()


@patient
@given(any_values())
def test_a_value_comes_back_equal(value: AnyValue) -> None:
    document = orjson.loads(orjson.dumps(any_value_to_json(value)))
    assert exactly(any_value_from_json(document)) == exactly(value)


def _with_ids(document: Any, convert: Callable[[str], str]) -> Any:
    if isinstance(document, list):
        return [_with_ids(item, convert) for item in document]
    if not isinstance(document, dict):
        return document
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: convert(item) if name in ids else _with_ids(item, convert) for name, item in document.items()
    }


def _base64_of_hex(text: str) -> str:
    return base64.b64encode(bytes.fromhex(text)).decode()


def _hex_of_base64(text: str) -> str:
    return base64.b64decode(text).hex()


def _with_strangers(document: Any, rng: random.Random) -> Any:
    if isinstance(document, list):
        return [_with_strangers(item, rng) for item in document]
    if not isinstance(document, dict):
        return document
    items = [(name, _with_strangers(item, rng)) for name, item in document.items()]
    items += [
        ("notInOtlp", rng.choice([None, 1, "x", [[]], {"traceId": 7}])),
        ("", []),
        ("time_unix_nano", "x"),
    ]
    rng.shuffle(items)
    return dict(items)


# As written ---------------------------------------------------------------------------------------


def test_the_written_form_is_otlp_json() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id, span.kind, span.end_time_unix_nano = b"\xab" * 16, b"\x01" * 8, 2, 2**63
    span.attributes.add(key="b").value.bytes_value = b"\xfb\xff"
    span.attributes.add(key="d").value.double_value = math.inf
    span.attributes.add(key="i").value.int_value = -5
    span.attributes.add(key="e").value.SetInParent()
    assert orjson.loads(request_to_json(request)) == {
        "resourceSpans": [
            {
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "ab" * 16,
                                "spanId": "01" * 8,
                                "kind": 2,
                                "endTimeUnixNano": "9223372036854775808",
                                "attributes": [
                                    {"key": "b", "value": {"bytesValue": "+/8="}},
                                    {"key": "d", "value": {"doubleValue": "Infinity"}},
                                    {"key": "i", "value": {"intValue": "-5"}},
                                    {"key": "e", "value": {}},
                                ],
                            }
                        ]
                    }
                ]
            }
        ]
    }


def test_a_response_is_written_too() -> None:
    response = ExportLogsServiceResponse(partial_success={"rejected_log_records": 3, "error_message": "why"})
    assert orjson.loads(request_to_json(response)) == {
        "partialSuccess": {"rejectedLogRecords": "3", "errorMessage": "why"}
    }
    assert request_to_json(ExportLogsServiceResponse()) == b"{}"


# As read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b'"0"', 0),
        (b"18446744073709551615", 2**64 - 1),
        (b'"18446744073709551615"', 2**64 - 1),
        (b"9007199254740993", 2**53 + 1),
        (b"1.0", 1),
        (b"1e3", 1000),
        (b'"1e3"', 1000),
        (b'"1.50e1"', 15),
        (b'"18446744073709551615.0"', 2**64 - 1),
        (b"-0", 0),
        (b"null", 0),
    ],
)
def test_64_bit_integers_are_exact_as_numbers_and_strings(text: bytes, number: int) -> None:
    assert read_record(b'{"timeUnixNano":' + text + b"}").time_unix_nano == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"-9223372036854775808", -(2**63)),
        (b'"-9223372036854775808"', -(2**63)),
        (b'"9223372036854775807"', 2**63 - 1),
    ],
)
def test_signed_integers_reach_both_ends(text: bytes, number: int) -> None:
    value = any_value_from_json(orjson.loads(b'{"intValue":' + text + b"}"))
    assert value.int_value == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"1", 1.0),
        (b"-0.0", -0.0),
        (b"-0", -0.0),
        (b'"-0"', -0.0),
        (b'"1.5e3"', 1500.0),
        (b'"Infinity"', math.inf),
        (b'"-Infinity"', -math.inf),
        (b'"NaN"', math.nan),
        (b"18446744073709551615", 2.0**64),
        (b"1e-400", 0.0),
        (b"5e-324", 5e-324),
    ],
)
def test_doubles_are_numbers_or_strings(text: bytes, number: float) -> None:
    point = read_point(
        b'{"attributes":[{"key":"-0,","value":{"stringValue":"\\"-0}"}}],"sum":' + text + b" }"
    )
    assert repr(point.sum) == repr(number)
    assert point.HasField("sum")
    assert (point.attributes[0].key, point.attributes[0].value.string_value) == ("-0,", '"-0}')


@pytest.mark.parametrize("text", ["+/8=", "+/8", "-_8=", "-_8"])
def test_bytes_are_base64_of_either_alphabet_padded_or_not(text: str) -> None:
    assert any_value_from_json({"bytesValue": text}).bytes_value == b"\xfb\xff"


def test_ids_are_hex_of_any_case_and_length() -> None:
    record = read_record({"traceId": "ABcd", "spanId": ""})
    assert (record.trace_id, record.span_id) == (b"\xab\xcd", b"")


@pytest.mark.parametrize("number", [0, 9, 99, -1, 2**31 - 1, -(2**31), 9.0])
def test_enums_are_integers_known_or_not(number: float) -> None:
    assert read_record({"severityNumber": number}).severity_number == number


def test_null_is_absent_also_in_a_oneof() -> None:
    assert not read_record({"body": None, "attributes": None}).HasField("body")
    assert read_record({"body": {"stringValue": None, "intValue": 1}}).body.int_value == 1
    assert read_record({"attributes": [{"key": "a", "value": None}]}).attributes[0].key == "a"
    assert not read_point({"sum": None}).HasField("sum")


def test_zero_is_present_where_presence_counts() -> None:
    assert read_point({"min": 0}).HasField("min")
    assert read_record({"body": {"intValue": 0}}).body.WhichOneof("value") == "int_value"
    assert read_record({"body": {"kvlistValue": {}}}).body.WhichOneof("value") == "kvlist_value"
    assert read_record({"body": {}}).HasField("body")


def test_names_have_only_their_camel_case_form() -> None:
    assert read("logs", {"resource_logs": [{}]}) == ExportLogsServiceRequest()
    assert read_record({"severity_text": "x", "SeverityText": "y"}) == LogRecord()


@pytest.mark.parametrize("length", [0, 57, 58, 63, 64, 65, 119, 120, 127, 128, 2047, 2048, 70_000])
def test_keys_and_strings_of_every_length_class(length: int) -> None:
    for character in ("k", "é"):
        for other in (0, 1, 60, 130):
            key, value = character * length, "v" * other
            for one, two in ((key, value), (value, key)):
                record = read_record({"attributes": [{"key": one, "value": {"stringValue": two}}]})
                assert (record.attributes[0].key, record.attributes[0].value.string_value) == (one, two)


# Refusals -----------------------------------------------------------------------------------------

RECORD = "resourceLogs[0].scopeLogs[0].logRecords[0]"
UINT64 = "expected an unsigned 64-bit integer, got"
DOUBLE = 'expected a number, "NaN", "Infinity" or "-Infinity", got'


@pytest.mark.parametrize(
    ("record", "path", "reason"),
    [
        ('{"timeUnixNano":"abc"}', ".timeUnixNano", f'{UINT64} "abc"'),
        ('{"timeUnixNano":""}', ".timeUnixNano", f'{UINT64} ""'),
        ('{"timeUnixNano":" 1"}', ".timeUnixNano", f'{UINT64} " 1"'),
        ('{"timeUnixNano":"1_0"}', ".timeUnixNano", f'{UINT64} "1_0"'),
        ('{"timeUnixNano":"٣"}', ".timeUnixNano", f'{UINT64} "\\u0663"'),
        ('{"timeUnixNano":"0x1"}', ".timeUnixNano", f'{UINT64} "0x1"'),
        ('{"timeUnixNano":1.5}', ".timeUnixNano", f"{UINT64} 1.5"),
        ('{"timeUnixNano":"1.5"}', ".timeUnixNano", f'{UINT64} "1.5"'),
        ('{"timeUnixNano":"1e-9999"}', ".timeUnixNano", f'{UINT64} "1e-9999"'),
        ('{"timeUnixNano":"1e9999"}', ".timeUnixNano", f'{UINT64} "1e9999"'),
        ('{"timeUnixNano":"1e99999999"}', ".timeUnixNano", f'{UINT64} "1e99999999"'),
        ('{"timeUnixNano":-1}', ".timeUnixNano", f"{UINT64} -1"),
        ('{"timeUnixNano":18446744073709551616}', ".timeUnixNano", f"{UINT64} 1.8446744073709552e+19"),
        ('{"timeUnixNano":"18446744073709551616"}', ".timeUnixNano", f'{UINT64} "18446744073709551616"'),
        ('{"timeUnixNano":true}', ".timeUnixNano", f"{UINT64} true"),
        ('{"timeUnixNano":{}}', ".timeUnixNano", f"{UINT64} an object"),
        ('{"timeUnixNano":[1]}', ".timeUnixNano", f"{UINT64} an array"),
        ('{"flags":4294967296}', ".flags", "expected an unsigned 32-bit integer, got 4294967296"),
        (
            '{"droppedAttributesCount":-1}',
            ".droppedAttributesCount",
            "expected an unsigned 32-bit integer, got -1",
        ),
        ('{"severityText":1}', ".severityText", "expected a string, got 1"),
        (
            '{"severityNumber":"SEVERITY_NUMBER_INFO"}',
            ".severityNumber",
            "expected an integer (OTLP/JSON has no enum names: SEVERITY_NUMBER_INFO is 9), "
            'got "SEVERITY_NUMBER_INFO"',
        ),
        (
            '{"severityNumber":"9"}',
            ".severityNumber",
            'expected an integer (OTLP/JSON has no enum names), got "9"',
        ),
        (
            '{"severityNumber":2147483648}',
            ".severityNumber",
            "expected a signed 32-bit integer, got 2147483648",
        ),
        ('{"traceId":"abc"}', ".traceId", 'expected an id in hex, got "abc"'),
        ('{"traceId":"zz"}', ".traceId", 'expected an id in hex, got "zz"'),
        ('{"traceId":"a b "}', ".traceId", 'expected an id in hex, got "a b "'),
        ('{"spanId":"éé"}', ".spanId", 'expected an id in hex, got "\\u00e9\\u00e9"'),
        ('{"spanId":12}', ".spanId", "expected an id in hex, got 12"),
        ('{"body":"text"}', ".body", 'expected an object, got "text"'),
        ('{"body":{"bytesValue":"a"}}', ".body.bytesValue", 'expected base64, got "a"'),
        ('{"body":{"bytesValue":"ab=c"}}', ".body.bytesValue", 'expected base64, got "ab=c"'),
        ('{"body":{"bytesValue":"+/8=="}}', ".body.bytesValue", 'expected base64, got "+/8=="'),
        ('{"body":{"bytesValue":"a b="}}', ".body.bytesValue", 'expected base64, got "a b="'),
        ('{"body":{"bytesValue":[1]}}', ".body.bytesValue", "expected base64, got an array"),
        ('{"body":{"boolValue":"true"}}', ".body.boolValue", 'expected true or false, got "true"'),
        ('{"body":{"boolValue":1}}', ".body.boolValue", "expected true or false, got 1"),
        ('{"body":{"doubleValue":"nan"}}', ".body.doubleValue", f'{DOUBLE} "nan"'),
        ('{"body":{"doubleValue":""}}', ".body.doubleValue", f'{DOUBLE} ""'),
        ('{"body":{"doubleValue":"1e400"}}', ".body.doubleValue", f'{DOUBLE} "1e400"'),
        ('{"body":{"doubleValue":false}}', ".body.doubleValue", f"{DOUBLE} false"),
        (
            '{"body":{"intValue":9223372036854775808}}',
            ".body.intValue",
            "expected a signed 64-bit integer, got 9223372036854775808",
        ),
        (
            '{"body":{"intValue":-9223372036854775809}}',
            ".body.intValue",
            "expected a signed 64-bit integer, got -9.223372036854776e+18",
        ),
        (
            '{"body":{"stringValue":"","intValue":"0"}}',
            ".body",
            "only one of stringValue and intValue may be set",
        ),
        ('{"attributes":{}}', ".attributes", "expected an array, got an object"),
        ('{"attributes":[null]}', ".attributes[0]", "expected an object, got null"),
        ('{"attributes":[{},{"key":1}]}', ".attributes[1].key", "expected a string, got 1"),
        ('{"attributes":[{"key":"a","value":1}]}', ".attributes[0].value", "expected an object, got 1"),
        (
            '{"attributes":[{"key":"a","value":{"stringValue":5}}]}',
            ".attributes[0].value.stringValue",
            "expected a string, got 5",
        ),
        (
            '{"attributes":[{"key":"a","value":{"arrayValue":{"values":[{},{"intValue":"x"}]}}}]}',
            ".attributes[0].value.arrayValue.values[1].intValue",
            'expected a signed 64-bit integer, got "x"',
        ),
        (f'{{"severityText":{{}},"x":"{"y" * 99}"}}', ".severityText", "expected a string, got an object"),
        (f'{{"traceId":"{"y" * 99}"}}', ".traceId", f'expected an id in hex, got "{"y" * 40}"'),
    ],
)
def test_a_value_that_its_field_cannot_hold_is_refused_with_its_path(
    record: str, path: str, reason: str
) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        read_record(record.encode())
    assert str(refusal.value) == f"{RECORD}{path}: {reason}"


@pytest.mark.parametrize(
    ("point", "path", "reason"),
    [
        ({"scale": 2**31}, ".scale", "expected a signed 32-bit integer, got 2147483648"),
        ({"positive": []}, ".positive", "expected an object, got an array"),
        (
            {"positive": {"bucketCounts": ["1", "x"]}},
            ".positive.bucketCounts[1]",
            'expected an unsigned 64-bit integer, got "x"',
        ),
        (
            {"exemplars": [{"asInt": 1, "asDouble": 1}]},
            ".exemplars[0]",
            "only one of asDouble and asInt may be set",
        ),
    ],
)
def test_metrics_are_checked_alike(point: Any, path: str, reason: str) -> None:
    with pytest.raises(RequestInvalid) as refusal:
        read_point(point)
    where = "resourceMetrics[0].scopeMetrics[0].metrics[0].exponentialHistogram.dataPoints[0]"
    assert str(refusal.value) == f"{where}{path}: {reason}"


def test_a_metric_has_one_kind_of_data() -> None:
    metric = {"gauge": {}, "sum": {}}
    with pytest.raises(RequestInvalid, match="only one of gauge and sum may be set"):
        read("metrics", {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "the body is not valid JSON: .*empty"),
        (b"{", "the body is not valid JSON: "),
        (b"{}x", "the body is not valid JSON: "),
        (b'{"a":NaN}', "the body is not valid JSON: "),
        (b'{"a":"\xff"}', "the body is not valid JSON: .*UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "the body is not valid JSON: .*UTF-8"),
        (b'{"a":"\\ud800"}', "the body is not valid JSON: .*surrogate"),
        (b'{"\\udc00":1}', "the body is not valid JSON: .*surrogate"),
        (b"[]", "^expected an object, got an array$"),
        (b"null", "^expected an object, got null$"),
        (b"7", "^expected an object, got 7$"),
        (b'"x"', '^expected an object, got "x"$'),
        (b'{"resourceLogs":{}}', "^resourceLogs: expected an array, got an object$"),
        (
            b'{"resourceLogs":[{"scopeLogs":[{},3]}]}',
            r"^resourceLogs\[0\].scopeLogs\[1\]: expected an object, got 3$",
        ),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(RequestInvalid, match=reason):
        read("logs", body)


def test_a_lone_surrogate_in_a_value_is_refused() -> None:
    for value in ({"stringValue": "\ud800"}, {"boolValue": "\ud800"}, {"bytesValue": "\ud800"}):
        with pytest.raises(RequestInvalid):
            any_value_from_json(value)


# Nesting ------------------------------------------------------------------------------------------


def _nested(levels: int, *, lists: bool) -> bytes:
    opening, closing = (
        (b'{"arrayValue":{"values":[', b"]}}")
        if lists
        else (b'{"kvlistValue":{"values":[{"key":"k","value":', b"}]}}")
    )
    return opening * levels + b'{"intValue":1}' + closing * levels


@pytest.mark.parametrize("lists", [True, False])
def test_values_nest_up_to_the_bound_and_no_deeper(lists: bool) -> None:
    head, tail = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":', b"}]}]}]}"
    for depth_max in (0, 1, 8, 30):
        body = head + _nested(depth_max, lists=lists) + tail
        encoded = request_from_json("logs", body, depth_max=depth_max)
        assert exactly(ExportLogsServiceRequest.FromString(encoded)) == exactly(read("logs", body))
        with pytest.raises(RequestInvalid, match="nested too deeply"):
            request_from_json("logs", head + _nested(depth_max + 1, lists=lists) + tail, depth_max=depth_max)


@pytest.mark.parametrize("levels", [33, 100, 300, 200_000])
@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("depth_max", [32, 1_000_000])
def test_a_nesting_bomb_is_refused_and_harms_nobody(levels: int, lists: bool, depth_max: int) -> None:
    attributes = b'[{"key":"k","value":' + _nested(levels, lists=lists) + b"}]"
    body = b'{"resourceLogs":[{"resource":{"attributes":' + attributes + b"}}]}"
    if depth_max == 32 or levels == 200_000:
        with pytest.raises(RequestInvalid) as refusal:
            request_from_json("logs", body, depth_max=depth_max)
        assert len(str(refusal.value)) < 500
    else:
        try:  # with so generous a bound, those of parser and interpreter may come first
            request_from_json("logs", body, depth_max=depth_max)
        except RequestInvalid as other_refusal:
            assert "deep" in str(other_refusal) or "depth" in str(other_refusal)  # noqa: PT017
    assert read("logs", b"{}") == ExportLogsServiceRequest()


@pytest.mark.parametrize("bomb", [b"[", b'{"a":', b'{"resourceLogs":['])
def test_a_bomb_of_brackets_is_refused(bomb: bytes) -> None:
    with pytest.raises(RequestInvalid):
        read("logs", bomb * 200_000)


def test_a_value_too_deep_for_protobuf_is_refused() -> None:
    value = orjson.loads(_nested(60, lists=False))
    with pytest.raises(RequestInvalid, match="nested too deeply"):
        any_value_from_json(value)
    with pytest.raises(RequestInvalid, match="nested too deeply"):
        any_value_from_json(value, depth_max=100)


# Fuzz ---------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["stringValue", "values", "key", "value", "traceId", "attributes", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def read_or_refuse(signal: str, body: bytes) -> None:
    """Either refused, or bytes that are a request."""
    try:
        encoded = request_from_json(signal, body, depth_max=DEPTH_MAX)
    except RequestInvalid:
        return
    REQUEST_TYPES[signal].FromString(encoded)


@each_signal
def test_arbitrary_bytes_are_read_or_refused(signal: str) -> None:
    @settings(deadline=None, max_examples=200)
    @given(st.binary(max_size=60) | json_values.map(_dumped))
    def check(body: bytes) -> None:
        read_or_refuse(signal, body)

    check()


@each_signal
def test_damaged_json_is_read_or_refused(signal: str) -> None:
    @patient
    @given(REQUESTS[signal], st.integers(0, 2**32))
    def check(request: Message, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(8):
            body = bytearray(request_to_json(request))
            for _ in range(rng.randint(1, 3)):
                start = rng.randrange(len(body) + 1)
                replacement = rng.choice(
                    [b"", b"-", b"0", b"[", b"}", b'"', b"\\", b"null", rng.randbytes(1)]
                )
                body[start : start + rng.randint(0, 3)] = replacement
            read_or_refuse(signal, bytes(body))

    check()


@pytest.mark.slow
@each_signal
def test_json_with_a_wrong_part_is_read_or_refused(signal: str) -> None:
    @patient
    @given(REQUESTS[signal], json_values, st.integers(0, 2**32))
    def check(request: Message, stranger: Any, seed: int) -> None:
        document = orjson.loads(request_to_json(request))
        places = list(_places(document))
        for container, name in random.Random(seed).sample(places, min(len(places), 5)):
            before = container[name]
            container[name] = stranger
            read_or_refuse(signal, _dumped(document))
            container[name] = before

    check()


def _places(document: Any) -> Any:
    items = enumerate(document) if isinstance(document, list) else document.items()
    for name, item in list(items):
        yield document, name
        if isinstance(item, list | dict):
            yield from _places(item)


def _dumped(document: Any) -> bytes:
    """The standard library's writer: unlike orjson it writes integers of any size."""
    return json.dumps(document).encode()
