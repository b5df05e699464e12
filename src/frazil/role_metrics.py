"""Metrics that every role has: build, objectives, latency and free space of stores, and process resources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from frazil import __version__
from frazil.config import Config
from frazil.health import Role
from frazil.objectives import targets
from frazil.process import process_tree
from frazil.storage import metrics as store_metrics
from frazil.storage.durable import nearest_existing

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""From a file in the page cache to a slow bucket with several attempts."""


class StoreMetrics:
    """Registers as the process-wide listener of store calls. Only the most recent instance receives calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "frazil_store_seconds",
            "Duration of a call to a store, including retries.",
            ["store", "operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "frazil_store_failures",
            "Failed calls to a store. Not found and already exists are no failures.",
            ["store", "operation"],
            registry=registry,
        )
        store_metrics.listen(self._observe)

    def _observe(self, call: store_metrics.StoreCall) -> None:
        self._seconds.labels(call.store, call.operation).observe(call.seconds)
        failures = self._failures.labels(call.store, call.operation)  # exported as 0 from the first call
        if call.failed:
            failures.inc()


def describe_role(registry: CollectorRegistry, role: Role, config: Config, root: int | None = None) -> None:
    """Register the metrics of a role that has one process for metrics."""
    StoreMetrics(registry)
    registry.register(RoleCollector(role, config, root))
    ProcessCollector(registry=registry)


class RoleCollector(Collector):
    """Reads its values at each scrape. `root` is the role's first process; default: this process."""

    def __init__(self, role: Role, config: Config, root: int | None = None) -> None:
        self._role = role
        self._config = config
        self._root = os.getpid() if root is None else root

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration does not read values."""
        return []

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily(
            "frazil_build_info", "Always 1. The labels name version and role.", labels=["version", "role"]
        )
        build.add_metric([__version__, self._role], 1)
        yield build
        if self._role != "dashboard":  # it has no stores and no objectives
            yield from self._objectives()
            yield from self._room()
        yield from self._processes()

    def _objectives(self) -> Iterator[Metric]:
        objectives = GaugeMetricFamily(
            "frazil_objective_seconds", "Configured target of an objective, in seconds.", labels=["objective"]
        )
        for objective, seconds in targets(self._config).items():
            objectives.add_metric([objective], seconds)
        yield objectives

    def _room(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "frazil_store_free_bytes", "Free bytes on the disk of a store.", labels=["store"]
        )
        size = GaugeMetricFamily("frazil_store_disk_bytes", "Size of the disk of a store.", labels=["store"])
        kept = GaugeMetricFamily(
            "frazil_store_kept_free_bytes",
            "Free bytes on the disk of a store below which the receiver refuses data.",
            labels=["store"],
        )
        for store, folder in self._folders().items():
            about = os.statvfs(nearest_existing(folder))
            free.add_metric([store], about.f_bavail * about.f_frsize)
            size.add_metric([store], about.f_blocks * about.f_frsize)
            if store == "wal":
                kept.add_metric([store], self._config.wal.local.free_bytes_min)
        yield from (free, size, kept)

    def _folders(self) -> dict[str, Path]:
        """Return local stores only: buckets and brokers have no known free space."""
        folders = {}
        if self._config.wal.type == "local":
            folders["wal"] = self._config.wal_dir
        elsewhere = self._config.lake.catalog.type == "rest" and self._config.lake.warehouse is None
        if self._role != "receiver" and not elsewhere and not self._config.warehouse.startswith("s3://"):
            folders["lake"] = Path(self._config.warehouse)
        return folders

    def _processes(self) -> Iterator[Metric]:
        use = process_tree(self._root)
        if use is None:
            return
        yield GaugeMetricFamily(
            "frazil_process_count", "Processes of this role, including child processes.", value=use.processes
        )
        yield GaugeMetricFamily(
            "frazil_process_memory_bytes",
            "Memory of this role's processes: resident without shared pages.",
            value=use.memory_bytes,
        )
        yield GaugeMetricFamily(
            "frazil_process_open_files", "Open files of this role's processes.", value=use.open_files
        )
        yield CounterMetricFamily(
            "frazil_process_cpu_seconds",
            "CPU seconds of this role's processes, including ended ones.",
            value=use.cpu_seconds,
        )
