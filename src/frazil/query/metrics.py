"""Prometheus metrics of the query service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.config import Config
from frazil.lake.state.gauges import TableGauges
from frazil.objectives import Objective, Objectives

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class QueryMetrics:
    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry()
        # With Kafka, queries read landed rows only: the pipeline reports freshness.
        self._counts_freshness = config.wal.type != "kafka"
        objectives: list[Objective] = ["freshness"] if self._counts_freshness else []
        self._objectives = Objectives(self.registry, config, objectives)
        self.queries = Counter(
            "frazil_queries_total", "Finished queries, by outcome.", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "frazil_query_seconds",
            "Time from receiving a query to its complete result.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._planning = Histogram(
            "frazil_query_planning_seconds",
            "Time to plan a query: read the catalog, list the WAL, choose files and rows. Results include "
            "all rows acknowledged before planning began.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.files = Counter(
            "frazil_query_files_total", "Data files chosen for queries.", registry=self.registry
        )
        self.bytes = Counter(
            "frazil_query_bytes_total", "Bytes of data files chosen for queries.", registry=self.registry
        )
        self.tail_rows = Counter(
            "frazil_query_tail_rows_total",
            "Rows queried that had not landed in a table yet.",
            registry=self.registry,
        )
        self.cached = Counter(
            "frazil_query_cached_total", "Results served from the result cache.", registry=self.registry
        )
        self.killed = Counter(
            "frazil_query_workers_killed_total",
            "Query workers that were killed or crashed while running a query.",
            registry=self.registry,
        )
        self.incomplete = Counter(
            "frazil_query_incomplete_total",
            "Results marked as possibly incomplete: the catalog did not answer (stale), or data could not be "
            "read (missing).",
            ["reason"],
            registry=self.registry,
        )
        self.cache_bytes = Gauge(
            "frazil_query_cache_bytes", "Bytes of results in the result cache.", registry=self.registry
        )
        self.tail_bytes = Gauge(
            "frazil_query_tail_bytes",
            "Bytes of temporary files with decoded rows that have not landed yet.",
            registry=self.registry,
        )
        for outcome in ("ok", "cancelled", "LimitReached", "Overloaded", "StoreUnavailable", "defect"):
            self.queries.labels(outcome)  # a rate needs a 0 to start from
        for reason in ("stale", "missing"):
            self.incomplete.labels(reason)
        self.tables = TableGauges(self.registry)
        self.running = Gauge("frazil_queries_running", "Queries running now.", registry=self.registry)
        self.waiting = Gauge(
            "frazil_queries_waiting", "Queries waiting for a worker.", registry=self.registry
        )

    def planned(self, seconds: float) -> None:
        """Record a planning time. It is the freshness: a query sees all rows acknowledged before planning."""
        self._planning.observe(seconds)
        if self._counts_freshness:
            self._objectives.took("freshness", seconds)
