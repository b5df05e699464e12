"""Snapshots that go, and the files that only they needed.

The commit comes first, and only what it has made unreachable is deleted. Dying in between leaves files that
nobody needs and the search for orphans finds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import structlog
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    ValidatableTableRequirement,
)

from frazil.config.maintain import ExpireConfig
from frazil.errors import Conflict, Refused
from frazil.lake.catalog import full_name
from frazil.lake.commits.commit import LANDED
from frazil.lake.commits.metadata_commit import Step, change
from frazil.lake.files import LakeFileIO
from frazil.lake.tags import absent, kind_of, set_tag, where
from frazil.lake.upkeep.aging import expirable, hourly
from frazil.lake.upkeep.reachability import Known, Reachability, name_of

_CHOICES_MAX = 3

log = structlog.get_logger("frazil.lake")


@dataclass(frozen=True)
class Expired:
    """What went, or would go. `bytes` is of manifests and data files. Of a clean-up that another one had
    begun, some files were gone already.
    """

    snapshots: tuple[int, ...] = ()
    manifest_lists: tuple[str, ...] = ()
    manifests: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()
    metadata_files: tuple[str, ...] = ()
    bytes: int = 0
    tags_dropped: tuple[str, ...] = ()
    tags_created: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """In the order in which they are deleted: what tells of others last."""
        return (*self.data_files, *self.manifests, *self.manifest_lists, *self.metadata_files)


class RefsAsRead(ValidatableTableRequirement):
    """No branch or tag has come since. Otherwise PyIceberg drops the ones of snapshots that go, unsaid.

    Not of Iceberg's protocol: only for catalogs that check requirements in this process.
    """

    type: Literal["frazil-refs-as-read"] = "frazil-refs-as-read"
    names: frozenset[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        come = set() if base_metadata is None else base_metadata.refs.keys() - self.names
        if come:
            raise CommitFailedException(f"Requirement failed: {', '.join(sorted(come))} has come meanwhile")


def expire_old(
    catalog: Catalog,
    table: Table,
    config: ExpireConfig,
    *,
    properties: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
    dry_run: bool = False,
) -> Expired:
    """What the configuration says may go, chosen anew where a tag comes just then."""
    for attempt in range(1, _CHOICES_MAX + 1):
        now = clock()
        tags = hourly(table.metadata, config, now)
        ids = expirable(table.metadata, config, int(now * 1000), create_tags=tags.create, drop_tags=tags.drop)
        try:
            return expire(
                catalog,
                table,
                ids,
                drop_tags=tags.drop,
                create_tags=tags.create,
                properties=properties,
                dry_run=dry_run,
            )
        except Conflict:
            if attempt == _CHOICES_MAX:
                raise
            table = catalog.load_table(table.name())
    raise AssertionError


def expire(
    catalog: Catalog,
    table: Table,
    ids: Collection[int],
    *,
    drop_tags: Collection[str] = (),
    create_tags: Mapping[str, int] | None = None,
    properties: Mapping[str, str] | None = None,
    forget: bool = False,
    dry_run: bool = False,
) -> Expired:
    """Removes the snapshots and tags, makes the others, sets properties, in one commit; then deletes what no
    snapshot needs any more. Snapshots that are gone already are no error.

    `table` is what the choice was made from. Raises Conflict, and changes nothing, if a branch or tag has
    come or moved since that could matter to it: choose anew. With `forget`, earlier versions of the table's
    metadata that still name snapshots that are gone are deleted too.
    """
    if reserved := sorted(name for name in drop_tags if kind_of(name) == "reserved"):
        raise Refused(f"`{reserved[0]}` is what the table stands on, and cannot be dropped")
    plan = _Plan(catalog, table, frozenset(ids), frozenset(drop_tags), dict(create_tags or {}))
    wanted = dict(properties or {})
    before = table.metadata
    dropped = tuple(sorted(name for name in drop_tags if name in before.refs))
    created = tuple(sorted(name for name in plan.create if name not in before.refs))
    if dry_run:
        plan.check(table)
        after = before.model_copy(
            update={"snapshots": [each for each in before.snapshots if each.snapshot_id not in plan.ids]}
        )
    else:
        after = change(catalog, table, lambda now: plan.step(now, wanted))
    gone = [
        snapshot
        for snapshot in before.snapshots
        if snapshot.snapshot_id in plan.ids and after.snapshot_by_id(snapshot.snapshot_id) is None
    ]
    files = LakeFileIO(table.io.properties)
    if not dry_run and not isinstance(catalog, MetastoreCatalog):
        _refuse_lost_tags(files, table, after, plan)
    expired = _unreachable(files, table, gone, after, dropped, created)
    if forget:
        expired = _with_old_versions(files, expired, after)
    if not dry_run:
        files.delete_all(expired.files)
        if gone:
            log.info(
                "expired",
                table=full_name(table),
                snapshots=len(gone),
                files=len(expired.files),
                bytes=expired.bytes,
            )
    return expired


@dataclass(frozen=True)
class _Plan:
    catalog: Catalog
    chosen_from: Table
    ids: frozenset[int]
    drop: frozenset[str]
    create: Mapping[str, int]

    def check(self, now: Table) -> None:
        """Raises Conflict where the choice no longer holds."""
        before, refs = self.chosen_from.metadata.refs, now.metadata.refs
        for name, ref in refs.items():
            own = name in self.create and ref.snapshot_id == self.create[name]
            # Landing moves these two on all the time, which makes no snapshot needed that was not.
            moved = name not in (MAIN_BRANCH, LANDED) and before.get(name) != ref
            held = ref.snapshot_id in self.ids and name not in self.drop
            if (moved or held) and not own:
                raise Conflict(
                    full_name(now), f"`{name}` now names snapshot {ref.snapshot_id}; choose anew what may go"
                )
        for name, snapshot_id in self.create.items():
            if snapshot_id in self.ids or now.metadata.snapshot_by_id(snapshot_id) is None:
                raise Conflict(full_name(now), f"snapshot {snapshot_id} is gone, so it cannot be `{name}`")

    def step(self, now: Table, properties: Mapping[str, str]) -> Step | None:
        """What is still to be done, and what must not have changed since."""
        self.check(now)
        metadata = now.metadata
        updates: list[TableUpdate] = [
            set_tag(name, snapshot_id)
            for name, snapshot_id in self.create.items()
            if name not in metadata.refs
        ]
        updates += [
            RemoveSnapshotRefUpdate(ref_name=name) for name in sorted(self.drop) if name in metadata.refs
        ]
        there = [each.snapshot_id for each in metadata.snapshots if each.snapshot_id in self.ids]
        if there:
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=there))
        if any(metadata.properties.get(key) != value for key, value in properties.items()):
            updates.append(SetPropertiesUpdate(updates=dict(properties)))
        if not updates:
            return None
        requirements: list[Any] = [where(metadata, name) for name in sorted(metadata.refs)]
        requirements += [absent(name) for name in self.create if name not in metadata.refs]
        if isinstance(self.catalog, MetastoreCatalog):
            requirements.append(RefsAsRead(names=frozenset(metadata.refs)))
        return Step(requirements, updates)


def _unreachable(
    files: LakeFileIO,
    table: Table,
    gone: list[Snapshot],
    after: TableMetadata,
    dropped: tuple[str, ...],
    created: tuple[str, ...],
) -> Expired:
    """What the snapshots needed and none that is left does."""
    reach = Reachability(files, full_name(table))
    kept_lists = {name_of(each.manifest_list) for each in after.snapshots}
    lists = [each.manifest_list for each in gone if name_of(each.manifest_list) not in kept_lists]
    kept_manifests = reach.manifests(after.snapshots) if gone else {}
    manifests = {
        name: manifest
        for name, manifest in reach.manifests(gone, may_lack=True).items()
        if name not in kept_manifests
    }
    data: dict[str, Known] = {}
    for found in reach.data_files(manifests.values(), may_lack=True):
        data.update((name_of(each.path), each) for each in found)
    if data:
        for found in reach.data_files(kept_manifests.values()):
            for each in found:
                data.pop(name_of(each.path), None)
    kept_statistics = {name_of(path) for path in statistics_of(after)}
    ids = {each.snapshot_id for each in gone}
    statistics = [
        each.statistics_path
        for each in table.metadata.statistics
        if each.snapshot_id in ids and name_of(each.statistics_path) not in kept_statistics
    ]
    return Expired(
        snapshots=tuple(each.snapshot_id for each in gone),
        manifest_lists=tuple(lists),
        manifests=tuple(each.path for each in manifests.values()),
        data_files=tuple(each.path for each in data.values()),
        metadata_files=tuple(statistics),
        bytes=sum(each.bytes for each in (*manifests.values(), *data.values())),
        tags_dropped=dropped,
        tags_created=created,
    )


def statistics_of(metadata: TableMetadata) -> Iterable[str]:
    yield from (each.statistics_path for each in metadata.statistics)
    yield from (each.statistics_path for each in metadata.partition_statistics)


def _with_old_versions(files: LakeFileIO, expired: Expired, after: TableMetadata) -> Expired:
    """The earlier versions of the metadata that name a snapshot that `after` has not."""
    known = {each.snapshot_id for each in after.snapshots}
    old = [
        entry.metadata_file
        for entry in after.metadata_log
        if (version := _version(files, entry.metadata_file)) is not None
        and any(each.snapshot_id not in known for each in version.snapshots)
    ]
    return replace(expired, metadata_files=(*expired.metadata_files, *old))


def _refuse_lost_tags(files: LakeFileIO, table: Table, after: TableMetadata, plan: _Plan) -> None:
    """A REST catalog cannot be told that no tag must have come: one that came between the look and the commit
    went with its snapshot. The version before tells. Its files are left alone, and it is said.
    """
    seen = table.metadata_location
    versions = [entry.metadata_file for entry in after.metadata_log]
    since = versions[versions.index(seen) + 1 :] if seen in versions else versions[-1:]
    for path in since:
        version = _version(files, path)
        for name, ref in {} if version is None else version.refs.items():
            if ref.snapshot_id in plan.ids and name not in plan.drop and name not in after.refs:
                raise Conflict(
                    full_name(table),
                    f"`{name}` was set on snapshot {ref.snapshot_id} at the moment it expired, and is lost; "
                    "set it on a newer one. The files are left for the search for orphans",
                )


def _version(files: LakeFileIO, path: str) -> TableMetadata | None:
    try:
        return FromInputFile.table_metadata(files.new_input(path))
    except FileNotFoundError:
        return None
