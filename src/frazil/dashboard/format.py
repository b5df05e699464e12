"""Formats numbers, times and units for display."""

from __future__ import annotations

import datetime as dt
import html
import re

from frazil.query.reads.metrics import Aggregation, Metric

_UNITS = {"By": "bytes", "KiBy": "KiB", "MiBy": "MiB", "GiBy": "GiB", "1": "", "%": "%"}
_CODE = re.compile(r"`([^`]+)`")
_MARKDOWN = re.compile(r"[\\`*_\[\](){}$:<>#~|!&^+=-]")


def format_duration(milliseconds: float | None) -> str:
    """Formats a duration. The bounds are where rounding reaches the next unit or another digit."""
    if milliseconds is None:
        return "–"
    if milliseconds < 0.9995:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 999.5:
        return f"{milliseconds:.1f} ms" if milliseconds < 99.95 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 59.995 else format_elapsed(seconds)


def format_elapsed(seconds: float | None) -> str:
    """Uses at most the two largest units."""
    if seconds is None:
        return "–"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    if rounded < 86400:
        return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"
    return f"{rounded // 86400} d {rounded % 86400 // 3600} h"


def format_count(number: float | None) -> str:
    if number is None:
        return "–"
    if abs(number) >= 9_999.5:
        return _scaled(number, ("k", "M", "G", "T"))
    if float(number).is_integer() or abs(number) >= 99.5:
        return f"{number:,.0f}"
    return "<0.0001" if 0 < number < 0.0001 else f"{number:.2g}"


def format_rate(per_second: float) -> str:
    """Formats a rate, a low one by the minute, hour or day."""
    unit, seconds = rate_unit(per_second)
    return f"{format_count(per_second * seconds)}/{unit}"


def rate_unit(per_second: float) -> tuple[str, int]:
    """Returns the unit in which a rate is at least 1, and its seconds."""
    units = {"s": 1, "min": 60, "h": 3600}
    fitting = ((unit, seconds) for unit, seconds in units.items() if per_second * seconds >= 0.995)
    return ("s", 1) if per_second <= 0 else next(fitting, ("d", 86_400))


def format_ago(seconds: float) -> str:
    """Formats an age in the largest unit."""
    for unit, unit_seconds in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= unit_seconds:
            return f"{int(seconds // unit_seconds)} {unit} ago"
    return "now"


def format_size(count_bytes: float | None) -> str:
    if count_bytes is None:
        return "–"
    if abs(count_bytes) < 999.5:
        return f"{count_bytes:.0f} B"
    return _scaled(count_bytes, ("kB", "MB", "GB", "TB"))


def _scaled(number: float, units: tuple[str, ...]) -> str:
    """Rounds to three digits, in the smallest unit in which they suffice."""
    for unit in units:
        number /= 1000
        if abs(number) < 999.5 or unit == units[-1]:
            return f"{number:,.0f} {unit}" if abs(number) >= 999.5 else f"{number:.3g} {unit}"
    raise AssertionError


def format_clock(time: dt.datetime) -> str:
    """Returns the time of day in UTC, with milliseconds."""
    return time.astimezone(dt.UTC).strftime("%H:%M:%S.%f")[:-3]


def escape_markdown(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(line: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", line)


def as_sentence(text: str) -> str:
    """Returns an error message as a sentence. Messages begin in lower case and end without a full stop."""
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def message_markdown(text: str) -> str:
    """Returns an error message as a sentence in Markdown, with `code` in backticks as code."""
    parts = _CODE.split(as_sentence(text))
    return "".join(f"`{part}`" if at % 2 else _escaped(part) for at, part in enumerate(parts))


def message_html(text: str) -> str:
    """Returns an error message as a sentence in HTML, with `code` in backticks as code."""
    parts = _CODE.split(html.escape(as_sentence(text)))
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def axis_unit(metric: Metric, aggregation: Aggregation, width_seconds: int) -> str:
    """Returns the label of an axis. The rate of a histogram counts measurements. UCUM annotations such as
    {order} are shown without braces.
    """
    if aggregation == "rate" and metric.kind in ("histogram", "exponential_histogram", "summary"):
        return "measurements/s"
    unit = _UNITS.get(metric.unit, re.sub(r"\{([^}]*)\}", r"\1", metric.unit))
    if aggregation == "rate":
        return f"{unit}/s" if unit else "per second"
    if aggregation == "increase":
        return f"{unit} per {_width(width_seconds)}".strip()
    return unit


def _width(seconds: int) -> str:
    for seconds_per_unit, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds % seconds_per_unit == 0:
            return f"{seconds // seconds_per_unit} {unit}"
    return f"{seconds} s"
