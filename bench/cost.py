"""What Spark costs: CPU and memory of its JVMs, of the Python workers below them, and of the driver."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

LOOKS_PER_SECOND = 20
_LOOK_FOR_CHILDREN_EVERY = 10


@dataclass
class Cost:
    """Filled in when the `with` block of `watched` ends. Memory is resident, shared pages included."""

    wall_seconds: float = 0.0
    jvm_cpu_seconds: float = 0.0
    workers_cpu_seconds: float = 0.0
    driver_cpu_seconds: float = 0.0
    jvm_bytes_max: int = 0
    """Of the largest JVM."""
    worker_bytes_max: int = 0
    """Of the largest Python worker."""

    @property
    def cpu_seconds(self) -> float:
        return self.jvm_cpu_seconds + self.workers_cpu_seconds + self.driver_cpu_seconds

    @property
    def text(self) -> str:
        return (
            f"CPU-seconds: JVM {self.jvm_cpu_seconds:.1f}, Python workers {self.workers_cpu_seconds:.1f}, "
            f"driver {self.driver_cpu_seconds:.1f}; at most {self.jvm_bytes_max / 1e6:,.0f} MB per JVM, "
            f"{self.worker_bytes_max / 1e6:,.0f} MB per worker"
        )


class _Family:
    """JVMs and all that runs below them, looked at again and again.

    PySpark's daemon does not wait for its workers, so what one used is known nowhere once it has ended: the
    last look counts. Workers live for a minute after their last task, so hardly anything is missed.
    """

    def __init__(self, jvms: Sequence[int]) -> None:
        self._jvms = [psutil.Process(pid) for pid in jvms]
        self._below: list[psutil.Process] = []
        self._seconds: dict[psutil.Process, float] = {}
        self._looks = 0
        self.jvm_bytes_max = 0
        self.worker_bytes_max = 0

    def look(self) -> None:
        if self._looks % _LOOK_FOR_CHILDREN_EVERY == 0:
            self.look_for_children()
        self._looks += 1
        for process in (*self._jvms, *self._below):
            with contextlib.suppress(psutil.NoSuchProcess), process.oneshot():
                times, resident = process.cpu_times(), process.memory_info().rss
                self._seconds[process] = times.user + times.system
                if process in self._jvms:
                    self.jvm_bytes_max = max(self.jvm_bytes_max, resident)
                elif "python" in process.name():  # a JVM's small helpers show its own memory when they begin
                    self.worker_bytes_max = max(self.worker_bytes_max, resident)

    def look_for_children(self) -> None:
        self._below = []
        for process in self._jvms:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._below += process.children(recursive=True)

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the JVMs themselves, and of all that ran below them."""
        own = sum(self._seconds[process] for process in self._jvms)
        return own, sum(self._seconds.values()) - own


class _Watcher(threading.Thread):
    """Its own CPU is no cost of the driver's."""

    def __init__(self, family: _Family) -> None:
        super().__init__(name="watcher", daemon=True)
        self._family = family
        self._done = threading.Event()
        self.cpu_seconds = 0.0

    def run(self) -> None:
        while not self._done.wait(1 / LOOKS_PER_SECOND):
            self._family.look()
        self.cpu_seconds = time.thread_time()

    def stop(self) -> None:
        self._done.set()
        self.join()


@contextlib.contextmanager
def watched(jvms: Sequence[int]) -> Iterator[Cost]:
    """What happens meanwhile in these JVMs, below them, and in this process."""
    cost, family = Cost(), _Family(jvms)
    watcher = _Watcher(family)
    family.look()
    before = family.cpu_seconds()
    begin, driver = time.perf_counter(), time.process_time()
    watcher.start()
    try:
        yield cost
    finally:
        cost.wall_seconds = time.perf_counter() - begin
        watcher.stop()
        cost.driver_cpu_seconds = time.process_time() - driver - watcher.cpu_seconds
        family.look_for_children()
        family.look()
        after = family.cpu_seconds()
        cost.jvm_cpu_seconds = after[0] - before[0]
        cost.workers_cpu_seconds = after[1] - before[1]
        cost.jvm_bytes_max = family.jvm_bytes_max
        cost.worker_bytes_max = family.worker_bytes_max


class Meter:
    """CPU-seconds of Spark and of this process, by what they were spent for, where one thing follows the
    other. Looking costs as much as a small commit: between looks, Spark's processes are as they were.
    """

    def __init__(self, jvms: Sequence[int]) -> None:
        self._family = _Family(jvms)
        self.cpu_seconds: Counter[str] = Counter()
        self.wall_seconds: Counter[str] = Counter()

    @contextlib.contextmanager
    def during(self, name: str, *, on_spark: bool = True) -> Iterator[None]:
        """Count the CPU time of the block for `name`. Spark outside such blocks is not counted."""
        below = self._below() if on_spark else 0.0
        begin, driver = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.cpu_seconds[name] += time.process_time() - driver
            self.wall_seconds[name] += time.perf_counter() - begin
            if on_spark:
                self.cpu_seconds[name] += self._below() - below

    def _below(self) -> float:
        self._family.look_for_children()
        self._family.look()
        return sum(self._family.cpu_seconds())
