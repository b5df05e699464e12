"""Runs the maintenance tasks on the tables of one lake: single tasks on request, or all that are due."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Refused, Stopped, reason_of
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.clock import known_time, recorded_time
from frazil.lake.commits.commit import committer_of
from frazil.lake.commits.manifests import rewrite_manifests, small_manifests
from frazil.lake.commits.metadata_commit import (
    MAINTENANCE,
    json_property,
    maintenance_properties,
    set_properties,
)
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import data_manifests, live_files
from frazil.lake.state.health import measure
from frazil.lake.tables import open_table
from frazil.lake.upkeep.expire import expire_old
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from frazil.lake.upkeep.tier import data_folders
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.compact import BadFiles, Compaction, Filling, Progress
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TASKS, Task, TaskReport
from frazil.pipeline.maintain.retain.retain import retain
from frazil.pipeline.maintain.retain.rules import RetentionRun
from frazil.pipeline.maintain.tier import Tiering
from frazil.pipeline.runner import Runner
from frazil.tables import TableSpec, table_specs
from frazil.tables.promoted import promoted
from frazil.times import backoff_seconds

Work = Task | Literal["measure"]
_BACKOFF_SECONDS_MAX = 3600.0
_HELD_SECONDS = 300.0
"""The interval of retention that waits for a confirmation."""
_NOTED: dict[Task, str] = {"expire": "expired_at", "retention": "retained_at", "orphans": "orphans_at"}

NO_TIER = "maintain.tier is not configured: set maintain.tier.location to the place for old files"

log = structlog.get_logger("frazil.maintain")


def no_table(name: str, existing: Sequence[str]) -> Refused:
    return Refused(f"there is no table {name}; there are: {', '.join(existing) or 'none yet'}")


@dataclass
class MaintenanceState:
    """Schedule and failures of the tasks. A new Maintainer gets the state of the previous one: otherwise
    failed tasks would run again at once.
    """

    last: dict[tuple[Work, str], float] = field(default_factory=dict)
    failures: dict[tuple[Work, str], int] = field(default_factory=dict)
    """Consecutive failures."""
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Written with the next expiry, to save a commit."""
    bad: BadFiles = field(default_factory=BadFiles)
    unfinished: set[tuple[Work, str]] = field(default_factory=set)
    """Tasks that reached their limit in the last round: they are due again in the next one."""
    held: dict[str, str] = field(default_factory=dict)
    """Tables whose retention waits for a confirmation, with the reason."""


class Maintainer:
    """Maintains the tables of one lake. Safe to run concurrently: commits are validated against the current
    table. `clock` returns the time of day.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        runner: Runner,
        metrics: MaintainMetrics,
        *,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
        state: MaintenanceState | None = None,
    ) -> None:
        self._config = config
        self._settings = config.maintain
        self._promoted = promoted(config)
        self._catalog = catalog
        self._metrics = metrics
        self._clock = clock
        self._progress = progress
        self._runner = runner
        self._committer = committer_of(config, catalog)
        self._state = state or MaintenanceState()

    @property
    def _specs(self) -> Mapping[str, TableSpec]:
        """The tables by name. Views may be declared at any time."""
        return table_specs(self._promoted)

    def tables(self) -> list[str]:
        with catalog_errors():
            existing = {name[-1] for name in self._catalog.list_tables(self._config.lake.namespace)}
        return [name for name in self._specs if name in existing]

    def can(self, task: Task, table: str) -> bool:
        if task == "tier" and self._settings.tier is None:
            return False
        spec = self._specs.get(table)
        if task == "fill":
            return spec is not None and bool(spec.promoted)
        return task not in ("compact", "tier") or (spec is not None and spec.merged_as is not None)

    def run(self, task: Task, table: str, *, dry_run: bool = False, confirmed: bool = False) -> TaskReport:
        """Runs the task now, regardless of the schedule. Raises Refused if the table does not exist.
        `confirmed` is for retention: an operator has checked the clock and the number of rows.
        """
        begin = time.monotonic()
        try:
            with telemetry.span(f"maintain.{task}", task=task, table=table, dry_run=dry_run) as span:
                report = self._run(task, table, dry_run=dry_run, confirmed=confirmed)
                if report.is_nothing:  # as in most rounds
                    span.forget()
                span.set(
                    files_in=report.files_in,
                    files_out=report.files_out,
                    bytes_in=report.bytes_in,
                    bytes_out=report.bytes_out,
                    rows_removed=report.rows_removed,
                    rows_combined=report.rows_combined,
                )
        except Exception:
            self._metrics.record_run(task, table, "failed", time.monotonic() - begin)
            raise
        if not dry_run:
            self._metrics.record_run(task, table, "nothing" if report.is_nothing else "done", report.seconds)
            self._metrics.record(report)
        return report

    def is_anything_due(self) -> bool:
        return any(
            self._has_passed("measure", table, self._settings.compact.interval_seconds)
            or any(self._is_due(task, table) for task in TASKS)
            for table in self.tables()
        )

    def round(self, must_end: Callable[[], bool] = lambda: False) -> list[TaskReport]:
        """Runs all due tasks on all tables, until `must_end`. Logs failures and retries them later."""
        reports: list[TaskReport] = []
        for table in self.tables():
            changed = False
            for task in TASKS:
                if self._runner.is_stopped or must_end():
                    return reports
                if self._is_due(task, table) and (report := self._try(task, table)) is not None:
                    reports.append(report)
                    changed |= not report.is_nothing
            # Reads all manifests, which is too expensive for every round.
            if changed or self._has_passed("measure", table, self._settings.compact.interval_seconds):
                self._observe(table)
        return reports

    def stop(self) -> None:
        """Cancels running Spark jobs. May be called from any thread."""
        self._runner.stop()

    def _try(self, task: Task, table: str) -> TaskReport | None:
        key = task, table
        self._state.last[key] = self._clock()
        try:
            report = self.run(task, table)
        except Exception as error:
            self._failed(task, table, error)
            return None
        self._state.failures.pop(key, None)
        if report.is_unfinished:  # continued in the next round, after the other tasks and tables
            self._state.unfinished.add(key)
        else:
            self._state.unfinished.discard(key)
        if task == "retention":
            self._note_held(table, report.held)
        if not report.is_nothing:
            detail = {name: value for name, value in report.detail.items() if value}
            seconds = round(report.seconds, 2)
            log.info("maintenance task finished", task=task, table=table, seconds=seconds, **detail)
        return report

    def _note_held(self, table: str, reason: str) -> None:
        if not reason:
            self._state.held.pop(table, None)
        elif table not in self._state.held:
            log.warning("retention held: confirmation required", table=table, reason=reason)
        if reason:
            self._state.held[table] = reason

    def _failed(self, work: Work, table: str, error: Exception) -> None:
        """Logs one line, without a stack trace: the failure may last for long."""
        if self._runner.is_stopped or isinstance(error, Stopped):
            return
        key = work, table
        self._state.unfinished.discard(key)
        self._state.failures[key] = self._state.failures.get(key, 0) + 1
        log.warning("maintenance failed; retrying", task=work, table=table, reason=reason_of(error))
        log.debug("maintenance failed", task=work, table=table, exc_info=error)

    def _is_due(self, task: Task, table: str) -> bool:
        interval, last = self._interval(task), self._state.last
        if interval is None or not self.can(task, table):
            return False
        if (task, table) not in last and task in _NOTED:
            last[task, table] = self._last_noted(_NOTED[task], table)
        return self._has_passed(task, table, self._next_interval(task, table, interval))

    def _has_passed(self, work: Work, table: str, interval: float) -> bool:
        last, now = self._state.last.get((work, table), 0.0), self._clock()
        # A time in the future was noted by a wrong clock.
        return last > now or now >= last + self._pause(work, table, interval)

    def _pause(self, work: Work, table: str, interval: float) -> float:
        """Returns the interval, doubled for each consecutive failure."""
        failures = self._state.failures.get((work, table), 0)
        return backoff_seconds(failures + 1, interval, max(interval, _BACKOFF_SECONDS_MAX))

    def _interval(self, task: Task) -> float | None:
        """Returns None if the task does not run automatically."""
        settings = self._settings
        if task == "fill":
            return None
        if task == "compact":
            return settings.compact.interval_seconds if settings.compact.enabled else None
        if task == "tier":
            return None if settings.tier is None else settings.tier.interval_seconds
        if task in ("manifests", "expire"):  # landing makes many manifests in the interval of expiry
            return settings.expire.interval_seconds if settings.expire.enabled else None
        if task == "orphans":
            return settings.orphans.interval_seconds if settings.orphans.enabled else None
        return settings.retention.interval_seconds

    def _next_interval(self, task: Task, table: str, interval: float) -> float:
        """Returns the interval, or less while the task is unfinished or held."""
        if (task, table) in self._state.unfinished:
            return 0.0
        if task == "retention" and table in self._state.held:
            return min(interval, _HELD_SECONDS)
        return interval

    def _last_noted(self, fact: str, table: str) -> float:
        """Returns when the task last ran, as noted in the table. 0 if the table cannot be read: the task then
        reports the reason.
        """
        try:
            at = json_property(self._load(table).metadata, MAINTENANCE).get(fact)
        except Exception:
            return 0.0
        return float(at) if isinstance(at, int | float) else 0.0

    def _load(self, name: str) -> Table:
        with catalog_errors():
            found = table_or_none(self._catalog, self._config.lake.namespace, name)
        if found is None:
            raise no_table(name, self.tables())
        return found

    def _run(self, task: Task, name: str, *, dry_run: bool, confirmed: bool) -> TaskReport:
        table = self._load(name)
        run: dict[Task, Callable[..., TaskReport]] = {
            "compact": self._compact,
            "fill": self._fill,
            "tier": self._tier,
            "manifests": self._manifests,
            "expire": self._expire,
            "orphans": self._orphans,
            "retention": partial(self._retention, confirmed=confirmed),
        }
        with catalog_errors():
            return run[task](table, name, dry_run=dry_run)

    def _refuse(self, task: Task, name: str, reason: str) -> None:
        if not self.can(task, name):
            raise Refused(reason)

    def _compact(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        self._refuse("compact", name, f"{name} cannot be compacted: retention keeps it small")
        settings = self._settings.compact
        layout = Layout.of(table, self._specs[name], settings.compression_level, rewriting=True)
        compaction = Compaction(table, layout, settings, self._committer, self._runner, self._state.bad)
        report = compaction.run(self._clock(), dry_run=dry_run, progress=self._progress)
        if report.files_out and not dry_run:
            self._state.facts.setdefault(name, {})["compacted_at"] = self._clock()
        return report

    def _fill(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        self._refuse("fill", name, f"{name} has no promoted columns")
        settings, spec = self._settings.compact, self._specs[name]
        if not dry_run:  # adds columns that landing has not added yet
            table = open_table(self._catalog, self._config.lake.namespace, spec, "").table
        layout = Layout.of(table, spec, settings.compression_level, rewriting=True)
        # Filling must not change the rows of a table.
        settings = settings.model_copy(update={"merge_identical_spans": False})
        filling = Filling(table, layout, settings, self._committer, self._runner, self._state.bad)
        return filling.run(self._clock(), dry_run=dry_run, progress=self._progress)

    def _tier(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        location, settings = self._config.tier_location, self._settings
        if settings.tier is None or location is None:
            raise Refused(NO_TIER)
        self._refuse("tier", name, f"{name} cannot be moved: retention keeps it small")
        tiering = Tiering(
            table,
            location,
            settings.tier,
            settings.compact,
            self._catalog,
            self._committer,
            self._runner,
            self._state.bad,
            self._specs[name],
        )
        return tiering.run(self._clock(), dry_run=dry_run, progress=self._progress)

    def _manifests(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        begin = time.monotonic()
        snapshot, limit = table.current_snapshot(), self._settings.expire.manifests_max
        small = [] if snapshot is None else small_manifests(data_manifests(table, snapshot))
        detail = {"small_manifests": len(small)} if len(small) > limit else {}
        if detail and not dry_run:
            rewrite_manifests(self._committer, table, limit)
        return TaskReport("manifests", name, dry_run, seconds=time.monotonic() - begin, detail=detail)

    def _expire(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        begin = time.monotonic()
        facts = self._state.facts.get(name, {}) | {"expired_at": self._clock()}
        expired = expire_old(
            self._catalog,
            table,
            self._settings.expire,
            properties=maintenance_properties(table.metadata, **facts),
            clock=self._clock,
            dry_run=dry_run,
        )
        if not dry_run:
            self._state.facts.pop(name, None)
        return TaskReport(
            "expire",
            name,
            dry_run,
            files_in=len(expired.files),
            bytes_in=expired.bytes,
            seconds=time.monotonic() - begin,
            detail={
                "snapshots": len(expired.snapshots),
                "hourly_tags_made": len(expired.tags_created),
                "hourly_tags_dropped": len(expired.tags_dropped),
            },
        )

    def _orphans(self, table: Table, name: str, *, dry_run: bool) -> TaskReport:
        begin, age = time.monotonic(), self._settings.orphans.age_seconds
        if dry_run:
            found = find_orphans(table, age)
        else:
            found = remove_orphans(table, age)
            table = self._load(name)
            facts = {"orphans_at": self._clock(), **_stored_bytes(table)}
            set_properties(self._catalog, table, maintenance_properties(table.metadata, **facts))
        return TaskReport(
            "orphans",
            name,
            dry_run,
            files_in=len(found),
            bytes_in=sum(each.bytes for each in found),
            seconds=time.monotonic() - begin,
        )

    def _retention(self, table: Table, name: str, *, dry_run: bool, confirmed: bool) -> TaskReport:
        """Uses the earlier of this machine's and the store's clock: a clock ahead would remove too much."""
        store_now = LakeFileIO(table.io.properties).now(f"{table.location().rstrip('/')}/metadata")
        now = min(self._clock(), store_now)
        others = self._known_time(now) if recorded_time(table.metadata) is None else None
        run = RetentionRun(now, dry_run, confirmed, others)
        report = retain(self._config, self._catalog, self._runner, table, run)
        if not dry_run:
            self._state.facts.setdefault(name, {})["retained_at"] = self._clock()
        return report

    def _known_time(self, now: float) -> float | None:
        """Returns the latest time known to any readable table."""
        latest: float | None = None
        for name in self.tables():
            with contextlib.suppress(Exception):
                known = known_time(self._load(name).metadata, now)
                latest = known if latest is None else max(latest, known or 0.0)
        return latest

    def _observe(self, name: str) -> None:
        """Measures the table's health for /metrics."""
        self._state.last["measure", name] = self._clock()
        try:
            with catalog_errors():
                found = measure(self._load(name), self._settings, self._clock(), spec=self._specs[name])
                self._metrics.health(name, found)
        except Exception as error:
            self._failed("measure", name, error)
        else:
            self._state.failures.pop(("measure", name), None)


def _stored_bytes(table: Table) -> dict[str, int]:
    """Returns the bytes of unreferenced files, and of files that only old snapshots need."""
    orphans = sum(orphan.bytes for orphan in find_orphans(table, 0.0))
    live = sum(each.file.file_size_in_bytes for each in live_files(table))
    files = LakeFileIO(table.io.properties)
    stored = sum(file.size for folder in data_folders(table) for file in files.walk(folder))
    return {"orphan_bytes": orphans, "old_bytes": max(stored - live - orphans, 0)}
