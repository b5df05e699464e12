"""What a receiver does at its start with stores that lie, that race, that are down, and that are sound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.components.fixtures import FaultyProxyFactory
from tests.components.process import wait_until
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.traffic import Account, burst, check_wal, until
from tests.support.receiver import running_receiver, write_config

ONE_WORKER = {"receive": {"workers": 1}}


def doctor_says(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Its check of the WAL's store."""
    folder.mkdir()
    path = write_config(folder, 1, 2, settings)
    command = [sys.executable, "-m", "frazil", "--config", str(path), "doctor", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ, cwd=folder)
    checks = {check["name"]: check for check in json.loads(run.stdout)}
    assert (run.returncode == 1) == any(check["status"] == "fail" for check in checks.values())
    return dict(checks["wal store"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lying_s3", "racy_s3"])
def test_a_store_whose_conditional_writes_do_not_hold_is_refused_in_plain_words(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: S3Server = request.getfixturevalue(kind)
    settings = ONE_WORKER | s3_settings(server, new_bucket(server))
    with running_receiver(tmp_path / "receiver", settings, ready=False) as receiver:
        assert wait_until(lambda: receiver.process.poll() is not None, seconds_max=60)
        assert receiver.process.returncode == 1
    log = (tmp_path / "receiver" / "receiver.log").read_text()
    assert "concurrent writers created the same object, so its conditional writes do not work" in log
    assert "Traceback" not in log
    check = doctor_says(tmp_path / "doctor", settings)
    assert check["status"] == "fail"
    assert "conditional writes do not work" in check["found"]
    assert "use another store" in check["fix"]


def test_a_sound_store_is_accepted(tmp_path: Path, moto_s3: S3Server) -> None:
    settings = ONE_WORKER | s3_settings(moto_s3, new_bucket(moto_s3))
    account = Account()
    with running_receiver(tmp_path / "receiver", settings) as receiver:
        burst(receiver, account)
        assert not account.answers("nothing") + account.answers("refused")
        check_wal(receiver, account)
    check = doctor_says(tmp_path / "doctor", settings)
    assert check["status"] == "ok"
    assert "conditional writes worked" in check["found"]


@pytest.mark.go
def test_a_sound_store_that_checks_signatures_is_accepted(tmp_path: Path, versitygw_s3: S3Server) -> None:
    settings = ONE_WORKER | s3_settings(versitygw_s3, new_bucket(versitygw_s3))
    account = Account()
    with running_receiver(tmp_path / "receiver", settings) as receiver:
        burst(receiver, account)
        assert not account.answers("nothing") + account.answers("refused")
        check_wal(receiver, account)
    assert doctor_says(tmp_path / "doctor", settings)["status"] == "ok"


@pytest.mark.slow
def test_a_store_that_is_down_at_the_start_is_waited_for(
    tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    settings = ONE_WORKER | s3_settings(moto_s3.through(proxy), new_bucket(moto_s3))
    proxy.refuse()
    begin = time.monotonic()
    with running_receiver(tmp_path / "receiver", settings, ready=False) as receiver:

        def answers() -> bool:
            try:
                return httpx.get(f"{receiver.http}/livez", timeout=1).status_code == 200
            except httpx.HTTPError:
                return False

        until(answers, seconds_max=25, what="alive")  # not only when the first write's time is over (30 s)
        assert time.monotonic() - begin < 25
        response = httpx.get(f"{receiver.http}/readyz")
        assert response.status_code == 503
        assert "s3://" in response.text
        account = Account()
        burst(receiver, account, requests=1)
        assert len(account.answers("refused")) == 4
        assert all((outcome.retry_after_seconds or 0) >= 1 for outcome in account.outcomes)
        assert receiver.process.poll() is None
        proxy.resume()
        until(receiver.is_ready, seconds_max=15, what="ready by itself")
        burst(receiver, account)
        assert len(account.answers("ok")) == 4 * 5
        check_wal(receiver, account)


@pytest.mark.slow
def test_a_store_that_comes_up_late_and_lies_is_never_used(
    tmp_path: Path, lying_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(lying_s3.host, lying_s3.port)
    settings = ONE_WORKER | s3_settings(
        lying_s3.through(proxy), new_bucket(lying_s3), write_timeout_seconds=2
    )
    proxy.refuse()
    with running_receiver(tmp_path / "receiver", settings, ready=False) as receiver:

        def said() -> str:
            try:
                return httpx.get(f"{receiver.http}/readyz", timeout=1).text
            except httpx.HTTPError:
                return ""

        until(lambda: '"ok": false' in said(), what="up, and not ready")
        proxy.resume()
        until(lambda: "conditional writes do not work" in said(), what="the reason")
        account = Account()
        burst(receiver, account, requests=1)
        assert len(account.answers("refused")) == 4
        check_wal(receiver, account)
