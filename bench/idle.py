"""`frazil up` that has nothing to do: what each role costs, before its first landing and after."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from tests.components.process import dies_with_parent, end, free_port, wait_until

from bench.backlog import make_backlog
from bench.land import local_config
from bench.table import Bench, Row

IDLE_SECONDS = 60.0
QUICK_IDLE_SECONDS = 8.0
CORE_SHARE_MAX = 0.05
MEMORY_BYTES_MAX = 2.5e9
_SETTLED_SECONDS = 10.0
_QUICK_SETTLED_SECONDS = 3.0
_END_SECONDS_MAX = 40.0
_ROLES = {"receive": "receiver", "pipeline": "pipeline", "serve": "API", "dashboard": "dashboard"}


@dataclass(frozen=True)
class _Up:
    process: psutil.Process
    ports: dict[str, int]

    def is_ready(self) -> bool:
        return all(_is_ready(port) for port in self.ports.values())

    def roles(self) -> dict[str, list[psutil.Process]]:
        """Its own process, and those of each role with their descendants; Spark's JVM and workers apart."""
        found: dict[str, list[psutil.Process]] = {"up": [self.process]}
        for child in self.process.children():
            words = child.cmdline()
            name = next(role for word, role in _ROLES.items() if word in words)
            found[name] = [child]
            for one in child.children(recursive=True):
                is_spark = name == "pipeline"
                found.setdefault("Spark" if is_spark else name, []).append(one)
        return found


def idle(bench: Bench) -> None:
    seconds = QUICK_IDLE_SECONDS if bench.quick else IDLE_SECONDS
    settled = _QUICK_SETTLED_SECONDS if bench.quick else _SETTLED_SECONDS
    with tempfile.TemporaryDirectory(prefix="frazil-bench-idle-") as place:
        folder = Path(place)
        with _running(folder) as up:
            time.sleep(settled)
            _add(bench, "`frazil up` idle", up, seconds)
            if bench.quick:
                return
            make_backlog(local_config(folder / "data"), 2000)
            landed = wait_until(
                lambda: _metric(up.ports["pipeline"], 'frazil_landed_rows_total{table="logs"}') >= 2000,
                seconds_max=120,
            )
            assert landed, (folder / "up.log").read_text()[-2000:]
            time.sleep(settled)
            _add(bench, "the same after a landing, Spark running", up, seconds)


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[_Up]:
    ports = {name: free_port() for name in ("http", "pipeline", "serve", "dashboard")}
    listen = {name: {"listen": f"127.0.0.1:{port}"} for name, port in ports.items()}
    settings = {
        "data_dir": str(folder / "data"),
        "spark": {"master": "local[2]"},
        "receive": {"http": listen.pop("http"), "grpc": {"listen": f"127.0.0.1:{free_port()}"}},
        **listen,
        "land": {"age_max_seconds": 1},
    }
    config, log = folder / "frazil.yaml", folder / "up.log"
    config.write_text(yaml.safe_dump(settings))
    with log.open("wb") as output:
        process = subprocess.Popen(
            dies_with_parent([sys.executable, "-m", "frazil", "--config", str(config), "up", "--no-demo"]),
            stdout=output,
            stderr=output,
            cwd=folder,
        )
    try:
        up = _Up(psutil.Process(process.pid), ports)
        ready = wait_until(up.is_ready, seconds_max=120, give_up=lambda: process.poll() is not None)
        assert ready, log.read_text()[-2000:]
        yield up
    finally:
        end(process, _END_SECONDS_MAX)


def _add(bench: Bench, name: str, up: _Up, seconds: float) -> None:
    roles = up.roles()
    jobs = _metric(up.ports["pipeline"], "frazil_spark_jobs_total")
    before = {role: sum(map(_cpu_seconds, processes)) for role, processes in roles.items()}
    begin = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    shares = {
        role: max(0.0, sum(map(_cpu_seconds, processes)) - before[role]) / passed
        for role, processes in roles.items()
    }
    memory = {role: sum(map(_memory_bytes, processes)) for role, processes in roles.items()}
    started = _metric(up.ports["pipeline"], "frazil_spark_jobs_total") - jobs
    share, used = sum(shares.values()), sum(memory.values())
    each = ", ".join(f"{role} {shares[role]:.1%} and {memory[role] / 1e6:.0f} MB" for role in roles)
    bench.add(
        Row(
            name,
            "",
            f"{passed:.0f} s",
            f"{share:.1%} of a core, {used / 1e6:,.0f} MB: {each}; {started:.0f} jobs",
            f"< {CORE_SHARE_MAX:.0%} of a core, < {MEMORY_BYTES_MAX / 1e9:g} GB, no jobs",
            started == 0 and share < CORE_SHARE_MAX and used < MEMORY_BYTES_MAX,
        )
    )


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # Spark's Python workers end after a minute idle
        return 0.0
    return float(times.user + times.system)


def _memory_bytes(process: psutil.Process) -> int:
    """What it alone uses and its part of what it shares: the sum over processes counts nothing twice."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0
