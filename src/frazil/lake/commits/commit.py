"""The one way into a table: compare-and-swap commits that change rows and the position together.

A commit adds a snapshot and moves `main` to it. One that adds or removes rows also moves the tag `landed`,
and requires that `landed` is still where the position was read: of two processes that start from one position
only one can win, however late the other's commit arrives. One that only writes the same rows into other
files leaves `landed` where it is, and landing goes on beside it. PyIceberg's own transactions are never used
for this: their retry drops the requirement on the tag.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement

from frazil.config import Config
from frazil.errors import CatalogUnavailable, DataLost, Fenced
from frazil.lake.catalog import full_name
from frazil.lake.commits.metadata_commit import Change, CommitLoop, same_table
from frazil.lake.commits.staging import LANDED, POSITION, FileChange, Staged

__all__ = [
    "LANDED",
    "POSITION",
    "Checkpoint",
    "Committed",
    "Committer",
    "ancestors",
    "checkpoint_of",
    "committer_of",
    "is_ancestor",
    "landed_snapshot",
    "position_text",
    "read_checkpoint",
    "was_committed",
]


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
            full_name(table),
            f"it has no tag `{LANDED}` with a position, so what has landed is unknown; restore the tag, or "
            "move the table away and let it be made anew",
        )
    if not is_ancestor(metadata, landed.snapshot_id):
        raise DataLost(
            full_name(table),
            f"`{MAIN_BRANCH}` does not contain snapshot {landed.snapshot_id}, which `{LANDED}` says has "
            "landed: the table was rolled back. Roll it forward again, or set the tag to where it now is "
            "and land again from there",
        )
    return Checkpoint(table, landed.snapshot_id, position)


def is_ancestor(metadata: TableMetadata, snapshot_id: int) -> bool:
    """Whether `main` descends from the snapshot. Where expired snapshots cut the chain, sequence numbers
    decide: a rollback leaves `main` behind.

    Who expires may keep the id of a parent that is gone, or drop it. What is left then looks like the first
    snapshot of a table that somebody replaced by another; but such a one says that there was nothing before.
    """
    main = metadata.snapshot_by_name(MAIN_BRANCH)
    wanted = metadata.snapshot_by_id(snapshot_id)
    if main is None or wanted is None:
        return False
    oldest = main
    for oldest in ancestors(metadata, main):
        if oldest.snapshot_id == snapshot_id:
            return True
    return not _begins(oldest) and (oldest.sequence_number or 0) > (wanted.sequence_number or 0)


def _begins(snapshot: Snapshot) -> bool:
    """Whether the table held nothing before it: all that there is, it has added."""
    if snapshot.parent_snapshot_id is not None or snapshot.summary is None:
        return False
    counts = snapshot.summary.additional_properties
    return "deleted-data-files" not in counts and counts.get("total-data-files", "0") == counts.get(
        "added-data-files", "0"
    )


def ancestors(metadata: TableMetadata, snapshot: Snapshot) -> Iterator[Snapshot]:
    """The snapshot and those before it, as far as they are kept."""
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    current: Snapshot | None = snapshot
    while current is not None:
        yield current
        current = by_id.get(current.parent_snapshot_id) if current.parent_snapshot_id is not None else None


def committer_of(config: Config, catalog: Catalog) -> Committer:
    """Files that no snapshot knows are removed at some age. What is half as old is not committed any more."""
    return Committer(
        catalog,
        deadline_seconds=config.land.commit_deadline_seconds,
        files_seconds_max=config.maintain.orphans.age_seconds / 2,
    )


class _SnapshotChange(Change, Protocol):
    @property
    def snapshot_id(self) -> int:
        """Of all its attempts."""
        ...


class Committer:
    """Commits to tables. `sleep` and `clock` are handed in so that tests need not wait.

    Whoever says when writing its files `began`, by the time of day, is told CatalogUnavailable if that was
    longer ago than `files_seconds_max`, as after a machine's sleep: they may be gone, and are to be written
    again.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        deadline_seconds: float,
        files_seconds_max: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._loop = CommitLoop(catalog, deadline_seconds, clock, sleep)
        self._files_seconds_max = files_seconds_max

    def append(
        self,
        checkpoint: Checkpoint,
        files: Sequence[DataFile],
        position: str,
        *,
        facts: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> Committed:
        """Adds the files and moves the position. The files must be durable.

        Raises Fenced if another process moved the position, and CatalogUnavailable if the outcome cannot be
        learned before the deadline: the caller then reads the position again, which settles it.
        """
        change = _Append(checkpoint, files, {**(facts or {}), POSITION: position})
        return self._commit(checkpoint.table, change, began, looks_first=False)

    def replace(
        self,
        table: Table,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        *,
        facts: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> Committed:
        """The same rows in other files. The position stays, and so does `landed`: landing goes on beside it.

        Raises Conflict if one of `removed` is no longer part of the table, and CatalogUnavailable if the
        outcome cannot be learned before the deadline. Nobody may delete `added` then: they may be in the
        table after all. What is not, is found with the orphans.
        """
        if (before := _rows(removed)) != (after := _rows(added)):
            raise ValueError(f"{before:,} rows cannot be replaced by {after:,}: overwrite counts what goes")
        files = FileChange(table.metadata, Operation.REPLACE, added=added, removed=removed)
        return self.commit(table, _Replace(table, files, facts or {}), began)

    def overwrite(
        self,
        table: Table,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        advance: Callable[[str], str],
        *,
        facts: Mapping[str, str] | None = None,
        began: float | None = None,
    ) -> Committed:
        """Files with fewer rows in the place of others, or none. `advance` makes the new position of the one
        that the table has; it is called once for each attempt. A landing that is on its way is fenced.

        Raises as `replace` does. Of a CatalogUnavailable the caller learns the outcome by looking whether
        `removed` are still live.
        """
        operation = Operation.OVERWRITE if added else Operation.DELETE
        files = FileChange(table.metadata, operation, added=added, removed=removed)
        return self.commit(table, _Overwrite(table, files, facts or {}, advance), began)

    def commit(self, table: Table, change: _SnapshotChange, began: float | None = None) -> Committed:
        """Any other change, on the table as it is now: it may have moved on since the caller loaded it."""
        return self._commit(table, change, began, looks_first=True)

    def _commit(
        self, table: Table, change: _SnapshotChange, began: float | None, *, looks_first: bool
    ) -> Committed:
        metadata, attempts = self._loop.run(
            table, change, looks_first=looks_first, check=lambda now: self._refuse_old_files(now, began)
        )
        return Committed(change.snapshot_id, attempts, metadata)

    def _refuse_old_files(self, table: Table, began: float | None) -> None:
        seconds = 0.0 if began is None else time.time() - began
        if seconds > self._files_seconds_max:
            raise CatalogUnavailable(
                f"{full_name(table)}: files that were begun {seconds:.0f} s ago are not committed: whatever "
                f"no snapshot knows may be removed after {2 * self._files_seconds_max:g} s "
                "(maintain.orphans.age_seconds); they are written again"
            )


class _Append:
    def __init__(self, checkpoint: Checkpoint, files: Sequence[DataFile], facts: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._facts = facts
        self._files = FileChange(checkpoint.table.metadata, Operation.APPEND, added=files)
        self.snapshot_id = self._files.snapshot_id

    def stage(self, table: Table) -> Staged:
        checkpoint_of(table)  # rolled back meanwhile? A commit on top of that would hide rows for good
        staged = self._files.stage(table, self._facts, moves_landed=True)
        return replace(staged, requirements=(*staged.requirements, _still(self._checkpoint)))

    def settled(self, table: Table | None) -> bool:
        """An attempt that is still on its way cannot be committed after one that wins: each requires that the
        tag has not moved. Raises Fenced if another process has moved it.
        """
        began = self._checkpoint.table
        if table is not None and table.metadata.table_uuid == began.metadata.table_uuid:
            landed = landed_snapshot(table.metadata)
            if landed is not None and landed.snapshot_id == self._checkpoint.landed:
                return False
            for snapshot in () if landed is None else ancestors(table.metadata, landed):
                if snapshot.snapshot_id == self.snapshot_id:
                    return True
        raise Fenced(full_name(began))


class _Replace:
    def __init__(self, table: Table, files: FileChange, facts: Mapping[str, str]) -> None:
        self._began = table
        self._facts = facts
        self._files = files
        self.snapshot_id = files.snapshot_id

    def stage(self, table: Table) -> Staged:
        checkpoint_of(table)  # as for landing: what was rolled back must stay visible as that
        return self._files.stage(table, self._facts, moves_landed=False)

    def settled(self, table: Table | None) -> bool:
        return was_committed(self._began, self.snapshot_id, table)


class _Overwrite(_Replace):
    def __init__(
        self, table: Table, files: FileChange, facts: Mapping[str, str], advance: Callable[[str], str]
    ) -> None:
        super().__init__(table, files, facts)
        self._advance = advance

    def stage(self, table: Table) -> Staged:
        checkpoint = checkpoint_of(table)
        facts = {**self._facts, POSITION: self._advance(checkpoint.position)}
        staged = self._files.stage(table, facts, moves_landed=True)
        return replace(staged, requirements=(*staged.requirements, _still(checkpoint)))


def was_committed(began: Table, snapshot_id: int, now: Table | None) -> bool:
    """Whether a snapshot was. An attempt that is still on its way cannot be committed after another: each
    requires that `main` has not moved. Raises Conflict if the table is gone, or is another of that name.
    """
    return same_table(began, now).metadata.snapshot_by_id(snapshot_id) is not None


def _still(checkpoint: Checkpoint) -> TableRequirement:
    return AssertRefSnapshotId(ref=LANDED, snapshot_id=checkpoint.landed)


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)
