"""What the pipeline counts, for Prometheus."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pyiceberg.manifest import DataFile

from frazil.config import Config
from frazil.objectives import Objective, Objectives
from frazil.tables import SIGNALS

if TYPE_CHECKING:
    from frazil.pipeline.land.source import Outcome

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_FILES = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000)
_LAG_SECONDS = (1, 2.5, 5, 10, 20, 30, 45, 60, 75, 90, 120, 180, 300, 600, 1800, 3600)


class Metrics:
    """`config` is for the objectives alone; a command that nobody scrapes has none."""

    def __init__(self, config: Config | None = None) -> None:
        config = config or Config()
        self.registry = CollectorRegistry()
        registry = self.registry
        # With Kafka what has not landed cannot be asked, so the one is the other.
        self._lag_is: tuple[Objective, ...] = ("landing_lag",)
        if config.wal.type == "kafka":
            self._lag_is = ("landing_lag", "freshness")
        self._objectives = Objectives(registry, config, self._lag_is)
        table = ["table"]
        self._rows = Counter("frazil_landed_rows", "Rows committed", table, registry=registry)
        self._bytes = Counter(
            "frazil_landed_bytes", "Bytes of data files committed", table, registry=registry
        )
        self._wal_bytes = Counter(
            "frazil_landed_wal_bytes", "Bytes of the write-ahead log that landed", table, registry=registry
        )
        self._files = Counter("frazil_landed_files", "Data files committed", table, registry=registry)
        self._commit_files = Histogram(
            "frazil_land_commit_files",
            "Data files that one landing commit added: one for each tenant and day in each task.",
            table,
            registry=registry,
            buckets=_FILES,
        )
        self._too_many_files = Counter(
            "frazil_land_too_many_files",
            "Landing batches that were landed again as smaller ones because they needed more data files than "
            "land.files_per_commit_max.",
            table,
            registry=registry,
        )
        self._commits = Counter("frazil_land_commits", "Commits of landing", table, registry=registry)
        self._attempts = Counter(
            "frazil_land_commit_attempts",
            "Attempts that they took: more where others committed at the same moment",
            table,
            registry=registry,
        )
        self._clamped = Counter(
            "frazil_landed_clamped_rows",
            "Rows whose time was outside the horizon and was set to the received time",
            table,
            registry=registry,
        )
        self._cpu = Counter(
            "frazil_land_worker_cpu_seconds", "CPU of Spark's Python workers", table, registry=registry
        )
        self._set_aside = Counter(
            "frazil_land_set_aside", "Segments or messages that cannot be read", table, registry=registry
        )
        self._fenced = Counter(
            "frazil_land_fenced", "Batches discarded as another process was first", table, registry=registry
        )
        self._errors = Counter(
            "frazil_land_errors", "Rounds of landing, or of WAL upkeep, that failed", table, registry=registry
        )
        self._seconds = Histogram(
            "frazil_land_seconds", "A batch, from its position to its commit", table,
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._commit_seconds = Histogram(
            "frazil_land_commit_seconds", "The commit of a batch", table, registry=registry, buckets=_SECONDS
        )
        self._lag = Histogram(
            "frazil_land_lag_seconds",
            "From the receipt of a batch's oldest record to its commit",
            table,
            registry=registry,
            buckets=_LAG_SECONDS,
        )
        self._pending_bytes = Gauge(
            "frazil_land_pending_bytes",
            "Bytes that wait to land; a lower bound if they are more than land.batch_bytes_max",
            table,
            registry=registry,
        )
        self._pending_segments = Gauge(
            "frazil_land_pending_segments",
            "Segments, or messages of Kafka, that wait",
            table,
            registry=registry,
        )
        self._pending_age = Gauge(
            "frazil_land_pending_age_seconds",
            "How long the oldest of it has waited",
            table,
            registry=registry,
        )
        self._last = Gauge(
            "frazil_land_last_commit_timestamp_seconds", "When it last landed", table, registry=registry
        )
        self._stopped = Gauge(
            "frazil_land_stopped", "1 while a table waits for someone to decide", table, registry=registry
        )
        self._cleaned = Counter(
            "frazil_wal_cleaned_segments", "WAL segments deleted after landing", table, registry=registry
        )
        self._cleaned_bytes = Counter(
            "frazil_wal_cleaned_bytes",
            "Bytes of WAL segments deleted after landing",
            table,
            registry=registry,
        )
        self._not_cleaned = Gauge(
            "frazil_wal_landed_segments",
            "WAL segments that have landed and are not deleted yet",
            table,
            registry=registry,
        )
        self._clean_up_lag = Gauge(
            "frazil_wal_cleanup_lag_seconds",
            "Seconds for which deletion of the oldest landed WAL segment has been overdue",
            table,
            registry=registry,
        )
        self.leader = Gauge("frazil_pipeline_leader", "1 in the one pipeline that works", registry=registry)
        self._rss = Gauge(
            "frazil_land_worker_rss_bytes", "The largest Python worker of the last batch", table,
            registry=registry,
        )  # fmt: skip
        self._jobs = Counter("frazil_spark_jobs", "Jobs given to Spark", registry=registry)
        self._starts = Counter(
            "frazil_spark_starts", "How often Spark was started: once, unless it dies", registry=registry
        )
        self._stopped_parts: set[tuple[str, str]] = set()
        self._stopping = threading.Lock()
        for counter in (
            self._commits,
            self._attempts,
            self._errors,
            self._set_aside,
            self._fenced,
            self._too_many_files,
        ):
            for signal in SIGNALS:  # a rate needs a 0 to start from
                counter.labels(signal)

    def landed(
        self,
        table: str,
        outcome: Outcome,
        files: Sequence[DataFile],
        *,
        wal_bytes: int,
        seconds: float,
        commit_seconds: float,
        attempts: int,
    ) -> None:
        self._rows.labels(table).inc(outcome.rows)
        self._bytes.labels(table).inc(sum(file.file_size_in_bytes for file in files))
        self._wal_bytes.labels(table).inc(wal_bytes)
        self._files.labels(table).inc(len(files))
        self._commit_files.labels(table).observe(len(files))
        self._commits.labels(table).inc()
        self._attempts.labels(table).inc(attempts)
        self._clamped.labels(table).inc(sum(result.clamped for result in outcome.results))
        self._cpu.labels(table).inc(sum(result.cpu_seconds for result in outcome.results))
        self._rss.labels(table).set(max((result.rss_bytes for result in outcome.results), default=0))
        self._seconds.labels(table).observe(seconds)
        self._commit_seconds.labels(table).observe(commit_seconds)
        self._last.labels(table).set(time.time())
        oldest = [
            nano for result in outcome.results if (nano := result.oldest_received_unix_nano) is not None
        ]
        if oldest:
            lag = max(0.0, time.time() - min(oldest) / 1e9)
            self._lag.labels(table).observe(lag)
            for objective in self._lag_is:
                self._objectives.observe(objective, lag)

    def pending(self, table: str, size: int, count: int, since: float | None) -> None:
        """`since` is when the oldest of it was made durable, in seconds since 1970. Its age grows by itself:
        a table that fails is not looked at for a while.
        """
        self._pending_bytes.labels(table).set(size)
        self._pending_segments.labels(table).set(count)
        self._pending_age.labels(table).set_function(
            lambda: 0.0 if since is None else max(0.0, time.time() - since)
        )

    def stand_down(self) -> None:
        """Another pipeline works now, and knows what waits."""
        self.leader.set(0)
        self._stopped_parts.clear()
        for gauge in (
            *(self._pending_bytes, self._pending_segments, self._pending_age),
            *(self._stopped, self._not_cleaned, self._clean_up_lag),
        ):
            gauge.clear()

    def set_aside(self, table: str, count: int) -> None:
        self._set_aside.labels(table).inc(count)

    def fenced(self, table: str) -> None:
        self._fenced.labels(table).inc()

    def too_many_files(self, table: str) -> None:
        self._too_many_files.labels(table).inc()

    def failed(self, table: str, *, stopped: bool, part: str = "landing") -> None:
        self._errors.labels(table).inc()
        self._set_stopped(table, part, stopped)

    def succeeded(self, table: str, part: str) -> None:
        self._set_stopped(table, part, False)

    def _set_stopped(self, table: str, part: str, stopped: bool) -> None:
        """Landing and upkeep have threads of their own. The table is stopped while any part of them is."""
        with self._stopping:
            (self._stopped_parts.add if stopped else self._stopped_parts.discard)((table, part))
            self._stopped.labels(table).set(int(any(each == table for each, _ in self._stopped_parts)))

    def cleaned(self, table: str, segments: int, size: int) -> None:
        self._cleaned.labels(table).inc(segments)
        self._cleaned_bytes.labels(table).inc(size)

    def not_cleaned(self, table: str, segments: int, due: float | None) -> None:
        """`due` is when the oldest of them may be deleted, in seconds since 1970. The lag grows by itself,
        also while clean-up fails.
        """
        self._not_cleaned.labels(table).set(segments)
        self._clean_up_lag.labels(table).set_function(
            lambda: 0.0 if due is None else max(0.0, time.time() - due)
        )

    def job(self) -> None:
        self._jobs.inc()

    def spark_started(self) -> None:
        self._starts.inc()
