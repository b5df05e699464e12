"""Runs a load against a receiver and says what it cost the receiver: CPU of all its processes, memory,
segments.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from tests.support.receiver import Receiver

from bench.load import Load, Outcome


@dataclass(frozen=True)
class Measured:
    records: int
    outcome: Outcome
    cpu_seconds: float
    memory_bytes_max: int
    segments: float

    @property
    def records_per_cpu_second(self) -> float:
        return self.records / self.cpu_seconds

    @property
    def records_per_second(self) -> float:
        return self.records / self.outcome.wall_seconds

    def quantile_ms(self, share: float) -> float:
        latencies = sorted(self.outcome.latencies_seconds)
        return 1000 * latencies[min(len(latencies) - 1, int(share * len(latencies)))]

    @property
    def p50_ms(self) -> float:
        return 1000 * statistics.median(self.outcome.latencies_seconds)

    @property
    def p99_ms(self) -> float:
        return self.quantile_ms(0.99)


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_seconds(pid: int) -> float:
    total = 0.0
    for process in _tree(pid):
        times = process.cpu_times()
        total += times.user + times.system
    return total


@contextmanager
def _memory(pid: int, peak: list[int]) -> Iterator[None]:
    """The most memory that all processes of the tree held together, sampled 50 times per second.

    Proportional set size would be fairer to shared pages, but reading it costs the process too much.
    """
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            total = 0
            for process in _tree(pid):
                try:
                    memory = process.memory_info()
                    total += memory.rss - memory.shared
                except psutil.NoSuchProcess:
                    continue
            peak[0] = max(peak[0], total)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class LoadClient:
    """A client process that has made its requests and waits."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self) -> Outcome:
        """Send all requests; return when each has its response."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return Outcome(**json.loads(self._process.stdout.readline()))


@contextmanager
def running_load(load: Load) -> Iterator[LoadClient]:
    client = subprocess.Popen(
        [sys.executable, "-m", "bench.load"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        client.stdin.write(json.dumps(asdict(load)) + "\n")
        client.stdin.flush()
        assert client.stdout.readline().strip() == "ready"
        yield LoadClient(client)
        client.stdin.close()


def measure(receiver: Receiver, load: Load, *, watch_memory: bool = False) -> Measured:
    with running_load(load) as client:
        segments = receiver.metric("frazil_wal_segments_total")
        peak = [0]
        before = _cpu_seconds(receiver.process.pid)
        if watch_memory:
            with _memory(receiver.process.pid, peak):
                outcome = client.run()
        else:
            outcome = client.run()
        cpu = _cpu_seconds(receiver.process.pid) - before
    written = receiver.metric("frazil_wal_segments_total") - segments
    return Measured(load.requests * load.records, outcome, cpu, peak[0], written)
