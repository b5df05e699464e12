"""Time ranges and time buckets, in microseconds since 1970."""

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
"""Bucket widths: round numbers."""
_ORIGIN = -62_135_596_800 * MICRO
"""January 1 of the year 1, a Monday: buckets of weeks begin on Mondays, and no time is earlier."""


@dataclass(frozen=True)
class TimeRange:
    """The time range `time >= begin AND time < end`."""

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
        """Return the last `seconds` of this range."""
        return TimeRange(max(self.begin, self.end - int(seconds * MICRO)), self.end)

    def bucket_seconds(self, buckets_max: int) -> int:
        """Return the narrowest width, up to a week, with at most `buckets_max` buckets in the range."""
        fitting = (width for width in _WIDTHS_SECONDS if self.seconds / width <= buckets_max)
        return next(fitting, _WIDTHS_SECONDS[-1])


@dataclass(frozen=True)
class Buckets:
    """Buckets that cover a time range. The first and the last may extend beyond the range."""

    SQL: ClassVar = "(epoch_us(time) - CAST(? AS BIGINT)) // CAST(? AS BIGINT)"
    """The number of a row's bucket; its parameters are `first` and `width`."""
    first: int
    width: int
    count: int

    @property
    def seconds(self) -> int:
        """The width in seconds."""
        return self.width // MICRO

    @property
    def times(self) -> list[datetime]:
        """The start time of each bucket."""
        return [EPOCH + timedelta(microseconds=self.first + n * self.width) for n in range(self.count)]

    @classmethod
    def of(cls, range_: TimeRange, buckets_max: int = 60) -> Buckets:
        """Return the narrowest buckets of which at most `buckets_max` cover the range.

        Buckets of the same width are aligned in the same way in every range.
        """
        for width_seconds in _WIDTHS_SECONDS:
            buckets = cls._of_width(range_, width_seconds * MICRO)
            if buckets.count <= buckets_max:
                return buckets
        while buckets.count > buckets_max:
            buckets = cls._of_width(range_, buckets.width * 2)
        return buckets

    @classmethod
    def _of_width(cls, range_: TimeRange, width: int) -> Buckets:
        first = range_.begin - (range_.begin - _ORIGIN) % width
        return cls(first, width, (range_.end - 1 - first) // width + 1)


def is_time(micros: int) -> bool:
    """Return whether timestamps of DuckDB and of Python can hold it."""
    return -62_000_000_000 * MICRO < micros < 250_000_000_000 * MICRO
