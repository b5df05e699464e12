"""What the pipeline counts, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pyiceberg.manifest import DataFile

if TYPE_CHECKING:
    from frazil.pipeline.land.source import Outcome

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        table = ["table"]
        self._rows = Counter("frazil_landed_rows", "Rows committed", table, registry=registry)
        self._bytes = Counter(
            "frazil_landed_bytes", "Bytes of data files committed", table, registry=registry
        )
        self._wal_bytes = Counter(
            "frazil_landed_wal_bytes", "Bytes of the write-ahead log that landed", table, registry=registry
        )
        self._files = Counter("frazil_landed_files", "Data files committed", table, registry=registry)
        self._commits = Counter("frazil_land_commits", "Commits of landing", table, registry=registry)
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
        self._errors = Counter("frazil_land_errors", "Rounds that failed", table, registry=registry)
        self._seconds = Histogram(
            "frazil_land_seconds", "A batch, from its position to its commit", table,
            registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self._commit_seconds = Histogram(
            "frazil_land_commit_seconds", "The commit of a batch", table, registry=registry, buckets=_SECONDS
        )
        self._pending_bytes = Gauge(
            "frazil_land_pending_bytes", "What waits to be landed", table, registry=registry
        )
        self._pending_age = Gauge(
            "frazil_land_pending_age_seconds", "How long it has waited", table, registry=registry
        )
        self._last = Gauge(
            "frazil_land_last_commit_timestamp_seconds", "When it last landed", table, registry=registry
        )
        self._stopped = Gauge(
            "frazil_land_stopped", "1 while a table waits for someone to decide", table, registry=registry
        )
        self._cleaned = Counter(
            "frazil_wal_cleaned_segments", "Segments deleted after they landed", table, registry=registry
        )
        self._cleaned_bytes = Counter("frazil_wal_cleaned_bytes", "Their bytes", table, registry=registry)
        self.leader = Gauge("frazil_pipeline_leader", "1 in the one pipeline that works", registry=registry)
        self._rss = Gauge(
            "frazil_land_worker_rss_bytes", "The largest Python worker of the last batch", table,
            registry=registry,
        )  # fmt: skip
        self._jobs = Counter("frazil_spark_jobs", "Jobs given to Spark", registry=registry)

    def landed(
        self,
        table: str,
        outcome: Outcome,
        files: Sequence[DataFile],
        *,
        wal_bytes: int,
        seconds: float,
        commit_seconds: float,
    ) -> None:
        self._rows.labels(table).inc(outcome.rows)
        self._bytes.labels(table).inc(sum(file.file_size_in_bytes for file in files))
        self._wal_bytes.labels(table).inc(wal_bytes)
        self._files.labels(table).inc(len(files))
        self._commits.labels(table).inc()
        self._clamped.labels(table).inc(sum(result.clamped for result in outcome.results))
        self._cpu.labels(table).inc(sum(result.cpu_seconds for result in outcome.results))
        self._rss.labels(table).set(max((result.rss_bytes for result in outcome.results), default=0))
        self._seconds.labels(table).observe(seconds)
        self._commit_seconds.labels(table).observe(commit_seconds)
        self._last.labels(table).set(time.time())
        self._stopped.labels(table).set(0)

    def pending(self, table: str, size: int, age_seconds: float) -> None:
        self._pending_bytes.labels(table).set(size)
        self._pending_age.labels(table).set(age_seconds)

    def set_aside(self, table: str, count: int) -> None:
        self._set_aside.labels(table).inc(count)

    def fenced(self, table: str) -> None:
        self._fenced.labels(table).inc()

    def failed(self, table: str, *, stopped: bool) -> None:
        self._errors.labels(table).inc()
        self._stopped.labels(table).set(1 if stopped else 0)

    def cleaned(self, table: str, segments: int, size: int) -> None:
        self._cleaned.labels(table).inc(segments)
        self._cleaned_bytes.labels(table).inc(size)

    def job(self) -> None:
        self._jobs.inc()
