"""One log record with everything: exact times, and the types that its sender gave."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.dashboard.logs.detail import detail, find_stored, format_nanos, kind_of

RECORD: dict[str, Any] = {
    "time": "2026-11-15T10:00:00.000000Z",
    "severity_number": 17,
    "severity_text": "ERROR",
    "trace_id": "ab" * 16,
    "body": {"message": "no", "code": 7},
    "service_name": "cart",
    "http_response_status_code": 502,
    "attributes": {"n": 27, "raw": "aGVsbG8=", "big": "9007199254740995", "list": [1, "x"], "nothing": None},
    "resource_attributes": {"service.name": "cart"},
    "scope_name": "shop",
    "scope_attributes": {"lib": "x"},
    "time_unix_nano": "1794736800000000007",
    "flags": 0,
    "received_time": "2026-11-15T10:00:01.000000Z",
}
STORED: dict[str, Any] = {
    "body": '{"values":[]}',
    "body_type": "kvlist",
    "attributes": [
        ("n", "27.0"),
        ("raw", "aGVsbG8="),
        ("big", "9007199254740995"),
        ("list", '{"values":[{"intValue":"1"}]}'),
        ("nothing", None),
    ],
    "attribute_types": '{"n":"double","raw":"bytes","big":"int","list":"array"}',
    "resource_attributes": [("service.name", "cart")],
    "resource_attribute_types": None,
    "scope_attributes": [("lib", "x")],
    "scope_attribute_types": None,
}


def group(shown: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    (rows,) = (one["rows"] for one in shown["groups"] if one["name"] == name)
    return {row["name"]: row for row in rows}


def test_every_attribute_has_the_type_that_it_was_sent_with() -> None:
    shown = detail("k", RECORD, STORED)

    kinds = {name: row["kind"] for name, row in group(shown, "Attributes").items()}
    assert kinds == {"big": "int", "list": "array", "n": "double", "nothing": "empty", "raw": "bytes"}
    assert shown["body_kind"] == "map"
    assert shown["body"] == '{\n  "message": "no",\n  "code": 7\n}'


def test_a_filter_has_the_value_as_it_is_stored() -> None:
    shown = detail("k", RECORD, STORED)

    filters = {name: row["filter"] for name, row in group(shown, "Attributes").items()}
    assert filters["n"] == "n=27.0"
    assert filters["raw"] == "raw=aGVsbG8="
    assert filters["nothing"] is None
    assert group(shown, "Resource")["service.name"]["filter"] == "service.name=cart"
    assert group(shown, "Scope")["lib"]["filter"] is None


def test_without_the_stored_row_the_types_are_those_of_json() -> None:
    attributes = group(detail("k", RECORD, {}), "Attributes")

    assert {name: row["kind"] for name, row in attributes.items()} == {
        "big": "string", "list": "array", "n": "int", "nothing": "empty", "raw": "string",
    }  # fmt: skip
    assert attributes["n"]["filter"] is None
    assert attributes["raw"]["filter"] == "raw=aGVsbG8="


def test_the_records_own_fields_begin_with_the_exact_time_and_hold_no_copies() -> None:
    fields = group(detail("k", RECORD, STORED), "Record")

    assert {name: row["value"] for name, row in fields.items()} == {
        "Time": "2026-11-15T10:00:00.000000007Z",
        "Severity": "ERROR (17)",
        "Trace": "ab" * 16,
        "Scope name": "shop",
        "Received": "2026-11-15T10:00:01.000000Z",
    }
    assert next(iter(fields)) == "Time"
    assert fields["Trace"]["filter"] == f"trace_id={'ab' * 16}"


def test_among_stored_rows_of_the_same_microsecond_the_right_one_is_found() -> None:
    other = STORED | {"attributes": [("n", "27.0"), ("raw", "b3RoZXI=")]}

    assert find_stored(RECORD, [other, STORED]) is STORED
    assert find_stored(RECORD, [other]) == {}
    assert find_stored(RECORD | {"body": "text"}, [STORED | {"body_type": None, "body": "other"}]) == {}


@pytest.mark.parametrize(
    ("nanos", "shown"),
    [
        ("1794736800123456789", "2026-11-15T10:00:00.123456789Z"),
        ("0", "1970-01-01T00:00:00.000000000Z"),
        ("999999999999999999999999", "999999999999999999999999"),
    ],
)
def test_times_are_exact_to_the_nanosecond(nanos: str, shown: str) -> None:
    assert format_nanos(nanos) == shown


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "bool"),
        (1, "int"),
        (1.0, "double"),
        ("", "string"),
        ([], "array"),
        ({}, "map"),
        (None, "empty"),
    ],
)
def test_json_tells_most_types(value: Any, kind: str) -> None:
    assert kind_of(value) == kind
