"""`frazil up` as a process, with what each of its roles costs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from tests.components.process import dies_with_parent, end, free_port, wait_until

_END_SECONDS_MAX = 40.0
_LOOK_SECONDS = 0.25
_ROLES = {"receive": "receiver", "pipeline": "pipeline", "serve": "API", "dashboard": "dashboard"}


@dataclass(frozen=True)
class Up:
    process: psutil.Process
    config: Path
    ports: dict[str, int]

    def is_ready(self) -> bool:
        return all(_is_ready(port) for port in self.ports.values())

    def metric(self, role: str, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[role]}/metrics", timeout=5) as response:
            text = response.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

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


@contextlib.contextmanager
def running_up(folder: Path, **sections: Any) -> Iterator[Up]:
    """`sections` are added to the configuration: free ports, data below `folder`, two cores for Spark."""
    ports = {name: free_port() for name in ("http", "pipeline", "serve", "dashboard")}
    listen = {name: {"listen": f"127.0.0.1:{port}"} for name, port in ports.items()}
    settings = {
        "data_dir": str(folder / "data"),
        "spark": {"master": "local[2]"},
        "receive": {"http": listen.pop("http"), "grpc": {"listen": f"127.0.0.1:{free_port()}"}},
        **listen,
        **sections,
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
        up = Up(psutil.Process(process.pid), config, ports)
        ready = wait_until(up.is_ready, seconds_max=120, give_up=lambda: process.poll() is not None)
        assert ready, log.read_text()[-2000:]
        yield up
    finally:
        end(process, _END_SECONDS_MAX)


def cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # Spark's Python workers end after a minute idle
        return 0.0
    return float(times.user + times.system)


class CpuByRole:
    """CPU-seconds of each role while it watches. A process that has ended counts as it was last seen."""

    def __init__(self, up: Up) -> None:
        self._up = up
        self._first: dict[psutil.Process, float] = {}
        self._last: dict[psutil.Process, tuple[str, float]] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CpuByRole:
        for processes in self._up.roles().values():
            self._first |= {process: cpu_seconds(process) for process in processes}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.look()

    def look(self) -> Counter[str]:
        for role, processes in self._up.roles().items():
            for process in processes:
                if seconds := cpu_seconds(process):
                    self._last[process] = (role, seconds)
        total: Counter[str] = Counter()
        for process, (role, seconds) in self._last.items():
            total[role] += seconds - self._first.get(process, 0.0)
        return total

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.look()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
