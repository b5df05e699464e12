"""Prometheus metrics of the query service."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.config import Config
from frazil.lake.state.health import TableGauges
from frazil.objectives import Objective, Objectives

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class QueryMetrics:
    def __init__(self, config: Config) -> None:
        self.registry = CollectorRegistry()
        # With Kafka, queries read landed rows only: the pipeline reports freshness.
        self._counts_freshness = config.wal.type != "kafka"
        objectives: list[Objective] = ["freshness"] if self._counts_freshness else []
        self._objectives = Objectives(self.registry, config, objectives)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        gauge = partial(Gauge, registry=self.registry)
        self.queries = counter(
            "frazil_queries_total",
            "Finished queries, by outcome: ok, cancelled, defect, or the kind of error.",
            ["outcome"],
        )
        self.seconds = histogram(
            "frazil_query_seconds", "Time from receiving a query to its complete result."
        )
        self._planning = histogram(
            "frazil_query_planning_seconds",
            "Time to plan a query: read the catalog, list the WAL, choose files and rows. Results include "
            "all rows acknowledged before planning began.",
        )
        self.files = counter("frazil_query_files_total", "Data files selected by the plans of queries.")
        self.bytes = counter(
            "frazil_query_bytes_total", "Bytes of data files selected by the plans of queries."
        )
        self.tail_rows = counter(
            "frazil_query_tail_rows_total", "Rows queried that had not landed in a table yet."
        )
        self.cached = counter("frazil_query_cached_total", "Results served from the result cache.")
        self.killed = counter(
            "frazil_query_workers_killed_total",
            "Query workers that were killed or crashed while running a query.",
        )
        self.incomplete = counter(
            "frazil_query_incomplete_total",
            "Results marked as possibly incomplete: the catalog did not respond (stale), or data could not "
            "be read (missing).",
            ["reason"],
        )
        self.cache_bytes = gauge("frazil_query_cache_bytes", "Bytes of results in the result cache.")
        self.tail_bytes = gauge(
            "frazil_query_tail_bytes", "Bytes of temporary files with decoded rows that have not landed yet."
        )
        self.running = gauge("frazil_queries_running", "Queries running now.")
        self.waiting = gauge("frazil_queries_waiting", "Queries waiting for a worker.")
        for outcome in ("ok", "cancelled", "LimitReached", "Overloaded", "StoreUnavailable", "defect"):
            self.queries.labels(outcome)  # a rate needs a 0 to start from
        for reason in ("stale", "missing"):
            self.incomplete.labels(reason)
        self.tables = TableGauges(self.registry)

    def planned(self, seconds: float) -> None:
        """Record a planning time. Planning time is freshness: results have all rows acknowledged before."""
        self._planning.observe(seconds)
        if self._counts_freshness:
            self._objectives.observe("freshness", seconds)
