"""The first start of `frazil up`, and a query while a role is started again: nothing alarming is printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.receiver import write_config
from tests.support.spark.land_process import PROMPT, SMALL_SPARK

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

START_SECONDS_MAX = 150
QUIET_SECONDS = 20
ALARMING = re.compile(r"warn|\berror\b|exception|traceback|retrying|refused", re.IGNORECASE)
BANNER = "Ctrl-C stops all roles."


@dataclass
class Up:
    process: subprocess.Popen[bytes]
    path: Path

    def output(self) -> str:
        return self.path.with_name("up.log").read_text()

    def has(self, text: str) -> bool:
        return text in self.output()

    def role(self, name: str) -> psutil.Process | None:
        children = psutil.Process(self.process.pid).children()
        return next((child for child in children if name in child.cmdline()), None)

    def url(self, role: str) -> str:
        return f"http://{yaml.safe_load(self.path.read_text())[role]['listen']}"

    def answers(self, role: str, path: str = "/") -> bool:
        try:
            return httpx.get(self.url(role) + path, timeout=10, verify=False).status_code < 500
        except httpx.HTTPError:
            return False

    def until(self, condition: Callable[[], bool], what: str) -> None:
        found = wait_until(
            condition, seconds_max=START_SECONDS_MAX, give_up=lambda: self.process.poll() is not None
        )
        assert found, f"{what}\n{self.output()[-4000:]}"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    listening = {name: {"listen": f"127.0.0.1:{free_port()}"} for name in ("pipeline", "serve", "dashboard")}
    settings = {"land": PROMPT, "spark": SMALL_SPARK, "demo": {"traces_per_second": 1}, **listening}
    path = write_config(folder, free_port(), free_port(), settings)
    command = [sys.executable, "-m", "frazil", "--config", str(path), "up", "--demo"]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(dies_with_parent(command), stdout=log, stderr=log, cwd=folder)
    try:
        yield Up(process, path)
    finally:
        end(process, 30)


def test_a_first_start_prints_no_warning(up: Up) -> None:
    """The dashboard is opened as soon as it answers, which may be before the API does."""
    up.until(lambda: up.has(BANNER), "no banner")
    quiet_until = time.monotonic() + QUIET_SECONDS

    def is_over() -> bool:
        up.answers("dashboard")
        return time.monotonic() > quiet_until and up.has('"Spark started"') and up.has('"batch landed"')

    up.until(is_over, "nothing landed")
    assert up.answers("dashboard")
    assert [line for line in up.output().splitlines() if ALARMING.search(line)] == []


def test_a_query_while_the_api_is_started_again_prints_its_result_alone(up: Up) -> None:
    """And `frazil up` says that the API exited, and nothing else."""
    up.until(lambda: up.answers("serve"), "no API")
    killed = up.role("serve")
    assert killed is not None
    killed.kill()
    asked = 0
    up.answers("dashboard", "/healthz")  # which asks the API
    while asked < 3 or up.role("serve") in (None, killed) or not up.answers("serve"):
        command = ["query", "--format", "json", "SELECT count(*) AS n FROM spans"]
        ran = subprocess.run(
            [sys.executable, "-m", "frazil", "--config", str(up.path), *command],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        asked += 1
        assert asked < 50, up.output()[-4000:]
        if ran.returncode == 0:
            [row] = json.loads(ran.stdout)
            assert row["n"] > 0
            assert ran.stderr == ""
        else:
            assert ran.stdout == ""
            assert re.fullmatch(r"error: .+\n", ran.stderr), ran.stderr
    alarming = [line for line in up.output().splitlines() if ALARMING.search(line)]
    assert [json.loads(line)["event"] for line in alarming] == ["role exited; restart scheduled"], alarming
