"""A real receiver process for tests: started with a configuration, asked until ready, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import yaml

from frazil.config import Config, load_config
from frazil.tables import Signal, table_spec
from frazil.wal import open_store
from frazil.wal.reader import WalReader
from tests.components.process import dies_with_parent, end, free_port, wait_until


@dataclass
class Receiver:
    folder: Path
    config_path: Path
    http_port: int
    grpc_port: int
    process: subprocess.Popen[bytes] = field(init=False)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return load_config(self.config_path, environ={})

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def start(self, *, ready: bool = True) -> None:
        with (self.folder / "receiver.log").open("ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(
                    [sys.executable, "-m", "frazil", "--config", str(self.config_path), "receive"]
                ),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | dict(self.environment),
            )
        if ready:
            assert wait_until(self.is_ready, seconds_max=60), (self.folder / "receiver.log").read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, (self.folder / "receiver.log").read_text()
        try:
            return httpx.get(f"{self.http}/readyz", timeout=2, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def worker_pids(self) -> list[int]:
        """Worker processes, found as children of the supervisor that have the metrics folder in use."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def stop(self, number: int = signal.SIGTERM, seconds_max: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds_max)

    def kill(self) -> None:
        """SIGKILL for the workers and the supervisor, as a power cut would."""
        for pid in (*self.worker_pids(), self.process.pid):
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def rows(self, signal_name: Signal) -> pa.Table:
        """Everything that is durable, read back as landing will read it."""
        reader = WalReader(open_store(self.config))
        spec = table_spec(signal_name)
        tables = [reader.rows(segment.name, spec)[1] for segment in reader.pending(signal_name)]
        return pa.concat_tables(tables) if tables else spec.arrow_schema.empty_table()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in httpx.get(f"{self.http}/metrics", timeout=10, verify=False).text.splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total


def write_config(folder: Path, http_port: int, grpc_port: int, settings: Mapping[str, Any]) -> Path:
    """A configuration file: the ports and the data folder, with `settings` laid over them."""
    config: dict[str, Any] = {
        "data_dir": str(folder / "data"),
        "log": {"format": "json"},
        "receive": {
            "http": {"listen": f"127.0.0.1:{http_port}"},
            "grpc": {"listen": f"127.0.0.1:{grpc_port}"},
        },
        "wal": {"local": {"free_bytes_min": 0}},
    }
    _merge(config, settings)
    path = folder / "frazil.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(config))))
    return path


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


@contextmanager
def running_receiver(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    ready: bool = True,
) -> Iterator[Receiver]:
    folder.mkdir(parents=True, exist_ok=True)
    http_port, grpc_port = free_port(), free_port()
    path = write_config(folder, http_port, grpc_port, settings or {})
    receiver = Receiver(folder, path, http_port, grpc_port, environment=environment or {})
    receiver.start(ready=ready)
    try:
        yield receiver
    finally:
        if receiver.process.poll() is None:
            end(receiver.process)
