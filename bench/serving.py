"""`frazil serve` as a process, for as long as a measurement takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.components.process import dies_with_parent, end, free_port, wait_until


@contextmanager
def running_api(data_dir: Path, **sections: Any) -> Iterator[str]:
    """Its address."""
    port = free_port()
    listen = f"127.0.0.1:{port}"
    config = {"data_dir": str(data_dir), "serve": {"listen": listen}, "log": {"level": "warning"}, **sections}
    path = data_dir.parent / f"serve-{port}.yaml"
    path.write_text(yaml.safe_dump(config))
    url, log_path = f"http://{listen}", path.with_suffix(".log")
    command = [sys.executable, "-m", "frazil", "--config", str(path), "serve"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(dies_with_parent(command), stdout=log, stderr=log)
    try:
        ended = lambda: process.poll() is not None  # noqa: E731
        ready = wait_until(lambda: _is_ready(url), seconds_max=60, give_up=ended)
        assert ready, log_path.read_text()[-3000:]
        yield url
    finally:
        end(process)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
