"""Lines of the list of logs: keys that stay, one line of text, and what is marked in it."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from frazil.dashboard.logs.rows import by_key, compact, highlighted, line, rows, time_of_key, with_linked


def record(second: int = 0, **fields: Any) -> dict[str, Any]:
    return {"time": f"2026-11-15T10:00:{second:02d}.123456Z", "body": "hello"} | fields


def test_a_record_has_the_same_key_in_every_answer() -> None:
    (first,) = by_key([record(attributes={"a": 1, "b": 2})])
    (second,) = by_key([record(attributes={"b": 2, "a": 1})])

    assert first == second
    assert first.startswith("1794736800123456-")
    assert time_of_key(first) == dt.datetime(2026, 11, 15, 10, 0, 0, 123456, dt.UTC)


def test_records_that_differ_in_anything_have_keys_of_their_own() -> None:
    assert len(by_key([record(body="a"), record(body="b"), record(1, body="a")])) == 3


def test_equal_records_are_counted_and_none_is_lost() -> None:
    first, second, third = by_key([record(), record(), record()])

    assert (second, third) == (f"{first}-2", f"{first}-3")


@pytest.mark.parametrize("key", ["", "x-y", "99999999999999999999999-ab"])
def test_what_is_no_key_has_no_time(key: str) -> None:
    assert time_of_key(key) is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"body": "two\nlines\t\x02here"}, "two ↵ lines here"),
        ({"body": {"message": "order placed", "id": 7, "tags": ["a"]}}, 'order placed  id=7  tags=["a"]'),
        ({"body": {"id": 7, "message": {"no": "text"}}}, 'id=7  message={"no":"text"}'),
        ({"body": [1, "a", None]}, '[1,"a",null]'),
        ({"body": False}, "false"),
        ({"body": None, "event_name": "login"}, "login"),
        ({"body": "", "attributes": {"a": 1.5}}, "a=1.5"),
        ({"body": None}, ""),
    ],
)
def test_a_line_says_what_a_person_reads_first(given: dict[str, Any], shown: str) -> None:
    assert line(record(**given)) == shown


def test_a_long_line_is_cut() -> None:
    assert len(line(record(body="x" * 100_000))) == 600
    assert compact("x" * 1000) == "x" * 1000


def test_what_was_searched_is_marked() -> None:
    assert highlighted(["GET /cart", "no"], "(?i)get|ca") == [["", "GET", " /", "ca", "rt"], ["no"]]
    assert highlighted(["größe 43"], "ö|4") == [["gr", "ö", "ße ", "4", "3"]]
    assert highlighted(["plain"], None) == [["plain"]]


def test_a_pattern_that_cannot_be_read_marks_nothing() -> None:
    assert highlighted(["text"], "(") == [["text"]]


def test_no_pattern_takes_long() -> None:
    """One that backtracks would take longer than the universe has."""
    began = time.monotonic()
    highlighted(["a" * 600] * 100, "(a+)+b")
    assert time.monotonic() - began < 2


def test_rows_have_milliseconds_and_the_date_where_it_is_needed() -> None:
    found = by_key([record(7, severity_number=17, service_name="cart")])

    (row,) = rows(found, None)
    assert row == {
        "key": next(iter(found)),
        "time": "10:00:07.123",
        "severity": 17,
        "service": "cart",
        "text": ["hello"],
    }
    assert rows(found, None, with_date=True)[0]["time"] == "11-15 10:00:07.123"


def test_the_record_of_a_link_is_where_its_time_is() -> None:
    newest, middle, oldest = (by_key([record(second)]) for second in (9, 5, 1))

    assert list(with_linked(newest | oldest, middle)) == [*newest, *middle, *oldest]
