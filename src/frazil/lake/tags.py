"""Tags: named snapshots. A tagged snapshot does not expire, so its files are kept."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
)

from frazil.errors import Refused
from frazil.lake.catalog import full_name
from frazil.lake.commits.metadata_commit import MetadataChange, commit_metadata
from frazil.lake.commits.staging import set_ref
from frazil.lake.snapshots import LANDED, commit_times, position_text

READER_PREFIX = "reader-"
_HOUR_FORMAT = "hour-%Y%m%dT%H"
_HOUR = re.compile(r"hour-\d{8}T\d{2}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Kind = Literal["reserved", "hour", "reader", "incident"]


@dataclass(frozen=True)
class Tag:
    """A tag. `table` has no namespace. `position` is None if maintenance committed the snapshot."""

    name: str
    table: str
    snapshot_id: int
    committed_at_ms: int
    position: str | None

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)


def kind_of(name: str) -> Kind:
    """Returns the kind. `reader`: set by an incremental reader, so no newer snapshot may expire. `incident`:
    set by an operator.
    """
    if name in (MAIN_BRANCH, LANDED):
        return "reserved"
    if hour_of(name) is not None:
        return "hour"
    return "reader" if name.startswith(READER_PREFIX) else "incident"


def is_incident(name: str) -> bool:
    return kind_of(name) == "incident"


def hour_tag(hour: datetime) -> str:
    return hour.astimezone(UTC).strftime(_HOUR_FORMAT)


def hour_of(name: str) -> datetime | None:
    """Returns the start of the hour of an hourly tag; None for another tag."""
    if not _HOUR.fullmatch(name):
        return None
    try:
        return datetime.strptime(name, _HOUR_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def list_tags(table: Table) -> list[Tag]:
    """Returns all tags except `landed`, sorted by name."""
    times = commit_times(table.metadata, int(time.time() * 1000))
    return [
        Tag(name, table.name()[-1], ref.snapshot_id, times[ref.snapshot_id], position_text(snapshot))
        for name, ref in sorted(table.metadata.refs.items())
        if ref.snapshot_ref_type == SnapshotRefType.TAG and name != LANDED
        if (snapshot := table.metadata.snapshot_by_id(ref.snapshot_id)) is not None
    ]


def create_tag(catalog: Catalog, table: Table, name: str, snapshot_id: int) -> Tag:
    """Tags the snapshot. Raises Refused if the name is invalid or used by another snapshot, or if the
    snapshot does not exist.
    """
    if not _NAME.fullmatch(name) or kind_of(name) in ("reserved", "hour"):
        raise Refused(f"{name!r} is not a valid tag name; use another, such as incident-42")

    def plan(now: Table) -> MetadataChange | None:
        if (ref := now.metadata.refs.get(name)) is not None:
            if (ref.snapshot_id, ref.snapshot_ref_type) != (snapshot_id, SnapshotRefType.TAG):
                raise Refused(
                    f"{full_name(now)} already has a {ref.snapshot_ref_type} {name}, at snapshot "
                    f"{ref.snapshot_id}; delete it first, or use another name"
                )
            return None
        if now.metadata.snapshot_by_id(snapshot_id) is None:
            raise _no_snapshot(now, snapshot_id)
        return MetadataChange((assert_absent(name),), (set_tag(name, snapshot_id),))

    if table.metadata.snapshot_by_id(snapshot_id) is None:
        table = catalog.load_table(table.name())  # the snapshot may be newer than the loaded table
    metadata = commit_metadata(catalog, table, plan)
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:  # with a REST catalog, a concurrent expiry that did not see the tag may win
        raise _no_snapshot(table, snapshot_id)
    committed_at_ms = commit_times(metadata, int(time.time() * 1000))[snapshot_id]
    return Tag(name, table.name()[-1], snapshot_id, committed_at_ms, position_text(snapshot))


def delete_tag(catalog: Catalog, table: Table, name: str) -> bool:
    """Deletes the tag. Returns whether it existed. Its snapshot expires later, if nothing else needs it."""
    if kind_of(name) == "reserved":
        raise Refused(f"`{name}` is reserved and cannot be deleted")
    existed = False

    def plan(now: Table) -> MetadataChange | None:
        nonlocal existed
        ref = now.metadata.refs.get(name)
        if ref is None:
            return None
        if ref.snapshot_ref_type != SnapshotRefType.TAG:
            raise Refused(f"{name} is a branch of {full_name(now)}, not a tag")
        existed = True
        return MetadataChange(
            (assert_unmoved(now.metadata, name),), (RemoveSnapshotRefUpdate(ref_name=name),)
        )

    commit_metadata(catalog, table, plan)
    return existed


def _no_snapshot(table: Table, snapshot_id: int) -> Refused:
    return Refused(f"{full_name(table)} has no snapshot {snapshot_id}, it may have expired; tag a newer one")


def set_tag(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    return set_ref(name, SnapshotRefType.TAG, snapshot_id)


def assert_absent(name: str) -> AssertRefSnapshotId:
    return AssertRefSnapshotId(ref=name, snapshot_id=None)


def assert_unmoved(metadata: TableMetadata, name: str) -> AssertRefSnapshotId:
    """Requires that the branch or tag still names the same snapshot as in `metadata`."""
    ref = metadata.refs.get(name)
    return AssertRefSnapshotId(ref=name, snapshot_id=None if ref is None else ref.snapshot_id)
