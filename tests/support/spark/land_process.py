"""`frazil pipeline` as a separate process, with access to its HTTP port."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import load_config
from frazil.lake.catalog import open_catalog
from tests.components.process import dies_with_parent, free_port, wait_until

PROMPT = {"age_max_seconds": 0.5, "poll_interval_seconds": 0.2}
"""Of `land`: what was acked lands within a second."""
SMALL_SPARK = {"master": "local[2]", "driver_memory_bytes": "512MiB"}


class PipelineProcess:
    def __init__(
        self, config_path: Path, name: str = "pipeline", environment: Mapping[str, str] = {}
    ) -> None:
        self.config_path = config_path
        self.port = free_port()
        self.log = config_path.with_name(f"{name}.log")
        self._environment = dict(environment) | {"FRAZIL_PIPELINE__LISTEN": f"127.0.0.1:{self.port}"}
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "frazil", "--config", str(self.config_path), "pipeline"]
            self.process = subprocess.Popen(
                dies_with_parent(command),
                stdout=log,
                stderr=log,
                cwd=self.config_path.parent,
                env=os.environ | self._environment,
            )

    def until(self, what: str, condition: Any, seconds_max: float = 180) -> None:
        """Asks until it is so; says what the log says if it is not."""
        ended = lambda: self.process.poll() is not None  # noqa: E731
        found = wait_until(condition, seconds_max=seconds_max, give_up=ended)
        assert found, f"not within {seconds_max} s: {what}\n{self.log.read_text()[-6000:]}"

    def get(self, path: str) -> tuple[int, str]:
        """Returns status and text of a GET request; status 0 if there is no response."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5, verify=False)
            return answer.status_code, answer.text
        except httpx.HTTPError:
            return 0, ""

    def is_ready(self) -> bool:
        return self.get("/readyz")[0] == 200

    def metric(self, name: str, **labels: str) -> float:
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith((f"{name}{{", f"{name} ")) and all(
                f'{k}="{v}"' in line for k, v in labels.items()
            ):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def jvms(self) -> list[psutil.Process]:
        return [child for child in psutil.Process(self.process.pid).children(recursive=True) if is_jvm(child)]

    def stop(self, seconds_max: float = 60) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds_max)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def is_jvm(process: psutil.Process) -> bool:
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running_pipeline(
    config_path: Path, name: str = "pipeline", environment: Mapping[str, str] = {}
) -> Iterator[PipelineProcess]:
    pipeline = PipelineProcess(config_path, name, environment)
    pipeline.start()
    try:
        yield pipeline
    finally:
        if pipeline.process.poll() is None:
            pipeline.kill()


def verified(config_path: Path) -> tuple[int, dict[str, Any]]:
    """What `frazil verify --json` exits with and says."""
    command = [sys.executable, "-m", "frazil", "--config", str(config_path), "verify", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=config_path.parent)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def rows_in(config_path: Path, table: str, *columns: str) -> pa.Table | None:
    """None while there is no such table."""
    config = load_config(config_path, environ={})
    with closing(open_catalog(config)) as catalog:
        try:
            found = catalog.load_table((*config.lake.namespace.split("."), table))
        except NoSuchTableError:
            return None
        return found.scan(selected_fields=columns or ("*",)).to_arrow()


def landed_bodies(config_path: Path) -> Counter[str]:
    rows = rows_in(config_path, "logs", "body")
    return Counter() if rows is None else Counter(rows["body"].to_pylist())
