"""A real `frazil serve` process beside a receiver, asked until ready, ended."""

from __future__ import annotations

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

from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.receiver import Receiver, running_receiver

READY_SECONDS_MAX = 90


@dataclass
class Api:
    folder: Path
    config_path: Path
    url: str
    verify: Any = False
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(
                    [sys.executable, "-m", "frazil", "--config", str(self.config_path), "serve"]
                ),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ,
            )
        assert wait_until(self.is_ready, seconds_max=READY_SECONDS_MAX), self.log()

    @property
    def log_path(self) -> Path:
        return self.folder / "api.log"

    def log(self) -> str:
        return self.log_path.read_text()

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        try:
            return self.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60, verify=self.verify, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, timeout=60, verify=self.verify, **options)

    def sql(self, text: str, *params: Any, **options: Any) -> httpx.Response:
        return self.post("/api/v1/sql", json={"sql": text, "params": params}, **options)

    def rows(self, text: str, *params: Any, **options: Any) -> list[list[Any]]:
        answer = self.sql(text, *params, **options)
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = answer.json()["rows"]
        return rows

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def running_api(
    folder: Path, settings: Mapping[str, Any] | None = None, *, verify: Any = False
) -> Iterator[tuple[Api, Receiver]]:
    """A receiver and an API on one data folder."""
    port = free_port()
    serve = {"listen": f"127.0.0.1:{port}", **(settings or {}).get("serve", {})}
    query = {"workers": 1, **(settings or {}).get("query", {})}
    whole = {**(settings or {}), "serve": serve, "query": query, "wal": {"group_wait_seconds": 0.01}}
    with running_receiver(folder, whole) as receiver:
        scheme = "https" if "tls" in serve else "http"
        api = Api(folder, receiver.config_path, f"{scheme}://127.0.0.1:{port}", verify)
        try:
            api.start()
            yield api, receiver
        finally:
            if api.process.poll() is None:
                end(api.process, 15)
