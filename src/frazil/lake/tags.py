"""Names for snapshots. Whatever has one is kept, with every file it needs."""

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
from frazil.lake.commits.commit import LANDED, position_text
from frazil.lake.commits.metadata_commit import Step, change
from frazil.lake.commits.staging import set_ref
from frazil.lake.times import commit_times

READER_PREFIX = "reader-"
_HOUR_FORMAT = "hour-%Y%m%dT%H"
_HOUR = re.compile(r"hour-\d{8}T\d{2}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

Kind = Literal["reserved", "hour", "reader", "incident"]


@dataclass(frozen=True)
class Tag:
    """`table` without its namespace. `position` is None where the snapshot is not one of landing."""

    name: str
    table: str
    snapshot_id: int
    committed_at_ms: int
    position: str | None

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)


def kind_of(name: str) -> Kind:
    """`reader`: of one that reads what is new, so nothing newer may go. `incident`: made by people."""
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
    """The beginning of the hour that an hourly tag is named after; None if it is none."""
    if not _HOUR.fullmatch(name):
        return None
    try:
        return datetime.strptime(name, _HOUR_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def list_tags(table: Table) -> list[Tag]:
    """All but `landed`, by name."""
    times = commit_times(table.metadata, int(time.time() * 1000))
    return [
        Tag(name, table.name()[-1], ref.snapshot_id, times[ref.snapshot_id], position_text(snapshot))
        for name, ref in sorted(table.metadata.refs.items())
        if ref.snapshot_ref_type == SnapshotRefType.TAG and name != LANDED
        if (snapshot := table.metadata.snapshot_by_id(ref.snapshot_id)) is not None
    ]


def create_tag(catalog: Catalog, table: Table, name: str, snapshot_id: int) -> Tag:
    """Pins the snapshot. Refused if the name is taken by another snapshot, or the snapshot is gone."""
    if not _NAME.fullmatch(name) or kind_of(name) in ("reserved", "hour"):
        raise Refused(f"{name!r} cannot name a tag; take another, such as incident-42")

    def step(now: Table) -> Step | None:
        if (there := now.metadata.refs.get(name)) is not None:
            if (there.snapshot_id, there.snapshot_ref_type) != (snapshot_id, SnapshotRefType.TAG):
                raise Refused(
                    f"{full_name(now)} has a {there.snapshot_ref_type} {name} already, at snapshot "
                    f"{there.snapshot_id}; delete it first, or take another name"
                )
            return None
        if now.metadata.snapshot_by_id(snapshot_id) is None:
            raise Refused(f"{full_name(now)} has no snapshot {snapshot_id} (any more); tag a newer one")
        return Step((absent(name),), (set_tag(name, snapshot_id),))

    if table.metadata.snapshot_by_id(snapshot_id) is None:
        table = catalog.load_table(table.name())  # the snapshot may be newer than the look at the table
    metadata = change(catalog, table, step)
    snapshot = metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:  # a REST catalog may let an expiry win that had not seen the tag
        raise Refused(f"{full_name(table)} has no snapshot {snapshot_id} (any more); tag a newer one")
    committed_at_ms = commit_times(metadata, int(time.time() * 1000))[snapshot_id]
    return Tag(name, table.name()[-1], snapshot_id, committed_at_ms, position_text(snapshot))


def delete_tag(catalog: Catalog, table: Table, name: str) -> bool:
    """Whether it was there. Its snapshot goes with the next expiry, if nothing else needs it."""
    if kind_of(name) == "reserved":
        raise Refused(f"`{name}` is what the table stands on, and cannot be deleted")
    was_there = False

    def step(now: Table) -> Step | None:
        nonlocal was_there
        there = now.metadata.refs.get(name)
        if there is None:
            return None
        if there.snapshot_ref_type != SnapshotRefType.TAG:
            raise Refused(f"{name} is a branch of {full_name(now)}, not a tag")
        was_there = True
        return Step((where(now.metadata, name),), (RemoveSnapshotRefUpdate(ref_name=name),))

    change(catalog, table, step)
    return was_there


def set_tag(name: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    return set_ref(name, SnapshotRefType.TAG, snapshot_id)


def absent(name: str) -> AssertRefSnapshotId:
    return AssertRefSnapshotId(ref=name, snapshot_id=None)


def where(metadata: TableMetadata, name: str) -> AssertRefSnapshotId:
    """Requires that the branch or tag is where it is in `metadata`."""
    ref = metadata.refs.get(name)
    return AssertRefSnapshotId(ref=name, snapshot_id=None if ref is None else ref.snapshot_id)
