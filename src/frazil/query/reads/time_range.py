"""Time ranges and buckets of time, in microseconds since 1970."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from frazil.times import EPOCH, micros_of

MICRO = 1_000_000
_WIDTHS_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400,
)  # fmt: skip
"""Widths of buckets that are easy to read."""
_ORIGIN = -62_135_596_800 * MICRO
"""The first of January of the year 1, a Monday: weeks begin on Mondays, and no time lies before it."""


@dataclass(frozen=True)
class TimeRange:
    """`time >= begin AND time < end`."""

    begin: int
    end: int

    @classmethod
    def between(cls, start: datetime, end: datetime) -> TimeRange:
        return cls(micros_of(start), micros_of(end))

    @property
    def start_time(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.begin)

    @property
    def end_time(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.end)

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / MICRO

    def last(self, seconds: float) -> TimeRange:
        """The end of this range, no longer than `seconds`."""
        return TimeRange(max(self.begin, self.end - int(seconds * MICRO)), self.end)

    def bucket_seconds(self, buckets_max: int) -> int:
        """The narrowest width of which no more than `buckets_max` fit into the range, or a week."""
        fitting = (width for width in _WIDTHS_SECONDS if self.seconds / width <= buckets_max)
        return next(fitting, _WIDTHS_SECONDS[-1])


@dataclass(frozen=True)
class Buckets:
    """Buckets that cover a range. The first and the last may reach beyond the range."""

    SQL: ClassVar = "(epoch_us(time) - CAST(? AS BIGINT)) // CAST(? AS BIGINT)"
    """The number of a row's bucket; its parameters are `first` and `width`."""
    first: int
    width: int
    count: int

    @property
    def seconds(self) -> int:
        """The width."""
        return self.width // MICRO

    @property
    def times(self) -> list[datetime]:
        """The begin of each."""
        return [EPOCH + timedelta(microseconds=self.first + n * self.width) for n in range(self.count)]

    @classmethod
    def of(cls, whole: TimeRange, buckets_max: int = 60) -> Buckets:
        """The narrowest buckets of which no more than `buckets_max` cover the range.

        Buckets of one width begin at the same times in every range.
        """
        for width_seconds in _WIDTHS_SECONDS:
            buckets = cls._of_width(whole, width_seconds * MICRO)
            if buckets.count <= buckets_max:
                return buckets
        while buckets.count > buckets_max:
            buckets = cls._of_width(whole, buckets.width * 2)
        return buckets

    @classmethod
    def _of_width(cls, whole: TimeRange, width: int) -> Buckets:
        first = whole.begin - (whole.begin - _ORIGIN) % width
        return cls(first, width, (whole.end - 1 - first) // width + 1)


def is_time(micros: int) -> bool:
    """Whether timestamps of DuckDB and of Python can hold it."""
    return -62_000_000_000 * MICRO < micros < 250_000_000_000 * MICRO
