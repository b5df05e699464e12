"""What browsers look at: `frazil up`, or some of its roles one by one, each on a port of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.integration.api import Api, running_api
from tests.support.receiver import write_config
from tests.support.spark.land_process import SMALL_SPARK

READY_SECONDS_MAX = 180
STOP_SECONDS_MAX = 15
"""What Ctrl-C may take, whatever runs."""


@dataclass
class Place:
    """Where a frazil is: `url` of its dashboard, `otlp` to send to, `api` to ask."""

    folder: Path
    url: str
    otlp: str
    api: str

    def send(self, signal: str, body: Mapping[str, Any], key: str | None = None) -> None:
        """OTLP in JSON; returns when it is durable."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        answer = httpx.post(f"{self.otlp}/v1/{signal}", json=body, headers=headers, timeout=30, verify=False)
        assert answer.is_success, answer.text

    def rows(self, sql: str) -> list[list[Any]]:
        answer = httpx.post(f"{self.api}/api/v1/sql", json={"sql": sql}, timeout=60, verify=False)
        assert answer.is_success, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    def queries(self, page: str) -> float:
        """How many the dashboard has asked the API for this page."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics", timeout=10, verify=False).text.splitlines():
            if line.startswith("frazil_dashboard_questions_total{") and f'page="{page}"' in line:
                total += float(line.rsplit(" ", 1)[1])
        return total


@dataclass
class Up(Place):
    process: subprocess.Popen[bytes]
    log: Path
    config_path: Path

    def is_full(self) -> bool:
        """Logs, spans and metrics can all be asked, and something has landed."""
        try:
            counts = [
                self.rows(f"SELECT count(*) FROM {name}")[0][0] for name in ("logs", "spans", "metrics")
            ]
            landed = httpx.get(f"{self.api}/api/v1/tables", timeout=30, verify=False).json()["tables"]
            is_shown = httpx.get(f"{self.url}/healthz", timeout=10, verify=False).is_success
        except (httpx.HTTPError, AssertionError):
            return False
        return is_shown and all(counts) and any(table.get("rows") for table in landed)

    def interrupt(self) -> tuple[int, float]:
        """Ctrl-C: the exit code, and the seconds that it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(90)
        return code, time.monotonic() - begin


@contextmanager
def running_up(folder: Path, settings: Mapping[str, Any] | None = None, *, demo: bool = True) -> Iterator[Up]:
    """Given when it is well and, if there is demo traffic, has data. Ended after that, whatever its state."""
    folder.mkdir(parents=True, exist_ok=True)
    http, api, dashboard = (f"127.0.0.1:{free_port()}" for _ in range(3))
    whole = {
        "spark": SMALL_SPARK,
        "land": {"age_max_seconds": 5},
        "pipeline": {"listen": f"127.0.0.1:{free_port()}"},
        "serve": {"listen": api},
        "dashboard": {"listen": dashboard},
        **(settings or {}),
    }
    path = write_config(folder, int(http.rpartition(":")[2]), free_port(), whole)
    command = [sys.executable, "-m", "frazil", "--config", path, "up", "--demo" if demo else "--no-demo"]
    log = folder / "up.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            dies_with_parent(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
        )
    up = Up(folder, f"http://{dashboard}", f"http://{http}", f"http://{api}", process, log, path)
    try:
        ended = lambda: process.poll() is not None  # noqa: E731
        ready = up.is_full if demo else lambda: _is_well(up.url)
        assert wait_until(ready, seconds_max=READY_SECONDS_MAX, give_up=ended), log.read_text()[-4000:]
        yield up
    finally:
        end(process, 60)


@dataclass
class Parts(Place):
    """A receiver, an API and a dashboard, each a process that can be stopped alone. Nothing lands."""

    serve: Api
    keys: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def running_parts(
    folder: Path, settings: Mapping[str, Any] | None = None, keys: Mapping[str, str] | None = None
) -> Iterator[Parts]:
    listen = f"127.0.0.1:{free_port()}"
    whole = {**(settings or {}), "dashboard": {**(settings or {}).get("dashboard", {}), "listen": listen}}
    with running_api(folder, whole) as (api, receiver), running_dashboard(receiver.config_path) as url:
        yield Parts(folder, url, receiver.http, api.url, api, keys or {})


@contextmanager
def running_dashboard(config_path: Path, **environment: str) -> Iterator[str]:
    """Its address, which the configuration has."""
    log_path = config_path.with_name("dashboard.log")
    url = f"http://{yaml.safe_load(config_path.read_text())['dashboard']['listen']}"
    command = [sys.executable, "-m", "frazil", "--config", config_path, "dashboard"]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            dies_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=config_path.parent,
            env=os.environ | environment,
        )
    try:
        ended = lambda: process.poll() is not None  # noqa: E731
        ready = wait_until(lambda: _is_well(url), seconds_max=READY_SECONDS_MAX, give_up=ended)
        assert ready, log_path.read_text()[-4000:]
        yield url
    finally:
        end(process, STOP_SECONDS_MAX)


def _is_well(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=10, verify=False).is_success
    except httpx.HTTPError:
        return False
