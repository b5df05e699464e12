"""What time it is, as far as a table knows, and which of its rows may be younger than they say.

A clock that is wrong must not remove rows. Each round of retention notes its time with the table; a clock
that has moved far beyond the last note is not believed until a person confirms it. Each landing of rows whose
received time is far in the past notes their days: their age then counts from when they landed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.lake.change import Step, change
from frazil.lake.properties import json_property
from frazil.lake.times import commit_times

CLOCK = "frazil.clock"
"""The property with the time of retention's last round, in seconds since 1970."""
LATE = "frazil.landed-late"
"""The property with days (since 1970) and when rows of them landed late, in seconds since 1970."""
_NOTE_SECONDS = 6 * 3600.0
_LATE_DAYS_MAX = 4000
_DAY_SECONDS = 86_400


def noted_time(metadata: TableMetadata) -> float | None:
    """When retention last looked at the table with a clock that was believed. None if it never has."""
    return _number(json_property(metadata, CLOCK).get("at"))


def known_time(metadata: TableMetadata, clock_seconds: float) -> float | None:
    """The noted time, or that of the newest commit where none was noted. None for a table without either."""
    noted = noted_time(metadata)
    if noted is not None:
        return noted
    commits = commit_times(metadata, int(clock_seconds * 1000))
    return max((ms / 1000 for ms in commits.values()), default=None)


def believed_now(
    metadata: TableMetadata, clock_seconds: float, gap_seconds_max: float, others: float | None = None
) -> float:
    """The clock's time, or the last time that is known if the clock is further ahead of it than the gap.
    `others` is the last time that other tables know: it counts for a table that has no note yet, as nothing
    may have landed in it for long.
    """
    known = known_time(metadata, clock_seconds)
    if known is None:
        return clock_seconds
    if others is not None and noted_time(metadata) is None:
        known = max(known, others)
    return clock_seconds if clock_seconds <= known + gap_seconds_max else known


def clock_held(table: str, believed_seconds: float, clock_seconds: float) -> str:
    """Says why retention waits for a confirmation of the clock."""
    return (
        f"the clock says {utc(clock_seconds)}, but the last time noted for {table} is "
        f"{utc(believed_seconds)}: the pipeline was stopped since then, or the clock is wrong; check it, "
        f"then run `frazil maintain retention --confirm {table}`"
    )


def utc(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M} UTC"


def note_time(catalog: Catalog, table: Table, now_seconds: float) -> None:
    """A few times a day. Never goes back: a machine may boot with a clock that is years behind."""

    def step(current: Table) -> Step | None:
        known = noted_time(current.metadata)
        if known is not None and now_seconds < known + _NOTE_SECONDS:
            return None
        return _set(CLOCK, {"at": now_seconds})

    change(catalog, table, step)


def late_before(metadata: TableMetadata, clock_seconds: float, gap_seconds_max: float) -> float:
    """Rows that were received before this time, in seconds since 1970, land late: longer than the gap before
    the clock's time, or before the last noted time if both are further apart than the gap.
    """
    known = noted_time(metadata)
    is_believed = known is None or abs(clock_seconds - known) <= gap_seconds_max
    return (clock_seconds if known is None or is_believed else known) - gap_seconds_max


def late_days(metadata: TableMetadata) -> dict[int, float]:
    """The days of which rows landed late, and when the last of these rows did."""
    return numbers_by_day(json_property(metadata, LATE))


def numbers_by_day(document: object) -> dict[int, float]:
    """What of a JSON document is a number by day. Anyone may have written it."""
    found = {}
    for day, at in document.items() if isinstance(document, dict) else ():
        if (seconds := _number(at)) is not None and str(day).removeprefix("-").isdecimal():
            found[int(day)] = seconds
    return found


def note_late(catalog: Catalog, table: Table, days: Iterable[int], clock_seconds: float) -> None:
    """Durable when it returns: call it before the rows are committed. Days that had not ended by then are
    left out, as their rows cannot fall due too soon. A clock that is behind counts as the noted time.
    """
    landed = max(clock_seconds, noted_time(table.metadata) or 0.0)
    late = {day: landed for day in days if (day + 1) * _DAY_SECONDS < landed}

    def more(known: Mapping[int, float]) -> dict[int, float]:
        merged = {**known, **{day: max(at, known.get(day, 0.0)) for day, at in late.items()}}
        newest = sorted(merged, key=lambda day: merged[day], reverse=True)[:_LATE_DAYS_MAX]
        return {day: merged[day] for day in sorted(newest)}

    _change_late(catalog, table, more)


def forget_late(catalog: Catalog, table: Table, landed_before: float) -> None:
    """Leaves out the days of which rows last landed before that time."""
    _change_late(catalog, table, lambda known: {day: at for day, at in known.items() if at >= landed_before})


def _change_late(
    catalog: Catalog, table: Table, changed: Callable[[Mapping[int, float]], dict[int, float]]
) -> None:
    def step(current: Table) -> Step | None:
        known = late_days(current.metadata)
        wanted = changed(known)
        return None if wanted == known else _set(LATE, wanted)

    change(catalog, table, step)


def _set(name: str, value: Mapping[Any, float]) -> Step:
    return Step((), (SetPropertiesUpdate(updates={name: json.dumps(value)}),))


def _number(value: object) -> float | None:
    """Of a property that anyone may have written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else None  # type: ignore[arg-type,operator]
