"""The epochs of leases in a small Iceberg table, which works with any catalog.

Iceberg can compare-and-swap tags, but not properties. So the newest epoch of a lease is a snapshot without
rows that the lease's tag names. All snapshots share one empty manifest list.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.types import NestedField, StringType

from frazil.config import Config
from frazil.errors import CatalogUnavailable, Conflict, StoreUnavailable
from frazil.lake.catalog import LEASES, catalog_errors, ensure_namespace, full_name, open_catalog
from frazil.lake.commits.metadata_commit import MetadataChange, commit_metadata
from frazil.lake.commits.staging import FileChange
from frazil.lake.pyiceberg_compat import commit_creation, new_table
from frazil.lake.tags import assert_unmoved, set_tag

_EPOCH = "frazil.lease-epoch"
_DATA = "frazil.lease-data"
_SCHEMA = Schema(NestedField(1, "lease", StringType(), required=False))
_PROPERTIES = {
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "comment": "Leases of frazil processes. It has no rows: each lease is a tag on its newest heartbeat.",
}


class _Overtaken(Exception):
    """Another process has added the epoch, or a later one."""


class TableEpochs:
    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._name = name
        self._seconds_max = config.pipeline.lease_seconds / 3
        self._catalog: Catalog | None = None
        self.where = f"{config.lake.namespace}.{LEASES}/{name}"

    def newest(self) -> int:
        with _failures():
            return self._found(self._table().metadata)[0]

    def read(self, epoch: int) -> bytes:
        with _failures():
            found, data = self._found(self._table().metadata)
            return data.encode() if found == epoch else b""

    def add(self, epoch: int, data: bytes) -> bool:
        text = data.decode()

        def plan(table: Table) -> MetadataChange | None:
            found = self._found(table.metadata)
            if found == (epoch, text):
                return None
            if found[0] != epoch - 1:
                raise _Overtaken
            return self._next(table, epoch, text)

        with _failures():
            try:
                commit_metadata(self._open(), self._table(), plan, seconds_max=self._seconds_max)
            except _Overtaken:
                return False
        return True

    def _found(self, metadata: TableMetadata) -> tuple[int, str]:
        snapshot = metadata.snapshot_by_name(self._name)
        facts = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
        return int(facts.get(_EPOCH, -1)), facts.get(_DATA, "")

    def _next(self, table: Table, epoch: int, data: str) -> MetadataChange:
        metadata = table.metadata
        before, main = metadata.snapshot_by_name(self._name), metadata.snapshot_by_name(MAIN_BRANCH)
        if main is None:
            raise Conflict(
                full_name(table),
                "the lease table has no first snapshot; drop the table, and it will be created again",
            )
        snapshot = Snapshot(
            snapshot_id=metadata.new_snapshot_id(),
            manifest_list=main.manifest_list,
            sequence_number=metadata.next_sequence_number(),
            # Several machines commit here, and the time of a table must not decrease.
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms + 1),
            summary=Summary(Operation.APPEND, **{_EPOCH: str(epoch), _DATA: data}),
            schema_id=metadata.current_schema_id,
        )
        updates: list[TableUpdate] = [
            AddSnapshotUpdate(snapshot=snapshot),
            set_tag(self._name, snapshot.snapshot_id),
        ]
        if before is not None:
            updates.append(RemoveSnapshotsUpdate(snapshot_ids=[before.snapshot_id]))
        return MetadataChange((assert_unmoved(metadata, self._name),), updates)

    def _open(self) -> Catalog:
        if self._catalog is None:
            self._catalog = open_catalog(self._config)
        return self._catalog

    def _table(self) -> Table:
        catalog = self._open()
        identifier = (*self._config.lake.namespace.split("."), LEASES)
        with contextlib.suppress(NoSuchTableError):
            return catalog.load_table(identifier)
        ensure_namespace(catalog, self._config.lake.namespace)
        with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):  # by another process
            _create(catalog, identifier)
        return catalog.load_table(identifier)


def _create(catalog: Catalog, identifier: tuple[str, ...]) -> None:
    """Creates the table with an empty first snapshot: PyIceberg cannot tag a table without one."""
    creation = catalog.create_table_transaction(identifier, _SCHEMA, properties=_PROPERTIES)
    first = FileChange(new_table(creation).metadata, Operation.APPEND, added=())
    staged = first.stage(new_table(creation), {}, moves_landed=False)
    commit_creation(catalog, creation, staged.updates)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        with catalog_errors():
            yield
    except (
        CatalogUnavailable,
        Conflict,
        CommitFailedException,
        NoSuchTableError,
        FileNotFoundError,
    ) as error:  # metadata that was just replaced may be deleted
        raise StoreUnavailable(f"the lease table is unusable: {error}") from error
