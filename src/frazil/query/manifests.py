"""Decoded manifests and indexes of snapshots, cached by path: a manifest never changes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.errors import FrazilError, StoreUnavailable
from frazil.lake.catalog import full_name
from frazil.sql.index import Index, Manifest, decode, delete_files_error
from frazil.tables import Fill, Promoted, table_specs

FILES_KEPT_MAX = 200_000
"""Data files whose statistics are kept in memory, beyond those of the snapshots in use: about 1 KB each."""
_INDEXES_KEPT = 16
_READERS = 8

log = structlog.get_logger("frazil.query")


class Manifests:
    """A cache of decoded manifests. Thread-safe."""

    def __init__(
        self,
        extra: Sequence[Promoted] = (),
        *,
        files_max: int = FILES_KEPT_MAX,
        indexes_max: int = _INDEXES_KEPT,
    ) -> None:
        self._extra = tuple(extra)
        self._files_max = files_max
        self._indexes_max = indexes_max
        self._lock = threading.Lock()
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._files = 0
        self._indexes: OrderedDict[str, Index] = OrderedDict()
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="frazil-manifests")

    def index(self, table: Table, snapshot: Snapshot | None) -> Index:
        """Return the files of a snapshot. Raises FileNotFoundError if the snapshot has expired."""
        if snapshot is None:
            return Index(())
        with self._lock:
            if (found := self._indexes.get(snapshot.manifest_list)) is not None:
                self._indexes.move_to_end(snapshot.manifest_list)
                return found
        found = Index(self._load(table, _live_manifests(table, snapshot)))
        with self._lock:
            self._indexes[snapshot.manifest_list] = found
            while len(self._indexes) > self._indexes_max:
                self._indexes.popitem(last=False)
        return found

    def forget(self) -> None:
        with self._lock:
            self._manifests.clear()
            self._indexes.clear()
            self._files = 0

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def _load(self, table: Table, needed: Sequence[ManifestFile]) -> list[Manifest]:
        paths = [manifest.manifest_path for manifest in needed]
        with self._lock:
            found = {path: self._manifests[path] for path in paths if path in self._manifests}
        missing = [manifest for manifest in needed if manifest.manifest_path not in found]
        spec = table_specs(self._extra).get(table.name()[-1])
        fill = Fill.of(() if spec is None else spec.promoted, table.metadata.properties)
        if len(missing) == 1:
            decoded = [_decode(table, missing[0], fill)]
        else:
            decoded = list(self._readers.map(lambda manifest: _decode(table, manifest, fill), missing))
        found |= {manifest.manifest_path: one for manifest, one in zip(missing, decoded, strict=True)}
        self._keep(found)
        return [found[path] for path in paths]

    def _keep(self, used: dict[str, Manifest]) -> None:
        """Cache manifests, and evict the least recently used ones. Never evicts those just used."""
        with self._lock:
            for path, manifest in used.items():
                if path not in self._manifests:
                    self._manifests[path] = manifest
                    self._files += len(manifest)
                self._manifests.move_to_end(path)
            while self._files > self._files_max and next(iter(self._manifests)) not in used:
                _, dropped = self._manifests.popitem(last=False)
                self._files -= len(dropped)


def _live_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    with metadata_errors(snapshot.manifest_list):
        manifests = [
            manifest
            for manifest in snapshot.manifests(table.io)
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
    if any(manifest.content != ManifestContent.DATA for manifest in manifests):
        raise delete_files_error(full_name(table))
    return manifests


def _decode(table: Table, manifest: ManifestFile, fill: Fill) -> Manifest:
    with metadata_errors(manifest.manifest_path):
        entries = manifest.fetch_manifest_entry(table.io)
    spec = table.metadata.specs()[manifest.partition_spec_id]
    return decode(entries, spec, table.schema(), full_name(table), fill)


@contextlib.contextmanager
def metadata_errors(path: str) -> Iterator[None]:
    """Turn any error but FileNotFoundError into StoreUnavailable: the file exists and cannot be read."""
    try:
        yield
    except (FrazilError, FileNotFoundError):
        raise
    except Exception as error:
        log.error("metadata file not readable", path=path, reason=str(error))
        raise StoreUnavailable(f"a metadata file cannot be read: {type(error).__name__}") from error
