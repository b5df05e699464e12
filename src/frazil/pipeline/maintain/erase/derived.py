"""Erasure in derived tables: what was computed from erased rows is computed again from the rows that are
left.

Days from which the source still holds all rows are computed again. Of other days (retention has removed
rows of the source) the numbers stay, because nothing could replace them, and the rows are deleted whose
own columns match the condition, if it is valid for the derived table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Conflict, Fenced, QueryInvalid, QueryRefused
from frazil.lake.commits.metadata_commit import json_property, set_properties
from frazil.lake.counted import counted_in
from frazil.lake.live_files import live_files, partition_of
from frazil.lake.upkeep.orphans import find_orphans
from frazil.pipeline.derive.days import add_days
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.survey import survey
from frazil.pipeline.maintain.erase.history import TenantHistory
from frazil.pipeline.maintain.erase.table import SearchSummary, TableEraser
from frazil.pipeline.maintain.predicates.match import Predicate, parse_predicate
from frazil.pipeline.runner import Runner
from frazil.position import without
from frazil.tables import TableSpec
from frazil.times import day_text

ERASING = "frazil.erase.days"
"""Table property (JSON): by tenant, the days that an erasure has begun to compute again. Once the rows of the
source are removed, nothing else tells which days counted them: an erasure after a crash goes on from here.
"""
_ATTEMPTS_MAX = 5
_NOTHING = "false"

log = structlog.get_logger("frazil.maintain")
Days = Callable[[], Collection[int]]


class DerivedEraser(TableEraser):
    """Erases from one derived table. `touched` returns the days in which rows of the source match, and
    `complete` those of them from which the source still holds all rows.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        runner: Runner,
        spec: TableSpec,
        tenant: str,
        where: str,
        erasure: str,
        deriver: Deriver,
        touched: Days,
        complete: Callable[[Collection[int]], set[int]],
    ) -> None:
        self._days_again: set[int] = set()
        self._days_kept: set[int] = set()
        predicate = _own_condition(where, spec)
        self.has_condition = predicate is not None
        condition = predicate or parse_predicate(_NOTHING, spec)
        super().__init__(config, catalog, runner, spec, tenant, condition, condition, erasure)
        self._deriver = deriver
        self._touched = touched
        self._complete = complete
        self._spec = spec
        self._dirty: set[str] = set()
        """Files that hold, or held, rows of days that are computed again."""
        self._done: set[int] = set()
        self._noted: set[int] = set()
        self._replaced_at: float | None = None
        self.report.is_derived = True

    def search(self) -> SearchSummary:
        """Returns no matches: the rows of the source decide what the operator has to confirm."""
        table = self._load()
        self._noted = {*_days_by_tenant(table).get(self._tenant, [])}
        history = self._history(table)
        self._plan({*self._touched()} | self._noted, history)
        reached = self._reached(table, history, self._matching(table, history.files.values()))
        return SearchSummary(tags=tuple(sorted(self._pinning(table, reached, ("incident", "reader")))))

    def begin(self) -> None:
        """Notes the days in the table, before rows of the source are removed."""
        if not self._days_again <= self._noted:
            self._noted |= self._days_again
            self._note_days(self._noted)

    def end(self) -> None:
        """Removes the note: the erasure is proven."""
        if self._noted:
            self._note_days(())

    def _note_days(self, days: Collection[int]) -> None:
        table = self._load()
        found = _days_by_tenant(table)
        found.pop(self._tenant, None)
        if days:
            found[self._tenant] = sorted(days)
        set_properties(self._catalog, table, {ERASING: json.dumps(found, sort_keys=True)})

    def remove(self) -> None:
        days = ({*self._touched()} | self._noted) - self._done
        self._done |= days
        if again := self._plan(days, self._history(self._load())):
            self._compute_again(again)
            location = f"{self._load().location().rstrip('/')}/metadata"
            self._replaced_at = self._files.now(location)
        if self.has_condition:
            super().remove()

    def _plan(self, days: Collection[int], history: TenantHistory) -> set[int]:
        """Returns which of the days are computed again, and notes them in the report."""
        again = self._complete({*days} - self._noted) | ({*days} & self._noted)
        self._days_again |= again
        self._days_kept |= {*days} - again
        self.report.days_recomputed = _dates(self._days_again)
        self.report.days_kept = _dates(self._days_kept)
        self._dirty |= {path for path, file in history.files.items() if partition_of(file).day in again}
        return again

    def delete_unreferenced(self) -> None:
        """Also deletes what attempts before the replacement left: they can no longer be committed. Their data
        files go first: a manifest is deleted when a file that it names does not exist.
        """
        if (before := self._replaced_at) is not None:
            orphans = find_orphans(self._load(), 0.0, float("inf"))
            old = [each.path for each in orphans if each.modified <= before]
            self._delete([path for path in old if self._is_data(path)])
        super().delete_unreferenced()

    def _matching(self, table: Table, files: Iterable[DataFile]) -> set[str]:
        files = list(files)
        found = super()._matching(table, [file for file in files if self._concerns(file)])
        return found | (self._dirty & {file.file_path for file in files})

    def _concerns(self, file: DataFile) -> bool:
        """Returns whether the condition applies: not to days that are computed again, because a bucket
        can match a condition on its start while it holds rows that do not.
        """
        return self.has_condition and partition_of(file).day not in self._days_again

    def _compute_again(self, days: Collection[int]) -> None:
        """Computes the days again. Drops their rows if that fails: it must not prevent the erasure."""
        for _ in range(_ATTEMPTS_MAX):
            try:
                failed = self._deriver.rederive([self._spec.name], days, self._tenant, facts=self._facts)
            except (Conflict, Fenced):
                continue
            if not failed:
                return
            break
        self._drop(days)

    def _drop(self, days: Collection[int]) -> None:
        """Removes the rows of these days without others in their place: the table cannot be derived now."""
        log.error("derived rows erased; they will be derived again", table=self._spec.name, days=len(days))
        table = self._load()
        removed = [each.file for each in live_files(table) if each.file.file_path in self._dirty]
        derived = self._spec.derived
        counted = counted_in(table, removed, derived) if derived is not None and derived.counts else 0
        advance = partial(without, {}, counted=counted)
        self._committer.overwrite(table, removed, [], advance, facts=self._facts)
        add_days(self._catalog, self._load(), days)


def _days_by_tenant(table: Table) -> dict[str, list[int]]:
    return json_property(table.metadata, ERASING)


def _dates(days: Collection[int]) -> list[str]:
    return [day_text(day) for day in sorted(days)]


def _own_condition(where: str, spec: TableSpec) -> Predicate | None:
    """Returns the condition for the derived table's columns; None if it names others."""
    with contextlib.suppress(QueryInvalid, QueryRefused):
        return parse_predicate(where, spec)
    return None


def lacking_days(
    source: Table, tables: Sequence[tuple[TableSpec, Table]], tenant: str, days: Collection[int]
) -> set[int]:
    """Returns the days of which the source holds fewer of the tenant's rows than a derived table counts."""
    return {
        each.day
        for spec, table in tables
        for each in survey(source, table, spec, days, tenant)
        if each.losses
    }
