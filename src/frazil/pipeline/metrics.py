"""Prometheus metrics of the pipeline: landing, WAL clean-up and Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pyiceberg.manifest import DataFile

from frazil.config import Config
from frazil.objectives import Objective, Objectives
from frazil.tables import SIGNALS

if TYPE_CHECKING:
    from frazil.pipeline.land.source import BatchResult

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FILES = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
_LAG_SECONDS = (1, 2.5, 5, 10, 20, 30, 45, 60, 75, 90, 120, 180, 300, 600, 1800, 3600)

_COUNTERS = {
    "frazil_landed_rows": "Rows committed by landing.",
    "frazil_landed_bytes": "Bytes of data files committed by landing.",
    "frazil_landed_wal_bytes": "Bytes of the write-ahead log that landed.",
    "frazil_landed_files": "Data files committed by landing.",
    "frazil_land_too_many_files": "Landing batches split into smaller batches because they needed "
    "more data files than land.files_per_commit_max.",
    "frazil_land_commits": "Landing commits.",
    "frazil_land_commit_attempts": "Attempts to commit landing batches. Exceeds the commits if other "
    "processes commit to the same table at the same time.",
    "frazil_landed_clamped_rows": "Rows whose time was outside the horizon and was set to the received time.",
    "frazil_land_worker_cpu_seconds": "CPU seconds of Spark's Python workers during landing.",
    "frazil_land_set_aside": "WAL segments or Kafka messages that could not be read and were set aside.",
    "frazil_land_fenced": "Landing batches discarded because another process changed the table first.",
    "frazil_land_errors": "Rounds of landing, WAL clean-up or WAL watch that failed.",
    "frazil_wal_cleaned_segments": "WAL segments deleted after landing.",
    "frazil_wal_cleaned_bytes": "Bytes of WAL segments deleted after landing.",
}
_GAUGES = {
    "frazil_land_pending_bytes": "Bytes in the write-ahead log that have not landed. A lower bound above "
    "land.batch_bytes_max.",
    "frazil_land_pending_segments": "WAL segments, or Kafka messages, that have not landed.",
    "frazil_land_pending_age_seconds": "Age of the oldest data in the write-ahead log that has not landed.",
    "frazil_land_last_commit_timestamp_seconds": "Unix time of the last landing commit.",
    "frazil_land_stopped": "1 while landing or WAL upkeep of a table needs operator action, else 0.",
    "frazil_wal_landed_segments": "WAL segments that have landed and are not deleted yet.",
    "frazil_wal_cleanup_lag_seconds": "Seconds for which deletion of the oldest landed WAL segment has been "
    "overdue.",
    "frazil_land_worker_rss_bytes": "Peak memory of Spark's largest Python worker in the last landing "
    "batch, in bytes.",
}
_HISTOGRAMS = {
    "frazil_land_commit_files": (
        "Data files that one landing commit added: one for each tenant and day in each task.",
        _FILES,
    ),
    "frazil_land_seconds": (
        "Duration of a landing batch, from reading the position to the commit.",
        _SECONDS,
    ),
    "frazil_land_commit_seconds": ("Duration of the commit of a landing batch.", _SECONDS),
    "frazil_land_lag_seconds": (
        "Seconds from receiving the oldest record of a landing batch to the commit of the batch.",
        _LAG_SECONDS,
    ),
}
_ZERO_AT_START = (
    *("frazil_land_commits", "frazil_land_commit_attempts", "frazil_land_errors", "frazil_land_set_aside"),
    *("frazil_land_fenced", "frazil_land_too_many_files"),
)
_LEADER_ONLY = (
    *("frazil_land_pending_bytes", "frazil_land_pending_segments", "frazil_land_pending_age_seconds"),
    *("frazil_land_stopped", "frazil_wal_landed_segments", "frazil_wal_cleanup_lag_seconds"),
)


class Metrics:
    """The metrics of one pipeline process. `config` sets the objectives; commands have none."""

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        registry = self.registry = CollectorRegistry()
        # With Kafka, data can be queried only after it has landed: freshness is the landing lag.
        self._lag_objectives: tuple[Objective, ...] = ("landing_lag",)
        if config.wal.type == "kafka":
            self._lag_objectives = ("landing_lag", "freshness")
        derived: tuple[Objective, ...] = ("derive_lag",) if config.derive.enabled else ()
        self.objectives = Objectives(registry, config, (*self._lag_objectives, *derived))
        table = ["table"]
        self._counters = {
            name: Counter(name, text, table, registry=registry) for name, text in _COUNTERS.items()
        }
        self._gauges = {name: Gauge(name, text, table, registry=registry) for name, text in _GAUGES.items()}
        self._histograms = {
            name: Histogram(name, text, table, registry=registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        self.leader = Gauge(
            "frazil_pipeline_leader", "1 in the pipeline that holds the lease, else 0.", registry=registry
        )
        self._jobs = Counter("frazil_spark_jobs", "Jobs started on Spark.", registry=registry)
        self._starts = Counter(
            "frazil_spark_starts", "Starts of Spark. More than 1 if Spark has died.", registry=registry
        )
        self._stopped_parts: set[tuple[str, str]] = set()
        self._stopped_lock = threading.Lock()
        for name in _ZERO_AT_START:
            for signal in SIGNALS:  # a rate needs a 0 to start from
                self._counters[name].labels(signal)

    def _add(self, table: str, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._counters[name].labels(table).inc(value)

    def landed(
        self,
        table: str,
        batch: BatchResult,
        files: Sequence[DataFile],
        *,
        wal_bytes: int,
        seconds: float,
        commit_seconds: float,
        attempts: int,
    ) -> None:
        results = batch.results
        self._add(
            table,
            {
                "frazil_landed_rows": batch.rows,
                "frazil_landed_bytes": sum(file.file_size_in_bytes for file in files),
                "frazil_landed_wal_bytes": wal_bytes,
                "frazil_landed_files": len(files),
                "frazil_land_commits": 1,
                "frazil_land_commit_attempts": attempts,
                "frazil_landed_clamped_rows": sum(result.clamped for result in results),
                "frazil_land_worker_cpu_seconds": sum(result.cpu_seconds for result in results),
            },
        )
        self._histograms["frazil_land_commit_files"].labels(table).observe(len(files))
        self._histograms["frazil_land_seconds"].labels(table).observe(seconds)
        self._histograms["frazil_land_commit_seconds"].labels(table).observe(commit_seconds)
        rss_bytes = max((result.rss_bytes for result in results), default=0)
        self._gauges["frazil_land_worker_rss_bytes"].labels(table).set(rss_bytes)
        self._gauges["frazil_land_last_commit_timestamp_seconds"].labels(table).set(time.time())
        oldest = [nano for result in results if (nano := result.oldest_received_unix_nano) is not None]
        if oldest:
            lag = max(0.0, time.time() - min(oldest) / 1e9)
            self._histograms["frazil_land_lag_seconds"].labels(table).observe(lag)
            for objective in self._lag_objectives:
                self.objectives.observe(objective, lag)

    def pending(self, table: str, size: int, count: int, since: float | None) -> None:
        """Sets the backlog. `since`: when the oldest pending data was made durable, in seconds since 1970."""
        self._gauges["frazil_land_pending_bytes"].labels(table).set(size)
        self._gauges["frazil_land_pending_segments"].labels(table).set(count)
        self._set_age("frazil_land_pending_age_seconds", table, since)

    def _set_age(self, name: str, table: str, since: float | None) -> None:
        """Sets an age that is computed at each scrape, so it also grows while the reporting step fails."""
        self._gauges[name].labels(table).set_function(
            lambda: 0.0 if since is None else max(0.0, time.time() - since)
        )

    def stand_down(self) -> None:
        """Removes the values that only the holder of the lease can report."""
        self.leader.set(0)
        self._stopped_parts.clear()
        for name in _LEADER_ONLY:
            self._gauges[name].clear()

    def set_aside(self, table: str, count: int) -> None:
        self._add(table, {"frazil_land_set_aside": count})

    def fenced(self, table: str) -> None:
        self._add(table, {"frazil_land_fenced": 1})

    def too_many_files(self, table: str) -> None:
        self._add(table, {"frazil_land_too_many_files": 1})

    def failed(self, table: str, *, stopped: bool, part: str = "landing") -> None:
        self._add(table, {"frazil_land_errors": 1})
        self._set_stopped(table, part, stopped)

    def succeeded(self, table: str, part: str) -> None:
        self._set_stopped(table, part, False)

    def _set_stopped(self, table: str, part: str, stopped: bool) -> None:
        """Called from the threads of several parts. A table is stopped while any of its parts is."""
        with self._stopped_lock:
            (self._stopped_parts.add if stopped else self._stopped_parts.discard)((table, part))
            is_stopped = any(each == table for each, _ in self._stopped_parts)
            self._gauges["frazil_land_stopped"].labels(table).set(int(is_stopped))

    def cleaned(self, table: str, segments: int, size: int) -> None:
        self._add(table, {"frazil_wal_cleaned_segments": segments, "frazil_wal_cleaned_bytes": size})

    def not_cleaned(self, table: str, segments: int, due: float | None) -> None:
        """Sets the landed segments. `due`: when the oldest one may be deleted, in seconds since 1970."""
        self._gauges["frazil_wal_landed_segments"].labels(table).set(segments)
        self._set_age("frazil_wal_cleanup_lag_seconds", table, due)

    def job(self) -> None:
        self._jobs.inc()

    def spark_started(self) -> None:
        self._starts.inc()
