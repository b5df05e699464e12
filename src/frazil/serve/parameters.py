"""Parses query parameters: times, durations, names. Raises RequestInvalid with the expected form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from frazil.errors import RequestInvalid
from frazil.query.reads.filters import SEVERITIES, SPAN_KINDS, STATUSES
from frazil.query.reads.time_range import MICRO, is_time
from frazil.serve.errors import suggestion
from frazil.times import duration_nanos, micros_of

Choice = TypeVar("Choice", bound=str)

_RELATIVE_UNITS = ("s", "m", "h", "d", "w")
_UNIX = re.compile(r"-?\d{1,11}(?:\.\d{1,9})?\Z", re.ASCII)
_DURATION_UNITS = ("ns", "us", "µs", "ms", "s", "m", "h")
_INT64_MAX = 2**63 - 1
_TRACE_ID = re.compile(r"[0-9a-f]{32}\Z")
_SEVERITY = re.compile(r"([a-z]+)([2-4]?)\Z")


def only_known(request: Request) -> None:
    """Refuse unknown parameters: a misspelled filter would be ignored silently."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = {field.alias: field for part in _with_parts(route.dependant) for field in part.query_params}
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            raise RequestInvalid(f"unknown parameter `{name[:100]}`.{suggestion(name, list(known))}")
        if name in seen and "list" not in str(known[name].field_info.annotation):
            raise RequestInvalid(f"the parameter `{name}` occurs twice")
        seen.add(name)


def _with_parts(dependant: Dependant) -> Iterator[Dependant]:
    """Yield the handler and its dependencies, which declare shared parameters."""
    yield dependant
    for part in dependant.dependencies:
        yield from _with_parts(part)


def parse_time(name: str, text: str, now: float) -> int:
    """Parse a time to microseconds since 1970: ISO 8601 (default UTC), unix seconds, `now`, or `-15m`."""
    if text == "now":
        return int(now * MICRO)
    if (ago := _ago_nanos(text)) is not None:
        return _within(name, int(now * MICRO) - ago // 1000)
    if _UNIX.match(text):
        whole, _, fraction = text.partition(".")
        rest = int(fraction.ljust(6, "0")[:6] or 0)
        seconds = int(whole)
        return _within(name, seconds * MICRO + (-rest if whole.startswith("-") else rest))
    try:
        parsed = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
    except ValueError:
        raise RequestInvalid(
            f"{name} is not a time: write it like 2026-11-15T10:00:00Z, 1790000000 (in seconds), -15m or now",
            parameter=name,
        ) from None
    return _within(name, micros_of(parsed))


def _ago_nanos(text: str) -> int | None:
    return duration_nanos(text[1:], _RELATIVE_UNITS) if text.startswith("-") else None


def parse_fixed_time(name: str, text: str) -> int:
    """Parse a time that is not relative to now: a cursor is valid only for one filter."""
    if text == "now" or _ago_nanos(text) is not None:
        raise RequestInvalid(
            f"{name} must be a fixed time: write it like 2026-11-15T10:00:00Z or 1790000000", parameter=name
        )
    return parse_time(name, text, 0)


def _within(name: str, micros: int) -> int:
    if not is_time(micros):
        raise RequestInvalid(f"{name} is out of range: unix times must be in seconds", parameter=name)
    return micros


def duration(name: str, text: str) -> int:
    """Parse a duration to nanoseconds: `250` (milliseconds), `250ms`, `1.5s`, `80us`."""
    nanos = duration_nanos(text, _DURATION_UNITS, "ms")
    if nanos is None:
        raise RequestInvalid(f"{name} is not a duration: write it like 250ms, 1.5s or 80us", parameter=name)
    return min(nanos, _INT64_MAX)


def severity(text: str) -> int:
    """Parse a severity to its lowest number: 1 to 24, or a name such as `warn` or `error2`."""
    if re.fullmatch(r"\d{1,2}", text, re.ASCII) and int(text) <= 24:
        return int(text)
    match = _SEVERITY.match(text.lower().replace("warning", "warn"))
    if match is None or match[1] not in SEVERITIES:
        raise RequestInvalid(
            "severity must be a number from 1 to 24, or a name." + suggestion(text[:50], SEVERITIES),
            parameter="severity",
        )
    return 4 * SEVERITIES.index(match[1]) + int(match[2] or 1)


def choice(name: str, text: str, choices: Collection[Choice]) -> Choice:
    lower = text.lower()
    for each in choices:
        if each == lower:
            return each
    raise RequestInvalid(
        f"{name} `{text[:50]}` is not valid.{suggestion(lower[:50], choices)}", parameter=name
    )


def kind(text: str) -> int:
    return _numbered("kind", text, SPAN_KINDS)


def status(text: str) -> int:
    return _numbered("status", text, STATUSES)


def _numbered(name: str, text: str, names: Sequence[str]) -> int:
    """Return the number of a name, or the number itself."""
    if text.isdecimal() and text.isascii() and int(text) < len(names):
        return int(text)
    return names.index(choice(name, text, names))


def trace_id(text: str) -> str:
    """Return the trace id in lower case, as it is stored."""
    lower = text.lower()
    if not _TRACE_ID.match(lower):
        raise RequestInvalid("a trace id must have 32 hexadecimal digits", parameter="trace_id")
    return lower


def attribute(text: str) -> tuple[str, str]:
    """Split `key=value` or `key:value` at the first `=` or `:`."""
    match = re.match(r"([^=:]+)[=:](.*)\Z", text, re.DOTALL)
    if match is None:
        raise RequestInvalid(
            "attr must be key=value or key:value, such as http.route=/cart", parameter="attr"
        )
    return match[1], match[2]
