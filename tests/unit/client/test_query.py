from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.client.query import describe_as_of, param_from_text, parse_as_of, parse_params, request_body
from frazil.errors import RequestInvalid
from frazil.query.model import AsOf, Query

TIME = 1_794_736_800_000_000


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("2026-11-15T10:00:00Z", AsOf(time=TIME)),
        ("2026-11-15 10:00", AsOf(time=TIME)),
        ("2026-11-15T12:00:00+02:00", AsOf(time=TIME)),
        ("snapshot:123", AsOf(snapshot_id=123)),
        ("tag:hour-10", AsOf(tag="hour-10")),
        ({"snapshot": 5}, AsOf(snapshot_id=5)),
        ({"tag": "x:y"}, AsOf(tag="x:y")),
        (dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC), AsOf(time=TIME)),
        (AsOf(tag="x"), AsOf(tag="x")),
        (None, None),
    ],
)
def test_as_of_accepts_several_forms(text: Any, meaning: AsOf | None) -> None:
    assert parse_as_of(text) == meaning


@pytest.mark.parametrize("text", ["", "yesterday", "snapshot:", "snapshot:x", "tag:", "2026-13-01", {}])
def test_an_invalid_as_of_is_rejected_with_an_example(text: Any) -> None:
    with pytest.raises(RequestInvalid, match="snapshot:ID or tag:NAME"):
        parse_as_of(text)


@given(st.datetimes(timezones=st.just(dt.UTC)))
def test_times_are_sent_exactly(time: dt.datetime) -> None:
    as_of = parse_as_of(time)
    assert as_of is not None
    assert parse_as_of(describe_as_of(as_of)) == as_of
    body = json.loads(request_body(Query("SELECT 1", "", as_of=as_of)))
    assert parse_as_of(body["as_of"]) == as_of


def test_the_body_omits_default_values() -> None:
    assert json.loads(request_body(Query("SELECT 1", "t", id="q"))) == {"sql": "SELECT 1", "id": "q"}
    query = Query(
        "SELECT ?",
        "t",
        params=[1],
        as_of=AsOf(snapshot_id=7),
        seconds_max=2.5,
        rows_max=10,
        partial=True,
        id="q",
    )
    assert json.loads(request_body(query)) == {
        "sql": "SELECT ?",
        "params": [1],
        "as_of": {"snapshot": 7},
        "seconds_max": 2.5,
        "rows_max": 10,
        "partial": True,
        "id": "q",
    }


def test_parameters_are_converted_to_json() -> None:
    time = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)
    assert parse_params([None, "a", 1, 1.5, True, time, time.date(), Decimal("1.10"), (1, "b")]) == [
        None,
        "a",
        1,
        1.5,
        True,
        "2026-11-15T10:00:00+00:00",
        "2026-11-15",
        "1.10",
        [1, "b"],
    ]


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), b"x", {"a": 1}])
def test_an_unsupported_parameter_is_named(value: Any) -> None:
    with pytest.raises(RequestInvalid, match="parameter 2"):
        parse_params(["fine", value])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-1.5", -1.5),
        ("true", True),
        ("null", None),
        ('"5"', "5"),
        ("cart", "cart"),
        ("NaN", "NaN"),
        ("[1, 2]", [1, 2]),
        ('{"a": 1}', '{"a": 1}'),
        ("", ""),
    ],
)
def test_a_parameter_on_the_command_line_is_json_or_text(text: str, value: Any) -> None:
    assert param_from_text(text) == value
