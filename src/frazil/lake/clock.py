"""Protection of retention against wrong clocks, and against rows that land long after they were received.

Each retention run records its time in the table. If the clock is far ahead of the last recorded time, an
operator must confirm it before rows are removed. A landing of rows with a received time far in the past
records their tenants and days; the age of those rows then counts from the landing.
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

from frazil.lake.commits.metadata_commit import (
    MetadataChange,
    commit_metadata,
    json_property,
    number_or_none,
)
from frazil.lake.snapshots import commit_times
from frazil.times import utc_text

CLOCK = "frazil.clock"
"""Table property: the time of the last retention run, in seconds since 1970."""
LATE = "frazil.landed-late"
"""Table property: partitions (tenant and day since 1970) and when rows last landed late in each, in seconds.
"""
_RECORD_INTERVAL_SECONDS = 6 * 3600.0
_LATE_MAX = 4000
_LATE_PER_TENANT_MAX = 400
_DAY_SECONDS = 86_400

Partition = tuple[str, int | None]
"""A tenant and a day. Without a day: all days of the tenant."""
Late = Mapping[Partition, float]
"""Partitions with rows that landed late, and when the last of them landed."""


def recorded_time(metadata: TableMetadata) -> float | None:
    """Returns when retention last ran with a trusted clock. None if it never has."""
    return number_or_none(json_property(metadata, CLOCK).get("at"))


def known_time(metadata: TableMetadata, clock_seconds: float) -> float | None:
    """Returns the recorded time, else the time of the newest commit. None for a table that has neither."""
    recorded = recorded_time(metadata)
    if recorded is not None:
        return recorded
    commits = commit_times(metadata, int(clock_seconds * 1000))
    return max((ms / 1000 for ms in commits.values()), default=None)


def trusted_now(
    metadata: TableMetadata, clock_seconds: float, gap_seconds_max: float, others: float | None = None
) -> float:
    """Returns the clock's time, or the last known time if the clock is further ahead of it than the gap.

    `others` is the last known time of other tables. It is used for a table without a recorded time, because
    nothing may have landed in that table for a long time.
    """
    known = known_time(metadata, clock_seconds)
    if known is None:
        return clock_seconds
    if others is not None and recorded_time(metadata) is None:
        known = max(known, others)
    return clock_seconds if clock_seconds <= known + gap_seconds_max else known


def clock_hold_reason(table: str, trusted_seconds: float, clock_seconds: float) -> str:
    return (
        f"the clock says {utc(clock_seconds)}, but the last time recorded for {table} is "
        f"{utc(trusted_seconds)}: the pipeline was stopped since then, or the clock is wrong; check the "
        f"clock, then run `frazil maintain retention --confirm {table}`"
    )


def utc(seconds: float) -> str:
    return utc_text(seconds, "%Y-%m-%d %H:%M")


def record_time(catalog: Catalog, table: Table, now_seconds: float) -> None:
    """Records the time, at most every six hours. It never decreases: a machine may boot with a clock that is
    years behind.
    """

    def plan(current: Table) -> MetadataChange | None:
        known = recorded_time(current.metadata)
        if known is not None and now_seconds < known + _RECORD_INTERVAL_SECONDS:
            return None
        return _set(CLOCK, {"at": now_seconds})

    commit_metadata(catalog, table, plan)


def late_before(metadata: TableMetadata, clock_seconds: float, gap_seconds_max: float) -> float:
    """Returns the received time (seconds since 1970) before which rows count as landing late: the gap before
    the clock's time, or before the last recorded time if the two differ by more than the gap.
    """
    known = recorded_time(metadata)
    is_trusted = known is None or abs(clock_seconds - known) <= gap_seconds_max
    return (clock_seconds if known is None or is_trusted else known) - gap_seconds_max


def late_days(metadata: TableMetadata) -> dict[Partition, float]:
    return by_partition(json_property(metadata, LATE))


def landed_late(late: Late, tenant: str, day: int) -> float | None:
    """Returns when the last late rows of a partition landed. None if there are none."""
    found = [at for key in ((tenant, day), (tenant, None)) if (at := late.get(key)) is not None]
    return max(found, default=None)


def record_late(
    catalog: Catalog, table: Table, partitions: Iterable[tuple[str, int]], clock_seconds: float
) -> bool:
    """Records partitions with late rows. Returns whether anything changed. Durable when it returns: call it
    before the rows are committed.

    Days that have not ended are skipped, because their rows cannot become due too soon. If the clock is
    behind, the recorded time is used. Times are rounded up, so that few landings of late rows need a commit.
    """
    landed = max(clock_seconds, recorded_time(table.metadata) or 0.0)
    at = math.ceil(landed / _RECORD_INTERVAL_SECONDS) * _RECORD_INTERVAL_SECONDS
    late = {(tenant, day): at for tenant, day in partitions if (day + 1) * _DAY_SECONDS < landed}

    def more(known: Late) -> dict[Partition, float]:
        new = {key for key in late if (landed_late(known, *key) or 0.0) < at}
        return _bounded({**known, **dict.fromkeys(new, at)})

    return _change_late(catalog, table, more)


def _bounded(late: Late) -> dict[Partition, float]:
    """Replaces a tenant's days by one entry for all of them if the tenant has too many days, or has the most
    while the total is too large. Rows of that tenant are then kept longer; other tenants are not affected.
    """
    counts = Counter(tenant for tenant, _ in late)
    whole = {tenant for tenant, day in late if day is None}
    whole |= {tenant for tenant, count in counts.items() if count > _LATE_PER_TENANT_MAX}
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


def remove_late(catalog: Catalog, table: Table, landed_before: float) -> None:
    """Removes the records of partitions whose late rows all landed before that time."""
    _change_late(catalog, table, lambda known: {key: at for key, at in known.items() if at >= landed_before})


def by_partition(document: object) -> dict[Partition, float]:
    """Returns the valid entries of a JSON document, which any engine may have written."""
    found: dict[Partition, float] = {}
    for text, number in document.items() if isinstance(document, dict) else ():
        tenant, _, day = str(text).rpartition("/")
        seconds = number_or_none(number)
        if tenant and seconds is not None and (day == "*" or day.removeprefix("-").isdecimal()):
            found[tenant, None if day == "*" else int(day)] = seconds
    return found


def partition_texts(late: Late) -> dict[str, float]:
    """Returns the document that `by_partition` reads."""
    texts = {f"{tenant}/{'*' if day is None else day}": at for (tenant, day), at in late.items()}
    return dict(sorted(texts.items()))


def _change_late(catalog: Catalog, table: Table, changed: Callable[[Late], dict[Partition, float]]) -> bool:
    is_changed = False

    def plan(current: Table) -> MetadataChange | None:
        nonlocal is_changed
        known = late_days(current.metadata)
        wanted = changed(known)
        is_changed = wanted != known
        return _set(LATE, partition_texts(wanted)) if is_changed else None

    commit_metadata(catalog, table, plan)
    return is_changed


def _set(name: str, value: Mapping[Any, float]) -> MetadataChange:
    return MetadataChange((), (SetPropertiesUpdate(updates={name: json.dumps(value)}),))
