"""What maintenance counts, for Prometheus."""

from __future__ import annotations

import time
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.lake.state.health import TableGauges, TableHealth
from frazil.pipeline.maintain.report import Task, TaskReport

Outcome = Literal["done", "nothing", "failed"]
Reason = Literal["retention", "identical"]
_SECONDS = (0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600, 1800)


class MaintainMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        table = ["table"]
        self._tables = TableGauges(registry)
        self._runs = Counter(
            "frazil_maintain_runs", "Tasks, by what came of them", ["task", "table", "outcome"],
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "frazil_maintain_seconds", "A task on a table", ["task"], registry=registry, buckets=_SECONDS
        )
        self._conflicts = Counter(
            "frazil_maintain_conflicts", "Pieces of work lost to others who changed the same files",
            ["task", "table"], registry=registry,
        )  # fmt: skip
        self._failed = Counter(
            "frazil_maintain_failed_pieces", "Pieces of work, each some files, that failed alone",
            ["task", "table"], registry=registry,
        )  # fmt: skip
        self._last = Gauge(
            "frazil_maintain_last_timestamp_seconds",
            "When a task last ended well",
            ["task", "table"],
            registry=registry,
        )
        self._failing = Gauge(
            "frazil_maintain_failing",
            "1 if the task failed on the table when it last ran, else 0.",
            ["task", "table"],
            registry=registry,
        )
        self._rows = Counter("frazil_compacted_rows", "Rows that were rewritten", table, registry=registry)
        self._bytes_in = Counter("frazil_compacted_bytes_in", "Bytes merged", table, registry=registry)
        self._bytes_out = Counter(
            "frazil_compacted_bytes_out", "Bytes made of them", table, registry=registry
        )
        self._files_in = Counter("frazil_compacted_files_in", "Files merged", table, registry=registry)
        self._files_out = Counter(
            "frazil_compacted_files_out", "Files made of them", table, registry=registry
        )
        self._cpu = Counter(
            "frazil_maintain_worker_cpu_seconds", "CPU of Spark's Python workers", ["task", "table"],
            registry=registry,
        )  # fmt: skip
        self._moved = Counter(
            "frazil_moved_files", "Files moved to maintain.tier.location", table, registry=registry
        )
        self._moved_bytes = Counter("frazil_moved_bytes", "Their bytes", table, registry=registry)
        self._expired = Counter("frazil_expired_snapshots", "Snapshots that went", table, registry=registry)
        self._orphans = Counter(
            "frazil_removed_orphans", "Files removed that no snapshot knew", table, registry=registry
        )
        self._orphan_bytes = Counter("frazil_removed_orphan_bytes", "Their bytes", table, registry=registry)
        self._removed = Counter(
            "frazil_removed_rows", "Rows removed from tables, by why", ["table", "reason"], registry=registry
        )

        self._overdue = Gauge(
            "frazil_retention_overdue_seconds",
            "Seconds since the oldest row of a table that is past a retention rule fell due; 0 if none is.",
            table,
            registry=registry,
        )
        self._held = Gauge(
            "frazil_retention_held",
            "1 while retention of a table waits for `frazil maintain retention --confirm TABLE`, else 0.",
            table,
            registry=registry,
        )

    def ran(self, task: Task, table: str, outcome: Outcome, seconds: float) -> None:
        self._runs.labels(task, table, outcome).inc()
        self._seconds.labels(task).observe(seconds)
        self._failing.labels(task, table).set(outcome == "failed")
        if outcome != "failed":
            self._last.labels(task, table).set_to_current_time()

    def did(self, report: TaskReport) -> None:
        """Counts what a task has done. A dry run has done nothing."""
        if report.dry_run:
            return
        table = report.table
        self._cpu.labels(report.task, table).inc(report.cpu_seconds)
        self._conflicts.labels(report.task, table).inc(report.detail.get("conflicts", 0))
        self._failed.labels(report.task, table).inc(report.detail.get("failed", 0))
        if report.task == "compact":
            self._rows.labels(table).inc(report.rows)
            self._bytes_in.labels(table).inc(report.bytes_in)
            self._bytes_out.labels(table).inc(report.bytes_out)
            self._files_in.labels(table).inc(report.files_in)
            self._files_out.labels(table).inc(report.files_out)
            self.removed_rows(table, "identical", report.rows_removed)
        elif report.task == "tier":
            self._moved.labels(table).inc(report.files_in)
            self._moved_bytes.labels(table).inc(report.bytes_in)
        elif report.task == "expire":
            self._expired.labels(table).inc(report.detail.get("snapshots", 0))
        elif report.task == "retention":
            self.removed_rows(table, "retention", report.rows_removed)
            self._held.labels(table).set(1 if report.held else 0)
            # It grows by itself: a round that fails or does not come must not look like one that kept up.
            since = report.due_since
            self._overdue.labels(table).set_function(
                lambda: 0.0 if since is None else max(0.0, time.time() - since)
            )
        elif report.task == "orphans":
            self._orphans.labels(table).inc(report.files_in)
            self._orphan_bytes.labels(table).inc(report.bytes_in)

    def removed_rows(self, table: str, reason: Reason, rows: int) -> None:
        if rows:
            self._removed.labels(table, reason).inc(rows)

    def health(self, table: str, health: TableHealth) -> None:
        self._tables.show(table, health)
