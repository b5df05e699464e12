"""Finds the files that snapshots reference, from their manifests. Files are compared by name alone.

Names are unique, because they contain a UUID. Locations are not: `s3://` and `s3a://`, `file:/` and a plain
path, or a symbolic link can name the same folder. A file whose name is referenced anywhere in the table is
kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Snapshot

from frazil.errors import DataLost
from frazil.lake.live_files import in_parallel

_FILES_CACHED_MAX = 200_000
"""File names cached in memory: about 200 bytes each."""


class FileRef(NamedTuple):
    """A reference to a file in a manifest list or a manifest."""

    path: str
    bytes: int
    manifest: ManifestFile | None = None


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class _ManifestCache:
    """An LRU cache of manifest lists and manifests, by path. They never change, and maintenance reads them
    every few minutes.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._found: OrderedDict[str, list[FileRef]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def get(self, path: str, read: Callable[[], list[FileRef] | None]) -> list[FileRef] | None:
        with self._lock:
            if (found := self._found.get(path)) is not None:
                self._found.move_to_end(path)
                return found
        found = read()
        if found is not None:
            self._put(path, found)
        return found

    def _put(self, path: str, found: list[FileRef]) -> None:
        with self._lock:
            if path in self._found:
                return
            self._found[path] = found
            self._files += len(found)
            while self._files > self._files_max:
                _, evicted = self._found.popitem(last=False)
                self._files -= len(evicted)


_CACHE = _ManifestCache(_FILES_CACHED_MAX)


@dataclass
class Reachability:
    """Reads each manifest list and manifest once. `table` is for error messages."""

    files: FileIO
    table: str
    _lists: dict[str, list[FileRef]] = field(default_factory=dict)

    def manifests(self, snapshots: Iterable[Snapshot], *, allow_missing: bool = False) -> dict[str, FileRef]:
        """Returns the manifests of the snapshots by name. Raises DataLost if a manifest list is missing,
        because nothing may be deleted if references are unknown. `allow_missing` skips such snapshots: an
        interrupted clean-up may have deleted their files.
        """
        unread = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._lists]
        for snapshot, found in zip(unread, in_parallel(self._list, unread), strict=True):
            if found is not None:
                self._lists[snapshot.manifest_list] = found
            elif not allow_missing:
                raise DataLost(
                    self.table,
                    f"snapshot {snapshot.snapshot_id} cannot be read, because {snapshot.manifest_list} is "
                    "missing, so nothing is deleted; restore that file, or expire the snapshot",
                )
        return {
            name_of(manifest.path): manifest
            for snapshot in snapshots
            for manifest in self._lists.get(snapshot.manifest_list, ())
        }

    def data_files(
        self, manifests: Iterable[FileRef], *, allow_missing: bool = False
    ) -> Iterator[list[FileRef]]:
        """Yields the data files, and delete files of other engines, that each manifest names."""
        manifests = list(manifests)
        for manifest, found in zip(manifests, in_parallel(self._entries, manifests), strict=True):
            if found is not None:
                yield found
            elif not allow_missing:
                raise DataLost(
                    self.table,
                    f"a snapshot cannot be read, because {manifest.path} is missing, so nothing is deleted; "
                    "restore that file, or expire the snapshots that need it",
                )

    def _list(self, snapshot: Snapshot) -> list[FileRef] | None:
        return _CACHE.get(snapshot.manifest_list, partial(self._read_list, snapshot))

    def _entries(self, manifest: FileRef) -> list[FileRef] | None:
        return _CACHE.get(manifest.path, partial(self._read_entries, manifest))

    def _read_list(self, snapshot: Snapshot) -> list[FileRef] | None:
        try:
            found = snapshot.manifests(self.files)
        except FileNotFoundError:
            return None
        return [FileRef(each.manifest_path, each.manifest_length, each) for each in found]

    def _read_entries(self, manifest: FileRef) -> list[FileRef] | None:
        assert manifest.manifest is not None  # noqa: S101
        try:
            found = manifest.manifest.fetch_manifest_entry(self.files)
        except FileNotFoundError:
            return None
        return [FileRef(each.data_file.file_path, each.data_file.file_size_in_bytes) for each in found]
