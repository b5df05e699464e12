"""Derives the tables of one source: finds the rows that landed since each table's position, runs one
Spark job for all tables, and commits each table with its new position.

A crash anywhere leaves each table at a position that its rows agree with; the next round goes on from
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Fenced, StoreUnavailable
from frazil.lake.catalog import full_name
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Checkpoint
from frazil.lake.snapshots import commit_times, landed_snapshot
from frazil.pipeline.derive.check import checked_views
from frazil.pipeline.derive.counting import appended, place_of
from frazil.pipeline.derive.days import add_days, days_left
from frazil.pipeline.derive.derived_tables import (
    DerivedTables,
    TableState,
    by_position,
    files_of,
    is_view,
)
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.past_days import ChosenDays, PastDays
from frazil.pipeline.derive.source import Cut, head_of, nowhere, unread, unread_by_segment
from frazil.pipeline.derive.task import Derivation
from frazil.pipeline.runner import Runner
from frazil.position import SourcePosition
from frazil.tables import Signal, TableSpec, derived_specs
from frazil.tables.derived.view import ViewQuery

_ADVANCE_SECONDS = 600.0
"""How old a position may become while only maintenance changes the source. If its snapshot has expired, new
rows are found by `_segment`, which costs more.
"""

_VANISHED_MAX = 3
"""Attempts in which live files may be missing: another process may be merging them."""

log = structlog.get_logger("frazil.derive")
Round = Literal["idle", "derived", "more"]


class Deriver:
    """Keeps the derived tables of one source complete. `round` derives one batch of new rows, `day` one
    past day.
    """

    def __init__(
        self,
        config: Config,
        source: Signal,
        catalog: Catalog,
        runner: Runner,
        metrics: DeriveMetrics,
        *,
        specs: Sequence[TableSpec] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`specs` are the tables; by default those of the source that are not disabled, and the configured
        views.
        """
        self.source = source
        self._metrics = metrics
        views: dict[str, ViewQuery] = {}
        if specs is None:
            is_off = config.derive.is_off
            enabled = [spec for spec in derived_specs(source) if not is_off(spec.name)]
            specs = [spec for spec in enabled if not is_view(spec)]
            queries, _ = checked_views(config)
            views = {
                name: query for name, query in queries.items() if query.source == source and not is_off(name)
            }
        self._tables = DerivedTables(config, source, catalog, runner, metrics, specs, clock, views)
        self._past = PastDays(self._tables)
        self._vanished = 0
        """Attempts in a row in which live files of the source did not exist."""
        self._head: int | None = None
        """The source's snapshot when all tables were complete."""

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return self._tables.names

    @property
    def problems(self) -> dict[str, str]:
        """Why tables could not be derived at the last attempt, by table."""
        return self._tables.problems

    def landed(self) -> None:
        """Counts rows that have landed as not derived yet. Called from any thread."""
        self._metrics.landed(self.tables)

    def note_failure(self) -> None:
        """Counts a failure of all tables: the round was not possible."""
        for name in self.tables:
            self._metrics.failed(name)

    def note_recovery(self) -> None:
        """Ends the failure of all tables, except of those that failed alone."""
        for name in self.tables:
            if name not in self._tables.problems:
                self._metrics.recovered(name)

    def reset(self) -> None:
        """Drops cached state after an error."""
        self._head = None

    def round(self) -> Round:
        """Derives the rows that landed since the last round, or a part of them."""
        self._metrics.began(self.tables)
        table = self._tables.source_table()
        if table is not None and self._tables.declare_views():
            self._head = None
        if table is None or not self._tables.specs:
            return "idle"
        head = head_of(table)
        if head.snapshot_id == self._head:
            for name in self.tables:
                self._metrics.pending(name, None)
            return "idle"
        states = self._tables.states()
        due = [state for state in states if self._tables.is_due(state.name)]
        self._describe(states, head)
        results = [self._derive(table, position, group) for position, group in by_position(due, head)]
        if results:
            self._tables.measure(states)
        if "more" in results:
            return "more"
        if len(due) == len(self._tables.specs) and all(map(self._tables.is_due, self.tables)):
            self._head = head.snapshot_id
        return "derived" if results else "idle"

    def day(self) -> bool:
        """Derives the newest of the past days that are left. Returns whether there was one."""
        return self._past.derive_newest()

    def rederive(
        self,
        names: Collection[str],
        days: Collection[int],
        tenant: str | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> set[str]:
        """Computes the rows of these days (of one tenant) again from what the source holds now. The snapshot
        summaries get `facts`. Returns the tables that could not be derived.

        Raises Conflict if a table was changed at the same time: the caller tries again.
        """
        return self._past.derive(names, ChosenDays(days, tenant, facts or {}))

    def _describe(self, states: Sequence[TableState], head: SourcePosition) -> None:
        """Sets what metrics tell of tables before they are derived."""
        for state in states:
            if (committed_at := _rows_committed_at(state.checkpoint)) is not None:
                self._metrics.found(state.name, committed_at)
            if state.position.snapshot_id == head.snapshot_id:
                self._metrics.pending(state.name, None)

    def _derive(self, table: Table, since: SourcePosition, states: Sequence[TableState]) -> Round:
        """Derives the rows after a position into the tables that are at it."""
        begin, began = time.monotonic(), self._tables.clock()
        config = self._tables.config.derive
        cut = unread(table, since, config.batch_bytes_max)
        if not cut.is_certain or (not cut.is_exact and cut.bytes > config.batch_bytes_max):
            self._postpone(cut, states)
            return "more"
        landed_at = self._landed_at(table, since) if cut.files else None
        for state in states:
            self._metrics.pending(state.name, landed_at)
        if not cut.files and not self._must_advance(table, since):
            return "idle"
        with telemetry.span("derive", source=self.source, files=len(cut.files), bytes=cut.bytes):
            results = self._tables.run(table, states, cut)
            if any(result.vanished for result in results):
                cut, results = self._run_again(table, states, since, results)
            failed = self._tables.failed(results)
            for state in states:
                if state.name not in failed:
                    self._append(state, cut, results, landed_at, began)
        seconds = time.monotonic() - begin
        self._metrics.round(self.source, seconds, sum(result.cpu_seconds for result in results))
        return "derived" if cut.is_complete else "more"

    def _must_advance(self, table: Table, since: SourcePosition) -> bool:
        """Returns whether a position without new rows after it should move on before its snapshot expires."""
        now_ms = int(self._tables.clock() * 1000)
        committed = commit_times(table.metadata, now_ms).get(since.snapshot_id)
        return committed is None or now_ms - committed > _ADVANCE_SECONDS * 1000

    def _landed_at(self, table: Table, since: SourcePosition) -> float | None:
        """Returns when the first snapshot after the position was committed, in seconds since 1970."""
        times = commit_times(table.metadata, int(self._tables.clock() * 1000))
        later = [
            times[each.snapshot_id]
            for each in table.metadata.snapshots
            if (each.sequence_number or 0) > since.sequence
        ]
        return min(later) / 1000 if later else None

    def _run_again(
        self, table: Table, states: Sequence[TableState], since: SourcePosition, results: Sequence[Derivation]
    ) -> tuple[Cut, list[Derivation]]:
        """Derives the same rows from the files that hold them now: those that were planned are gone."""
        self._tables.discard(states, results)
        table.refresh()
        cut = unread_by_segment(table, since)
        again = self._tables.run(table, states, cut)
        vanished = sorted({path for result in again for path in result.vanished})
        self._vanished = self._vanished + 1 if vanished else 0
        if vanished and self._vanished >= _VANISHED_MAX:
            self._tables.note_unreadable(dict.fromkeys(vanished, "the file does not exist"))
        elif vanished:
            self._tables.discard(states, again)
            raise StoreUnavailable(
                f"{full_name(table)}: {len(vanished)} data files could not be read (first: {vanished[0]}): "
                "merged just now, or missing (`frazil verify`)"
            )
        return cut, again

    def _append(
        self,
        state: TableState,
        cut: Cut,
        results: Sequence[Derivation],
        landed_at: float | None,
        began: float,
    ) -> None:
        name, files = state.name, files_of(results, state.name)
        source_rows = sum(result.rows for result in results)
        rows = sum(file.record_count for file in files)
        try:
            committed = self._tables.committer.append(
                state.checkpoint,
                files,
                appended(state.position, cut.until, source_rows).to_text(),
                facts={"frazil.rows": str(rows), "frazil.source-rows": str(source_rows)},
                began=began,
            )
        except Fenced:
            self._metrics.fenced(name)
            discard(state.checkpoint.table, files)
            log.info("derived rows discarded: another process changed the table", table=name)
            return
        self._tables.remember(name, results)
        self._tables.succeeded(name)
        if place_of(state.position) == nowhere(self.source):
            landed_at = None  # the rows may have landed before the table was declared
        size = sum(file.file_size_in_bytes for file in files)
        self._metrics.committed(
            name, source_rows=source_rows, rows=rows, files=len(files), size=size, landed_at=landed_at
        )
        self._metrics.pending(name, None)
        log.info(
            "rows derived",
            table=name,
            source_rows=source_rows,
            rows=rows,
            files=len(files),
            bytes=size,
            snapshot=committed.snapshot_id,
        )

    def _postpone(self, cut: Cut, states: Sequence[TableState]) -> None:
        """Leaves many old rows to be derived day by day, and goes on with the newest."""
        for state in states:
            metadata = add_days(self._tables.catalog, state.checkpoint.table, cut.days)
            self._tables.committer.append(
                state.checkpoint, [], appended(state.position, cut.until, 0).to_text()
            )
            self._metrics.days_left(state.name, len(days_left(metadata)))
            self._metrics.pending(state.name, None)
            log.info("past days will be derived in the background", table=state.name, days=len(cut.days))


def _rows_committed_at(checkpoint: Checkpoint) -> float | None:
    """Returns when the position of a table with rows was last moved, in seconds since 1970."""
    metadata = checkpoint.table.metadata
    main, landed = metadata.snapshot_by_name(MAIN_BRANCH), landed_snapshot(metadata)
    if main is None or main.summary is None or landed is None:
        return None
    is_empty = main.summary.additional_properties.get("total-records", "0") == "0"
    return None if is_empty else landed.timestamp_ms / 1000
