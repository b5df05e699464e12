"""Where buckets begin, and how wide they are."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.query.reads.time_range import Buckets, TimeRange
from frazil.times import iso, micros_of

MICRO = 10**6

TIMES = st.integers(-61_000_000_000 * MICRO, 249_000_000_000 * MICRO)


@given(begin=TIMES, length=st.integers(1, 10**16) | st.integers(1, 10**8), buckets=st.integers(1, 400))
def test_buckets_cover_the_range_and_are_no_more_than_asked_for(
    begin: int, length: int, buckets: int
) -> None:
    made = Buckets.of(TimeRange(begin, begin + length), buckets)
    assert 1 <= made.count <= buckets
    assert made.first <= begin < made.first + made.width
    last = made.first + (made.count - 1) * made.width
    assert last < begin + length <= last + made.width


@pytest.mark.parametrize(
    ("seconds", "buckets", "width_seconds"),
    [(60, 60, 1), (61, 60, 2), (900, 60, 15), (3600, 60, 60), (86_400, 60, 1800), (7 * 86_400, 60, 3 * 3600),
     (60 * 86_400, 60, 86_400), (364 * 86_400, 53, 7 * 86_400), (3600, 1, 3600)],
)  # fmt: skip
def test_widths_are_round(seconds: int, buckets: int, width_seconds: int) -> None:
    monday = 1_789_948_800 * MICRO  # 2026-09-21
    made = Buckets.of(TimeRange(monday, monday + seconds * MICRO), buckets)
    assert (made.width, made.first) == (width_seconds * MICRO, monday)


def test_weeks_begin_on_mondays() -> None:
    wednesday = 1_790_121_600 * MICRO
    made = Buckets.of(TimeRange(wednesday, wednesday + 300 * 86_400 * MICRO), 50)
    assert made.first == wednesday - 2 * 86_400 * MICRO


@given(TIMES)
def test_times_are_exact_to_the_microsecond(at: int) -> None:
    assert micros_of(dt.datetime.fromisoformat(iso(at))) == at
    range = TimeRange(at, at + 1)
    assert TimeRange.between(range.start_time, range.end_time) == range


def test_the_last_part_of_a_range_is_no_longer_than_the_range() -> None:
    hour = TimeRange(0, 3600 * MICRO)
    assert hour.last(60) == TimeRange(3540 * MICRO, 3600 * MICRO)
    assert hour.last(7200) == hour


def test_widths_of_charts_are_easy_to_read() -> None:
    lengths = (10, 60, 900, 3600, 86400, 30 * 86400)
    widths = [TimeRange(0, length * MICRO).bucket_seconds(60) for length in lengths]
    assert widths == [1, 1, 15, 60, 1800, 43200]
    assert TimeRange(0, 10**9 * MICRO).bucket_seconds(60) == 7 * 86400
