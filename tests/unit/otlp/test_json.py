"""OTLP/JSON is read and written without loss, and agrees with protobuf's mapping."""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.otlp.json import any_value_from_json, any_value_to_json, request_from_json, request_to_json
from tests.support.otlp_json import (
    DEPTH_MAX,
    REQUESTS,
    each_signal,
    exactly,
    patient,
    read,
    read_point,
    read_record,
)
from tests.support.otlp_requests import any_values

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
