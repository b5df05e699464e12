"""What every role tells Prometheus of itself, beside what it does: its build, its objectives, how long stores
take and how full they are, and what its processes use.
"""

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
"""From a file in the page cache to a bucket that is slow and tried several times."""


class StoreMetrics:
    """Registers as the process-wide listener of store calls. Only the most recent instance receives calls."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "frazil_store_seconds",
            "A call of a store, with the attempts that were made of it",
            ["store", "operation"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._failures = Counter(
            "frazil_store_failures",
            "Calls that failed; that a name is missing or taken is no failure",
            ["store", "operation"],
            registry=registry,
        )
        store_metrics.listen(self._heard)

    def _heard(self, call: store_metrics.StoreCall) -> None:
        self._seconds.labels(call.store, call.operation).observe(call.seconds)
        failures = self._failures.labels(call.store, call.operation)  # there with 0 from the first call on
        if call.failed:
            failures.inc()


def describe_role(registry: CollectorRegistry, role: Role, config: Config, root: int | None = None) -> None:
    """For a role whose numbers are all in one process."""
    StoreMetrics(registry)
    registry.register(RoleCollector(role, config, root))
    ProcessCollector(registry=registry)


class RoleCollector(Collector):
    """Looks when it is asked, so that nothing has to be kept up to date. `root` is the role's first process,
    this one if not given.
    """

    def __init__(self, role: Role, config: Config, root: int | None = None) -> None:
        self._role = role
        self._config = config
        self._root = os.getpid() if root is None else root

    def describe(self) -> list[Metric]:
        """Nothing: looking is for scrapes alone, and the names are our own."""
        return []

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("frazil_build_info", "Always 1", labels=["version", "role"])
        build.add_metric([__version__, self._role], 1)
        yield build
        if self._role != "dashboard":  # which knows neither stores nor objectives
            yield from self._objectives()
            yield from self._room()
        yield from self._processes()

    def _objectives(self) -> Iterator[Metric]:
        objectives = GaugeMetricFamily(
            "frazil_objective_seconds", "How long it may take, as configured", labels=["objective"]
        )
        for objective, seconds in targets(self._config).items():
            objectives.add_metric([objective], seconds)
        yield objectives

    def _room(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "frazil_store_free_bytes", "Room on the disk that a store is on", labels=["store"]
        )
        size = GaugeMetricFamily("frazil_store_disk_bytes", "Size of that disk", labels=["store"])
        kept = GaugeMetricFamily(
            "frazil_store_kept_free_bytes", "Below this much room nothing is accepted", labels=["store"]
        )
        for store, folder in self._folders().items():
            about = os.statvfs(nearest_existing(folder))
            free.add_metric([store], about.f_bavail * about.f_frsize)
            size.add_metric([store], about.f_blocks * about.f_frsize)
            if store == "wal":
                kept.add_metric([store], self._config.wal.local.free_bytes_min)
        yield from (free, size, kept)

    def _folders(self) -> dict[str, Path]:
        """Buckets and brokers do not say how much room they have."""
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
            "frazil_process_count", "Processes of this role, with all that they started", value=use.processes
        )
        yield GaugeMetricFamily(
            "frazil_process_memory_bytes",
            "Their memory: resident, less what they share",
            value=use.memory_bytes,
        )
        yield GaugeMetricFamily("frazil_process_open_files", "Their open files", value=use.open_files)
        yield CounterMetricFamily(
            "frazil_process_cpu_seconds",
            "Their CPU, with that of those that have ended",
            value=use.cpu_seconds,
        )
