"""Time ranges, as people write them and as the address keeps them."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.dashboard import time_range

NOW = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)
TIMES = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(dt.UTC))


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15m", 900), ("last 2h", 7200), ("-30s", 30), ("1.5d", 129_600), ("1W", 604_800), (" 5m ", 300)],
)
def test_a_length_ends_now(text: str, seconds: float) -> None:
    found = time_range.parse_range(text)
    assert found.is_relative
    assert found.bounds(NOW) == (NOW - dt.timedelta(seconds=seconds), NOW)
    assert found.length_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("2026-11-15T10:00:00Z..2026-11-15T11:00:00Z", "2026-11-15 10:00", "2026-11-15 11:00"),
        ("2026-11-15 10:00 to 2026-11-16 11:30", "2026-11-15 10:00", "2026-11-16 11:30"),
        ("2026-11-15 10:00 to 11:30", "2026-11-15 10:00", "2026-11-15 11:30"),
        ("2026-11-15 10:00+02:00 to now", "2026-11-15 08:00", "2026-11-15 12:00"),
        ("2026-11-14 to 2026-11-15", "2026-11-14 00:00", "2026-11-15 00:00"),
        ("2026-11-15 to 9:30:15", "2026-11-15 00:00", "2026-11-15 09:30:15"),
    ],
)
def test_two_times_stay_where_they_are(text: str, start: str, end: str) -> None:
    found = time_range.parse_range(text, NOW)
    assert not found.is_relative
    rounded = found.rounded(5)
    assert found.bounds() == (rounded.start_time, rounded.end_time) == (utc(start), utc(end))
    assert found.parameters(5) == {"from": utc(start).isoformat(), "to": utc(end).isoformat()}


@pytest.mark.parametrize(
    ("now", "text", "start", "end"),
    [
        ("2026-11-15 12:00", "10:00 to 11:00", "2026-11-15 10:00", "2026-11-15 11:00"),
        ("2026-11-15 12:00", "10:00 to 14:00", "2026-11-15 10:00", "2026-11-15 14:00"),
        ("2026-11-15 12:00", "23:00 to 01:00", "2026-11-14 23:00", "2026-11-15 01:00"),
        ("2026-11-15 23:30", "23:00 to 01:00", "2026-11-15 23:00", "2026-11-16 01:00"),
        ("2026-11-15 12:00", "12:00 to 12:00", "2026-11-15 12:00", "2026-11-16 12:00"),
        ("2026-11-15 12:00", "13:00 to 14:00", "2026-11-14 13:00", "2026-11-14 14:00"),
        ("2026-11-20 12:00", "2026-11-15 23:00 to 00:30", "2026-11-15 23:00", "2026-11-16 00:30"),
        ("2026-11-16 00:05", "23:30 to now", "2026-11-15 23:30", "2026-11-16 00:05"),
        ("2027-01-01 00:05", "23:30 to now", "2026-12-31 23:30", "2027-01-01 00:05"),
        ("2026-11-16 00:05", "23:30 to 2026-11-15 23:45", "2026-11-15 23:30", "2026-11-15 23:45"),
    ],
)
def test_a_time_of_no_day_is_of_the_nearest_that_makes_a_range(
    now: str, text: str, start: str, end: str
) -> None:
    assert time_range.parse_range(text, utc(now)).bounds() == (utc(start), utc(end))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "is not a time range"),
        ("", "is not a time range"),
        ("0s", "not between"),
        ("999w", "not between"),
        ("2026-11-15 to 2026-11-14", "ends before"),
        ("2026-11-15 10:00 to soon", "is not a time"),
        ("99:99 to 11:00", "is not a time"),
        ("0001-01-01T00:00+05:00..now", "is not a time"),
        ("now..9999-12-31T23:59-05:00", "is not a time"),
        ("9999-12-31 23:00 to 01:00", "is not a time"),
        ("now to 2026-11-15 11:59", "ends before"),
    ],
)
def test_what_is_no_range_is_said_in_words(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        time_range.parse_range(text, NOW)


@given(st.text(max_size=40))
def test_whatever_an_address_says_is_a_range_or_refused(text: str) -> None:
    try:
        start, end = time_range.parse_range(text).bounds()
    except ValueError:
        return
    assert start < end


@given(TIMES, st.timedeltas(dt.timedelta(seconds=1), dt.timedelta(days=30)))
def test_what_is_written_in_the_address_comes_back(start: dt.datetime, length: dt.timedelta) -> None:
    start = start.replace(microsecond=start.microsecond // 1000 * 1000)
    end = start + dt.timedelta(seconds=int(length.total_seconds()))
    assert time_range.parse_range(time_range.format_range(start, end)).bounds() == (start, end)


def test_a_moving_range_is_the_same_within_a_step_and_holds_the_present() -> None:
    hour = time_range.parse_range("1h")
    rounded = hour.rounded(3600)
    start, end = rounded.start_time, rounded.end_time
    assert end.minute == end.second == 0
    assert end >= dt.datetime.now(dt.UTC) > start
    assert (end - start).total_seconds() == 3600
