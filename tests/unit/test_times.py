"""Times, durations and pauses."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.times import backoff_seconds, day_number, duration_nanos, iso, micros_of, utc_text


@given(st.datetimes())
def test_a_time_survives_the_way_to_microseconds_and_back(time: dt.datetime) -> None:
    text = iso(micros_of(time))
    assert dt.datetime.fromisoformat(text) == time.replace(tzinfo=dt.UTC)
    assert len(text) == len("2026-11-15T10:00:00.000000Z")


def test_people_are_shown_a_time_also_if_no_calendar_has_it() -> None:
    assert utc_text(0) == "1970-01-01 00:00:00 UTC"
    assert utc_text(1e17) == "100000000000000000 seconds after 1970"


def test_a_day_is_counted_from_1970_whatever_form_it_has() -> None:
    assert day_number(dt.date(1970, 1, 3)) == day_number(2) == 2


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("250ms", 250_000_000),
        ("1.5 s", 1_500_000_000),
        ("80us", 80_000),
        ("80µs", 80_000),
        ("2h", 7200 * 10**9),
    ],
)
def test_durations_are_exact(text: str, nanos: int) -> None:
    assert duration_nanos(text, ("ms", "s", "us", "µs", "h")) == nanos


@pytest.mark.parametrize("text", ["", "s", "1", "1d", "-1s", "1e3s", "١s", "1.s", "1 s s"])
def test_what_is_no_duration_in_the_units_asked_for_is_none(text: str) -> None:
    assert duration_nanos(text, ("s", "m")) is None


def test_a_number_alone_is_in_the_unit_that_is_given_for_it() -> None:
    assert duration_nanos("250", ("ms",), "ms") == 250_000_000


def test_pauses_double_up_to_a_bound() -> None:
    assert [backoff_seconds(n, 0.5, 3) for n in (1, 2, 3, 4, 10_000)] == [0.5, 1, 2, 3, 3]
    assert all(0.5 <= backoff_seconds(2, 0.5, 3, jitter=True) <= 1 for _ in range(100))
