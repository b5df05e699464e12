"""The receiver's metrics. Workers share them through files, so that any worker can report all of them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from frazil.config import Config
from frazil.errors import FrazilError
from frazil.tables import Signal
from frazil.wal.group import SegmentWritten

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1, 2, 5, 10, 30)


def share_between_processes() -> str:
    """Creates the shared folder. Call once in the supervisor, before prometheus_client is imported."""
    # In memory if possible: writing a mapped file on a full disk kills the worker.
    memory = Path("/dev/shm")  # noqa: S108
    folder = tempfile.mkdtemp(
        prefix="frazil-metrics-", dir=memory if os.access(memory, os.W_OK | os.X_OK) else None
    )
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    return folder


class ReceiverMetrics:
    """The metrics of one worker; also the journal's observer."""

    def __init__(self, config: Config) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        from frazil.objectives import Objectives
        from frazil.role_metrics import StoreMetrics
        from frazil.role_status import RoleStatus

        self._config = config
        self.status = RoleStatus(lambda: self._all_workers().collect(), os.getppid())
        self.registry = registry = CollectorRegistry()
        StoreMetrics(registry)
        self._objectives = Objectives(registry, config, ["ack"])
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry, multiprocess_mode="livesum")
        histogram = partial(Histogram, buckets=_SECONDS, registry=registry)
        self._requests = counter(
            "frazil_receive_requests",
            "OTLP requests, by outcome: ok, partial, or the reason for refusing the request.",
            ("signal", "transport", "outcome"),
        )
        self._records = counter(
            "frazil_receive_records",
            "Records in accepted OTLP requests, by outcome: accepted, or rejected as invalid.",
            ("signal", "outcome"),
        )
        self._bytes = counter(
            "frazil_receive_bytes", "Bytes of accepted OTLP requests after decompression.", ("signal",)
        )
        self._ack = histogram(
            "frazil_receive_ack_seconds",
            "Seconds from the complete arrival of a request until it is durable and acknowledged.",
            ("signal", "transport"),
        )
        self._in_flight = gauge(
            "frazil_receive_in_flight_bytes", "Bytes of requests in flight: received and not yet durable."
        )
        self._ready = gauge("frazil_receive_ready_workers", "Receiver workers that can make data durable.")
        self._clock_skew = gauge(
            "frazil_receive_clock_skew_seconds",
            "Seconds by which the receiver's clock is ahead of the WAL store's clock; negative if behind.",
            multiprocess_mode="livemostrecent",
        )
        self._segments = counter("frazil_wal_segments", "WAL segments made durable.", ("signal",))
        self._segment_rows = counter("frazil_wal_rows", "Rows of durable WAL segments.", ("signal",))
        self._segment_bytes = counter("frazil_wal_bytes", "Bytes of durable WAL segments.", ("signal",))
        self._encode = histogram(
            "frazil_wal_encode_seconds",
            "Seconds to decode the requests of a WAL segment and encode the segment.",
            ("signal",),
        )
        self._store = histogram(
            "frazil_wal_store_seconds", "Seconds to store a WAL segment durably.", ("signal",)
        )
        self._failures = counter("frazil_wal_failures", "WAL segments that could not be stored.")

    def refused(self, signal: str, transport: str, reason: str) -> None:
        self._requests.labels(signal, transport, reason).inc()

    def accepted(
        self, signal: Signal, transport: str, accepted: int, rejected: int, size: int, seconds: float
    ) -> None:
        self._requests.labels(signal, transport, "partial" if rejected else "ok").inc()
        self._records.labels(signal, "accepted").inc(accepted)
        if rejected:
            self._records.labels(signal, "rejected").inc(rejected)
        self._bytes.labels(signal).inc(size)
        self._ack.labels(signal, transport).observe(seconds)
        self._objectives.observe("ack", seconds)

    def in_flight(self, size: int) -> None:
        self._in_flight.set(size)

    def ready(self, is_ready: bool) -> None:
        self._ready.set(1 if is_ready else 0)

    def clock_skew(self, seconds: float | None) -> None:
        if seconds is not None:
            self._clock_skew.set(seconds)

    def segment_written(self, segment: SegmentWritten) -> None:
        signal = segment.name.signal
        self._segments.labels(signal).inc()
        self._segment_rows.labels(signal).inc(segment.rows)
        self._segment_bytes.labels(signal).inc(segment.bytes)
        self._encode.labels(signal).observe(segment.encode_seconds)
        self._store.labels(signal).observe(segment.store_seconds)

    def segment_failed(self, error: FrazilError) -> None:
        self._failures.inc()

    def exposition(self) -> bytes:
        from prometheus_client import generate_latest

        return bytes(generate_latest(self._all_workers()))

    def _all_workers(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.multiprocess import MultiProcessCollector

        from frazil.role_metrics import RoleCollector

        _remove_dead_workers(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        registry = CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(registry)
        parent = os.getppid()
        registry.register(RoleCollector("receiver", self._config, parent))
        ProcessCollector(pid=lambda: parent, registry=registry)
        return registry


def _remove_dead_workers(folder: str) -> None:
    """Removes the gauges of workers that no longer run, and keeps their counters."""
    from prometheus_client import multiprocess

    for file in Path(folder).glob("gauge_live*_*.db"):
        worker = int(file.stem.rpartition("_")[2])
        if not psutil.pid_exists(worker):
            mark_dead: Any = multiprocess.mark_process_dead
            with contextlib.suppress(FileNotFoundError):  # removed by another scrape
                mark_dead(worker, folder)
