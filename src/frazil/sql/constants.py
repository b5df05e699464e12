"""Evaluates constant expressions, as far as needed to choose files.

A value is a range that contains DuckDB's value of the expression: time passes between planning and running,
and months have no fixed length. None means unknown: no constraint follows from it.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from frazil.times import micros_of

Node = Mapping[str, Any]
Kind = Literal["time", "text", "integer", "real", "flag"]
Value = str | int | float | bool

SECOND = 1_000_000
DAY = 86_400 * SECOND
_CLOCK_SLACK = 3600 * SECOND
"""A query may wait and run for a while after its files were chosen."""
_UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": SECOND,
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": DAY,
    "week": 7 * DAY,
}
_LONG_UNITS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_NOW = frozenset({"now", "current_timestamp", "get_current_timestamp", "transaction_timestamp"})
_TODAY = frozenset({"today", "current_date"})
KEYWORDS = frozenset({"current_timestamp", "current_date"})
"""Written like columns; they mean the clock only if no column has the name."""
_ROUNDED = {"TIMESTAMP_S": SECOND, "TIMESTAMP_MS": 1000}
_TIME_TYPES = frozenset({"TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", *_ROUNDED})
_MICROS_MAX = 2**62
"""Far beyond any time that DuckDB supports."""
_FLOAT_MAX = 1e300
_NUMBERS = frozenset(
    f"{sign}{name}" for sign in ("", "U") for name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
)
_TIME = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?"
)
_DIGITS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_SPAN = re.compile(r"\s*(\d{1,9}(?:\.\d{1,6})?)\s*([A-Za-z]+)\s*")
_DAYS_MAX = 1_000_000


@dataclass(frozen=True)
class Constraint:
    """A condition that all needed rows meet in one column. Bounds are inclusive and may be wider than in the
    query.

    Times are microseconds since 1970 in UTC, as in Iceberg. Rows in which the column is NULL never meet a
    constraint.
    """

    lower: Value | None = None
    upper: Value | None = None
    values: frozenset[Value] | None = None
    """The values that the column can have."""


Constraints = Mapping[str, Constraint]
"""Constraints by column; all must hold. A column without an entry may have any value."""


@dataclass(frozen=True)
class Range:
    """A range of values. Both ends are included."""

    low: Value
    high: Value


@dataclass(frozen=True)
class Constants:
    """Evaluates constant expressions. `now` is when the query was planned, in microseconds."""

    now: int
    params: Mapping[str, Any]
    keywords: Collection[str] = KEYWORDS
    """Those of KEYWORDS that mean the clock in this query."""

    @classmethod
    def of(cls, now: int, params: Sequence[Any]) -> Constants:
        return cls(now, {str(number): value for number, value in enumerate(params, 1)})

    def value(self, node: Node, kind: Kind) -> Range | None:
        """Return the value of an expression that is compared with a column of this kind."""
        try:
            return _in_time_range(self._time(node)) if kind == "time" else self._simple(node, kind)
        except RecursionError:
            return None

    def _simple(self, node: Node, kind: Kind) -> Range | None:
        found = self._plain(node)
        if found is None:
            return None
        if kind == "text":
            return Range(found, found) if isinstance(found, str) and _is_unicode(found) else None
        if isinstance(found, bool):
            return Range(found, found) if kind == "flag" else None
        if isinstance(found, int) and kind in ("integer", "real"):
            return near(found) if kind == "real" else Range(found, found)
        if isinstance(found, float) and math.isfinite(found) and kind in ("integer", "real"):
            return near(found)
        return None

    def date(self, node: Node) -> Range | None:
        """Return the value of an expression that is compared with a date, where text is cast to a date."""
        if node.get("class") in ("CONSTANT", "PARAMETER"):
            found = self._plain(node)
            return _in_time_range(_date_of(found)) if isinstance(found, str) else None
        return self.value(node, "time")

    def _plain(self, node: Node) -> Value | None:
        match node.get("class"):
            case "CONSTANT":
                return _constant(node["value"])
            case "PARAMETER":
                value = self.params.get(node["identifier"])
                return value if isinstance(value, str | int | float | bool) else None
            case "CAST":
                return _cast(self._plain(node["child"]), node["cast_type"]["id"])
        return None

    def _time(self, node: Node) -> Range | None:
        match node.get("class"):
            case "CONSTANT" | "PARAMETER":
                found = self._plain(node)
                return parse_time(found) if isinstance(found, str) else None
            case "CAST":
                return self._cast_time(node["child"], node["cast_type"]["id"])
            case "COLUMN_REF":
                name = node["column_names"][-1].lower()
                is_clock = len(node["column_names"]) == 1 and name in self.keywords
                return self._clock(name) if is_clock else None
            case "FUNCTION":
                return self._time_function(node["function_name"].lower(), node["children"])
        return None

    def _cast_time(self, child: Node, to: str) -> Range | None:
        if to not in _TIME_TYPES:
            return None
        text = self._plain(child) if child.get("class") in ("CONSTANT", "PARAMETER") else None
        if isinstance(text, str) and to != "TIMESTAMP WITH TIME ZONE":
            found = parse_time(text, ignore_zone=True)
        else:
            found = self._time(child)
        if found is None:
            return None
        if to == "DATE":
            return _start_of(found, DAY)
        slack = _ROUNDED.get(to, 0)
        return Range(int(found.low) - slack, int(found.high) + slack)

    def _clock(self, name: str) -> Range | None:
        if name in _NOW:
            return Range(self.now, self.now + _CLOCK_SLACK)
        if name in _TODAY:
            return _start_of(Range(self.now, self.now + _CLOCK_SLACK), DAY)
        return None

    def _time_function(self, name: str, children: Sequence[Node]) -> Range | None:
        if not children:
            return self._clock(name)
        if name in ("+", "-") and len(children) == 2:
            return self._moved(name, *children)
        if name in ("date_trunc", "datetrunc") and len(children) == 2:
            unit, time = self._plain(children[0]), self._time(children[1])
            length = _UNITS.get(unit.lower()) if isinstance(unit, str) else None
            return None if time is None or length is None else _start_of(time, length)
        per_count = {
            "to_timestamp": SECOND,
            "epoch_ms": 1000,
            "make_timestamp": 1,
            "make_timestamptz": 1,
        }.get(name)
        count = self._number(children[0]) if per_count is not None and len(children) == 1 else None
        if per_count is None or count is None:
            return None
        slack = 1 + int(abs(count.high) * per_count) // 2**50  # DuckDB computes it from a double
        return Range(int(count.low * per_count) - slack, int(count.high * per_count) + slack)

    def _moved(self, sign: str, left: Node, right: Node) -> Range | None:
        time, length = self._time(left), self._length(right)
        if time is None and sign == "+":
            time, length = self._time(right), self._length(left)
        if time is None or length is None:
            return None
        shortest, longest = int(length.low), int(length.high)
        low, high = (shortest, longest) if sign == "+" else (-longest, -shortest)
        return Range(int(time.low) + low, int(time.high) + high)

    def _length(self, node: Node) -> Range | None:
        """Return the length of an interval, in microseconds."""
        if node.get("class") == "CAST" and node["cast_type"]["id"] == "INTERVAL":
            text = self._plain(node["child"])
            return parse_length(text) if isinstance(text, str) else None
        if node.get("class") == "FUNCTION" and node["function_name"].startswith("to_"):
            count = self._number(node["children"][0]) if len(node["children"]) == 1 else None
            unit = node["function_name"][3:]
            ends = () if count is None else (_length_of(count.low, unit), _length_of(count.high, unit))
            known = [end for end in ends if end is not None]
            return _around(known) if known else None
        days = self._plain(node)  # a number added to a date counts days
        if isinstance(days, int) and not isinstance(days, bool) and abs(days) < _DAYS_MAX:
            return Range(days * DAY, days * DAY)
        return None

    def _number(self, node: Node) -> _Numbers | None:
        """Evaluate a number within the casts that the parser adds. The parser writes `trunc` where it needs
        an integer; DuckDB's own casts round.
        """
        if node.get("class") == "CAST":
            found = self._number(node["child"])
            if found is None or node["cast_type"]["id"] == "DOUBLE":
                return found
            is_whole = node["cast_type"]["id"] in _NUMBERS
            return _Numbers(math.floor(found.low), math.ceil(found.high)) if is_whole else None
        if (
            node.get("class") == "FUNCTION"
            and node["function_name"] == "trunc"
            and len(node["children"]) == 1
        ):
            found = self._number(node["children"][0])
            return None if found is None else _Numbers(math.trunc(found.low), math.trunc(found.high))
        value = self._plain(node)
        if isinstance(value, str) and _DIGITS.fullmatch(value):  # INTERVAL '15' MINUTE
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MICROS_MAX:
            return None
        return _Numbers(value, value)


@dataclass(frozen=True)
class _Numbers:
    low: float
    high: float


def near(value: float) -> Range | None:
    """Return a range around a value: DuckDB compares doubles, which are not exact."""
    if not abs(value) < _FLOAT_MAX:
        return None
    slack = abs(value) * 1e-12
    return Range(value - slack, value + slack)


def _constant(value: Node) -> Value | None:
    if value.get("is_null"):
        return None
    kind, content = value["type"]["id"], value.get("value")
    if kind == "VARCHAR" and isinstance(content, str):
        return content
    if kind in _NUMBERS and isinstance(content, int):
        return content
    if kind == "DOUBLE" and isinstance(content, float):
        return content
    if kind == "DECIMAL" and isinstance(content, int):
        return float(content / 10 ** value["type"]["type_info"]["scale"])
    if kind == "BOOLEAN" and isinstance(content, bool):
        return content
    return None


def _cast(value: Value | None, to: str) -> Value | None:
    """Apply a lossless cast, or the cast by which the parser writes TRUE and FALSE."""
    if to == "VARCHAR" and isinstance(value, str):
        return value
    if to in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    if to == "DOUBLE" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < _FLOAT_MAX else None
    if to == "BOOLEAN" and value in ("t", "f"):
        return value == "t"
    return None


def parse_time(text: str, *, ignore_zone: bool = False) -> Range | None:
    """Parse a time as DuckDB does, by default in UTC. Types without a time zone ignore the zone."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction = (match[7] or "").ljust(9, "0")
    try:
        moment = datetime.datetime(year, month, day, hour, minute, second, tzinfo=datetime.UTC)
    except ValueError:
        return None
    micros = micros_of(moment) + int(fraction[:6])
    if not ignore_zone and (zone := match[8]) and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * SECOND
        micros -= offset if zone[0] == "+" else -offset
    return Range(micros, micros + (1 if match[7] and len(match[7]) > 6 else 0))


def _date_of(text: str) -> Range | None:
    found, without_zone = parse_time(text), parse_time(text, ignore_zone=True)
    return None if found is None or found != without_zone else _start_of(found, DAY)


def parse_length(text: str) -> Range | None:
    """Parse an interval such as `15 minutes` or `1 day 2 hours`."""
    low = high = 0
    at = 0
    while at < len(text):
        match = _SPAN.match(text, at)
        found = None if match is None else _length_of(float(match[1]), match[2].lower())
        if match is None or found is None:
            return None
        low, high, at = low + int(found.low), high + int(found.high), match.end()
    return Range(low, high) if text.strip() else None


def _length_of(count: float, unit: str) -> Range | None:
    singular = {"centuries": "century", "millennia": "millennium"}.get(unit, unit.removesuffix("s"))
    if singular in _UNITS:
        micros = count * _UNITS[singular]
        slack = 0 if micros == int(micros) else 1
        return Range(math.floor(micros) - slack, math.ceil(micros) + slack)
    if singular in _LONG_UNITS:
        months = count * _LONG_UNITS[singular]  # DuckDB turns fractions into days, or drops them
        ends = [whole * days * DAY for whole in (math.floor(months), math.ceil(months)) for days in (28, 32)]
        return Range(min(ends) - DAY, max(ends) + DAY)
    return None


def _start_of(time: Range, length: int) -> Range:
    """Truncate both ends to the start of their day, hour, …. Weeks begin on Mondays."""
    first = -3 * DAY if length == 7 * DAY else 0
    low, high = ((int(end) - first) // length * length + first for end in (time.low, time.high))
    return Range(low, high)


def _around(ranges: Sequence[Range]) -> Range:
    return Range(min(int(each.low) for each in ranges), max(int(each.high) for each in ranges))


def _is_unicode(text: str) -> bool:
    """Return whether the text has no lone surrogates: JSON allows them, and no table has them."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _in_time_range(time: Range | None) -> Range | None:
    is_outside = time is None or int(time.low) < -_MICROS_MAX or int(time.high) > _MICROS_MAX
    return None if is_outside else time
