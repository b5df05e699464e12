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
    """The most memory that all processes of the tree held together, asked 50 times a second.

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


def measure(receiver: Receiver, load: Load, *, watch_memory: bool = False) -> Measured:
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
        segments = receiver.metric("frazil_wal_segments_total")
        peak = [0]
        before = _cpu_seconds(receiver.process.pid)
        client.stdin.write("go\n")
        client.stdin.flush()
        if watch_memory:
            with _memory(receiver.process.pid, peak):
                answer = client.stdout.readline()
        else:
            answer = client.stdout.readline()
        cpu = _cpu_seconds(receiver.process.pid) - before
        client.stdin.close()
    outcome = Outcome(**json.loads(answer))
    written = receiver.metric("frazil_wal_segments_total") - segments
    return Measured(load.requests * load.records, outcome, cpu, peak[0], written)
