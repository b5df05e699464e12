"""Prometheus metrics of derivation."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.config import Config
from frazil.objectives import Objectives
from frazil.tables import derived_specs

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LAG_SECONDS = (1, 2.5, 5, 7.5, 10, 15, 20, 30, 45, 60, 75, 90, 120, 300, 600, 1800, 3600)
_COUNTERS = {
    "frazil_derived_source_rows": "Rows of the source table that were read for a derived table.",
    "frazil_derived_rows": "Rows committed to derived tables, before rows with the same key are merged.",
    "frazil_derived_files": "Data files committed to derived tables: one per tenant and day in each task.",
    "frazil_derived_bytes": "Bytes of data files committed to derived tables.",
    "frazil_derive_commits": "Commits to derived tables.",
    "frazil_derive_errors": "Attempts to derive rows of a table that failed.",
    "frazil_derive_fenced": "Batches of derived rows discarded because another process changed the table.",
    "frazil_derived_days": "Past days that were derived, by backfill or for an erasure.",
}
_GAUGES = {
    "frazil_derive_failing": "1 if the last attempt to derive rows of the table failed, else 0.",
    "frazil_derive_stopped": "1 if a view is stopped, because its query has more groups in a round than "
    "derive.view_groups_max, else 0.",
    "frazil_derive_days_left": "Past days that still have to be derived in the background.",
}


class DeriveMetrics:
    """The metrics of the derived tables. `objectives` are those of the registry's role, if it has any."""

    def __init__(
        self, registry: CollectorRegistry, config: Config | None = None, objectives: Objectives | None = None
    ) -> None:
        config = config or Config()
        table = ["table"]
        self._objectives = objectives
        self._lock = threading.Lock()
        self._since: dict[str, float | None] = {}
        self._landed: dict[str, float | None] = {}
        self._committed: set[str] = set()
        self._counters = {
            name: Counter(name, text, table, registry=registry) for name, text in _COUNTERS.items()
        }
        self._gauges = {name: Gauge(name, text, table, registry=registry) for name, text in _GAUGES.items()}
        self._pending = Gauge(
            "frazil_derive_pending_age_seconds",
            "Age of the oldest landed rows that are not in the derived table yet.",
            table,
            registry=registry,
        )
        self._seconds = Histogram(
            "frazil_derive_seconds",
            "Duration of one round of derivation from one source table.",
            ["source"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._lag = Histogram(
            "frazil_derive_lag_seconds",
            "Seconds from the landing commit of the oldest rows of a batch to the commit of the rows that "
            "were derived from them.",
            table,
            registry=registry,
            buckets=_LAG_SECONDS,
        )
        self._unreadable = Counter(
            "frazil_derive_unreadable_files",
            "Corrupt or missing data files of the source table whose rows were not derived.",
            ["source"],
            registry=registry,
        )
        self._series = Gauge(
            "frazil_derive_series_max",
            "Most series that one tenant has today (UTC) in the table series. Measured every ten minutes.",
            registry=registry,
        )
        self._not_written = Counter(
            "frazil_derive_series_not_written",
            "New series that were not written because their tenant has derive.series_per_day_max. A series "
            "counts in each round in which it has points.",
            registry=registry,
        )
        self._unmatched = Gauge(
            "frazil_derive_unmatched_max",
            "Most spans that one tenant has today (UTC) in the table that wait for the other side of their "
            "call. Measured every ten minutes.",
            table,
            registry=registry,
        )
        self._unmatched_not_kept = Counter(
            "frazil_derive_unmatched_not_kept",
            "Spans that do not wait for the other side of their call because their tenant has "
            "derive.unmatched_spans_per_day_max.",
            table,
            registry=registry,
        )
        self._limited_day = 0
        self._limited: set[str] = set()
        Gauge(
            "frazil_derive_series_limited_tenants",
            "Tenants of whom new series have not been written today (UTC).",
            registry=registry,
        ).set_function(self._limited_tenants)
        self._cpu = Counter(
            "frazil_derive_worker_cpu_seconds",
            "CPU seconds of Spark's Python workers during derivation.",
            ["source"],
            registry=registry,
        )
        self._last_commit = Gauge(
            "frazil_derive_last_commit_timestamp_seconds",
            "Unix time of the last commit of rows to the derived table.",
            table,
            registry=registry,
        )
        self._disabled = Gauge(
            "frazil_derive_disabled",
            "1 if the configuration disables the derived table, else 0.",
            table,
            registry=registry,
        )
        self._views = Gauge(
            "frazil_derive_view",
            "1 for each view, with the table that it reads; empty if the view is not valid.",
            ["table", "source"],
            registry=registry,
        )
        self._config = config
        for spec in derived_specs():
            self.declare(spec.name)
            if spec.derived is not None and spec.derived.pending is not None:
                self._unmatched_not_kept.labels(spec.name)

    def declare(self, table: str, *, is_off: bool = False) -> None:
        """Begins the metrics of a table. `is_off`: the configuration does not have the view."""
        for counter in self._counters.values():  # a rate needs a 0 to start from
            counter.labels(table)
        derive = self._config.derive
        self._disabled.labels(table).set(is_off or not derive.enabled or derive.is_off(table))

    def declare_view(self, table: str, source: str, *, is_off: bool = False) -> None:
        """Begins the metrics of a view. `source` is empty if the view is not valid."""
        self.declare(table, is_off=is_off)
        self._views.labels(table, source).set(1)

    def round(self, source: str, seconds: float, cpu_seconds: float) -> None:
        self._seconds.labels(source).observe(seconds)
        self._cpu.labels(source).inc(cpu_seconds)

    def unreadable(self, source: str, files: int) -> None:
        self._unreadable.labels(source).inc(files)

    def series(self, most: int) -> None:
        """Sets how many series the tenant with the most has today."""
        self._series.set(most)

    def unmatched(self, table: str, most: int) -> None:
        """Sets how many pending rows the tenant with the most has today."""
        self._unmatched.labels(table).set(most)

    def given_up(self, table: str, rows: int) -> None:
        """Counts pending rows that were not kept."""
        self._unmatched_not_kept.labels(table).inc(rows)

    def limited(self, tenants: set[str], series: int) -> None:
        """Counts new series of these tenants that were not written."""
        self._not_written.inc(series)
        with self._lock:
            if self._limited_day != (today := _today()):
                self._limited_day, self._limited = today, set()
            self._limited |= tenants

    def _limited_tenants(self) -> float:
        with self._lock:
            return len(self._limited) if self._limited_day == _today() else 0

    def committed(
        self, table: str, *, source_rows: int, rows: int, files: int, size: int, landed_at: float | None
    ) -> None:
        """Counts a commit. `landed_at`: when the oldest of its rows landed, in seconds since 1970."""
        self._counters["frazil_derived_source_rows"].labels(table).inc(source_rows)
        self._counters["frazil_derived_rows"].labels(table).inc(rows)
        self._counters["frazil_derived_files"].labels(table).inc(files)
        self._counters["frazil_derived_bytes"].labels(table).inc(size)
        self._counters["frazil_derive_commits"].labels(table).inc()
        self._gauges["frazil_derive_failing"].labels(table).set(0)
        if rows:
            self._committed.add(table)
            self._last_commit.labels(table).set_to_current_time()
        if landed_at is not None:
            lag = max(0.0, time.time() - landed_at)
            self._lag.labels(table).observe(lag)
            if source_rows and self._objectives is not None:
                self._objectives.observe("derive_lag", lag)

    def found(self, table: str, committed_at: float) -> None:
        """Sets when rows were last committed, as the table itself tells, if no commit was counted here."""
        if table not in self._committed:
            self._committed.add(table)
            self._last_commit.labels(table).set(committed_at)

    def began(self, tables: Collection[str]) -> None:
        """Begins a round, which sees all rows that have landed until now."""
        with self._lock:
            self._landed.update(dict.fromkeys(tables))

    def landed(self, tables: Collection[str]) -> None:
        """Counts rows that land now as pending. Called from any thread."""
        now = time.time()
        with self._lock:
            for table in tables:
                if self._landed.get(table) is None:
                    self._landed[table] = now
                if self._since.get(table) is None:
                    self._set_pending(table, now)

    def pending(self, table: str, since: float | None) -> None:
        """Sets when the oldest landed rows that are not derived yet landed. None: there are none except
        those that have landed since the round began.
        """
        with self._lock:
            self._set_pending(table, self._landed.get(table) if since is None else since)

    def _set_pending(self, table: str, since: float | None) -> None:
        self._since[table] = since
        self._pending.labels(table).set_function(
            lambda: 0.0 if since is None else max(0.0, time.time() - since)
        )

    def failed(self, table: str) -> None:
        self._counters["frazil_derive_errors"].labels(table).inc()
        self._gauges["frazil_derive_failing"].labels(table).set(1)

    def stopped(self, table: str) -> None:
        self._gauges["frazil_derive_stopped"].labels(table).set(1)

    def recovered(self, table: str) -> None:
        self._gauges["frazil_derive_failing"].labels(table).set(0)

    def fenced(self, table: str) -> None:
        self._counters["frazil_derive_fenced"].labels(table).inc()

    def days(self, table: str, days: int) -> None:
        self._counters["frazil_derived_days"].labels(table).inc(days)

    def days_left(self, table: str, days: int) -> None:
        self._gauges["frazil_derive_days_left"].labels(table).set(days)

    def stand_down(self) -> None:
        """Removes the values that only the holder of the lease can report."""
        with self._lock:
            self._since.clear()
            self._landed.clear()
            self._limited.clear()
            self._series.set(0)
            for gauge in (*self._gauges.values(), self._pending, self._unmatched):
                gauge.clear()


def _today() -> int:
    return int(time.time() // 86_400)
