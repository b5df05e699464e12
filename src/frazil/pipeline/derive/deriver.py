"""Derives the tables of one source: finds the rows that landed since each table's position, runs one
Spark job for all tables, and commits each table with its new position.

A crash anywhere leaves each table at a position that its rows agree with; the next round goes on from
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Conflict, DataLost, Fenced, StoreUnavailable
from frazil.lake.catalog import catalog_errors, full_name, table_or_none
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Checkpoint, committer_of
from frazil.lake.live_files import live_files, partition_of
from frazil.lake.snapshots import commit_times, landed_snapshot
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout
from frazil.pipeline.derive.counting import Counting, appended, place_of, replaced
from frazil.pipeline.derive.days import add_days, days_guarded, days_left, remove_days
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.once import KEPT_MAX, Hashes
from frazil.pipeline.derive.source import Cut, head_of, known, nowhere, tasks, unread, unread_by_segment
from frazil.pipeline.derive.survey import survey
from frazil.pipeline.derive.task import Derivation, Work, columns_of, derive_files
from frazil.pipeline.runner import Runner
from frazil.position import SourcePosition, source_position
from frazil.tables import Signal, TableSpec, derived_specs, table_specs
from frazil.tables.promoted import promoted
from frazil.times import backoff_seconds

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 60.0, 3600.0
_ADVANCE_SECONDS = 600.0
"""How old a position may become while only maintenance changes the source. If its snapshot has expired, new
rows are found by `_segment`, which costs more.
"""

_VANISHED_MAX = 3
"""Attempts in which live files may be missing: another process may be merging them."""

log = structlog.get_logger("frazil.derive")
Round = Literal["idle", "derived", "more"]


@dataclass(frozen=True)
class _State:
    """A derived table, and the position in its source up to which it is complete."""

    spec: TableSpec
    checkpoint: Checkpoint
    position: SourcePosition


@dataclass
class _Failures:
    count: int = 0
    until: float = 0.0
    reason: str = ""


@dataclass
class _Memory:
    """What is remembered between rounds. It saves work; nothing depends on it."""

    written: dict[str, Hashes] = field(default_factory=dict)
    failures: dict[str, _Failures] = field(default_factory=dict)
    vanished: int = 0
    """Attempts in a row in which live files of the source did not exist."""
    head: int | None = None
    """The source's snapshot when all tables were complete."""


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
        """`specs` are the tables; by default those of the source that are not disabled."""
        self.source = source
        self._config = config
        self._catalog = catalog
        self._runner = runner
        self._metrics = metrics
        self._clock = clock
        self._committer = committer_of(config, catalog)
        self._source_spec = table_specs(promoted(config))[source]
        disabled = config.derive.disabled_tables
        enabled = [spec for spec in derived_specs(source) if spec.name not in disabled]
        self._specs = enabled if specs is None else specs
        self._memory = _Memory()
        self._counting = Counting()

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return [spec.name for spec in self._specs]

    @property
    def problems(self) -> dict[str, str]:
        """Why tables could not be derived at the last attempt, by table."""
        return {name: failures.reason for name, failures in list(self._memory.failures.items())}

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
            if name not in self._memory.failures:
                self._metrics.recovered(name)

    def reset(self) -> None:
        """Drops cached state after an error."""
        self._memory.head = None

    def round(self) -> Round:
        """Derives the rows that landed since the last round, or a part of them."""
        self._metrics.began(self.tables)
        table = self._load()
        if table is None or not self._specs:
            return "idle"
        head = head_of(table)
        if head.snapshot_id == self._memory.head:
            for name in self.tables:
                self._metrics.pending(name, None)
            return "idle"
        states = self._states()
        due = [state for state in states if self._is_due(state.spec.name)]
        self._describe(states, head)
        results = [self._derive(table, position, group) for position, group in _by_position(due, head)]
        if "more" in results:
            return "more"
        if len(due) == len(states) and all(self._is_due(state.spec.name) for state in states):
            self._memory.head = head.snapshot_id
        return "derived" if results else "idle"

    def day(self) -> bool:
        """Derives the newest of the past days that are left. Returns whether there was one."""
        table = self._load()
        states = [] if table is None else self._states()
        left = {state.spec.name: days_left(state.checkpoint.table.metadata) for state in states}
        for name, days in left.items():
            self._metrics.days_left(name, len(days))
        ready = [state for state in states if left[state.spec.name] and self._is_due(state.spec.name)]
        if table is None or not ready:
            return False
        newest = max(left[state.spec.name][0] for state in ready)
        wanting = [state for state in ready if left[state.spec.name][0] == newest]
        self._rederive(
            table, [each for each in wanting if not self._would_lose(table, each, newest)], {newest}
        )
        for state in wanting:
            if self._is_due(state.spec.name):
                self._metrics.recovered(state.spec.name)
                metadata = remove_days(self._catalog, state.checkpoint.table, {newest})
                self._metrics.days_left(state.spec.name, len(days_left(metadata)))
        return True

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
        table = self._load()
        if table is None or not days:
            return set()
        states = [state for state in self._states() if state.spec.name in names]
        return self._rederive(table, states, days, tenant, facts)

    def _would_lose(self, table: Table, state: _State, day: int) -> bool:
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
                table=state.spec.name,
                day=day,
                rows=sum(losses.values()),
            )
        return bool(losses)

    def _load(self) -> Table | None:
        with catalog_errors():
            return table_or_none(self._catalog, self._config.lake.namespace, self.source)

    def _states(self) -> list[_State]:
        """Reads the tables. Creates those that do not exist."""
        states = []
        for spec in self._specs:
            counted = 0 if spec.derived is not None and spec.derived.counts else None
            first = replace(nowhere(self.source), counted=counted).to_text()
            with catalog_errors():
                checkpoint = open_table(self._catalog, self._config.lake.namespace, spec, first)
            try:
                position = source_position(checkpoint.position)
            except ValueError as error:
                reason = f"the table's position cannot be read: {error}; upgrade frazil"
                raise DataLost(full_name(checkpoint.table), reason) from None
            states.append(_State(spec, checkpoint, position))
        return states

    def _describe(self, states: Sequence[_State], head: SourcePosition) -> None:
        """Sets what metrics tell of tables before they are derived."""
        for state in states:
            if (committed_at := _rows_committed_at(state.checkpoint)) is not None:
                self._metrics.found(state.spec.name, committed_at)
            if state.position.snapshot_id == head.snapshot_id:
                self._metrics.pending(state.spec.name, None)

    def _is_due(self, name: str) -> bool:
        return self._clock() >= self._memory.failures.get(name, _Failures()).until

    def _derive(self, table: Table, since: SourcePosition, states: Sequence[_State]) -> Round:
        """Derives the rows after a position into the tables that are at it."""
        begin, began = time.monotonic(), self._clock()
        config = self._config.derive
        cut = unread(table, since, config.batch_bytes_max)
        if not cut.is_certain or (not cut.is_exact and cut.bytes > config.batch_bytes_max):
            self._postpone(cut, states)
            return "more"
        landed_at = self._landed_at(table, since) if cut.files else None
        for state in states:
            self._metrics.pending(state.spec.name, landed_at)
        if not cut.files and not self._must_advance(table, since):
            return "idle"
        with telemetry.span("derive", source=self.source, files=len(cut.files), bytes=cut.bytes):
            results = self._run(table, states, cut)
            if any(result.vanished for result in results):
                cut, results = self._run_again(table, states, since, results)
            failed = self._failed(results)
            for state in states:
                if state.spec.name not in failed:
                    self._append(state, cut, results, landed_at, began)
        seconds = time.monotonic() - begin
        self._metrics.round(self.source, seconds, sum(result.cpu_seconds for result in results))
        return "derived" if cut.is_complete else "more"

    def _must_advance(self, table: Table, since: SourcePosition) -> bool:
        """Returns whether a position without new rows after it should move on before its snapshot expires."""
        now_ms = int(self._clock() * 1000)
        committed = commit_times(table.metadata, now_ms).get(since.snapshot_id)
        return committed is None or now_ms - committed > _ADVANCE_SECONDS * 1000

    def _landed_at(self, table: Table, since: SourcePosition) -> float | None:
        """Returns when the first snapshot after the position was committed, in seconds since 1970."""
        times = commit_times(table.metadata, int(self._clock() * 1000))
        later = [
            times[each.snapshot_id]
            for each in table.metadata.snapshots
            if (each.sequence_number or 0) > since.sequence
        ]
        return min(later) / 1000 if later else None

    def _run(self, table: Table, states: Sequence[_State], cut: Cut) -> list[Derivation]:
        specs = [state.spec for state in states]
        level = self._config.land.compression_level
        work = Work(
            Layout.of(table, columns_of(specs, self._source_spec), level),
            Layout.of(table, columns_of(specs, self._source_spec, with_maps=True), level),
            {state.spec.name: Layout.of(state.checkpoint.table, state.spec, level) for state in states},
            cut.new_rows,
            {
                spec.name: self._memory.written[spec.name]
                for spec in specs
                if spec.name in self._memory.written
            },
        )
        results = self._runner.run_job(
            partial(derive_files, work), tasks(cut.files, self._config.derive.task_bytes_max)
        )
        self._note_unreadable({path: why for each in results for path, why in each.unreadable.items()})
        return results

    def _note_unreadable(self, files: Mapping[str, str]) -> None:
        """Reports corrupt files. Their rows are left out: waiting for the files would stop all tables."""
        self._metrics.unreadable(self.source, len(files))
        for path, reason in files.items():
            log.error(
                "rows not derived: data file not readable; restore it, then run `frazil backfill`",
                table=self.source,
                path=path,
                reason=reason,
            )

    def _run_again(
        self, table: Table, states: Sequence[_State], since: SourcePosition, results: Sequence[Derivation]
    ) -> tuple[Cut, list[Derivation]]:
        """Derives the same rows from the files that hold them now: those that were planned are gone."""
        self._discard(states, results)
        table.refresh()
        cut = unread_by_segment(table, since)
        again = self._run(table, states, cut)
        vanished = sorted({path for result in again for path in result.vanished})
        self._memory.vanished = self._memory.vanished + 1 if vanished else 0
        if vanished and self._memory.vanished >= _VANISHED_MAX:
            self._note_unreadable(dict.fromkeys(vanished, "the file does not exist"))
        elif vanished:
            self._discard(states, again)
            raise StoreUnavailable(
                f"{full_name(table)}: {len(vanished)} data files could not be read (first: {vanished[0]}): "
                "merged just now, or missing (`frazil verify`)"
            )
        return cut, again

    def _discard(self, states: Sequence[_State], results: Sequence[Derivation]) -> None:
        for state in states:
            discard(state.checkpoint.table, _files_of(results, state.spec.name))

    def _failed(self, results: Sequence[Derivation]) -> set[str]:
        """Notes the tables that could not be derived. They are tried again later, alone."""
        failed: dict[str, str] = {}
        for result in results:
            failed |= result.failed
        for name, reason in failed.items():
            self._fail(name, reason)
        return set(failed)

    def _fail(self, name: str, reason: str) -> None:
        failures = self._memory.failures.setdefault(name, _Failures())
        failures.count += 1
        failures.reason = reason
        pause = backoff_seconds(failures.count, _RETRY_SECONDS, _RETRY_SECONDS_MAX)
        failures.until = self._clock() + pause
        self._metrics.failed(name)
        log.error("table not derived; retrying", table=name, reason=reason, again_in_seconds=round(pause))

    def _append(
        self, state: _State, cut: Cut, results: Sequence[Derivation], landed_at: float | None, began: float
    ) -> None:
        name, files = state.spec.name, _files_of(results, state.spec.name)
        source_rows = sum(result.rows for result in results)
        rows = sum(file.record_count for file in files)
        try:
            committed = self._committer.append(
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
        self._succeed(name, results)
        if place_of(state.position) == nowhere(self.source):
            landed_at = None  # the rows may have landed before the table was declared
        size = sum(file.file_size_in_bytes for file in files)
        self._metrics.committed(name, source_rows=source_rows, rows=rows, size=size, landed_at=landed_at)
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

    def _succeed(self, name: str, results: Sequence[Derivation]) -> None:
        """Remembers what was written, and forgets failures."""
        self._memory.failures.pop(name, None)
        new = [
            result.written[name] for result in results if name in result.written and len(result.written[name])
        ]
        if new:
            before = self._memory.written.get(name, np.zeros(0, np.uint64))
            after = np.unique(np.concatenate((before, *new)))
            self._memory.written[name] = after if len(after) <= KEPT_MAX else np.unique(np.concatenate(new))

    def _postpone(self, cut: Cut, states: Sequence[_State]) -> None:
        """Leaves many old rows to be derived day by day, and goes on with the newest."""
        for state in states:
            metadata = add_days(self._catalog, state.checkpoint.table, cut.days)
            self._committer.append(state.checkpoint, [], appended(state.position, cut.until, 0).to_text())
            self._metrics.days_left(state.spec.name, len(days_left(metadata)))
            self._metrics.pending(state.spec.name, None)
            log.info("past days will be derived in the background", table=state.spec.name, days=len(cut.days))

    def _rederive(
        self,
        table: Table,
        states: Sequence[_State],
        days: Collection[int],
        tenant: str | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> set[str]:
        failed: set[str] = set()
        for position, group in _by_position(states):
            failed |= self._replace_days(table, position, group, days, tenant, facts or {})
        return failed

    def _replace_days(
        self,
        table: Table,
        position: SourcePosition,
        states: Sequence[_State],
        days: Collection[int],
        tenant: str | None,
        facts: Mapping[str, str],
    ) -> set[str]:
        """Replaces all rows of these days by what the source holds of them up to the tables' position.
        Rows that are derived at the same time are after the position, so they stay.
        """
        began = self._clock()
        cut = known(table, position, days, tenant)
        if not cut.is_certain:
            raise Conflict(
                full_name(table),
                "streams have ended since the tables' position, so old rows cannot be told from new ones; "
                "the day is derived again after the next round",
            )
        for state in states:  # a row written for another day does not stand for one of these days
            self._memory.written.pop(state.spec.name, None)
        results = self._run(table, states, cut)
        if any(result.vanished for result in results):
            self._discard(states, results)
            raise Conflict(
                full_name(table), "files were merged while they were read; the day is derived again"
            )
        failed = self._failed(results)
        for state in states:
            name = state.spec.name
            if name not in failed:
                source_rows = sum(result.rows for result in results)
                self._replace(state, _files_of(results, name), source_rows, days, tenant, facts, began)
                self._memory.failures.pop(name, None)
                self._metrics.days(name, len(days))
        return failed

    def _replace(
        self,
        state: _State,
        added: list[DataFile],
        source_rows: int,
        days: Collection[int],
        tenant: str | None,
        facts: Mapping[str, str],
        began: float,
    ) -> None:
        table = state.checkpoint.table
        removed = [
            each.file
            for each in live_files(table)
            for owner, day in [partition_of(each.file)]
            if day in days and (tenant is None or owner == tenant)
        ]
        if not removed and not added:
            return
        facts = {**facts, "frazil.rederived-days": str(len(days))}
        name = state.spec.name
        change = self._counting.change(state.spec, table, removed, source_rows, state.position.counted)
        try:
            self._committer.overwrite(
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
        log.info("past days derived", table=name, days=len(days), rows=rows, files=len(added))


def _by_position(
    states: Sequence[_State], head: SourcePosition | None = None
) -> list[tuple[SourcePosition, list[_State]]]:
    """Groups tables by their position. Leaves out those that are complete up to `head`."""
    groups: dict[str, tuple[SourcePosition, list[_State]]] = {}
    for state in states:
        if head is None or state.position.snapshot_id != head.snapshot_id:
            position = place_of(state.position)
            groups.setdefault(position.to_text(), (position, []))[1].append(state)
    return list(groups.values())


def _rows_committed_at(checkpoint: Checkpoint) -> float | None:
    """Returns when the position of a table with rows was last moved, in seconds since 1970."""
    metadata = checkpoint.table.metadata
    main, landed = metadata.snapshot_by_name(MAIN_BRANCH), landed_snapshot(metadata)
    if main is None or main.summary is None or landed is None:
        return None
    is_empty = main.summary.additional_properties.get("total-records", "0") == "0"
    return None if is_empty else landed.timestamp_ms / 1000


def _files_of(results: Sequence[Derivation], name: str) -> list[DataFile]:
    return [file for result in results for file in result.files.get(name, ())]
