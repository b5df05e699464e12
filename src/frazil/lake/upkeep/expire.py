"""Expires snapshots and deletes the files that only they referenced.

The commit comes first; then the files that it made unreachable are deleted. After a crash in between, the
search for orphans finds the rest.
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
from frazil.lake.commits.metadata_commit import MetadataChange, commit_metadata
from frazil.lake.files import LakeFileIO
from frazil.lake.snapshots import LANDED
from frazil.lake.tags import assert_absent, assert_unmoved, kind_of, set_tag
from frazil.lake.upkeep.aging import expirable, hourly
from frazil.lake.upkeep.reachability import FileRef, Reachability, name_of

_ATTEMPTS_MAX = 3

log = structlog.get_logger("frazil.lake")


@dataclass(frozen=True)
class Expired:
    """The snapshots and files that an expiry removed, or would remove. `bytes` counts manifests and data
    files. Some files may have been deleted by an earlier, interrupted expiry.
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
        """In order of deletion: a file that names others comes after them."""
        return (*self.data_files, *self.manifests, *self.manifest_lists, *self.metadata_files)


class AssertNoNewRefs(ValidatableTableRequirement):
    """Requires that no branch or tag was added. Without it, PyIceberg silently drops those of removed
    snapshots.

    Not part of the Iceberg protocol: only for catalogs that check requirements in this process.
    """

    type: Literal["frazil-refs-as-read"] = "frazil-refs-as-read"
    names: frozenset[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        added = set() if base_metadata is None else base_metadata.refs.keys() - self.names
        if added:
            raise CommitFailedException(
                f"Requirement failed: {', '.join(sorted(added))} was added by another process"
            )


def expire_old(
    catalog: Catalog,
    table: Table,
    config: ExpireConfig,
    *,
    properties: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.time,
    dry_run: bool = False,
) -> Expired:
    """Expires the snapshots that the configuration does not keep. Chooses again if tags have changed."""
    for attempt in range(1, _ATTEMPTS_MAX + 1):
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
            if attempt == _ATTEMPTS_MAX:
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
    drop_old_metadata: bool = False,
    dry_run: bool = False,
) -> Expired:
    """Removes snapshots and tags, creates tags and sets properties in one commit; then deletes the files that
    no snapshot references any more. Snapshots that have already expired are no error.

    `table` is the state from which the caller chose. Raises Conflict, and changes nothing, if a relevant
    branch or tag was added or moved since: the caller must choose again. With `drop_old_metadata`, earlier
    metadata files that name removed snapshots are deleted too.
    """
    if reserved := sorted(name for name in drop_tags if kind_of(name) == "reserved"):
        raise Refused(f"`{reserved[0]}` is reserved and cannot be dropped")
    plan = _Plan(catalog, table, frozenset(ids), frozenset(drop_tags), dict(create_tags or {}))
    before = table.metadata
    dropped = tuple(sorted(name for name in drop_tags if name in before.refs))
    created = tuple(sorted(name for name in plan.create if name not in before.refs))
    if dry_run:
        plan.check(table)
        after = before.model_copy(
            update={"snapshots": [each for each in before.snapshots if each.snapshot_id not in plan.ids]}
        )
    else:
        after = commit_metadata(catalog, table, lambda now: plan.change(now, properties or {}))
    removed = [
        snapshot
        for snapshot in before.snapshots
        if snapshot.snapshot_id in plan.ids and after.snapshot_by_id(snapshot.snapshot_id) is None
    ]
    files = LakeFileIO(table.io.properties)
    if not dry_run and not isinstance(catalog, MetastoreCatalog):
        _refuse_lost_tags(files, table, after, plan)
    expired = _unreachable(files, table, removed, after, dropped, created)
    if drop_old_metadata:
        expired = _with_old_versions(files, expired, after)
    if not dry_run:
        files.delete_all(expired.files)
        if removed:
            log.info(
                "snapshots expired",
                table=full_name(table),
                snapshots=len(removed),
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
        """Raises Conflict if the choice is no longer valid."""
        before, refs = self.chosen_from.metadata.refs, now.metadata.refs
        for name, ref in refs.items():
            own = name in self.create and ref.snapshot_id == self.create[name]
            # Landing moves these two constantly, but never to a snapshot that was chosen.
            moved = name not in (MAIN_BRANCH, LANDED) and before.get(name) != ref
            held = ref.snapshot_id in self.ids and name not in self.drop
            if (moved or held) and not own:
                raise Conflict(
                    full_name(now), f"`{name}` now names snapshot {ref.snapshot_id}; choose snapshots again"
                )
        for name, snapshot_id in self.create.items():
            if snapshot_id in self.ids or now.metadata.snapshot_by_id(snapshot_id) is None:
                raise Conflict(
                    full_name(now), f"snapshot {snapshot_id} has expired, so it cannot be tagged `{name}`"
                )

    def change(self, now: Table, properties: Mapping[str, str]) -> MetadataChange | None:
        """Returns the remaining change, which requires that no branch or tag has changed."""
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
        present = [each.snapshot_id for each in metadata.snapshots if each.snapshot_id in self.ids]
        if present:
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=present))
        if any(metadata.properties.get(key) != value for key, value in properties.items()):
            updates.append(SetPropertiesUpdate(updates=dict(properties)))
        if not updates:
            return None
        requirements: list[Any] = [assert_unmoved(metadata, name) for name in sorted(metadata.refs)]
        requirements += [assert_absent(name) for name in self.create if name not in metadata.refs]
        if isinstance(self.catalog, MetastoreCatalog):
            requirements.append(AssertNoNewRefs(names=frozenset(metadata.refs)))
        return MetadataChange(requirements, updates)


def _unreachable(
    files: LakeFileIO,
    table: Table,
    removed: list[Snapshot],
    after: TableMetadata,
    dropped: tuple[str, ...],
    created: tuple[str, ...],
) -> Expired:
    """Returns the files that the removed snapshots referenced and no remaining one does."""
    reach = Reachability(files, full_name(table))
    kept_lists = {name_of(each.manifest_list) for each in after.snapshots}
    lists = [each.manifest_list for each in removed if name_of(each.manifest_list) not in kept_lists]
    kept_manifests = reach.manifests(after.snapshots) if removed else {}
    manifests = {
        name: manifest
        for name, manifest in reach.manifests(removed, allow_missing=True).items()
        if name not in kept_manifests
    }
    data: dict[str, FileRef] = {}
    for found in reach.data_files(manifests.values(), allow_missing=True):
        data.update((name_of(each.path), each) for each in found)
    if data:
        for found in reach.data_files(kept_manifests.values()):
            for each in found:
                data.pop(name_of(each.path), None)
    kept_statistics = {name_of(path) for path in statistics_of(after)}
    ids = {each.snapshot_id for each in removed}
    statistics = [
        each.statistics_path
        for each in table.metadata.statistics
        if each.snapshot_id in ids and name_of(each.statistics_path) not in kept_statistics
    ]
    return Expired(
        snapshots=tuple(each.snapshot_id for each in removed),
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
    """Adds the earlier metadata files that name a snapshot which `after` does not have."""
    known = {each.snapshot_id for each in after.snapshots}
    old = [
        entry.metadata_file
        for entry in after.metadata_log
        if (version := _version(files, entry.metadata_file)) is not None
        and any(each.snapshot_id not in known for each in version.snapshots)
    ]
    return replace(expired, metadata_files=(*expired.metadata_files, *old))


def _refuse_lost_tags(files: LakeFileIO, table: Table, after: TableMetadata, plan: _Plan) -> None:
    """Raises Conflict if the commit removed a tag that was added after the table was loaded, and deletes
    nothing. A REST catalog cannot check `AssertNoNewRefs`, so earlier metadata files are compared instead.
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
                    f"the tag `{name}` was lost, because it was set on snapshot {ref.snapshot_id} while that "
                    "snapshot expired; tag a newer snapshot. No files were deleted",
                )


def _version(files: LakeFileIO, path: str) -> TableMetadata | None:
    try:
        return FromInputFile.table_metadata(files.new_input(path))
    except FileNotFoundError:
        return None
