"""Merges small manifests: each commit adds one, and planning a query reads all of them."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from frazil.lake.commits.commit import Committed, Committer, checkpoint_of, was_committed
from frazil.lake.commits.entries import SMALL_MANIFEST, existing_entry, split_by_day
from frazil.lake.commits.staging import Staged, Staging, summary_of
from frazil.lake.live_files import data_manifests, read_entries


def small_manifests(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Filters manifests that have live files, but few."""
    return [manifest for manifest in manifests if _live_count(manifest) < SMALL_MANIFEST]


def rewrite_manifests(committer: Committer, table: Table, manifests_max: int) -> Committed | None:
    """Merges the small manifests if there are more than `manifests_max`; else returns None. Files, rows and
    position stay; entries of deleted files are dropped.

    Raises CatalogUnavailable if the outcome is unknown at the deadline, Refused if the table has delete
    files, and Conflict if the table was dropped or replaced.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or len(small_manifests(data_manifests(table, snapshot))) <= manifests_max:
        return None
    return committer.commit(table, _Merging(table))


class _Merging:
    def __init__(self, table: Table) -> None:
        self._original = table
        self._staging = Staging(table.metadata)
        self.snapshot_id = self._staging.snapshot_id
        self._merged: set[str] = set()
        self._written: list[ManifestFile] = []

    def stage(self, table: Table) -> Staged:
        checkpoint_of(table)  # a commit on top of a rollback would hide it
        parent = table.metadata.snapshot_by_name(MAIN_BRANCH)
        manifests = [] if parent is None else data_manifests(table, parent)
        if not self._merged or not self._merged <= {manifest.manifest_path for manifest in manifests}:
            small = small_manifests(manifests)
            self._merged = {manifest.manifest_path for manifest in small}
            self._written = self._write(table, small)
        kept = [manifest for manifest in manifests if manifest.manifest_path not in self._merged]
        facts = {
            "manifests-created": str(len(self._written)),
            "manifests-kept": str(len(kept)),
            "manifests-replaced": str(len(self._merged)),
        }
        summary = summary_of(table.metadata, Operation.REPLACE, (), (), facts)
        return self._staging.snapshot(table, [*self._written, *kept], summary, moves_landed=False)

    def settled(self, table: Table | None) -> bool:
        return was_committed(self._original, self.snapshot_id, table)

    def _write(self, table: Table, small: Sequence[ManifestFile]) -> list[ManifestFile]:
        by_spec: dict[int, list[ManifestEntry]] = {}
        for manifest, entries in zip(small, read_entries(table.io, small), strict=True):
            by_spec.setdefault(manifest.partition_spec_id, []).extend(entries)
        return [
            self._staging.manifest(table, spec_id, [existing_entry(entry) for entry in part])
            for spec_id, entries in by_spec.items()
            for part in split_by_day(entries)
        ]


def _live_count(manifest: ManifestFile) -> int:
    """Returns the number of live files. A manifest without counts is treated as not small."""
    added, kept = manifest.added_files_count, manifest.existing_files_count
    return SMALL_MANIFEST if added is None or kept is None else added + kept
