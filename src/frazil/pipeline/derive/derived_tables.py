"""The derived tables of one source as rounds and past days share them: their positions, the Spark job that
computes rows of several tables at once, and the failures of each table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.config.maintain import DAY_SECONDS
from frazil.errors import ConfigError, DataLost, JobFailed, Refused
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Checkpoint, committer_of
from frazil.lake.live_files import FilePartition
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout
from frazil.pipeline.derive.counting import place_of
from frazil.pipeline.derive.limit import Counts, Limit, beyond, largest
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.once import KEPT_MAX
from frazil.pipeline.derive.source import Cut, nowhere, position_of, tasks
from frazil.pipeline.derive.task import Derivation, Work, columns_of, derive_files
from frazil.pipeline.derive.unmatched import Rooms, pending_rows, rooms
from frazil.pipeline.derive.views.declare import declared_view
from frazil.pipeline.derive.views.task import run_view
from frazil.pipeline.runner import Runner
from frazil.position import SourcePosition
from frazil.storage import metrics as store_metrics
from frazil.tables import Signal, TableSpec, table_specs
from frazil.tables.derived.metric_cardinality import with_attributes
from frazil.tables.derived.view import ViewQuery
from frazil.tables.hashing import Hashes
from frazil.tables.promoted import promoted
from frazil.times import backoff_seconds

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 60.0, 3600.0

_DAY_GROUPS = 24
"""How many times the groups of a round a past day of a view may have."""
_NAMED_MAX = 20
_MEASURE_SECONDS = 600.0

log = structlog.get_logger("frazil.derive")


@dataclass(frozen=True)
class TableState:
    """A derived table, and the position in its source up to which it is complete."""

    spec: TableSpec
    checkpoint: Checkpoint
    position: SourcePosition

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass
class _Failures:
    count: int = 0
    until: float = 0.0
    reason: str = ""


class DerivedTables:
    """The derived tables of one source. What is remembered between calls saves work; nothing depends on
    it.
    """

    def __init__(
        self,
        config: Config,
        source: Signal,
        catalog: Catalog,
        runner: Runner,
        metrics: DeriveMetrics,
        specs: Sequence[TableSpec],
        clock: Callable[[], float],
        views: Mapping[str, ViewQuery] | None = None,
    ) -> None:
        """`views` are configured views of the source. Each becomes one of the tables in `declare_views`."""
        self.source = source
        self.config = config
        self.catalog = catalog
        self.metrics = metrics
        self.specs = [with_attributes(spec, config.derive.cardinality_attributes) for spec in specs]
        self._undeclared = dict(views or {})
        self.clock = clock
        self.committer = committer_of(config, catalog)
        self._runner = runner
        self._source_spec = table_specs(promoted(config))[source]
        self._written: dict[str, Hashes] = {}
        self._failures: dict[str, _Failures] = {}
        self._measured_at = float("-inf")

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]

    @property
    def problems(self) -> dict[str, str]:
        """Why tables could not be derived at the last attempt, by table."""
        return {name: failures.reason for name, failures in list(self._failures.items())}

    def source_table(self) -> Table | None:
        with catalog_errors():
            return table_or_none(self.catalog, self.config.lake.namespace, self.source)

    def declare_views(self) -> bool:
        """Makes the views tables that are derived. A view for which that fails is tried again later. Returns
        whether there are new tables.
        """
        before = len(self.specs)
        for name, query in list(self._undeclared.items()):
            if not self.is_due(name):
                continue
            try:
                spec = declared_view(self.config, self.catalog, name, query, self._runner)
            except (ConfigError, DataLost, JobFailed, Refused) as error:
                if self._runner.is_stopped:
                    raise
                self.fail(name, str(error))
            else:
                del self._undeclared[name]
                self.specs.append(spec)
                self.succeeded(name)
                self.metrics.recovered(name)
        return len(self.specs) > before

    def states(self) -> list[TableState]:
        """Reads the tables. Creates those that do not exist. Leaves out views that cannot be read."""
        states = []
        for spec in self.specs:
            try:
                states.append(self._state(spec))
            except (ConfigError, DataLost) as error:
                if not is_view(spec):
                    raise
                self.fail(spec.name, str(error))
        return states

    def _state(self, spec: TableSpec) -> TableState:
        counted = 0 if spec.derived is not None and spec.derived.counts else None
        first = replace(nowhere(self.source), counted=counted).to_text()
        with catalog_errors():
            checkpoint = open_table(self.catalog, self.config.lake.namespace, spec, first)
        return TableState(spec, checkpoint, position_of(checkpoint.table))

    def is_due(self, name: str) -> bool:
        """Returns whether the table may be tried: not shortly after a failure."""
        return self.clock() >= self._failures.get(name, _Failures()).until

    def run(
        self, table: Table, states: Sequence[TableState], cut: Cut, *, replacing: bool = False
    ) -> list[Derivation]:
        """Computes and writes rows of the tables from files of the source, in one Spark job. `replacing`:
        the rows that the tables hold of these days will be removed.
        """
        limits, rooms = self._limits(states, cut, replacing), self._rooms(states, cut, replacing)
        specs = [state.spec for state in states]
        level = self.config.land.compression_level
        names = {name for spec in specs if spec.derived is not None for name in spec.derived.columns}
        work = Work(
            Layout.of(table, columns_of(names, self._source_spec), level),
            Layout.of(table, columns_of(names, self._source_spec, with_maps=True), level),
            {state.name: Layout.of(state.checkpoint.table, state.spec, level) for state in states},
            cut.new_rows,
            {spec.name: self._written[spec.name] for spec in specs if spec.name in self._written},
            limits,
            rooms,
        )
        if is_view(specs[0]):
            return self._run_view(states, work, cut, replacing=replacing)
        results = self._runner.run_job(
            partial(derive_files, work), tasks(cut.files, self.config.derive.task_bytes_max)
        )
        self.note_unreadable({path: why for each in results for path, why in each.unreadable.items()})
        for state in states:
            if state.name in limits:
                self._keep_limit(state, limits[state.name], results)
            self._note_given_up(state.name, results)
        return results

    def _run_view(
        self, states: Sequence[TableState], work: Work, cut: Cut, *, replacing: bool
    ) -> list[Derivation]:
        """Runs the query of one view. Notes its failure, which is no reason to stop other tables."""
        (state,) = states
        groups_max = self.config.derive.view_groups_max * (_DAY_GROUPS if replacing else 1)
        files = tasks(cut.files, self.config.derive.task_bytes_max)
        try:
            results = run_view(self._runner, work, files, groups_max)
        except (JobFailed, Refused) as error:
            if self._runner.is_stopped:
                raise
            return [Derivation(files={state.name: []}, failed={state.name: str(error)})]
        for result in results:
            store_metrics.replay(result.calls)
        self.note_unreadable({path: why for each in results for path, why in each.unreadable.items()})
        groups = sum(result.groups for result in results)
        if groups > groups_max:
            self.discard(states, results)
            period = "a day" if replacing else "in a round"
            reason = (
                f"stopped: the query has more than {groups_max:,} groups {period} ({groups:,} were counted). "
                f"Group by fewer columns or longer times, or increase "
                "derive.view_groups_max; then restart the pipeline"
            )
            return [Derivation(files={state.name: []}, failed={state.name: reason}, is_final=True)]
        return results

    def _limits(self, states: Sequence[TableState], cut: Cut, replacing: bool) -> dict[str, Limit]:
        keys_max = self.config.derive.series_per_day_max
        found = {
            state.name: Limit.of(state.spec, state.checkpoint.table, cut, keys_max, replacing=replacing)
            for state in states
        }
        return {name: limit for name, limit in found.items() if limit is not None}

    def _rooms(self, states: Sequence[TableState], cut: Cut, replacing: bool) -> dict[str, Rooms]:
        rows_max = self.config.derive.unmatched_spans_per_day_max
        found = {
            state.name: rooms(state.spec, state.checkpoint.table, cut, rows_max, replacing=replacing)
            for state in states
        }
        return {name: each for name, each in found.items() if each}

    def _note_given_up(self, name: str, results: Sequence[Derivation]) -> None:
        given_up: Counter[FilePartition] = Counter()
        for result in results:
            given_up += result.given_up.get(name, Counter())
        if given_up:
            self.metrics.given_up(name, given_up.total())
            log.warning(
                "spans do not wait for the other side of their call: the tenant has "
                "derive.unmatched_spans_per_day_max on that day",
                table=name,
                tenants=sorted({partition.tenant or "" for partition in given_up})[:_NAMED_MAX],
                spans=given_up.total(),
            )

    def _keep_limit(self, state: TableState, limit: Limit, results: Sequence[Derivation]) -> None:
        """Deletes files of tasks that together exceed the bound, and counts the keys that are not written."""
        name, table = state.name, state.checkpoint.table
        counts = [result.keys.get(name, Counts()) for result in results]
        written = [(each, result.files[name]) for each, result in zip(counts, results, strict=True)]
        excess, refused = beyond(limit, table.io, written)
        for result in results:
            dropped = [file for file in result.files[name] if file.file_path in excess]
            if dropped:
                discard(table, dropped)
                result.files[name] = [each for each in result.files[name] if each.file_path not in excess]
                result.written[name] = np.zeros(0, np.uint64)  # its other rows may be written again
        refused = sum((each.refused for each in counts), +refused)
        if refused:
            tenants = {partition.tenant or "" for partition in refused}
            self.metrics.limited(tenants, refused.total())
            log.warning(
                "new series not written: the tenant has derive.series_per_day_max on that day",
                table=name,
                tenants=sorted(tenants)[:_NAMED_MAX],
                series=refused.total(),
            )

    def measure(self, states: Sequence[TableState]) -> None:
        """Sets the metrics of how many keys and pending rows a tenant has today, at most every ten
        minutes.
        """
        now = self.clock()
        if 0 <= now - self._measured_at < _MEASURE_SECONDS:
            return
        self._measured_at = now
        today = int(now // DAY_SECONDS)
        for state in states:
            derived = state.spec.derived
            if derived is not None and derived.limited_key:
                table = state.checkpoint.table.refresh()
                self.metrics.series(largest(table, derived.limited_key, today))
            if derived is not None and derived.pending is not None:
                table = state.checkpoint.table.refresh()
                self.metrics.unmatched(state.name, max(pending_rows(table, [today]).values(), default=0))

    def note_unreadable(self, files: Mapping[str, str]) -> None:
        """Reports corrupt files. Their rows are left out: waiting for the files would stop all tables."""
        self.metrics.unreadable(self.source, len(files))
        for path, reason in files.items():
            log.error(
                "rows not derived: data file not readable; restore it, then run `frazil backfill`",
                table=self.source,
                path=path,
                reason=reason,
            )

    def discard(self, states: Sequence[TableState], results: Sequence[Derivation]) -> None:
        """Deletes the files of results that are not committed."""
        for state in states:
            discard(state.checkpoint.table, files_of(results, state.name))

    def failed(self, results: Sequence[Derivation]) -> set[str]:
        """Notes the tables that could not be derived. They are tried again later, alone. Returns
        their names.
        """
        failed: dict[str, str] = {}
        for result in results:
            failed |= result.failed
        final = {name for result in results if result.is_final for name in result.failed}
        for name, reason in failed.items():
            self.fail(name, reason, is_final=name in final)
        return set(failed)

    def fail(self, name: str, reason: str, *, is_final: bool = False) -> None:
        """Notes that a table could not be derived. `is_final`: it is not tried again before a restart."""
        failures = self._failures.setdefault(name, _Failures())
        failures.count += 1
        failures.reason = reason
        self.metrics.failed(name)
        if is_final:
            failures.until = math.inf
            self.metrics.stopped(name)
            log.error("view stopped", table=name, reason=reason)
            return
        pause = backoff_seconds(failures.count, _RETRY_SECONDS, _RETRY_SECONDS_MAX)
        failures.until = self.clock() + pause
        log.error("table not derived; retrying", table=name, reason=reason, again_in_seconds=round(pause))

    def succeeded(self, name: str) -> None:
        """Forgets the failures of a table."""
        self._failures.pop(name, None)

    def remember(self, name: str, results: Sequence[Derivation]) -> None:
        """Remembers which committed rows need not be written again."""
        new = [
            result.written[name] for result in results if name in result.written and len(result.written[name])
        ]
        if new:
            before = self._written.get(name, np.zeros(0, np.uint64))
            after = np.unique(np.concatenate((before, *new)))
            self._written[name] = after if len(after) <= KEPT_MAX else np.unique(np.concatenate(new))

    def forget(self, name: str) -> None:
        """Forgets which rows of a table were written."""
        self._written.pop(name, None)


def by_position(
    states: Sequence[TableState], head: SourcePosition | None = None
) -> list[tuple[SourcePosition, list[TableState]]]:
    """Groups tables by their position; each view alone, after the others. Leaves out those that are complete
    up to `head`.
    """
    groups: dict[tuple[str, str], tuple[SourcePosition, list[TableState]]] = {}
    for state in sorted(states, key=lambda each: is_view(each.spec)):
        if head is None or state.position.snapshot_id != head.snapshot_id:
            position = place_of(state.position)
            view = state.name if is_view(state.spec) else ""
            groups.setdefault((position.to_text(), view), (position, []))[1].append(state)
    return list(groups.values())


def is_view(spec: TableSpec) -> bool:
    return spec.derived is not None and spec.derived.view is not None


def files_of(results: Sequence[Derivation], name: str) -> list[DataFile]:
    return [file for result in results for file in result.files.get(name, ())]
