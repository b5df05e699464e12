"""Which files snapshots need, told from their manifests. Files are known by name alone.

Names are unique (they hold a UUID), and addresses are not: `s3://` and `s3a://`, `file:/` and a plain path,
or a folder behind a link are one place. A file whose name is needed anywhere in the table is kept.
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

_FILES_KEPT_MAX = 200_000
"""Names that are kept in memory: about 200 bytes each."""


class Known(NamedTuple):
    """A file as a snapshot or a manifest names it."""

    path: str
    bytes: int
    manifest: ManifestFile | None = None


def name_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


class _Kept:
    """What lists and manifests say, by their path: they never change, and a maintainer comes by every few
    minutes. The least recently used go first.
    """

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._found: OrderedDict[str, list[Known]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def get(self, path: str, read: Callable[[], list[Known] | None]) -> list[Known] | None:
        with self._lock:
            if (found := self._found.get(path)) is not None:
                self._found.move_to_end(path)
                return found
        found = read()
        if found is not None:
            self._put(path, found)
        return found

    def _put(self, path: str, found: list[Known]) -> None:
        with self._lock:
            if path in self._found:
                return
            self._found[path] = found
            self._files += len(found)
            while self._files > self._files_max:
                _, gone = self._found.popitem(last=False)
                self._files -= len(gone)


_KEPT = _Kept(_FILES_KEPT_MAX)


@dataclass
class Reachability:
    """Reads each list and manifest once: both never change. `table` is for messages."""

    files: FileIO
    table: str
    _lists: dict[str, list[Known]] = field(default_factory=dict)

    def manifests(self, snapshots: Iterable[Snapshot], *, may_lack: bool = False) -> dict[str, Known]:
        """By name. With `may_lack`, snapshots of which an interrupted clean-up has left nothing are none;
        else DataLost: what they need is unknown then, so nothing may be deleted.
        """
        wanted = [snapshot for snapshot in snapshots if snapshot.manifest_list not in self._lists]
        for snapshot, found in zip(wanted, in_parallel(self._list, wanted), strict=True):
            if found is not None:
                self._lists[snapshot.manifest_list] = found
            elif not may_lack:
                raise DataLost(
                    self.table,
                    f"snapshot {snapshot.snapshot_id} cannot be read, as {snapshot.manifest_list} is gone, "
                    "so nothing is deleted; bring that file back, or expire the snapshot",
                )
        return {
            name_of(manifest.path): manifest
            for snapshot in snapshots
            for manifest in self._lists.get(snapshot.manifest_list, ())
        }

    def data_files(self, manifests: Iterable[Known], *, may_lack: bool = False) -> Iterator[list[Known]]:
        """What the manifests say is in the table: data, and deletes of other engines."""
        manifests = list(manifests)
        for manifest, found in zip(manifests, in_parallel(self._entries, manifests), strict=True):
            if found is not None:
                yield found
            elif not may_lack:
                raise DataLost(
                    self.table,
                    f"a snapshot cannot be read, as {manifest.path} is gone, so nothing is deleted; bring "
                    "that file back, or expire the snapshots that need it",
                )

    def _list(self, snapshot: Snapshot) -> list[Known] | None:
        return _KEPT.get(snapshot.manifest_list, partial(self._read_list, snapshot))

    def _entries(self, manifest: Known) -> list[Known] | None:
        return _KEPT.get(manifest.path, partial(self._read_entries, manifest))

    def _read_list(self, snapshot: Snapshot) -> list[Known] | None:
        try:
            found = snapshot.manifests(self.files)
        except FileNotFoundError:
            return None
        return [Known(each.manifest_path, each.manifest_length, each) for each in found]

    def _read_entries(self, manifest: Known) -> list[Known] | None:
        assert manifest.manifest is not None  # noqa: S101
        try:
            found = manifest.manifest.fetch_manifest_entry(self.files)
        except FileNotFoundError:
            return None
        return [Known(each.data_file.file_path, each.data_file.file_size_in_bytes) for each in found]
