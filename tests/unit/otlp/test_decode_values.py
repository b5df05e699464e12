"""Decoding of values: repeated keys, types, promoted columns and fields that occur twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.tables import Promoted
from tests.support.otlp_decoding import GOOD, a_span, logs, rows, text
from tests.support.otlp_wire import (
    delimited,
    double,
    fixed64,
    log_with_attribute,
    log_with_body,
    nested_value,
    number,
    within,
)


def attributes(**values: Any) -> list[KeyValue]:
    return [KeyValue(key=key.replace("__", "."), value=value) for key, value in values.items()]


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
