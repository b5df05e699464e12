"""Fast versions of DuckDB's functions of time, as macros.

DuckDB computes the parts of a TIMESTAMPTZ with a calendar of time zones, which takes about ten times as long
as arithmetic. The session's zone is always UTC, so arithmetic gives the same results. A macro passes the
cases in which it might not, such as other types, infinite times and times before 1970, to DuckDB's function.

The macros exist only where a query runs. Where it is planned, DuckDB's own functions are needed: its
optimizer knows how to turn conditions on them into ranges of time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ZONED = "TIMESTAMP WITH TIME ZONE"
_SECOND = 10**6
_WIDTHS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": 86_400 * _SECOND,
}
_WEEK = 7 * _WIDTHS["day"]
_MONDAY = 3 * _WIDTHS["day"]
"""From the last Monday of 1969 to 1970."""
_FIRST_BUCKET = 946_857_600 * _SECOND
"""2000-01-03, from which `time_bucket` counts buckets shorter than a month."""
_CALENDAR = ("month", "quarter", "year")
_PARTS = (
    *("year", "month", "day", "decade", "century", "quarter", "week", "weekday", "yearday"),
    *("hour", "minute", "second", "millisecond", "microsecond"),
    *("dow", "isodow", "doy", "isoyear", "dayofweek", "dayofyear", "weekofyear"),
)
_FIXED_PARTS = {
    "hour": f"{{us}} // {_WIDTHS['hour']} % 24",
    "minute": f"{{us}} // {_WIDTHS['minute']} % 60",
    "second": f"{{us}} // {_SECOND} % 60",
    "millisecond": "{us} // 1000 % 60000",
    "microsecond": f"{{us}} % {_WIDTHS['minute']}",
}
"""Parts that are arithmetic. DuckDB computes them by way of a date and a time, which takes twice as long."""
_CALL = re.compile(r'\b([a-z_]+)"?\s*\(')
_EPOCH = "epoch_us(ts)"
_AS_UTC = f"make_timestamp({_EPOCH})"
"""The same time without a zone: DuckDB reads its parts by arithmetic. Faster than a cast."""


def macros_for(sql: str) -> list[str]:
    """Return the statements that create the macros for the functions that the SQL seems to call."""
    called = set(_CALL.findall(sql.lower()))
    if "extract" in called:
        called.add("date_part")
    return [_MACROS[name] for name in sorted(called & _MACROS.keys())]


def _macro(name: str, first: str, fast: str, types: Sequence[str], *more: str) -> str:
    """Overload the function. Types that the function supports need an overload each: DuckDB would convert
    them to another one that has an overload.
    """
    given = [first.split()[0]] if first else []
    same = f"AS system.main.{name}({', '.join([*given, 'ts'])})"
    typed = f"{first}, ts" if first else "ts"
    overloads = [f"({typed} {_ZONED}) AS {fast}", *(f"({typed} {each}) {same}" for each in types)]
    overloads.append(f"({', '.join([*given, 'ts'])}) {same}")
    return f"CREATE MACRO {name}{', '.join((*overloads, *more))}"


def _date_trunc(name: str) -> str:
    cases = [
        f"WHEN {_is(unit)} AND {_EPOCH} >= 0 THEN make_timestamptz({_EPOCH} // {width} * {width})"
        for unit, width in _WIDTHS.items()
    ]
    monday = f"({_EPOCH} + {_MONDAY}) // {_WEEK} * {_WEEK} - {_MONDAY}"
    cases.append(f"WHEN {_is('week')} AND {_EPOCH} >= 0 THEN make_timestamptz({monday})")
    for unit in _CALENDAR:
        calendar = f"make_timestamptz(epoch_us(system.main.{name}('{unit}', {_AS_UTC})))"
        cases.append(f"WHEN {_is(unit)} AND {_EPOCH} >= 0 THEN {calendar}")
    fast = f"CASE {' '.join(cases)} ELSE system.main.{name}(part, ts) END"
    return _macro(name, "part", fast, ("DATE", "TIMESTAMP", "INTERVAL"))


def _date_part(name: str) -> str:
    fixed = " ".join(
        f"WHEN {_is(unit)} AND {_EPOCH} >= 0 THEN {part.format(us=_EPOCH)}"
        for unit, part in _FIXED_PARTS.items()
    )
    fast = (
        f"CASE {fixed} WHEN {_is(*_PARTS)} AND {_EPOCH} >= 0 THEN system.main.{name}(part, {_AS_UTC}) "
        f"ELSE system.main.{name}(part, ts) END"
    )
    types = ("DATE", "TIMESTAMP", "INTERVAL", "TIME", "TIME WITH TIME ZONE", "TIME_NS")
    return _macro(name, "part VARCHAR", fast, types)  # other parts are lists, which give a struct


def _part_of(name: str, types: Sequence[str]) -> str:
    same = f"system.main.{name}"
    fast = _FIXED_PARTS[name].format(us=_EPOCH) if name in _FIXED_PARTS else f"{same}({_AS_UTC})"
    return _macro(name, "", f"CASE WHEN {_EPOCH} >= 0 THEN {fast} ELSE {same}(ts) END", types)


def _time_bucket(name: str) -> str:
    def part(unit: str) -> str:
        return f"system.main.date_part('{unit}', CAST(part AS INTERVAL))"

    # DuckDB refuses widths that mix months, days and shorter units.
    width = f"CAST({part('epoch')} * {_SECOND} AS BIGINT)"
    days = f"{part('day')} * {_WIDTHS['day']}"
    is_fixed = (
        f"{part('month')} = 0 AND {part('year')} = 0 AND {width} > 0 "
        f"AND ({part('day')} = 0 OR {width} = {days})"
    )
    is_months = " AND ".join(
        (
            f"{part('month')} >= 0 AND {part('year')} >= 0 AND {part('month')} + {part('year')} > 0",
            *(f"{part(unit)} = 0" for unit in ("day", "hour", "minute", "microsecond")),
        )
    )
    buckets = f"({_EPOCH} - {_FIRST_BUCKET}) // {width} * {width}"
    fast = (
        # One that begins in 2000 begins in 1970 too.
        f"CASE WHEN {is_fixed} AND {_FIRST_BUCKET} % {width} = 0 AND {_EPOCH} >= 0 "
        f"THEN make_timestamptz({_EPOCH} // {width} * {width}) "
        f"WHEN {is_fixed} AND {_EPOCH} >= {_FIRST_BUCKET} "
        f"THEN make_timestamptz({_FIRST_BUCKET} + {buckets}) "
        f"WHEN {is_months} AND {_EPOCH} >= 0 "
        f"THEN make_timestamptz(epoch_us(system.main.{name}(CAST(part AS INTERVAL), {_AS_UTC}))) "
        f"ELSE system.main.{name}(CAST(part AS INTERVAL), ts) END"
    )
    with_origin = f"(part, ts, origin) AS system.main.{name}(part, ts, origin)"
    return _macro(name, "part", fast, ("DATE", "TIMESTAMP"), with_origin)


def _is(*units: str) -> str:
    names = ", ".join(f"'{name}'" for unit in units for name in _names(unit))
    return f"lower(part) IN ({names})"


def _names(unit: str) -> tuple[str, ...]:
    return (unit, f"{unit}s") if unit in (*_WIDTHS, *_CALENDAR, "week") and unit != "quarter" else (unit,)


_TIMES = ("DATE", "TIMESTAMP", "INTERVAL")
_MACROS = {
    **{name: _date_trunc(name) for name in ("date_trunc", "datetrunc")},
    **{name: _date_part(name) for name in ("date_part", "datepart")},
    "time_bucket": _time_bucket("time_bucket"),
    **{
        name: _part_of(name, (*_TIMES, "TIME", "TIME WITH TIME ZONE", "TIME_NS"))
        for name in ("hour", "minute", "second", "millisecond", "microsecond")
    },
    **{
        name: _part_of(name, _TIMES)
        for name in (
            *("year", "month", "day", "quarter", "week", "weekofyear", "isoyear", "yearweek"),
            *("dayofmonth", "dayofweek", "weekday", "isodow", "dayofyear"),
        )
    },
}
