"""What is typed into the search of logs, and what the API is asked for it."""

from __future__ import annotations

import pytest

from frazil.dashboard.logs.search import LogSearch, chip, with_chip


def test_words_services_severity_and_attributes_are_asked_for() -> None:
    search = LogSearch("  connection   refused ", ("cart", "payment"), "warn", ("http.route=/cart",))

    assert search.parameters() == {
        "q": "connection refused",
        "regex": None,
        "service": ["cart", "payment"],
        "severity": "warn",
        "trace_id": [],
        "attr": ["http.route=/cart"],
    }


@pytest.mark.parametrize(
    ("text", "regex"),
    [
        ("/time ?out/", "time ?out"),
        ("/ERROR/i", "(?i)ERROR"),
        (" /a/b/ ", "a/b"),
        ("/cart", None),
        ("//", None),
    ],
)
def test_a_regular_expression_stands_between_slashes(text: str, regex: str | None) -> None:
    assert LogSearch(text).regex == regex
    assert LogSearch(text).words == ([] if regex is not None else [text])


def test_a_trace_is_the_records_own_and_an_attribute_of_that_name_is_an_attribute() -> None:
    asked = LogSearch(chips=("trace_id=ab12", "trace_id:cd34", "user.id=7")).parameters()

    assert asked["trace_id"] == ["ab12"]
    assert asked["attr"] == ["trace_id:cd34", "user.id=7"]


def test_longer_words_are_marked_first_and_signs_mean_themselves() -> None:
    assert LogSearch("a a.b A").highlight_pattern == r"(?i)a\.b|a"
    assert LogSearch("  ").highlight_pattern is None


def test_only_a_search_without_any_filter_is_empty() -> None:
    assert LogSearch("  ").is_empty
    assert not any(
        search.is_empty
        for search in (
            LogSearch("x"),
            LogSearch(services=("a",)),
            LogSearch(severity="info"),
            LogSearch(chips=("a=b",)),
        )
    )


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("http.route", "/a=b", "http.route=/a=b"),
        ("trace_id", "x", "trace_id:x"),
        ("odd=key", "x", None),
        ("odd:key", "x", None),
        ("", "x", None),
        ("long", "x" * 400, None),
    ],
)
def test_a_value_is_a_filter_where_the_api_can_read_it(key: str, value: str, written: str | None) -> None:
    assert chip(key, value) == written


def test_another_trace_takes_the_place_of_the_first() -> None:
    assert with_chip(["trace_id=a", "x=1"], "trace_id=b") == ["x=1", "trace_id=b"]
    assert with_chip(["x=1", "y=2"], "x=1") == ["y=2", "x=1"]
