"""Compare-and-swap commits that change a table's rows and its landing position together.

A commit adds a snapshot and moves `main` to it. A commit that adds or removes rows also moves the tag
`landed`, and requires that `landed` has not moved since the position was read: of two processes that start
from the same position only one succeeds, even if the other's commit arrives late. A commit that only moves
rows to other files leaves `landed` alone, so landing continues at the same time. PyIceberg's own transactions
cannot be used: their retry drops the requirement on the tag.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement

from frazil.config import Config
from frazil.errors import CatalogUnavailable, DataLost, Fenced
from frazil.lake.catalog import full_name
from frazil.lake.commits.metadata_commit import Change, CommitLoop, same_table
from frazil.lake.commits.staging import FileChange, Staged
from frazil.lake.snapshots import (
    COMBINED,
    LANDED,
    POSITION,
    ancestors,
    is_ancestor,
    landed_snapshot,
    position_text,
)


@dataclass(frozen=True)
class Checkpoint:
    """A table, the snapshot of its tag `landed`, and the landing position that this snapshot carries."""

    table: Table
    landed: int
    position: str


@dataclass(frozen=True)
class Committed:
    snapshot_id: int
    attempts: int
    metadata: TableMetadata


def read_checkpoint(catalog: Catalog, identifier: tuple[str, ...]) -> Checkpoint:
    """Loads the table. Raises as `checkpoint_of`."""
    return checkpoint_of(catalog.load_table(identifier))


def checkpoint_of(table: Table) -> Checkpoint:
    """Raises DataLost if the tag `landed` is missing, or if the table was rolled back to before it."""
    metadata = table.metadata
    landed = landed_snapshot(metadata)
    position = None if landed is None else position_text(landed)
    if landed is None or position is None:
        raise DataLost(
            full_name(table),
            f"it has no tag `{LANDED}` with a position, so the landed rows are unknown; restore the tag, "
            "or move the table away so that a new one is created",
        )
    if not is_ancestor(metadata, landed.snapshot_id):
        raise DataLost(
            full_name(table),
            f"the table was rolled back: `{MAIN_BRANCH}` does not contain snapshot {landed.snapshot_id} of "
            f"the tag `{LANDED}`. Roll the table forward again, or set the tag to its current snapshot to "
            "land again from there",
        )
    return Checkpoint(table, landed.snapshot_id, position)


def committer_of(config: Config, catalog: Catalog) -> Committer:
    """Returns a committer that refuses files older than half the age at which orphan files are deleted."""
    return Committer(
        catalog,
        deadline_seconds=config.land.commit_deadline_seconds,
        files_seconds_max=config.maintain.orphans.age_seconds / 2,
    )


class _SnapshotChange(Change, Protocol):
    @property
    def snapshot_id(self) -> int:
        """The snapshot id that all attempts share."""
        ...


class Committer:
    """Commits to tables. `sleep` and `clock` are injected so that tests need not wait.

    Callers pass the time of day at which they began to write their files (`began`). If that is longer ago
    than `files_seconds_max`, for example after the machine was suspended, a commit raises CatalogUnavailable:
    the files may have been deleted as orphans and must be written again.
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

        Raises Fenced if another process moved the position, and CatalogUnavailable if the outcome is unknown
        at the deadline: the caller then reads the position to learn it.
        """
        change = _Append(checkpoint, files, {**(facts or {}), POSITION: position})
        return self._commit(checkpoint.table, change, began, reload_first=False)

    def replace(
        self,
        table: Table,
        removed: Sequence[DataFile],
        added: Sequence[DataFile],
        *,
        facts: Mapping[str, str] | None = None,
        began: float | None = None,
        combined: int = 0,
        made: int = 0,
    ) -> Committed:
        """Moves the same rows to other files. The position does not change, so landing can run concurrently.
        `combined`: by how many rows `added` has fewer, because partial rows of a derived table were combined.
        `made`: by how many it has more, which follow from pending rows of a derived table.

        Raises Conflict if one of `removed` is no longer part of the table, and CatalogUnavailable if the
        outcome is unknown at the deadline. The caller must not delete `added` then: they may be part of the
        table. If not, they are removed as orphans.
        """
        if (before := _rows(removed)) != (after := _rows(added)) + combined - made or combined < 0:
            raise ValueError(
                f"replace must keep the number of rows, got {before:,} and {after:,} with {combined:,} "
                "combined: use overwrite"
            )
        files = FileChange(table.metadata, Operation.REPLACE, added=added, removed=removed)
        facts = {**(facts or {}), **({COMBINED: str(combined)} if combined else {})}
        return self.commit(table, _Replace(table, files, facts), began)

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
        """Replaces files by files with fewer rows, or by none. `advance` computes the new position from the
        current one, once per attempt. A concurrent landing is fenced.

        Raises as `replace`. After CatalogUnavailable the caller checks whether `removed` are still live.
        """
        operation = Operation.OVERWRITE if added else Operation.DELETE
        files = FileChange(table.metadata, operation, added=added, removed=removed)
        return self.commit(table, _Overwrite(table, files, facts or {}, advance), began)

    def commit(self, table: Table, change: _SnapshotChange, began: float | None = None) -> Committed:
        """Commits any other change, on the current table: others may have committed since it was loaded."""
        return self._commit(table, change, began, reload_first=True)

    def _commit(
        self, table: Table, change: _SnapshotChange, began: float | None, *, reload_first: bool
    ) -> Committed:
        metadata, attempts = self._loop.run(
            table, change, reload_first=reload_first, check=lambda now: self._refuse_old_files(now, began)
        )
        return Committed(change.snapshot_id, attempts, metadata)

    def _refuse_old_files(self, table: Table, began: float | None) -> None:
        seconds = 0.0 if began is None else time.time() - began
        if seconds > self._files_seconds_max:
            raise CatalogUnavailable(
                f"{full_name(table)}: data files started {seconds:.0f} s ago are not committed, because "
                f"uncommitted files may be deleted after {2 * self._files_seconds_max:g} s "
                "(maintain.orphans.age_seconds); the files will be written again"
            )


class _Append:
    def __init__(self, checkpoint: Checkpoint, files: Sequence[DataFile], facts: Mapping[str, str]) -> None:
        self._checkpoint = checkpoint
        self._facts = facts
        self._files = FileChange(checkpoint.table.metadata, Operation.APPEND, added=files)
        self.snapshot_id = self._files.snapshot_id

    def stage(self, table: Table) -> Staged:
        checkpoint_of(table)  # raises after a rollback: a commit on top would hide the lost rows
        staged = self._files.stage(table, self._facts, moves_landed=True)
        return replace(staged, requirements=(*staged.requirements, _unmoved(self._checkpoint)))

    def settled(self, table: Table | None) -> bool:
        """Returns whether an attempt was committed. Each attempt requires that the tag has not moved, so
        after one commit no delayed attempt can succeed. Raises Fenced if another process has moved the tag.
        """
        original = self._checkpoint.table
        if table is not None and table.metadata.table_uuid == original.metadata.table_uuid:
            landed = landed_snapshot(table.metadata)
            if landed is not None and landed.snapshot_id == self._checkpoint.landed:
                return False
            for snapshot in () if landed is None else ancestors(table.metadata, landed):
                if snapshot.snapshot_id == self.snapshot_id:
                    return True
        raise Fenced(full_name(original))


class _Replace:
    def __init__(self, table: Table, files: FileChange, facts: Mapping[str, str]) -> None:
        self._original = table
        self._facts = facts
        self._files = files
        self.snapshot_id = files.snapshot_id

    def stage(self, table: Table) -> Staged:
        checkpoint_of(table)  # raises after a rollback: a commit on top would hide it
        return self._files.stage(table, self._facts, moves_landed=False)

    def settled(self, table: Table | None) -> bool:
        return was_committed(self._original, self.snapshot_id, table)


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
        return replace(staged, requirements=(*staged.requirements, _unmoved(checkpoint)))


def was_committed(original: Table, snapshot_id: int, now: Table | None) -> bool:
    """Returns whether the snapshot was committed. Each attempt requires that `main` has not moved, so no
    delayed attempt can succeed after another. Raises Conflict if the table was dropped or replaced.
    """
    return same_table(original, now).metadata.snapshot_by_id(snapshot_id) is not None


def _unmoved(checkpoint: Checkpoint) -> TableRequirement:
    return AssertRefSnapshotId(ref=LANDED, snapshot_id=checkpoint.landed)


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)
