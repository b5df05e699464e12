"""`frazil up`: one command receives and lands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.integration.messages import logs
from tests.support.receiver import write_config
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, landed_bodies, verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_one_command_receives_and_lands_and_leaves_no_process(tmp_path: Path) -> None:
    port, settings = free_port(), {"land": PROMPT, "spark": SMALL_SPARK}
    settings |= {"pipeline": {"listen": f"127.0.0.1:{free_port()}"}}
    path = write_config(tmp_path, port, free_port(), settings)
    command = [sys.executable, "-m", "frazil", "--config", str(path), "up", "--no-demo"]
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen(dies_with_parent(command), stdout=log, stderr=log, cwd=tmp_path)
    try:
        assert wait_until(lambda: accepted(port), seconds_max=120), (tmp_path / "up.log").read_text()
        assert wait_until(lambda: landed_bodies(path).total() == 3, seconds_max=180), (
            tmp_path / "up.log"
        ).read_text()
        family = psutil.Process(up.pid).children(recursive=True)
        assert any(child.name() == "java" for child in family)
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
        assert psutil.wait_procs(family, timeout=20)[1] == []
        code, ledger = verified(path)
        assert (code, ledger["problems"]) == (0, [])
    finally:
        end(up)


def accepted(port: int) -> bool:
    body = logs("up", 3).SerializeToString()
    headers = {"content-type": "application/x-protobuf"}
    try:
        return httpx.post(
            f"http://127.0.0.1:{port}/v1/logs", content=body, headers=headers, verify=False
        ).is_success
    except httpx.HTTPError:
        return False
