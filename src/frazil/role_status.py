"""The /status response of a role: health, process resources, metric values, and rates of counters.

A role computes the rates of its own counters, which never decrease while it runs.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import psutil
from pydantic import Field, ValidationError

from frazil.health import Health, HealthReport
from frazil.process import process_tree

if TYPE_CHECKING:  # receivers must set an environment variable before the import
    from prometheus_client.metrics_core import Metric

Sample = tuple[str, dict[str, str], float]
"""Name, labels, value."""

RECENT_SECONDS, RATE_SECONDS, LATENCY_SECONDS = 10, 60, 300
WINDOWS_SECONDS = (RECENT_SECONDS, RATE_SECONDS, LATENCY_SECONDS)
_MARKS_APART_SECONDS = 4.0
_MARK_AGE_SECONDS_MAX = 1.1 * LATENCY_SECONDS
_LAST_MARK_AGE_SECONDS_MAX = 1300.0
"""Of the only mark: status.sample_seconds may be 600."""
_COUNTERS = ("_total", "_count", "_bucket")
_NOT_SHOWN = ("_sum", "_created")

_Counters = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class RoleReport(HealthReport):
    """The response body of /status."""

    started_at: float | None = Field(description="Seconds since 1970.")
    memory_bytes: float | None = Field(description="Memory of all processes of the role.")
    cpu_seconds: float | None = Field(description="CPU time of all processes of the role.")
    values: list[Sample] = Field(
        default=[], description="The role's metrics now, without histograms: name, labels, value."
    )
    rates: dict[int, list[Sample]] = Field(
        default={},
        description="Growth per second of the role's counters and histogram buckets, by the length of the "
        "window in seconds. Empty before the second request.",
    )


class RoleStatus:
    """Reports the metrics of a role. Keeps earlier values of its counters to compute rates. Thread-safe."""

    def __init__(
        self,
        collect: Callable[[], Iterable[Metric]],
        root: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`root` is the role's first process; default: this process."""
        self._collect = collect
        self._root = os.getpid() if root is None else root
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: deque[tuple[float, _Counters]] = deque()

    def begin(self) -> None:
        """Record the counters at the start of the role, so that the first request has rates."""
        self._values_and_rates()

    def report(self, health: Health) -> RoleReport:
        values, rates = self._values_and_rates()
        use = process_tree(self._root)
        return RoleReport(
            **health.report().model_dump(),
            started_at=_started_at(self._root),
            memory_bytes=None if use is None else use.memory_bytes,
            cpu_seconds=None if use is None else use.cpu_seconds,
            values=values,
            rates=rates,
        )

    def _values_and_rates(self) -> tuple[list[Sample], dict[int, list[Sample]]]:
        values: list[Sample] = []
        counters: _Counters = {}
        for metric in self._collect():
            for sample in metric.samples:
                if not sample.name.startswith("frazil_") or not math.isfinite(sample.value):
                    continue
                if sample.name.endswith(_COUNTERS):
                    counters[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
                if not sample.name.endswith((*_NOT_SHOWN, "_bucket")):
                    values.append((sample.name, sample.labels, sample.value))
        with self._lock:
            now = self._clock()
            while self._marks and now - self._marks[0][0] > (
                _MARK_AGE_SECONDS_MAX if len(self._marks) > 1 else _LAST_MARK_AGE_SECONDS_MAX
            ):
                self._marks.popleft()
            rates = self._rates(now, counters)
            if not self._marks or now - self._marks[-1][0] >= _MARKS_APART_SECONDS:
                self._marks.append((now, counters))
        return values, rates

    def _rates(self, now: float, counters: _Counters) -> dict[int, list[Sample]]:
        earlier = [mark for mark in self._marks if mark[0] < now]
        found: dict[int, list[Sample]] = {}
        for seconds in WINDOWS_SECONDS if earlier else ():
            at, begin = min(earlier, key=lambda mark: abs(now - mark[0] - seconds))
            found[seconds] = [
                (name, dict(labels), max(0.0, value - begin.get((name, labels), 0.0)) / (now - at))
                for (name, labels), value in counters.items()
            ]
        return found


def parse(body: bytes) -> RoleReport | None:
    """Parse a response body. Return None if it is not from a role of this release."""
    try:
        return RoleReport.model_validate_json(body)
    except ValidationError:
        return None


def _started_at(process: int) -> float | None:
    try:
        return psutil.Process(process).create_time()
    except psutil.Error:
        return None
