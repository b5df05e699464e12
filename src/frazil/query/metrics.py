"""What Prometheus learns of the queries."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from frazil.lake.gauges import TableGauges

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class QueryMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queries = Counter(
            "frazil_queries_total", "Questions, by what came of them", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram(
            "frazil_query_seconds",
            "From question to complete answer",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.planning = Histogram(
            "frazil_query_planning_seconds",
            "Choosing files and rows",
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
        self.tables = TableGauges(self.registry)
        self.running = Gauge("frazil_queries_running", "Questions being answered", registry=self.registry)
        self.waiting = Gauge(
            "frazil_queries_waiting", "Questions that wait for a worker", registry=self.registry
        )
