"""Prometheus metrics of derivation."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.tables import derived_specs

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_LAG_SECONDS = (1, 2.5, 5, 7.5, 10, 15, 20, 30, 45, 60, 75, 90, 120, 300, 600, 1800, 3600)
_COUNTERS = {
    "frazil_derived_source_rows": "Rows of the source table that were read for a derived table.",
    "frazil_derived_rows": "Rows committed to derived tables, before rows with the same key are merged.",
    "frazil_derived_bytes": "Bytes of data files committed to derived tables.",
    "frazil_derive_commits": "Commits to derived tables.",
    "frazil_derive_errors": "Attempts to derive rows of a table that failed.",
    "frazil_derive_fenced": "Batches of derived rows discarded because another process changed the table.",
    "frazil_derived_days": "Past days that were derived, by backfill or for an erasure.",
}
_GAUGES = {
    "frazil_derive_failing": "1 if the last attempt to derive rows of the table failed, else 0.",
    "frazil_derive_days_left": "Past days that still have to be derived in the background.",
}


class DeriveMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        table = ["table"]
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
        self._cpu = Counter(
            "frazil_derive_worker_cpu_seconds",
            "CPU seconds of Spark's Python workers during derivation.",
            ["source"],
            registry=registry,
        )
        for spec in derived_specs():  # a rate needs a 0 to start from
            for counter in self._counters.values():
                counter.labels(spec.name)

    def round(self, source: str, seconds: float, cpu_seconds: float) -> None:
        self._seconds.labels(source).observe(seconds)
        self._cpu.labels(source).inc(cpu_seconds)

    def unreadable(self, source: str, files: int) -> None:
        self._unreadable.labels(source).inc(files)

    def committed(
        self, table: str, *, source_rows: int, rows: int, size: int, landed_at: float | None
    ) -> None:
        """Counts a commit. `landed_at`: when the oldest of its rows landed, in seconds since 1970."""
        self._counters["frazil_derived_source_rows"].labels(table).inc(source_rows)
        self._counters["frazil_derived_rows"].labels(table).inc(rows)
        self._counters["frazil_derived_bytes"].labels(table).inc(size)
        self._counters["frazil_derive_commits"].labels(table).inc()
        self._gauges["frazil_derive_failing"].labels(table).set(0)
        if landed_at is not None:
            self._lag.labels(table).observe(max(0.0, time.time() - landed_at))

    def pending(self, table: str, since: float | None) -> None:
        """Sets when the oldest landed rows that are not derived yet landed; None: there are none."""
        self._pending.labels(table).set_function(
            lambda: 0.0 if since is None else max(0.0, time.time() - since)
        )

    def failed(self, table: str) -> None:
        self._counters["frazil_derive_errors"].labels(table).inc()
        self._gauges["frazil_derive_failing"].labels(table).set(1)

    def fenced(self, table: str) -> None:
        self._counters["frazil_derive_fenced"].labels(table).inc()

    def days(self, table: str, days: int) -> None:
        self._counters["frazil_derived_days"].labels(table).inc(days)

    def days_left(self, table: str, days: int) -> None:
        self._gauges["frazil_derive_days_left"].labels(table).set(days)

    def stand_down(self) -> None:
        """Removes the values that only the holder of the lease can report."""
        for gauge in (*self._gauges.values(), self._pending):
            gauge.clear()
