"""Finds the data files of one tenant in all snapshots of a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.errors import DataLost
from frazil.lake.catalog import full_name
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import partition_of, read_entries, with_live_files
from frazil.lake.upkeep.tier import data_folders

_FOLDER = "tenant_id="


@dataclass
class TenantHistory:
    files: dict[str, DataFile] = field(default_factory=dict)
    """By path."""
    reached_by: dict[str, set[int]] = field(default_factory=dict)
    """The snapshots that need a file, by path."""
    tenants: set[str] = field(default_factory=set)
    """All tenants that have or had rows in the table."""
    broken: set[int] = field(default_factory=set)
    """Snapshots that cannot be read because an interrupted expiry deleted some of their manifests."""

    def snapshots_of(self, paths: Iterable[str]) -> set[int]:
        return set().union(*(self.reached_by[path] for path in paths if path in self.reached_by))

    def of(self, snapshot_id: int | None) -> list[DataFile]:
        return [file for path, file in self.files.items() if snapshot_id in self.reached_by[path]]


def read_history(table: Table, tenant: str) -> TenantHistory:
    history = TenantHistory(tenants=_folders(table))
    wanted: dict[str, tuple[ManifestFile, set[int]]] = {}
    for snapshot in table.metadata.snapshots:
        for manifest in _manifests(table, snapshot, history):
            wanted.setdefault(manifest.manifest_path, (manifest, set()))[1].add(snapshot.snapshot_id)
    for manifest, snapshots in wanted.values():
        try:
            entries = read_entries(table.io, [manifest])[0]
        except FileNotFoundError:
            history.broken |= snapshots
            continue
        for entry in entries:
            file = entry.data_file
            owner = partition_of(file).tenant
            if owner is None:
                continue
            history.tenants.add(owner)
            if owner == tenant:
                history.files[file.file_path] = file
                history.reached_by.setdefault(file.file_path, set()).update(snapshots)
    main = table.current_snapshot()
    if main is not None and main.snapshot_id in history.broken:
        raise DataLost(
            full_name(table), "a manifest of the current snapshot is missing; restore it from a backup"
        )
    return history


def _folders(table: Table) -> set[str]:
    files = LakeFileIO(table.io.properties)
    found = [name for folder in data_folders(table) for name in files.list(folder).folders]
    return {unquote(name.removeprefix(_FOLDER)) for name in found if name.startswith(_FOLDER)}


def _manifests(table: Table, snapshot: Snapshot, history: TenantHistory) -> list[ManifestFile]:
    try:
        return with_live_files(snapshot.manifests(table.io))
    except FileNotFoundError:
        history.broken.add(snapshot.snapshot_id)
        return []
