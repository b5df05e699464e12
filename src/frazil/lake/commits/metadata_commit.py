"""The retry loop of all commits, and commits without a snapshot: tags, properties, removal of snapshots."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import structlog
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, SetPropertiesUpdate, TableRequirement, TableUpdate

from frazil.errors import CatalogUnavailable, Conflict
from frazil.lake import pyiceberg_compat
from frazil.lake.catalog import full_name
from frazil.times import backoff_seconds

MAINTENANCE = "frazil.maintenance"
"""Table property (JSON): when each maintenance task last ran, and results that need a listing of all files.
"""
_COMMIT_SECONDS_MAX = 30.0
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 10.0

log = structlog.get_logger("frazil.lake")


class Committable(Protocol):
    @property
    def requirements(self) -> Sequence[TableRequirement]: ...

    @property
    def updates(self) -> Sequence[TableUpdate]: ...


class Change(Protocol):
    """A change to commit. After a refused attempt it is staged again on the current table."""

    def stage(self, table: Table) -> Committable | None:
        """Returns the changes to commit; None if there are none. Raises if further attempts are useless."""
        ...

    def settled(self, table: Table | None) -> bool:
        """Returns True if an attempt was committed. Raises Fenced or Conflict if none ever can be. `table` is
        None if the table no longer exists.
        """
        ...


@dataclass(frozen=True)
class CommitLoop:
    """Commits changes with retries. `clock` and `sleep` are injected so that tests need not wait."""

    catalog: Catalog
    deadline_seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(
        self,
        table: Table,
        change: Change,
        *,
        reload_first: bool = False,
        check: Callable[[Table], None] = lambda table: None,
    ) -> tuple[TableMetadata, int]:
        """Returns the metadata with the change, and the number of attempts. `check` may refuse each attempt.

        Raises CatalogUnavailable if the outcome is not known before the deadline.
        """
        deadline = self.clock() + self.deadline_seconds
        if reload_first:
            table, _ = self._reload(table, change, deadline)
        attempts = 0
        while True:
            try:
                staged = change.stage(table)
            except FileNotFoundError:  # the snapshot has expired since the table was loaded
                table, settled = self._reload(table, change, deadline)
                staged = None if settled else change.stage(table)
            if staged is None:
                return table.metadata, attempts
            check(table)
            attempts += 1
            outcome = self._attempt(table, staged)
            if not isinstance(outcome, str):
                return outcome, attempts
            table, settled = self._reload(table, change, deadline)
            if not settled and self.clock() >= deadline:
                raise CatalogUnavailable(
                    f"{full_name(table)} could not be committed in {self.deadline_seconds:g} s: {outcome}"
                )
            if not settled:
                self._pause(attempts)
                table, settled = self._reload(table, change, deadline)  # another process may have committed
            if settled:
                return table.metadata, attempts

    def _attempt(self, table: Table, staged: Committable) -> TableMetadata | str:
        """Returns the new metadata, or the reason why the commit failed or may have failed."""
        try:
            response = self.catalog.commit_table(table, tuple(staged.requirements), tuple(staged.updates))
        except CommitFailedException as error:
            log.info("commit refused", table=full_name(table), reason=str(error))
            return str(error)
        except Exception as error:  # after any other error the commit may have happened
            log.warning("commit outcome unknown", table=full_name(table), reason=repr(error))
            return repr(error)
        delete_old_metadata(self.catalog, table, response.metadata)
        return response.metadata

    def _reload(self, table: Table, change: Change, deadline: float) -> tuple[Table, bool]:
        """Returns the current table, and whether the change was committed."""
        failures = 0
        while True:
            try:
                now = self.catalog.load_table(table.name())
            except NoSuchTableError:
                return table, change.settled(None)
            except Exception as error:
                if self.clock() >= deadline:
                    raise CatalogUnavailable(f"{full_name(table)}: {error}") from error
                log.warning("catalog request failed", table=full_name(table), reason=str(error))
            else:
                return now, change.settled(now)
            failures += 1
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        self.sleep(backoff_seconds(failures, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX, jitter=True))


class MetadataChange(NamedTuple):
    requirements: Sequence[TableRequirement]
    updates: Sequence[TableUpdate]


def commit_metadata(
    catalog: Catalog,
    table: Table,
    plan: Callable[[Table], MetadataChange | None],
    *,
    seconds_max: float | None = None,
) -> TableMetadata:
    """Commits the change that `plan` returns for the current table. Returns the resulting metadata.

    `plan` is called again after a commit that was refused or whose response was lost. It returns None if
    nothing is left to do, and may raise.

    Raises CatalogUnavailable if no commit succeeds in time, and Conflict if the table was replaced.
    """
    return CommitLoop(catalog, seconds_max or _COMMIT_SECONDS_MAX).run(table, _PlannedChange(table, plan))[0]


class _PlannedChange:
    def __init__(self, table: Table, plan: Callable[[Table], MetadataChange | None]) -> None:
        self._original = table
        self._plan = plan

    def stage(self, table: Table) -> MetadataChange | None:
        change = self._plan(table)
        if change is None:
            return None
        is_same = AssertTableUUID(uuid=self._original.metadata.table_uuid)
        return MetadataChange((is_same, *change.requirements), change.updates)

    def settled(self, table: Table | None) -> bool:
        return self._plan(same_table(self._original, table)) is None


def same_table(original: Table, now: Table | None) -> Table:
    """Returns `now`. Raises Conflict if the table was dropped, or replaced by another of the same name."""
    if now is None or now.metadata.table_uuid != original.metadata.table_uuid:
        raise Conflict(full_name(original), "the table was dropped, or replaced by another of the same name")
    return now


def delete_old_metadata(catalog: Catalog, before: Table, after: TableMetadata) -> None:
    """Deletes metadata files beyond the number that the table's properties keep. REST catalogs do this
    themselves.
    """
    if not isinstance(catalog, MetastoreCatalog):
        return
    try:
        pyiceberg_compat.delete_old_metadata(catalog, before, after)
    except Exception as error:  # the commit succeeded; a leftover file is no reason to fail
        log.warning("old metadata not deleted", table=full_name(before), reason=str(error))


def json_property(metadata: TableMetadata, name: str) -> dict[str, Any]:
    """Returns a JSON table property. Empty if it is missing or not a JSON object."""
    try:
        found = json.loads(metadata.properties.get(name, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def number_or_none(value: object, below: float = 1e12) -> float | None:
    """Validates a number of a JSON property, which any engine may have written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < below else None  # type: ignore[arg-type,operator]


def set_properties(catalog: Catalog, table: Table, properties: Mapping[str, str]) -> None:
    def plan(now: Table) -> MetadataChange | None:
        if all(now.metadata.properties.get(key) == value for key, value in properties.items()):
            return None
        return MetadataChange((), (SetPropertiesUpdate(updates=dict(properties)),))

    commit_metadata(catalog, table, plan)


def maintenance_properties(metadata: TableMetadata, **facts: Any) -> dict[str, str]:
    """Returns the property `MAINTENANCE` with these facts added."""
    return {MAINTENANCE: json.dumps(json_property(metadata, MAINTENANCE) | facts, sort_keys=True)}
