"""frazil's SQL functions: names of numbers, and nested values as plain JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any

import duckdb
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import SeverityNumber
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from frazil.dashboard.traces.read import value as shown_value
from frazil.otlp.json import VALUE_DEPTH_MAX, any_value_to_json
from frazil.query.reads.filters import SPAN_KINDS, STATUSES
from frazil.sql.functions import FUNCTIONS
from frazil.sql.pushdown import Pushdown
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from frazil.sql.types import duckdb_type
from frazil.tables import SIGNALS, landed_spec
from tests.support.otlp_requests import any_values


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        for function in FUNCTIONS:
            opened.execute(function.sql)
        yield opened


def one(engine: duckdb.DuckDBPyConnection, sql: str, *params: Any) -> Any:
    found = engine.execute(f"SELECT {sql}", params).fetchone()
    assert found is not None
    return found[0]


def named(engine: duckdb.DuckDBPyConnection, function: str, number: int | None) -> Any:
    return one(engine, f"{function}(?::INTEGER)", number)


def test_kinds_statuses_and_severities_have_the_names_of_the_specification(
    engine: duckdb.DuckDBPyConnection,
) -> None:
    for name, number in Span.SpanKind.items():
        assert named(engine, "kind_name", number) == name.removeprefix("SPAN_KIND_").lower()
        assert SPAN_KINDS[number] == named(engine, "kind_name", number)
    for name, number in Status.StatusCode.items():
        assert named(engine, "status_name", number) == name.removeprefix("STATUS_CODE_").lower()
        assert STATUSES[number] == named(engine, "status_name", number)
    for name, number in SeverityNumber.items():
        expected = name.removeprefix("SEVERITY_NUMBER_") if number else None
        assert named(engine, "severity_name", number) == expected
        assert named(engine, "severity", number) == (expected and expected.rstrip("234"))


@pytest.mark.parametrize("function", ["kind_name", "status_name", "severity_name"])
@pytest.mark.parametrize("number", [None, -(2**31), -1, 25, 2**31 - 1])
def test_a_number_without_a_name_gives_null(
    engine: duckdb.DuckDBPyConnection, function: str, number: int | None
) -> None:
    assert named(engine, function, number) is None


def array(*values: AnyValue) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def kvlist(*entries: KeyValue) -> AnyValue:
    return AnyValue(kvlist_value=KeyValueList(values=entries))


def number(value: int) -> AnyValue:
    return AnyValue(int_value=value)


def stored(value: AnyValue) -> str:
    """As frazil.otlp.values writes an array or a key-value list."""
    return orjson.dumps(any_value_to_json(value)).decode()


def plain(value: AnyValue) -> Any:
    """A key-value list is a list of pairs: keys may be repeated."""
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return ("map", [(entry.key, plain(entry.value)) for entry in value.kvlist_value.values])
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "double_value" if not math.isfinite(value.double_value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value.double_value, "NaN")
        case str(field):
            return getattr(value, field)


def parsed(text: str) -> Any:
    return json.loads(text, object_pairs_hook=lambda pairs: ("map", pairs))


EMPTY, NOTHING = KeyValue(), AnyValue()
AWKWARD = ("]}}", '"]}},{}', '","value":{}}', "\\", '\\"', '{"stringValue":"x"}', "\x00\x01\n", "ü\U0001f468")


@given(any_values(VALUE_DEPTH_MAX) | st.lists(any_values(), min_size=1).map(lambda items: array(*items)))
@example(array())
@example(kvlist())
@example(array(NOTHING))
@example(array(NOTHING, NOTHING, array(NOTHING), kvlist(EMPTY), NOTHING))
@example(kvlist(EMPTY))
@example(kvlist(EMPTY, EMPTY))
@example(kvlist(EMPTY, KeyValue(key="a", value=number(1)), EMPTY, EMPTY, KeyValue(key="b"), EMPTY))
@example(kvlist(KeyValue(key="a"), KeyValue(key="a", value=NOTHING), KeyValue(value=array(NOTHING)), EMPTY))
@example(kvlist(KeyValue(key="a", value=kvlist(KeyValue(key="b", value=kvlist(EMPTY))))))
@example(array(*(number(n) for n in (2**63 - 1, -(2**63), 2**53 + 1, 0, -1))))
@example(
    array(*(AnyValue(double_value=n) for n in (math.nan, math.inf, -math.inf, -0.0, 1.0, 1e300, 5e-324)))
)
@example(array(*(AnyValue(string_value=text) for text in AWKWARD)))
@example(kvlist(*(KeyValue(key=text, value=AnyValue(string_value=text)) for text in AWKWARD)))
def test_a_nested_value_is_converted_to_the_plain_json_of_the_same_value(
    engine: duckdb.DuckDBPyConnection, value: AnyValue
) -> None:
    if value.WhichOneof("value") not in ("array_value", "kvlist_value"):
        value = array(value)
    found = one(engine, "plain_json(?)", stored(value))
    assert parsed(found) == plain(value)
    assert repr(parsed(found)) == repr(plain(value)), "1 is not 1.0 and not true"


@given(any_values(4))
def test_sql_gives_the_value_that_the_dashboard_shows(
    engine: duckdb.DuckDBPyConnection, value: AnyValue
) -> None:
    """Bytes are in hex on the page, and in base64 in SQL. A page shows the last of repeated keys."""
    text = stored(array(value))
    if "bytesValue" not in text:
        assert json.loads(one(engine, "plain_json(?)", text)) == shown_value(json.loads(text))[0]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "text",
        '{"kvlistValue":',
        '{"kvlistValue":5}',
        '{"kvlistValue":{"values":[{"key":"a","value":{"intValue":"1"}}]}',
        '{"kvlistValue":{"values":[{"key":"a","value":{"intValue":"x"}}]}}',
        '{"kvlistValue":{"values":[{"key":"a","value":{"unknown":"1"}}]}}',
        '{"kvlistValue":{"values":[{"intValue":"1"}]}}',
        '{"arrayValue":{"values":[{"key":"a","value":{"intValue":"1"}}]}}',
        '{"arrayValue":{"values":[{"intValue":"1"}]}} ',
        '{"arrayValue":{"values":[{"intValue":"1"},]}}',
        '{"arrayValue":{"values":[{"stringValue":"a\\"}]}}',
        '{"arrayValue":{"values":[{"doubleValue":1e}]}}',
    ],
)
def test_malformed_text_gives_null(engine: duckdb.DuckDBPyConnection, text: str | None) -> None:
    assert one(engine, "plain_json(?)", text) is None
    assert one(engine, "attr_json(MAP {'a': ?::VARCHAR}, 'a')", text) is None
    assert one(engine, "attr_json(MAP {'a': ?::VARCHAR}, 'a.b')", text) is None
    assert one(engine, "body_json(?, '$.a')", text) is None


@given(any_values(4), st.data())
def test_text_that_was_cut_or_changed_is_no_error(
    engine: duckdb.DuckDBPyConnection, value: AnyValue, data: st.DataObject
) -> None:
    text = stored(array(value))
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert one(engine, "plain_json(?)", cut) is None
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from('{}[]",:\\a1')) + text[at + 1 :]
    found = one(engine, "plain_json(?)", changed)
    if found is not None:
        json.loads(found)


NESTED = kvlist(
    KeyValue(key="a", value=number(1)),
    KeyValue(key="b", value=array(number(1), kvlist(KeyValue(key="c", value=AnyValue(string_value="x"))))),
    KeyValue(key="app.kubernetes.io/name", value=AnyValue(string_value="cart")),
    KeyValue(key='say "hi"', value=AnyValue(bool_value=True)),
    KeyValue(key="none"),
)
ATTRIBUTES = {
    "nested": stored(NESTED),
    "http.route": "/cart",
    "a": stored(kvlist(KeyValue(key="b", value=number(1)), KeyValue(key="c", value=number(2)))),
    "a.b": "7",
    "a.b.c": stored(array(number(8))),
    "list": stored(array(number(2**63 - 1), array(number(5)))),
    "payload": '{"user": {"id": 3}}',
    "count": "5",
    "empty": None,
    "": stored(kvlist(KeyValue(key="x", value=number(1)))),
}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("nested", plain(NESTED)),
        ("nested.a", 1),
        ("nested.b", [1, ("map", [("c", "x")])]),
        ("nested.b[0]", 1),
        ("nested.b[1].c", "x"),
        ("nested.none", None),
        ('nested."app.kubernetes.io/name"', "cart"),
        ('nested."say \\"hi\\""', True),
        ("list[0]", 2**63 - 1),
        ("list[1][0]", 5),
        ("a.c", 2),  # the key `a` and a path
        ("a.b", 7),  # a key of its own
        ("a.b.c[0]", 8),  # the longest key
        ("payload.user.id", 3),
        ("count", 5),
        (".x", 1),
    ],
)
def test_a_name_is_the_longest_key_and_a_path_inside_its_value(
    engine: duckdb.DuckDBPyConnection, key: str, expected: Any
) -> None:
    constant = one(engine, "attr_json(?::MAP(VARCHAR, VARCHAR), ?)", ATTRIBUTES, key)
    sql = "attr_json(m, k) FROM (SELECT ?::MAP(VARCHAR, VARCHAR) AS m, ? AS k)"
    assert parsed(constant) == parsed(one(engine, sql, ATTRIBUTES, key)) == expected


@pytest.mark.parametrize(
    "key",
    [
        "http.route",  # text that is not JSON
        "empty",
        "missing",
        "nested.missing",
        "nested.a.b",
        "nested.b[2]",
        "nested.b[99999999999999999999]",
        "nested.app.kubernetes.io/name",
        "nested.*",
        'nested."*"',
        "nested.b[*]",
        "nested.",
        "nested.[0]",
        'nested."a',
        "nested[",
        "nestedb",
        "count.x",
        None,
    ],
)
def test_a_name_that_leads_to_no_value_gives_null(engine: duckdb.DuckDBPyConnection, key: str | None) -> None:
    assert one(engine, "attr_json(?::MAP(VARCHAR, VARCHAR), ?)", ATTRIBUTES, key) is None


def test_nested_values_convert_to_types_of_sql(engine: duckdb.DuckDBPyConnection) -> None:
    def value(sql: str) -> Any:
        return one(engine, f"{sql} FROM (SELECT ?::MAP(VARCHAR, VARCHAR) AS attributes)", ATTRIBUTES)

    assert value("attr_json(attributes, 'list[0]')::BIGINT") == 2**63 - 1
    assert value("attr_json(attributes, 'nested.b[1].c') ->> '$'") == "x"
    assert value("attr_json(attributes, 'a')::MAP(VARCHAR, INT)") == {"b": 1, "c": 2}
    assert value("body_json(attributes['nested'], '$.b[1].c')") == "x"
    assert value("body_json(attributes['payload'], '$.user.id')") == "3"
    assert value("list_transform([attributes], lambda a: attr_json(a, 'a.c'))") == ["2"]


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Pushdown:
    sandbox = Sandbox(Settings(1, 1 << 28, 1 << 28, str(tmp_path_factory.mktemp("spill")), "otel"))
    schemas = {signal: landed_spec(signal).arrow_schema for signal in SIGNALS}
    return Pushdown(
        sandbox,
        [
            TableSource(name, [(field.name, duckdb_type(field.type), 1) for field in schema], (), ())
            for name, schema in schemas.items()
        ],
    )


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("spans", "kind_name(kind) = 'server'"),
        ("spans", "status_name(status_code) = 'error'"),
        ("logs", "severity_name(severity_number) = 'ERROR2'"),
        ("logs", "attr_json(attributes, 'nested.a')::INT = 1"),
        ("logs", "attr_json(attributes, body) IS NOT NULL"),
        ("logs", "plain_json(body) ->> '$.a' = 'x'"),
        ("logs", "body_json(body, '$.a') = 'x'"),
    ],
)
def test_a_condition_with_a_function_leaves_the_other_conditions_to_skip_files(
    planner: Pushdown, table: str, condition: str
) -> None:
    others = "service_name = 'a' AND time > '2026-01-01'"
    [needed] = planner.uses(f"SELECT * FROM {table} WHERE {condition} AND {others}")[table]
    [expected] = planner.uses(f"SELECT * FROM {table} WHERE {others}")[table]
    assert {name: needed[name] for name in ("service_name", "time")} == expected
