"""Reads snapshots: their ancestors, landing position, commit time and erasures.

Iceberg does not allow a table's timestamps to decrease. After one commit from a clock that was ahead, all
later snapshots therefore carry future timestamps until real time catches up. So each snapshot also records
its committer's clock, and the order of commits corrects the wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

LANDED = "landed"
"""The tag of the snapshot that carries the current landing position."""
POSITION = "frazil.position"
"""Summary key: the landing position."""
COMMITTED_AT = "frazil.committed-at"
"""Summary key: the committer's clock in milliseconds since 1970."""
ERASED = "frazil.erased"
"""Summary key of a snapshot that erases rows, and table property once the erasure is complete: the erasure's
id. It does not reveal which data was erased.
"""
ERASED_TENANT = "frazil.erased-tenant"
"""Summary key next to `ERASED`: the tenant whose rows were erased."""
REMOVED_BY = "frazil.removed-by"
"""Summary key: why a snapshot removes rows, if not by an erasure. What was derived from rows that retention
removed stays; what was derived from erased rows does not.
"""
BY_RETENTION = {REMOVED_BY: "retention"}
COMBINED = "frazil.combined"
"""Summary key: the number of rows that are missing because partial rows of a key were combined into one."""
_DIGITS_MAX = 18


def landed_snapshot(metadata: TableMetadata) -> Snapshot | None:
    """Returns the snapshot with the tag `landed`."""
    tag = metadata.refs.get(LANDED)
    return None if tag is None else metadata.snapshot_by_id(tag.snapshot_id)


def position_text(snapshot: Snapshot) -> str | None:
    """Returns the position that a snapshot carries. Snapshots of maintenance carry none."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(POSITION)


def is_ancestor(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Returns whether `main` descends from the snapshot. If the chain of parents ends at an expired snapshot,
    sequence numbers decide: after a rollback `main` has the lower one.

    An expiry may drop the id of an expired parent. The oldest snapshot left then looks like the first one of
    a replaced table, except that the first one records that the table was empty before it.
    """
    main = metadata.snapshot_by_name(MAIN_BRANCH)
    wanted = metadata.snapshot_by_id(snapshot_id)
    if main is None or wanted is None:
        return False
    oldest = main
    for oldest in ancestors(metadata, main):
        if oldest.snapshot_id == snapshot_id:
            return True
    return not _is_first(oldest) and (oldest.sequence_number or 0) > (wanted.sequence_number or 0)


def _is_first(snapshot: Snapshot) -> bool:
    """Returns whether the table was empty before the snapshot: the snapshot added all of its files."""
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return False
    counts = snapshot.summary.additional_properties
    return "deleted-data-files" not in counts and counts.get("total-data-files", "0") == counts.get(
        "added-data-files", "0"
    )


def ancestors(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yields the snapshot and its ancestors that have not expired."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    current: Snapshot | None = snapshot
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id) if current.parent_snapshot_id is not None else None


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
