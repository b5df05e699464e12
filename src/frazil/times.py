"""Conversions of times and durations, and backoff. Pure."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Collection
from typing import Any

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
EPOCH_DAY = EPOCH.date()
_MICROSECOND = dt.timedelta(microseconds=1)
_DURATION = re.compile(r"\s*([0-9]{1,30})(?:\.([0-9]{1,30}))?\s*([a-zµ]*)\s*\Z")
_UNIT_NANOS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86_400 * 10**9,
    "w": 7 * 86_400 * 10**9,
}
_DOUBLINGS_MAX = 60


def micros_of(time: dt.datetime) -> int:
    """Return microseconds since 1970. A time without a zone is UTC."""
    return ((time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time) - EPOCH) // _MICROSECOND


def iso(micros: int, timespec: str = "microseconds") -> str:
    """Return the time as in SQL parameters and JSON: `2026-11-15T10:00:00.000000Z`."""
    return f"{(EPOCH + micros * _MICROSECOND).replace(tzinfo=None).isoformat(timespec=timespec)}Z"


def utc_text(seconds: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return the time as text, such as `2026-11-15 10:00:00 UTC`; seconds if the calendar ends before."""
    try:
        return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):{form}} UTC"
    except (OverflowError, OSError, ValueError):
        return f"{seconds:.0f} seconds after 1970"


def day_number(value: Any) -> int:
    """Return the days since 1970 of a partition's day, given as a date or as that number."""
    return (value - EPOCH_DAY).days if isinstance(value, dt.date) else int(value)


def day_text(day: int) -> str:
    """Return a day, counted from 1970, as `2026-11-15`."""
    return (EPOCH_DAY + dt.timedelta(days=day)).isoformat()


def duration_nanos(text: str, units: Collection[str], bare_unit: str = "") -> int | None:
    """Return the nanoseconds of a duration such as `250ms` or `1.5s`; None if the text is not a duration in
    one of `units`. A number without a unit is in `bare_unit`, if given.
    """
    match = _DURATION.match(text)
    unit = "" if match is None else match[3] or bare_unit
    if match is None or unit not in units:
        return None
    fraction = match[2] or ""
    nanos: int = int(match[1] + fraction) * _UNIT_NANOS[unit] // 10 ** len(fraction)
    return nanos


def backoff_seconds(failures: int, first: float, most: float, *, jitter: bool = False) -> float:
    """Return the pause after `failures` consecutive failures: `first` doubled with each, at most `most`.
    Jitter multiplies it by 0.5 to 1, so that several processes do not retry at once.
    """
    seconds = min(first * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), most)
    return seconds * random.uniform(0.5, 1) if jitter else seconds  # noqa: S311
