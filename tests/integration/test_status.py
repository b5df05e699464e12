"""Overall status, with a real receiver and API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from frazil import __version__
from tests.components.process import free_port, wait_until
from tests.support.integration.api import Api, running_api
from tests.support.integration.clients import post
from tests.support.integration.messages import logs, new_service
from tests.support.receiver import Receiver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Receiver]]:
    """The pipeline's port is free: it is down."""
    settings = {
        "status": {"sample_seconds": 1},
        "pipeline": {"listen": f"127.0.0.1:{free_port()}"},
        "dashboard": {"enabled": False},
        "receive": {"workers": 2},
    }
    with running_api(tmp_path_factory.mktemp("status"), settings) as running:
        yield running


def status(api: Api, query: str = "") -> dict[str, Any]:
    answer = api.get(f"/api/v1/status{query}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def states(found: dict[str, Any]) -> dict[str, str]:
    return {role["name"]: role["state"] for role in found["roles"]}


def frazil(receiver: Receiver, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "frazil", "--config", str(receiver.config_path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"COLUMNS": "160"},
        check=False,
    )


def test_what_is_sent_shows_in_rates_acks_and_lines(both: tuple[Api, Receiver]) -> None:
    api, receiver = both
    assert wait_until(lambda: len(status(api)["history"]["times"]) >= 2, seconds_max=30)
    begin, sent = time.monotonic(), 0

    def moves() -> bool:
        nonlocal sent
        for _ in range(5):
            assert post(receiver, "logs", logs(new_service(), 10).SerializeToString()).status_code == 200
            sent += 10
        found = status(api, "?history=false")["stages"]["receive"]["signals"]["logs"]
        return (found["records_per_second"] or 0) > 0 and found["ack"]["p99_seconds"] is not None

    assert wait_until(moves, seconds_max=30)
    post(receiver, "logs", b"no protobuf")
    assert wait_until(lambda: "invalid" in status(api)["stages"]["receive"]["refusals"], seconds_max=30)
    found = status(api)
    received = found["stages"]["receive"]["signals"]["logs"]
    # No more than was sent, however many workers count it.
    assert received["records_per_second"] <= sent / (time.monotonic() - begin) * 10
    assert 0 < received["ack"]["p50_seconds"] <= received["ack"]["p99_seconds"] < 30
    assert found["stages"]["receive"]["ready_workers"] == 2
    line = next(each for each in found["history"]["series"] if each["of"] == "logs")
    assert line["name"] == "received_records_per_second"
    seconds = found["history"]["times"][-1] - found["history"]["times"][0]
    assert max(value or 0 for value in line["values"]) > 0
    assert sum(value or 0 for value in line["values"]) <= 2 * sent * max(1.0, len(line["values"]) / seconds)


def test_roles_say_what_they_are_and_one_that_is_down_makes_the_whole_degraded(
    both: tuple[Api, Receiver],
) -> None:
    api, receiver = both
    found = status(api)
    assert found["state"] == "degraded"
    assert states(found) == {"receiver": "ok", "pipeline": "down", "api": "ok"}
    by_name = {role["name"]: role for role in found["roles"]}
    assert by_name["receiver"]["version"] == __version__
    assert by_name["pipeline"]["reasons"] == ["connection refused: nothing listens at this address"]
    assert 1e6 < by_name["receiver"]["memory_bytes"] < 1e10
    assert 0 < by_name["api"]["up_seconds"] < 3600
    kept = {objective["name"]: objective["kept"] for objective in found["objectives"]}
    assert (kept["freshness"], kept["landing_lag"]) == (True, False)
    ended = frazil(receiver, "status")
    assert ended.returncode == 1
    assert "✗ pipeline" in ended.stdout
    assert "● receiver" in ended.stdout


def test_the_ledger_says_what_verify_says(both: tuple[Api, Receiver]) -> None:
    api, receiver = both
    post(receiver, "spans", b"")
    said = json.loads(frazil(receiver, "verify", "--json").stdout)
    found = status(api, "?ledger=true&history=false")["ledger"]
    assert (found["state"], found["ok"]) == ("ready", True)
    durable = sum(line["durable"] for line in said["lines"] if line["table"] == "logs")
    assert found["tables"]["logs"]["durable"] == durable > 0


def test_a_receiver_that_goes_and_comes_back_is_seen_and_gives_no_absurd_rates(
    both: tuple[Api, Receiver],
) -> None:
    api, receiver = both
    for _ in range(20):
        assert post(receiver, "logs", logs(new_service(), 100).SerializeToString()).status_code == 200
    receiver.stop()
    assert wait_until(lambda: states(status(api))["receiver"] == "down", seconds_max=30)
    assert status(api)["state"] == "degraded"
    receiver.start()
    assert wait_until(lambda: states(status(api))["receiver"] == "ok", seconds_max=30)
    seen = len(status(api)["history"]["times"])
    post(receiver, "logs", logs(new_service(), 7).SerializeToString())
    assert wait_until(lambda: len(status(api)["history"]["times"]) >= seen + 3, seconds_max=30)
    lines = status(api)["history"]["series"]
    rates = [value for each in lines if "per_second" in each["name"] for value in each["values"]]
    assert all(value is None or 0 <= value <= 20_000 for value in rates)
    since = next(each for each in lines if each["of"] == "logs")["values"][seen:]
    assert sum(value or 0 for value in since) <= 7 * 3


def test_with_the_api_gone_the_terminal_asks_the_receiver_and_with_all_gone_says_what_to_do(
    both: tuple[Api, Receiver],
) -> None:
    api, receiver = both
    api.stop()
    ended = frazil(receiver, "status", "--json")
    assert (ended.returncode, states(json.loads(ended.stdout))) == (
        1,
        {"receiver": "ok", "pipeline": "down", "api": "down"},
    )
    receiver.stop()
    ended = frazil(receiver, "status")
    assert ended.returncode == 1
    assert ended.stdout.startswith("no role is running on ")
    assert "`frazil up`" in ended.stdout
