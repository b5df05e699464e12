"""What time it is, as far as a table knows, and which of its rows may be younger than they say.

A clock that is wrong must not remove rows. Each round of retention notes its time with the table; a clock
that has moved far beyond the last note is not believed until a person confirms it. Each landing of rows whose
received time is far in the past notes their tenants and days: their age then counts from when they landed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from frazil.lake.commits.metadata_commit import Step, change
from frazil.lake.properties import json_property
from frazil.lake.times import commit_times
from frazil.times import utc_text

CLOCK = "frazil.clock"
"""The property with the time of retention's last round, in seconds since 1970."""
LATE = "frazil.landed-late"
"""The property with partitions (tenant and day since 1970) and when rows of them landed late, in seconds."""
_NOTE_SECONDS = 6 * 3600.0
_LATE_MAX = 4000
_LATE_OF_TENANT_MAX = 400
_DAY_SECONDS = 86_400

Partition = tuple[str, int | None]
"""A tenant and a day. Without a day: all days of the tenant."""
Late = Mapping[Partition, float]
"""Partitions whose rows landed late, and when the last of these rows did."""


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
    return utc_text(seconds, "%Y-%m-%d %H:%M")


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


def late_days(metadata: TableMetadata) -> dict[Partition, float]:
    return by_partition(json_property(metadata, LATE))


def landed_late(late: Late, tenant: str, day: int) -> float | None:
    """When the last late rows of that partition landed. None if none did."""
    found = [at for key in ((tenant, day), (tenant, None)) if (at := late.get(key)) is not None]
    return max(found, default=None)


def note_late(
    catalog: Catalog, table: Table, partitions: Iterable[tuple[str, int]], clock_seconds: float
) -> bool:
    """Whether something new was noted. Durable when it returns: call it before the rows are committed.

    Days that had not ended by then are left out, as their rows cannot fall due too soon. A clock that is
    behind counts as the noted time. Times are rounded up, so that not every landing of late rows has one to
    note.
    """
    landed = max(clock_seconds, noted_time(table.metadata) or 0.0)
    at = math.ceil(landed / _NOTE_SECONDS) * _NOTE_SECONDS
    late = {(tenant, day): at for tenant, day in partitions if (day + 1) * _DAY_SECONDS < landed}

    def more(known: Late) -> dict[Partition, float]:
        new = {key for key in late if (landed_late(known, *key) or 0.0) < at}
        return _bounded({**known, **dict.fromkeys(new, at)})

    return _change_late(catalog, table, more)


def _bounded(late: Late) -> dict[Partition, float]:
    """With one mark for all days of a tenant that has very many, and of those that have most if there are
    too many in all: the rows of that tenant stay longer, and those of others are not concerned.
    """
    counts = Counter(tenant for tenant, _ in late)
    whole = {tenant for tenant, day in late if day is None}
    whole |= {tenant for tenant, count in counts.items() if count > _LATE_OF_TENANT_MAX}
    left = sum(count for tenant, count in counts.items() if tenant not in whole)
    for tenant, count in counts.most_common():
        if left <= _LATE_MAX:
            break
        if tenant not in whole:
            whole.add(tenant)
            left -= count
    found: dict[Partition, float] = {}
    for (tenant, day), at in late.items():
        key = (tenant, None if tenant in whole else day)
        found[key] = max(at, found.get(key, 0.0))
    return found


def forget_late(catalog: Catalog, table: Table, landed_before: float) -> None:
    """Leaves out the partitions of which rows last landed before that time."""
    _change_late(catalog, table, lambda known: {key: at for key, at in known.items() if at >= landed_before})


def by_partition(document: object) -> dict[Partition, float]:
    """What of a JSON document is a number by partition. Anyone may have written it."""
    found: dict[Partition, float] = {}
    for text, number in document.items() if isinstance(document, dict) else ():
        tenant, _, day = str(text).rpartition("/")
        seconds = _number(number)
        if tenant and seconds is not None and (day == "*" or day.removeprefix("-").isdecimal()):
            found[tenant, None if day == "*" else int(day)] = seconds
    return found


def partition_texts(late: Late) -> dict[str, float]:
    """As `by_partition` reads it."""
    texts = {f"{tenant}/{'*' if day is None else day}": at for (tenant, day), at in late.items()}
    return dict(sorted(texts.items()))


def _change_late(catalog: Catalog, table: Table, changed: Callable[[Late], dict[Partition, float]]) -> bool:
    """Whether something was changed."""
    is_changed = False

    def step(current: Table) -> Step | None:
        nonlocal is_changed
        known = late_days(current.metadata)
        wanted = changed(known)
        is_changed = wanted != known
        return _set(LATE, partition_texts(wanted)) if is_changed else None

    change(catalog, table, step)
    return is_changed


def _set(name: str, value: Mapping[Any, float]) -> Step:
    return Step((), (SetPropertiesUpdate(updates={name: json.dumps(value)}),))


def _number(value: object) -> float | None:
    """Of a property that anyone may have written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else None  # type: ignore[arg-type,operator]
