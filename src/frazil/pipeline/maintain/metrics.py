"""Prometheus metrics of maintenance."""

from __future__ import annotations

import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.lake.state.health import TableGauges, TableHealth
from frazil.pipeline.maintain.report import Task, TaskReport

Outcome = Literal["done", "nothing", "failed"]
Reason = Literal["retention", "identical"]
_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800)
_BY_TABLE = {
    "frazil_compacted_rows": "Rows rewritten by compaction.",
    "frazil_combined_rows": "Partial rows of derived tables that compaction combined into others.",
    "frazil_compacted_bytes_in": "Bytes of data files read by compaction.",
    "frazil_compacted_bytes_out": "Bytes of data files written by compaction.",
    "frazil_compacted_files_in": "Data files replaced by compaction.",
    "frazil_compacted_files_out": "Data files written by compaction.",
    "frazil_moved_files": "Data files moved to maintain.tier.location.",
    "frazil_moved_bytes": "Bytes of data files moved to maintain.tier.location.",
    "frazil_expired_snapshots": "Snapshots that expired.",
    "frazil_removed_orphans": "Files deleted because no snapshot refers to them.",
    "frazil_removed_orphan_bytes": "Bytes of files deleted because no snapshot refers to them.",
}
_BY_TASK = {
    "frazil_maintain_conflicts": "Rewrites discarded because another process changed the same files.",
    "frazil_maintain_failed_pieces": "Groups of data files that a maintenance task could not process.",
    "frazil_maintain_worker_cpu_seconds": "CPU seconds of Spark's Python workers during maintenance.",
}


class MaintainMetrics:
    """Prometheus metrics of the maintenance tasks and of the tables' health."""

    def __init__(self, registry: CollectorRegistry) -> None:
        table, task = ["table"], ["task", "table"]
        self._tables = TableGauges(registry)
        self._by_table = {
            name: Counter(name, text, table, registry=registry) for name, text in _BY_TABLE.items()
        }
        self._by_task = {
            name: Counter(name, text, task, registry=registry) for name, text in _BY_TASK.items()
        }
        self._runs = Counter(
            "frazil_maintain_runs",
            "Runs of maintenance tasks, by outcome.",
            [*task, "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "frazil_maintain_seconds",
            "Duration of one run of a maintenance task on one table.",
            ["task"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._removed = Counter(
            "frazil_removed_rows",
            "Rows removed from tables, by reason.",
            [*table, "reason"],
            registry=registry,
        )
        self._last = Gauge(
            "frazil_maintain_last_timestamp_seconds",
            "Unix time of the last successful run of a maintenance task on a table.",
            task,
            registry=registry,
        )
        self._failing = Gauge(
            "frazil_maintain_failing",
            "1 if the last run of a maintenance task on a table failed, else 0.",
            task,
            registry=registry,
        )
        self._overdue = Gauge(
            "frazil_retention_overdue_seconds",
            "Seconds by which removal of the oldest row past a retention rule is overdue; 0 if no row is.",
            table,
            registry=registry,
        )
        self._held = Gauge(
            "frazil_retention_held",
            "1 while retention of a table waits for `frazil maintain retention --confirm TABLE`, else 0.",
            table,
            registry=registry,
        )

    def record_run(self, task: Task, table: str, outcome: Outcome, seconds: float) -> None:
        self._runs.labels(task, table, outcome).inc()
        self._seconds.labels(task).observe(seconds)
        self._failing.labels(task, table).set(outcome == "failed")
        if outcome != "failed":
            self._last.labels(task, table).set_to_current_time()

    def record(self, report: TaskReport) -> None:
        """Counts the changes that a task made. Ignores dry runs."""
        if report.dry_run:
            return
        table = report.table
        for name, value in {
            "frazil_maintain_worker_cpu_seconds": report.cpu_seconds,
            "frazil_maintain_conflicts": report.detail.get("conflicts", 0),
            "frazil_maintain_failed_pieces": report.detail.get("failed", 0),
        }.items():
            self._by_task[name].labels(report.task, table).inc(value)
        for name, value in _changes(report).items():
            self._by_table[name].labels(table).inc(value)
        if report.task == "compact":
            self.removed_rows(table, "identical", report.rows_removed)
        elif report.task == "retention":
            self.removed_rows(table, "retention", report.rows_removed)
            self._held.labels(table).set(1 if report.held else 0)
            # Computed at each scrape, so that it also grows while rounds fail or do not run.
            since = report.due_since
            self._overdue.labels(table).set_function(
                lambda: 0.0 if since is None else max(0.0, time.time() - since)
            )

    def removed_rows(self, table: str, reason: Reason, rows: int) -> None:
        if rows:
            self._removed.labels(table, reason).inc(rows)

    def health(self, table: str, health: TableHealth) -> None:
        self._tables.show(table, health)


def _changes(report: TaskReport) -> dict[str, float]:
    """Returns the counters by table that the report adds to."""
    if report.task == "compact":
        return {
            "frazil_compacted_rows": report.rows,
            "frazil_combined_rows": report.rows_combined,
            "frazil_compacted_bytes_in": report.bytes_in,
            "frazil_compacted_bytes_out": report.bytes_out,
            "frazil_compacted_files_in": report.files_in,
            "frazil_compacted_files_out": report.files_out,
        }
    if report.task == "tier":
        return {"frazil_moved_files": report.files_in, "frazil_moved_bytes": report.bytes_in}
    if report.task == "expire":
        return {"frazil_expired_snapshots": report.detail.get("snapshots", 0)}
    if report.task == "orphans":
        return {"frazil_removed_orphans": report.files_in, "frazil_removed_orphan_bytes": report.bytes_in}
    return {}
