"""Derives past days of the tables of one source again: days that were left, a backfill's, an erasure's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.errors import Conflict, Fenced
from frazil.lake.catalog import full_name
from frazil.lake.commits.cleanup import discard
from frazil.lake.live_files import live_files, partition_of
from frazil.pipeline.derive.counting import Counting, replaced
from frazil.pipeline.derive.days import days_guarded, days_left, remove_days
from frazil.pipeline.derive.derived_tables import DerivedTables, TableState, by_position, files_of
from frazil.pipeline.derive.source import known
from frazil.pipeline.derive.survey import survey
from frazil.position import SourcePosition

log = structlog.get_logger("frazil.derive")


@dataclass(frozen=True)
class ChosenDays:
    """Days to derive again, of all tenants or one. `facts` go into the snapshot summaries."""

    days: Collection[int]
    tenant: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)

    def includes(self, file: DataFile) -> bool:
        owner, day = partition_of(file)
        return day in self.days and (self.tenant is None or owner == self.tenant)


class PastDays:
    """Replaces whole days of derived tables by what the source holds of them."""

    def __init__(self, tables: DerivedTables) -> None:
        self._tables = tables
        self._metrics = tables.metrics
        self._counting = Counting()

    def derive_newest(self) -> bool:
        """Derives the newest of the past days that are left. Returns whether there was one."""
        table = self._tables.source_table()
        states = [] if table is None else self._tables.states()
        left = {state.name: days_left(state.checkpoint.table.metadata) for state in states}
        for name, days in left.items():
            self._metrics.days_left(name, len(days))
        ready = [state for state in states if left[state.name] and self._tables.is_due(state.name)]
        if table is None or not ready:
            return False
        newest = max(left[state.name][0] for state in ready)
        wanting = [state for state in ready if left[state.name][0] == newest]
        kept = [each for each in wanting if not self._would_lose(table, each, newest)]
        self._derive(table, kept, ChosenDays({newest}))
        for state in wanting:
            if self._tables.is_due(state.name):
                self._metrics.recovered(state.name)
                metadata = remove_days(self._tables.catalog, state.checkpoint.table, {newest})
                self._metrics.days_left(state.name, len(days_left(metadata)))
        return True

    def derive(self, names: Collection[str], chosen: ChosenDays) -> set[str]:
        """Computes the rows of these days again from what the source holds now. Returns the tables that
        could not be derived.

        Raises Conflict if a table was changed at the same time: the caller tries again.
        """
        table = self._tables.source_table()
        if table is None or not chosen.days:
            return set()
        states = [state for state in self._tables.states() if state.name in names]
        return self._derive(table, states, chosen)

    def _derive(self, table: Table, states: Sequence[TableState], chosen: ChosenDays) -> set[str]:
        failed: set[str] = set()
        for position, group in by_position(states):
            failed |= self._replace_all(table, position, group, chosen)
        return failed

    def _would_lose(self, table: Table, state: TableState, day: int) -> bool:
        """Returns whether rows of a guarded day would get lost. Retention may have removed rows of the source
        since an operator asked for the day.
        """
        if day not in days_guarded(state.checkpoint.table.metadata):
            return False
        found = survey(table, state.checkpoint.table, state.spec, state.position, {day})
        losses = {tenant: had - held for each in found for tenant, (had, held) in each.losses.items()}
        if losses:
            log.warning(
                "past day not derived again: rows of the source were removed",
                table=state.name,
                day=day,
                rows=sum(losses.values()),
            )
        return bool(losses)

    def _replace_all(
        self, table: Table, position: SourcePosition, states: Sequence[TableState], chosen: ChosenDays
    ) -> set[str]:
        """Replaces all rows of these days by what the source holds of them up to the tables' position.
        Rows that are derived at the same time are after the position, so they stay.
        """
        began = self._tables.clock()
        cut = known(table, position, chosen.days, chosen.tenant)
        if not cut.is_certain:
            raise Conflict(
                full_name(table),
                "streams have ended since the tables' position, so old rows cannot be told from new ones; "
                "the day is derived again after the next round",
            )
        for state in states:  # a row written for another day does not stand for one of these days
            self._tables.forget(state.name)
        results = self._tables.run(table, states, cut)
        if any(result.vanished for result in results):
            self._tables.discard(states, results)
            raise Conflict(
                full_name(table), "files were merged while they were read; the day is derived again"
            )
        failed = self._tables.failed(results)
        for state in states:
            name = state.name
            if name not in failed:
                source_rows = sum(result.rows for result in results)
                self._replace(state, files_of(results, name), source_rows, chosen, began)
                self._tables.succeeded(name)
                self._metrics.days(name, len(chosen.days))
        return failed

    def _replace(
        self,
        state: TableState,
        added: list[DataFile],
        source_rows: int,
        chosen: ChosenDays,
        began: float,
    ) -> None:
        table = state.checkpoint.table
        removed = [each.file for each in live_files(table) if chosen.includes(each.file)]
        if not removed and not added:
            return
        facts = {**chosen.facts, "frazil.rederived-days": str(len(chosen.days))}
        name = state.name
        change = self._counting.change(state.spec, table, removed, source_rows, state.position.counted)
        try:
            self._tables.committer.overwrite(
                table,
                removed,
                added,
                partial(replaced, table=full_name(table), before=state.position, change=change),
                facts=facts,
                began=began,
            )
        except (Conflict, Fenced):
            self._counting.forget(name)
            discard(table, added)
            raise
        self._counting.committed(name)
        rows = sum(file.record_count for file in added)
        log.info("past days derived", table=name, days=len(chosen.days), rows=rows, files=len(added))
