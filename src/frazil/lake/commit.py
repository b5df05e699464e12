"""The one way into a table: a compare-and-swap that adds rows and moves the position together.

A commit adds a snapshot, moves `main` to it and moves the tag `landed` to it, and requires that `landed` is
still where the position was read. So of two processes that start from one position only one can win, however
late the other's commit arrives. PyIceberg's own transactions are never used for this: their retry drops the
requirement on the tag.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
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

from frazil.errors import CatalogUnavailable, DataLost, Fenced

LANDED = "landed"
"""The tag that says up to where the table's inputs have landed."""
POSITION = "frazil.position"
_BACKOFF_SECONDS = 0.2
_BACKOFF_SECONDS_MAX = 10.0
_AVRO_COMPRESSION: Literal["deflate"] = "deflate"

log = structlog.get_logger("frazil.lake")


@dataclass(frozen=True)
class Checkpoint:
    """A table and where its tag `landed` stood when it was loaded. `position` is that snapshot's text."""

    table: Table
    landed: int
    position: str


@dataclass(frozen=True)
class Committed:
    snapshot_id: int
    attempts: int
    metadata: TableMetadata


def read_checkpoint(catalog: Catalog, identifier: tuple[str, ...]) -> Checkpoint:
    """Loads the table. DataLost if it was rolled back behind its position, or the tag is gone."""
    table = catalog.load_table(identifier)
    return checkpoint_of(table)


def landed_snapshot(metadata: TableMetadata) -> Snapshot | None:
    """The one under the tag."""
    tag = metadata.refs.get(LANDED)
    return None if tag is None else metadata.snapshot_by_id(tag.snapshot_id)


def position_text(snapshot: Snapshot) -> str | None:
    """The position that a snapshot carries; those of maintenance carry none."""
    return None if snapshot.summary is None else snapshot.summary.additional_properties.get(POSITION)


def checkpoint_of(table: Table) -> Checkpoint:
    metadata = table.metadata
    landed = landed_snapshot(metadata)
    position = None if landed is None else position_text(landed)
    if landed is None or position is None:
        raise DataLost(
            _name(table),
            f"it has no tag `{LANDED}` with a position, so what has landed is unknown; restore the tag, or "
            "move the table away and let it be made anew",
        )
    if not is_ancestor(metadata, landed.snapshot_id):
        raise DataLost(
            _name(table),
            f"`{MAIN_BRANCH}` does not contain snapshot {landed.snapshot_id}, which `{LANDED}` says has "
            "landed: the table was rolled back. Roll it forward again, or set the tag to where it now is "
            "and land again from there",
        )
    return Checkpoint(table, landed.snapshot_id, position)


def is_ancestor(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether `main` descends from the snapshot. Where expired snapshots cut the chain, sequence numbers
    decide: a rollback leaves `main` behind.
    """
    main = metadata.snapshot_by_name(MAIN_BRANCH)
    wanted = metadata.snapshot_by_id(snapshot_id)
    if main is None or wanted is None:
        return False
    oldest = main
    for oldest in ancestors(metadata, main):
        if oldest.snapshot_id == snapshot_id:
            return True
    cut = oldest.parent_snapshot_id is not None
    return cut and (oldest.sequence_number or 0) > (wanted.sequence_number or 0)


def ancestors(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot and those before it, as far as they are kept."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    current: Snapshot | None = snapshot
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id) if current.parent_snapshot_id is not None else None


class Committer:
    """Commits to one table. `sleep` and `clock` are handed in so that tests need not wait."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        deadline_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._catalog = catalog
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._sleep = sleep

    def append(
        self,
        checkpoint: Checkpoint,
        files: Sequence[DataFile],
        position: str,
        *,
        facts: Mapping[str, str] | None = None,
    ) -> Committed:
        """Adds the files and moves the position. The files must be durable.

        Raises Fenced if another process moved the position, and CatalogUnavailable if the outcome cannot be
        learned before the deadline: the caller then reads the position again, which settles it.
        """
        deadline = self._clock() + self._deadline_seconds
        table, attempts, pauses = checkpoint.table, list[int](), _pauses()
        while True:
            staged = stage_append(table, files, {POSITION: position, **(facts or {})})
            attempts.append(staged.snapshot.snapshot_id)
            try:
                response = self._catalog.commit_table(
                    table, (*staged.requirements, _still(checkpoint)), staged.updates
                )
            except CommitFailedException as error:
                reason = str(error)
                log.info("commit refused; looking again", table=_name(table), reason=reason)
            except Exception as error:  # whatever it was, the commit may have happened
                reason = repr(error)
                log.warning("outcome of a commit is unknown; looking", table=_name(table), reason=reason)
            else:
                delete_old_metadata(self._catalog, table, response.metadata)
                return Committed(attempts[-1], len(attempts), response.metadata)
            table = self._reload(checkpoint, deadline)
            if (won := _settled(table.metadata, attempts, checkpoint)) is not None:
                return Committed(won, len(attempts), table.metadata)
            checkpoint_of(table)  # rolled back meanwhile? A commit on top of that would hide rows for good
            if self._clock() >= deadline:
                raise CatalogUnavailable(
                    f"{_name(table)} could not be committed in {self._deadline_seconds:g} s: {reason}"
                )
            self._sleep(next(pauses))

    def _reload(self, checkpoint: Checkpoint, deadline: float) -> Table:
        pauses = _pauses()
        while True:
            try:
                return self._catalog.load_table(checkpoint.table.name())
            except NoSuchTableError:
                raise Fenced(_name(checkpoint.table)) from None
            except Exception as error:
                if self._clock() >= deadline:
                    raise CatalogUnavailable(f"{_name(checkpoint.table)}: {error}") from error
                log.warning("catalog does not answer", reason=str(error))
            self._sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Without end, growing up to a bound, never quite alike in two processes."""
    pause = _BACKOFF_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311
        pause = min(pause * 2, _BACKOFF_SECONDS_MAX)


def _still(checkpoint: Checkpoint) -> TableRequirement:
    return AssertRefSnapshotId(ref=LANDED, snapshot_id=checkpoint.landed)


def _settled(metadata: TableMetadata, attempts: Sequence[int], checkpoint: Checkpoint) -> int | None:
    """The attempt that was committed; None if none was and another may be made. Raises Fenced if another
    process won.

    An attempt that is still on its way cannot be committed after one that wins: each requires that the tag
    has not moved.
    """
    if metadata.table_uuid != checkpoint.table.metadata.table_uuid:
        raise Fenced(_name(checkpoint.table))
    landed = landed_snapshot(metadata)
    if landed is not None:
        if landed.snapshot_id == checkpoint.landed:
            return None
        own = set(attempts)
        for snapshot in ancestors(metadata, landed):
            if snapshot.snapshot_id in own:
                return snapshot.snapshot_id
            if snapshot.snapshot_id == checkpoint.landed:
                break
    raise Fenced(_name(checkpoint.table))


@dataclass(frozen=True)
class Staged:
    """A snapshot whose manifests are written and durable, and what would make it the table's."""

    snapshot: Snapshot
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]


def stage_append(table: Table, files: Sequence[DataFile], facts: Mapping[str, str]) -> Staged:
    """Writes the manifest of `files` and the new list of manifests; commits nothing."""
    metadata = table.metadata
    parent = metadata.snapshot_by_name(MAIN_BRANCH)
    snapshot_id, attempt = metadata.new_snapshot_id(), uuid.uuid4()
    location = table.location_provider()
    manifests: list[ManifestFile] = []
    if files:
        manifests.append(
            _write_manifest(table, files, snapshot_id, location.new_metadata_location(f"{attempt}-m0.avro"))
        )
    if parent is not None:
        manifests += [
            manifest
            for manifest in parent.manifests(table.io)
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
    list_path = location.new_metadata_location(f"snap-{snapshot_id}-0-{attempt}.avro")
    with write_manifest_list(
        format_version=metadata.format_version,
        output_file=table.io.new_output(list_path),
        snapshot_id=snapshot_id,
        parent_snapshot_id=None if parent is None else parent.snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        avro_compression=_AVRO_COMPRESSION,
    ) as writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=None if parent is None else parent.snapshot_id,
        manifest_list=list_path,
        sequence_number=metadata.next_sequence_number(),
        # Java refuses a table that went back in time by more than a minute, and PyIceberg writes it. Where
        # the time stands still, PyIceberg takes the clock again.
        timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms + 1),
        summary=_summary(metadata, parent, files, facts),
        schema_id=metadata.current_schema_id,
    )
    return Staged(
        snapshot,
        (
            AddSnapshotUpdate(snapshot=snapshot),
            _ref(MAIN_BRANCH, SnapshotRefType.BRANCH, snapshot_id),
            _ref(LANDED, SnapshotRefType.TAG, snapshot_id),
        ),
        (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if parent is None else parent.snapshot_id),
        ),
    )


def _ref(name: str, type_: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=type_,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def _write_manifest(table: Table, files: Sequence[DataFile], snapshot_id: int, path: str) -> ManifestFile:
    with write_manifest(
        format_version=table.metadata.format_version,
        spec=table.metadata.spec(),
        schema=table.metadata.schema(),
        output_file=table.io.new_output(path),
        snapshot_id=snapshot_id,
        avro_compression=_AVRO_COMPRESSION,
    ) as writer:
        for file in files:
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
    return writer.to_manifest_file()


def _summary(
    metadata: TableMetadata, parent: Snapshot | None, files: Sequence[DataFile], facts: Mapping[str, str]
) -> Summary:
    collector = SnapshotSummaryCollector()
    schema, spec = metadata.schema(), metadata.spec()
    for file in files:
        collector.add_file(data_file=file, schema=schema, partition_spec=spec)
    return update_snapshot_summaries(
        summary=Summary(operation=Operation.APPEND, **collector.build(), **facts),
        previous_summary=None if parent is None else parent.summary,
    )


def delete_old_metadata(catalog: Catalog, before: Table, after: TableMetadata) -> None:
    """What the table's properties say to keep no longer. REST catalogs do this themselves."""
    if not isinstance(catalog, MetastoreCatalog):
        return
    try:
        catalog._delete_old_metadata(before.io, before.metadata, after)
    except Exception as error:  # the commit stands; a file too many is no reason to fail
        log.warning("old metadata could not be deleted", table=_name(before), reason=str(error))


def _name(table: Table) -> str:
    return ".".join(table.name())
