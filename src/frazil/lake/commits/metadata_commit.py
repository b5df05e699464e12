"""The one retry loop of commits, and changes of a table that make no snapshot: of tags and properties, and
snapshots that go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, TableRequirement, TableUpdate

from frazil.errors import CatalogUnavailable, Conflict
from frazil.lake import pyiceberg_compat
from frazil.lake.catalog import full_name
from frazil.times import backoff_seconds

_CHANGE_SECONDS_MAX = 30.0
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 10.0

log = structlog.get_logger("frazil.lake")


class Committable(Protocol):
    @property
    def requirements(self) -> Sequence[TableRequirement]: ...

    @property
    def updates(self) -> Sequence[TableUpdate]: ...


class Change(Protocol):
    """What is committed. It is staged again on what the table has become after a refused attempt."""

    def stage(self, table: Table) -> Committable | None:
        """Returns what to commit; None if there is nothing to do. Raises if further attempts are useless."""
        ...

    def settled(self, table: Table | None) -> bool:
        """Returns True if an attempt was committed. Raises Fenced or Conflict if none ever can be. None: the
        table does not exist any more.
        """
        ...


@dataclass(frozen=True)
class CommitLoop:
    """Commits changes. `clock` and `sleep` are injected so that tests need not wait."""

    catalog: Catalog
    deadline_seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(
        self,
        table: Table,
        change: Change,
        *,
        looks_first: bool = False,
        check: Callable[[Table], None] = lambda table: None,
    ) -> tuple[TableMetadata, int]:
        """Returns the metadata with the change, and the number of attempts. `check` may refuse each attempt.

        Raises CatalogUnavailable if the outcome is not known before the deadline.
        """
        deadline = self.clock() + self.deadline_seconds
        if looks_first:
            table, _ = self._look(table, change, deadline)
        attempts = 0
        while True:
            try:
                staged = change.stage(table)
            except FileNotFoundError:  # what it stood on has expired since the table was loaded
                table, settled = self._look(table, change, deadline)
                staged = None if settled else change.stage(table)
            if staged is None:
                return table.metadata, attempts
            check(table)
            attempts += 1
            outcome = self._attempt(table, staged)
            if not isinstance(outcome, str):
                return outcome, attempts
            table, settled = self._look(table, change, deadline)
            if not settled and self.clock() >= deadline:
                raise CatalogUnavailable(
                    f"{full_name(table)} could not be committed in {self.deadline_seconds:g} s: {outcome}"
                )
            if not settled:
                self._pause(attempts)
                table, settled = self._look(table, change, deadline)  # it may have moved on in that time
            if settled:
                return table.metadata, attempts

    def _attempt(self, table: Table, staged: Committable) -> TableMetadata | str:
        """Returns why it failed, or may have failed."""
        try:
            response = self.catalog.commit_table(table, tuple(staged.requirements), tuple(staged.updates))
        except CommitFailedException as error:
            log.info("commit refused; looking again", table=full_name(table), reason=str(error))
            return str(error)
        except Exception as error:  # whatever it was, the commit may have happened
            log.warning("outcome of a commit is unknown; looking", table=full_name(table), reason=repr(error))
            return repr(error)
        delete_old_metadata(self.catalog, table, response.metadata)
        return response.metadata

    def _look(self, table: Table, change: Change, deadline: float) -> tuple[Table, bool]:
        """Returns the table as it is now, and whether the change was committed."""
        failures = 0
        while True:
            try:
                now = self.catalog.load_table(table.name())
            except NoSuchTableError:
                return table, change.settled(None)
            except Exception as error:
                if self.clock() >= deadline:
                    raise CatalogUnavailable(f"{full_name(table)}: {error}") from error
                log.warning("catalog does not answer", reason=str(error))
            else:
                return now, change.settled(now)
            failures += 1
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        self.sleep(backoff_seconds(failures, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX, jitter=True))


class Step(NamedTuple):
    requirements: Sequence[TableRequirement]
    updates: Sequence[TableUpdate]


def change(
    catalog: Catalog,
    table: Table,
    step: Callable[[Table], Step | None],
    *,
    seconds_max: float | None = None,
) -> TableMetadata:
    """Commits what `step` says is left to do, until it returns None or a commit stands. Returns the table's
    metadata as it then is.

    `step` is called again, with the table as it then is, after a commit that was refused or whose answer was
    lost: it returns None for what the lost one has done. It may raise.

    Raises CatalogUnavailable if no commit stands in time, and Conflict if the table is another by now.
    """
    return CommitLoop(catalog, seconds_max or _CHANGE_SECONDS_MAX).run(table, _Steps(table, step))[0]


class _Steps:
    def __init__(self, table: Table, step: Callable[[Table], Step | None]) -> None:
        self._began = table
        self._step = step

    def stage(self, table: Table) -> Step | None:
        step = self._step(table)
        if step is None:
            return None
        return Step((AssertTableUUID(uuid=self._began.metadata.table_uuid), *step.requirements), step.updates)

    def settled(self, table: Table | None) -> bool:
        return self._step(same_table(self._began, table)) is None


def same_table(began: Table, now: Table | None) -> Table:
    """Returns `now`. Raises Conflict if the table is gone, or another has its name."""
    if now is None or now.metadata.table_uuid != began.metadata.table_uuid:
        raise Conflict(full_name(began), "the table is gone, or another has its name")
    return now


def delete_old_metadata(catalog: Catalog, before: Table, after: TableMetadata) -> None:
    """Deletes metadata files that the table's properties say to keep no longer. REST catalogs do this
    themselves.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return
    try:
        pyiceberg_compat.delete_old_metadata(catalog, before, after)
    except Exception as error:  # the commit stands; a file too many is no reason to fail
        log.warning("old metadata could not be deleted", table=full_name(before), reason=str(error))
