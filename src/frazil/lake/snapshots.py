"""Facts that snapshots record about themselves: commit times and erasures.

Iceberg does not allow a table's timestamps to decrease. After one commit from a clock that was ahead, all
later snapshots therefore carry future timestamps until real time catches up. So each snapshot also records
its committer's clock, and the order of commits corrects the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

COMMITTED_AT = "frazil.committed-at"
"""Summary key: the committer's clock in milliseconds since 1970."""
ERASED = "frazil.erased"
"""Summary key of a snapshot that erases rows, and table property once the erasure is complete: the erasure's
id. It does not reveal which data was erased.
"""
ERASED_TENANT = "frazil.erased-tenant"
"""Summary key next to `ERASED`: the tenant whose rows were erased."""
_DIGITS_MAX = 18


def commit_times(metadata: TableMetadata, now_ms: int) -> dict[int, int]:
    """Returns each snapshot's commit time in milliseconds since 1970, never in the future and never before an
    earlier commit's.

    An estimate that is too late keeps data too long; one that is too early would delete data too soon. So a
    snapshot's time is the latest of its recorded times that is not in the future, or an earlier commit's time
    if that is later. If all its recorded times are in the future, it is the time of the next commit that has
    a valid one, or `now_ms`.
    """
    times: dict[int, int] = {}
    unknown: list[int] = []
    latest = 0
    for snapshot in sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0):
        unknown.append(snapshot.snapshot_id)
        past = [ms for ms in _recorded_times(snapshot) if ms <= now_ms]
        if past:
            latest = max(latest, *past)
            times.update(dict.fromkeys(unknown, latest))
            unknown.clear()
    return times | dict.fromkeys(unknown, now_ms)


def _recorded_times(snapshot: Snapshot) -> Iterator[int]:
    yield snapshot.timestamp_ms
    text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(COMMITTED_AT)
    if text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
        yield int(text)


def erasures(metadata: TableMetadata) -> frozenset[str]:
    """Returns the ids of all erasures that the metadata still records."""
    return _summary_values(metadata, ERASED) | {metadata.properties.get(ERASED, "")} - {""}


def erased_tenants(metadata: TableMetadata) -> frozenset[str]:
    """Returns the tenants whose rows were erased by snapshots that still exist."""
    return _summary_values(metadata, ERASED_TENANT)


def _summary_values(metadata: TableMetadata, key: str) -> frozenset[str]:
    summaries = [snapshot.summary for snapshot in metadata.snapshots if snapshot.summary is not None]
    return frozenset(value for each in summaries if (value := each.additional_properties.get(key)))
