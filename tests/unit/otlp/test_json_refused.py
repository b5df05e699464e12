"""OTLP/JSON that is refused: wrong values, deep nesting, and whatever random damage makes."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from frazil.errors import RequestInvalid
from frazil.otlp.json import any_value_from_json, request_from_json, request_to_json
from tests.support.otlp_json import (
    DEPTH_MAX,
    REQUEST_TYPES,
    REQUESTS,
    each_signal,
    exactly,
    patient,
    read,
    read_point,
    read_record,
)

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
