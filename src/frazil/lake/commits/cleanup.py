"""Deletes files of a failed commit immediately, because they may contain rows that are being erased."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import structlog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table

from frazil.lake.catalog import full_name
from frazil.lake.files import LakeFileIO
from frazil.lake.upkeep.reachability import Reachability, name_of

_MANIFEST_LIST_PREFIX = "snap-"

log = structlog.get_logger("frazil.lake")


def discard(table: Table, files: Iterable[DataFile]) -> None:
    """Deletes the data files that no snapshot of the table references, and the manifests that name them.

    Only for files that were never committed, or whose commit raised Fenced or Conflict: no delayed attempt
    can succeed then, but an earlier one may have succeeded without a response. Never raises: files that may
    be in use stay, and are removed later as orphans.
    """
    paths = {file.file_path for file in files}
    if not paths:
        return
    try:
        unneeded = _unneeded(table, paths)
        LakeFileIO(table.io.properties).delete_all(unneeded)
    except Exception as error:
        reason = str(error) or type(error).__name__
        log.warning("uncommitted files not deleted", table=full_name(table), reason=reason)
    else:
        log.info("uncommitted files deleted", table=full_name(table), files=len(unneeded))


def _unneeded(table: Table, paths: Collection[str]) -> list[str]:
    now = table.catalog.load_table(table.name())
    if now.metadata.table_uuid != table.metadata.table_uuid:
        return []
    files = LakeFileIO(table.io.properties)
    reach = Reachability(files, full_name(table))
    manifests = reach.manifests(now.metadata.snapshots)
    needed = {name_of(each.path) for found in reach.data_files(manifests.values()) for each in found}
    unneeded = {path for path in paths if name_of(path) not in needed}
    if not unneeded:
        return []
    staged = [
        found.path
        for found in files.walk(f"{now.location().rstrip('/')}/metadata")
        if name_of(found.path) not in manifests and _names(files, found.path, found.size, unneeded)
    ]
    return [*unneeded, *staged]


def _names(files: LakeFileIO, path: str, size: int, data_files: Collection[str]) -> bool:
    """Returns whether the file is a manifest that names one of the data files."""
    if not path.endswith(".avro") or name_of(path).startswith(_MANIFEST_LIST_PREFIX):
        return False
    return not set(data_files).isdisjoint(data_files_of(files, path, size))


def data_files_of(files: LakeFileIO, path: str, size: int) -> list[str]:
    """Returns the data files that an unreferenced manifest names; none if the manifest was deleted."""
    manifest = ManifestFile.from_args(
        manifest_path=path,
        manifest_length=size,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=0,
        min_sequence_number=0,
        added_snapshot_id=0,
    )
    try:
        return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(files)]
    except FileNotFoundError:
        return []
