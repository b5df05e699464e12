"""The time range that a user selects: `15m`, or `2026-11-15T10:00Z..2026-11-15T11:00Z`."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, field, replace

from frazil.query.reads.time_range import TimeRange
from frazil.times import duration_nanos

RANGES = ("5m", "15m", "1h", "3h", "12h", "24h", "7d", "30d")
DEFAULT = "15m"
_DAY = dt.timedelta(days=1)
_UNITS = ("s", "m", "h", "d", "w")
_BETWEEN = re.compile(r"\s*(?:\.\.|\bto\b|–|/)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class SelectedRange:
    """A time range: relative, from `seconds` ago until now, or fixed, from `start` to `end`."""

    seconds: float | None
    start: dt.datetime | None = None
    end: dt.datetime | None = None
    now: dt.datetime | None = field(default=None, compare=False, repr=False)
    """The time at which a relative range ends; None for the current time."""

    def at(self, now: dt.datetime) -> SelectedRange:
        return replace(self, now=now)

    def bounds(self, now: dt.datetime | None = None) -> tuple[dt.datetime, dt.datetime]:
        if self.start is not None and self.end is not None:
            return self.start, self.end
        now = now or self.now or dt.datetime.now(dt.UTC)
        return now - dt.timedelta(seconds=self.seconds or 0), now

    def rounded(self, step_seconds: float) -> TimeRange:
        """Returns the bounds with the end rounded up to a step, so that results can be cached for a step. New
        data is always included.
        """
        if not self.is_relative:
            return TimeRange.between(*self.bounds())
        _, now = self.bounds()
        end = -(-now.timestamp() // step_seconds) * step_seconds
        return TimeRange.between(*self.bounds(dt.datetime.fromtimestamp(end, dt.UTC)))

    @property
    def is_relative(self) -> bool:
        return self.start is None

    @property
    def length_seconds(self) -> float:
        start, end = self.bounds()
        return (end - start).total_seconds()

    @property
    def step_seconds(self) -> float:
        """How often to read figures of the whole range again: those of a long range hardly change."""
        hours = self.length_seconds / 3600
        return 5.0 * (1 if hours <= 1 else 3 if hours <= 24 else 12)

    def parameters(self, step_seconds: float) -> dict[str, str]:
        """Returns the parameters `from` and `to` of the API."""
        rounded = self.rounded(step_seconds)
        return {"from": rounded.start_time.isoformat(), "to": rounded.end_time.isoformat()}


def parse_range(text: str, now: dt.datetime | None = None) -> SelectedRange:
    """Raises ValueError with a message for the user."""
    text = text.strip()
    nanos = duration_nanos(re.sub(r"^(?:last\s+)?-?", "", text.lower()), _UNITS)
    if nanos is not None:
        seconds = nanos / 1e9
        if not 1 <= seconds <= 366 * 86400:
            raise ValueError(f"{text} is not between 1 second and 1 year")
        return SelectedRange(seconds)
    ends = _BETWEEN.split(text)
    if len(ends) != 2:
        raise ValueError(
            f"{text!r} is not a time range: write 15m, 2h or 7d, or two times, "
            "such as 2026-11-15 10:00 to 2026-11-15 11:30"
        )
    now = dt.datetime.now(dt.UTC) if now is None else now
    start = _parse_time(ends[0], now)
    end = _parse_time(ends[1], now, start)
    if end <= start:
        raise ValueError("the time range ends before it starts")
    return SelectedRange(None, start, end)


def format_range(start: dt.datetime, end: dt.datetime) -> str:
    """Formats a fixed range for the page's URL."""
    return f"{_format_time(start)}..{_format_time(end)}"


def _format_time(time: dt.datetime) -> str:
    time = time.astimezone(dt.UTC)
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds").replace("+00:00", "Z")


def _parse_time(text: str, now: dt.datetime, after: dt.datetime | None = None) -> dt.datetime:
    """Parses a time. A time without a date is the first one `after` the given time, or else the last one
    before now.
    """
    if text.lower() == "now":
        return now
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?", text):
            clock = dt.time.fromisoformat(text if text[2] == ":" else f"0{text}")
            time = dt.datetime.combine(after or now, clock, dt.UTC)
            if after is None:
                return time if time <= now else time - _DAY
            return time if time > after else time + _DAY
        time = dt.datetime.fromisoformat(text)
        return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time.astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: write 2026-11-15 10:00 (UTC), or 10:00") from None
