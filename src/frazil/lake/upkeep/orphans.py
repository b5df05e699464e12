"""Orphan files: left by killed writers, failed commits and interrupted clean-ups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog
from pyiceberg.table import Table

from frazil.errors import Conflict
from frazil.lake.catalog import full_name
from frazil.lake.files import LakeFileIO
from frazil.lake.upkeep.expire import statistics_of
from frazil.lake.upkeep.reachability import Reachability, name_of
from frazil.lake.upkeep.tier import data_folders

_HINT = "version-hint"

log = structlog.get_logger("frazil.lake")


@dataclass(frozen=True)
class Orphan:
    """A file that no snapshot references. `modified` is the store's clock in seconds since 1970."""

    path: str
    bytes: int
    modified: float


def find_orphans(table: Table, older_than_seconds: float, now: float | None = None) -> list[Orphan]:
    """Returns the files older than that age which no snapshot or metadata version references.

    Files that are written but not committed yet look the same: only their age protects them. Without `now`,
    the age is measured with the store's clock, which also sets modification times. Raises DataLost if a
    snapshot cannot be read, because its files are unknown then.
    """
    return _Search(table, older_than_seconds, now).orphans()


def remove_orphans(table: Table, older_than_seconds: float, now: float | None = None) -> list[Orphan]:
    """Deletes orphans, and folders that have been empty for that long. Returns the deleted files."""
    search = _Search(table, older_than_seconds, now)
    found = search.orphans()
    if found:
        found = search.unreferenced(found)
        search.files.delete_all(orphan.path for orphan in found)
        freed = sum(orphan.bytes for orphan in found)
        log.info("orphaned files removed", table=full_name(table), files=len(found), bytes=freed)
    for folder in data_folders(table):
        search.files.remove_empty_folders(folder, search.before)
    return found


class _Search:
    def __init__(self, table: Table, older_than_seconds: float, now: float | None) -> None:
        self.files = LakeFileIO(table.io.properties)
        self.root = table.location().rstrip("/")
        self.before = (self.files.now(f"{self.root}/metadata") if now is None else now) - older_than_seconds
        self._table = table
        self._reach = Reachability(self.files, full_name(table))
        self._searched: str | None = None

    def orphans(self) -> list[Orphan]:
        # Lists files before it reads references, so that files committed in between are not in the list.
        # Does not search other folders below the table's location: another table may be there.
        found = [
            Orphan(file.path, file.size, file.modified_seconds)
            for folder in (*data_folders(self._table), f"{self.root}/metadata")
            for file in self.files.walk(folder)
            if file.modified_seconds < self.before and not name_of(file.path).startswith(_HINT)
        ]
        return self.unreferenced(found)

    def unreferenced(self, found: Sequence[Orphan]) -> list[Orphan]:
        """Filters out the files that the current version of the table references."""
        table = self._table.catalog.load_table(self._table.name())
        if (
            table.metadata.table_uuid != self._table.metadata.table_uuid
            or table.location().rstrip("/") != self.root
        ):
            raise Conflict(full_name(table), "the table was replaced by another of the same name")
        if not found or table.metadata_location == self._searched:
            return list(found)
        by_name: dict[str, list[Orphan]] = {}
        for orphan in found:
            by_name.setdefault(_owner(orphan.path), []).append(orphan)
        for name in self._referenced(table):
            by_name.pop(name, None)
        self._searched = table.metadata_location
        return [orphan for orphans in by_name.values() for orphan in orphans]

    def _referenced(self, table: Table) -> Iterator[str]:
        metadata = table.metadata
        yield name_of(table.metadata_location)
        yield from (name_of(entry.metadata_file) for entry in metadata.metadata_log)
        yield from (name_of(path) for path in statistics_of(metadata))
        yield from (name_of(snapshot.manifest_list) for snapshot in metadata.snapshots)
        manifests = self._reach.manifests(metadata.snapshots)
        yield from manifests
        for files in self._reach.data_files(manifests.values()):
            yield from (name_of(file.path) for file in files)


def _owner(path: str) -> str:
    """Returns the file that this one belongs to: Hadoop writes a checksum file `.name.crc` for `name`."""
    name = name_of(path)
    if name.startswith(".") and name.endswith(".crc"):
        return name[1:].removesuffix(".crc")
    return name
