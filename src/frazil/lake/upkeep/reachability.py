"""Finds the files that snapshots reference, from their manifests. Files are compared by name alone.

Names are unique, because they contain a UUID. Locations are not: `s3://` and `s3a://`, `file:/` and a plain
path, or a symbolic link can name the same folder. A file whose name is referenced anywhere in the table is
kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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

    def get(self, path: str, read: Callable[[], list[FileRef]]) -> list[FileRef] | None:
        """Returns None if the file does not exist."""
        with self._lock:
            if (found := self._found.get(path)) is not None:
                self._found.move_to_end(path)
                return found
        try:
            found = read()
        except FileNotFoundError:
            return None
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


@dataclass(frozen=True)
class Reachability:
    """Finds referenced files. `table` is for error messages."""

    files: FileIO
    table: str

    def manifests(self, snapshots: Iterable[Snapshot], *, allow_missing: bool = False) -> dict[str, FileRef]:
        """Returns the manifests of the snapshots by name. Raises DataLost if a manifest list is missing,
        because nothing may be deleted if references are unknown. `allow_missing` skips such snapshots: an
        interrupted clean-up may have deleted their files.
        """
        snapshots = list(snapshots)
        manifests: dict[str, FileRef] = {}
        for snapshot, found in zip(snapshots, in_parallel(self._read_list, snapshots), strict=True):
            if found is not None:
                manifests.update((name_of(each.path), each) for each in found)
            elif not allow_missing:
                raise DataLost(
                    self.table,
                    f"snapshot {snapshot.snapshot_id} cannot be read, because {snapshot.manifest_list} is "
                    "missing, so nothing is deleted; restore that file, or expire the snapshot",
                )
        return manifests

    def data_files(
        self, manifests: Iterable[FileRef], *, allow_missing: bool = False
    ) -> Iterator[list[FileRef]]:
        """Yields the data files, and delete files of other engines, that each manifest names."""
        manifests = list(manifests)
        for manifest, found in zip(manifests, in_parallel(self._read_manifest, manifests), strict=True):
            if found is not None:
                yield found
            elif not allow_missing:
                raise DataLost(
                    self.table,
                    f"a snapshot cannot be read, because {manifest.path} is missing, so nothing is deleted; "
                    "restore that file, or expire the snapshots that need it",
                )

    def _read_list(self, snapshot: Snapshot) -> list[FileRef] | None:
        def read() -> list[FileRef]:
            found = snapshot.manifests(self.files)
            return [FileRef(each.manifest_path, each.manifest_length, each) for each in found]

        return _CACHE.get(snapshot.manifest_list, read)

    def _read_manifest(self, manifest: FileRef) -> list[FileRef] | None:
        def read() -> list[FileRef]:
            assert manifest.manifest is not None  # noqa: S101
            files = [entry.data_file for entry in manifest.manifest.fetch_manifest_entry(self.files)]
            return [FileRef(file.file_path, file.file_size_in_bytes) for file in files]

        return _CACHE.get(manifest.path, read)
