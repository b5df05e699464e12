"""What Prometheus learns of the queries."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.config import Config
from frazil.lake.state.health import TableGauges
from frazil.objectives import Objective, Objectives

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class QueryMetrics:
    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry()
        # With Kafka the pipeline knows: what has not landed is not seen.
        self._counts_freshness = config.wal.type != "kafka"
        here: list[Objective] = ["freshness"] if self._counts_freshness else []
        self._objectives = Objectives(self.registry, config, here)
        self.queries = Counter(
            "frazil_queries_total", "Questions, by what came of them", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "frazil_query_seconds",
            "From question to complete answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._planning = Histogram(
            "frazil_query_planning_seconds",
            "Looking at catalog and log, choosing files and rows: what was acked before is in the answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.files = Counter("frazil_query_files_total", "Data files that were read", registry=self.registry)
        self.bytes = Counter("frazil_query_bytes_total", "Size of those files", registry=self.registry)
        self.tail_rows = Counter(
            "frazil_query_tail_rows_total", "Rows asked that had not landed", registry=self.registry
        )
        self.cached = Counter("frazil_query_cached_total", "Answers from the cache", registry=self.registry)
        self.killed = Counter(
            "frazil_query_workers_killed_total", "Workers that were killed or died", registry=self.registry
        )
        self.incomplete = Counter(
            "frazil_query_incomplete_total",
            "Answers that say that they may lack something: the catalog did not answer (stale), or something "
            "could not be read (missing)",
            ["reason"],
            registry=self.registry,
        )
        self.cache_bytes = Gauge(
            "frazil_query_cache_bytes", "Memory of answers that are kept", registry=self.registry
        )
        self.tail_bytes = Gauge(
            "frazil_query_tail_bytes", "Files of rows that have not landed", registry=self.registry
        )
        for outcome in ("ok", "cancelled", "LimitReached", "Overloaded", "StoreUnavailable", "defect"):
            self.queries.labels(outcome)  # a rate needs a 0 to start from
        for reason in ("stale", "missing"):
            self.incomplete.labels(reason)
        self.tables = TableGauges(self.registry)
        self.running = Gauge("frazil_queries_running", "Questions being answered", registry=self.registry)
        self.waiting = Gauge(
            "frazil_queries_waiting", "Questions that wait for a worker", registry=self.registry
        )

    def planned(self, seconds: float) -> None:
        """A question sees all that was acked before its planning began."""
        self._planning.observe(seconds)
        if self._counts_freshness:
            self._objectives.took("freshness", seconds)
