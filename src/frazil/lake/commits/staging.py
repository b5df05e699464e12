"""Writes the manifests of a snapshot, durably, before it is committed.

All attempts of one change share a snapshot id, so that the table shows whether any of them was committed.
They also share the manifests that do not depend on the current state of the table.
"""

from __future__ import annotations

import copy
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from frazil.errors import Conflict
from frazil.lake.catalog import full_name
from frazil.lake.commits.entries import (
    SMALL_MANIFEST,
    deleted_entry,
    existing_entry,
    may_contain,
    partitions_of,
    split_by_day,
)
from frazil.lake.live_files import data_manifests, read_entries, with_live_files
from frazil.lake.snapshots import COMMITTED_AT, LANDED

_AVRO_COMPRESSION: Literal["deflate"] = "deflate"


@dataclass(frozen=True)
class Staged:
    """A snapshot whose manifests are durable, and the updates and requirements that commit it."""

    snapshot: Snapshot
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


class Staging:
    """The snapshot id and the file names of one change."""

    def __init__(self, metadata: TableMetadata) -> None:
        self.snapshot_id = metadata.new_snapshot_id()
        self._name = uuid.uuid4()
        self._manifests = 0
        self._lists = 0

    def manifest(self, table: Table, spec_id: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        """Writes a manifest. Added entries must be of this snapshot; other entries are written unchanged."""
        name = f"{self._name}-m{self._manifests}.avro"
        self._manifests += 1
        with write_manifest(
            format_version=table.metadata.format_version,
            spec=table.metadata.specs()[spec_id],
            schema=table.metadata.schema(),
            output_file=table.io.new_output(table.location_provider().new_metadata_location(name)),
            snapshot_id=self.snapshot_id,
            avro_compression=_AVRO_COMPRESSION,
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def snapshot(
        self, table: Table, manifests: Sequence[ManifestFile], summary: Summary, *, moves_landed: bool
    ) -> Staged:
        """Writes the manifest list."""
        metadata = table.metadata
        parent = metadata.snapshot_by_name(MAIN_BRANCH)
        parent_id = None if parent is None else parent.snapshot_id
        name = f"snap-{self.snapshot_id}-{self._lists}-{self._name}.avro"
        self._lists += 1
        path = table.location_provider().new_metadata_location(name)
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=table.io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=metadata.next_sequence_number(),
            avro_compression=_AVRO_COMPRESSION,
        ) as writer:
            # The writer sets this attempt's sequence number in each new manifest object. The next attempt
            # has another number, so it must not see that.
            writer.add_manifests(
                [
                    copy.deepcopy(manifest) if manifest.added_snapshot_id == self.snapshot_id else manifest
                    for manifest in manifests
                ]
            )
        now_ms = int(time.time() * 1000)
        snapshot = Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent_id,
            manifest_list=path,
            sequence_number=metadata.next_sequence_number(),
            # Iceberg's Java library rejects a table whose time decreased by more than a minute; PyIceberg
            # does not check. With an unchanged time, PyIceberg would use the clock.
            timestamp_ms=max(now_ms, metadata.last_updated_ms + 1),
            summary=Summary(
                summary.operation, **{**summary.additional_properties, COMMITTED_AT: str(now_ms)}
            ),
            schema_id=metadata.current_schema_id,
        )
        landed = (set_ref(LANDED, SnapshotRefType.TAG, self.snapshot_id),) if moves_landed else ()
        return Staged(
            snapshot,
            (
                AddSnapshotUpdate(snapshot=snapshot),
                set_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, self.snapshot_id),
                *landed,
            ),
            (
                AssertTableUUID(uuid=metadata.table_uuid),
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=parent_id),
            ),
        )


class FileChange:
    """Files to add and remove in one snapshot. Added files must be durable."""

    def __init__(
        self,
        metadata: TableMetadata,
        operation: Operation,
        *,
        added: Sequence[DataFile] = (),
        removed: Sequence[DataFile] = (),
    ) -> None:
        self._staging = Staging(metadata)
        self._operation = operation
        self._added = added
        self._removed = frozenset(file.file_path for file in removed)
        self._partitions = partitions_of(removed)
        self._new: list[ManifestFile] | None = None
        self._untouched: set[str] = set()
        self._touched: dict[str, tuple[ManifestFile, list[ManifestEntry]]] = {}
        self._rewritten: tuple[frozenset[str], list[ManifestFile]] = (frozenset(), [])

    @property
    def snapshot_id(self) -> int:
        return self._staging.snapshot_id

    def stage(self, table: Table, facts: Mapping[str, str], *, moves_landed: bool) -> Staged:
        """Stages the change on top of `main` of `table`. Raises Conflict if a file to remove is not live, and
        Refused if files are removed from a table that has delete files.
        """
        parent = table.metadata.snapshot_by_name(MAIN_BRANCH)
        if self._removed:
            manifests = [] if parent is None else data_manifests(table, parent)
            touched = self._find(table, manifests)
        else:
            manifests = [] if parent is None else with_live_files(parent.manifests(table.io))
            touched = {}
        if self._new is None:
            self._new = self._write_added(table)
        if self._rewritten[0] != touched.keys():
            self._rewritten = frozenset(touched), self._rewrite(table, touched)
        removed = [
            entry.data_file
            for _, entries in touched.values()
            for entry in entries
            if entry.data_file.file_path in self._removed
        ]
        kept = [manifest for manifest in manifests if manifest.manifest_path not in touched]
        return self._staging.snapshot(
            table,
            [*self._new, *self._rewritten[1], *kept],
            summary_of(table.metadata, self._operation, self._added, removed, facts),
            moves_landed=moves_landed,
        )

    def _find(
        self, table: Table, manifests: Sequence[ManifestFile]
    ) -> dict[str, tuple[ManifestFile, list[ManifestEntry]]]:
        """Returns the manifests that name a file to remove. Reads each manifest once over all attempts."""
        unread = [
            manifest
            for manifest in manifests
            if manifest.manifest_path not in self._untouched
            and manifest.manifest_path not in self._touched
            and may_contain(table, manifest, self._partitions)
        ]
        for manifest, entries in zip(unread, read_entries(table.io, unread), strict=True):
            if any(entry.data_file.file_path in self._removed for entry in entries):
                self._touched[manifest.manifest_path] = manifest, entries
            else:
                self._untouched.add(manifest.manifest_path)
        present = {manifest.manifest_path for manifest in manifests}
        touched = {path: found for path, found in self._touched.items() if path in present}
        live = {entry.data_file.file_path for _, entries in touched.values() for entry in entries}
        if missing := sorted(self._removed - live):
            raise Conflict(
                full_name(table),
                f"{len(missing)} of {len(self._removed)} files to remove are no longer part of the table "
                f"(first: {missing[0]}); another process has replaced or removed them",
            )
        return touched

    def _write_added(self, table: Table) -> list[ManifestFile]:
        if not self._added:
            return []
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file
            )
            for file in self._added
        ]
        return [self._staging.manifest(table, table.metadata.default_spec_id, entries)]

    def _rewrite(
        self, table: Table, touched: Mapping[str, tuple[ManifestFile, list[ManifestEntry]]]
    ) -> list[ManifestFile]:
        """Rewrites small manifests together: a merge of many small files touches many small manifests, and
        each new manifest costs a durable write. Full manifests are rewritten one by one, because merging them
        would make each change rewrite more.
        """
        groups: list[tuple[int, list[ManifestEntry]]] = []
        small: dict[int, list[ManifestEntry]] = {}
        for manifest, entries in touched.values():
            spec_id = manifest.partition_spec_id
            changed = [
                deleted_entry(entry, self.snapshot_id)
                if entry.data_file.file_path in self._removed
                else existing_entry(entry)
                for entry in entries
            ]
            if len(entries) < SMALL_MANIFEST:
                small.setdefault(spec_id, []).extend(changed)
            else:
                groups.append((spec_id, changed))
        for spec_id, entries in small.items():
            groups += [(spec_id, part) for part in split_by_day(entries)]
        return [self._staging.manifest(table, spec_id, entries) for spec_id, entries in groups]


def stage_append(table: Table, files: Sequence[DataFile], facts: Mapping[str, str]) -> Staged:
    """Writes the manifest of `files` and the new manifest list; commits nothing."""
    return FileChange(table.metadata, Operation.APPEND, added=files).stage(table, facts, moves_landed=True)


def summary_of(
    metadata: TableMetadata,
    operation: Operation,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    facts: Mapping[str, str],
) -> Summary:
    """Returns a summary with the changed and total counts. PyIceberg rejects the operation `replace`, so the
    counts are computed as for an overwrite.
    """
    parent = metadata.snapshot_by_name(MAIN_BRANCH)
    collector = SnapshotSummaryCollector()
    schema, specs = metadata.schema(), metadata.specs()
    for file in added:
        collector.add_file(data_file=file, schema=schema, partition_spec=metadata.spec())
    for file in removed:
        collector.remove_file(data_file=file, schema=schema, partition_spec=specs[file.spec_id])
    counted = update_snapshot_summaries(
        summary=Summary(operation=Operation.OVERWRITE, **collector.build(), **facts),
        previous_summary=None if parent is None else parent.summary,
    )
    return Summary(operation=operation, **counted.additional_properties)


def set_ref(name: str, type_: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=type_,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
