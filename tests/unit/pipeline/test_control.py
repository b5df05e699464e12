"""Commands that run in a pipeline: who may send them, what they return, and how they end early."""

from __future__ import annotations

import dataclasses
import json
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from typer.testing import CliRunner

from frazil.cli import app
from frazil.config import Config
from frazil.errors import FrazilError, Refused, Stopped
from frazil.keys import new_key
from frazil.ledger import balance
from frazil.pipeline.control import client as control_client
from frazil.pipeline.control import operations
from frazil.pipeline.control.client import in_pipeline
from frazil.pipeline.control.command import backfill as backfill_command
from frazil.pipeline.control.command import erase as erase_command
from frazil.pipeline.control.command import tag_create
from frazil.pipeline.control.protocol import Address, erase_request, read_address, write_address
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.maintain.erase import erase as erase_module
from frazil.pipeline.maintain.erase.request import EraseRequest, EverythingMatches
from frazil.pipeline.maintain.maintainer import Maintainer
from tests.components.process import wait_until
from tests.support.fault.land_wal import STREAMS, expected, table_content, write_segments
from tests.support.pipeline_thread import Running

ADMIN, ADMIN_HASH = new_key("ops")
READER, READER_HASH = new_key("default")
AUTH = {
    "keys": [
        {"name": "admin", "tenant": "ops", "hash": ADMIN_HASH, "roles": ["admin"]},
        {"name": "reader", "tenant": "default", "hash": READER_HASH, "roles": ["read"]},
    ]
}
Start = Callable[..., Running]


def silent(_: str) -> None:
    pass


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(erase_module, "QUERY_SECONDS_MAX", 0.1)
    made: list[Running] = []

    def begin(**settings: Any) -> Running:
        made.append(running := Running(tmp_path, **settings))
        assert wait_until(lambda: read_address(running.config) is not None, seconds_max=60)
        return running

    yield begin
    for each in made:
        each.stop()


def post(running: Running, path: str, body: bytes = b"{}", token: str | None = None) -> Any:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{running.pipeline.port}{path}"
    return urllib3.request("POST", url, body=body, headers=headers, retries=False)


def tenant_of(data_dir: Path) -> str:
    """The tenant of the rows that `write_segments` writes."""
    return next(each.name for each in data_dir.rglob("data/tenant_id=*")).removeprefix("tenant_id=")


def test_a_tag_has_all_data_that_was_durable(start: Start, tmp_path: Path, capsys: Any) -> None:
    running = start(land={"age_max_seconds": 3600, "bytes_min": "1GiB"})
    content = write_segments(tmp_path, STREAMS[0], [0, 1])
    said: list[str] = []
    tagged = in_pipeline(running.config, "tag", {"name": "incident-1"}, None, said.append)
    assert tagged is not None
    assert {each["table"] for each in tagged["tables"]} >= {"logs", "spans", "metrics"}
    assert tagged["missing"] == []
    assert table_content(tmp_path) == content
    assert said == ["landing the write-ahead log", "tagging the tables"]
    assert tag_create(running.config, "incident-2", api_key=None, json_output=False) == 0
    shown = capsys.readouterr().out
    assert f"{content.total():,}" in shown
    assert "--as-of tag:incident-2" in shown


def test_an_erasure_is_proven_and_says_what_it_does(start: Start, tmp_path: Path, capsys: Any) -> None:
    running = start()
    content = write_segments(tmp_path, STREAMS[0], [0, 1])
    assert running.has_landed(content)
    body = next(iter(expected(STREAMS[0], 1)))[0]
    request = EraseRequest(tenant_of(tmp_path), f"body = '{body}'", ("logs",))
    report = tmp_path / "report.json"
    assert erase_command(running.config, request, api_key=None, report=report, json_output=False) == 0
    out = capsys.readouterr()
    assert "proven: no file holds matching rows" in out.out
    for step in ("landing the write-ahead log", "searching logs", "erasing from logs", "verifying"):
        assert step in out.err
    assert json.loads(report.read_text())["rows_removed"] == 1
    assert table_content(tmp_path) == Counter(
        {key: count for key, count in content.items() if key[0] != body}
    )


def test_past_days_are_derived_again_in_the_pipeline(start: Start, tmp_path: Path, capsys: Any) -> None:
    running = start()
    content = write_segments(tmp_path, STREAMS[0], [0, 1])
    assert running.has_landed(content)
    request = BackfillRequest("log_rollups", "2001-01-01")
    assert backfill_command(running.config, request, api_key=None, json_output=False) == 0
    out = capsys.readouterr()
    assert f"derived again from {content.total():,} rows of logs" in out.out
    assert "day 1 of " in out.err
    arguments = ["backfill", "log_rollups", "--from", "2001-01-01", "--dry-run", "--json"]
    settings = tmp_path / "frazil.json"
    settings.write_text(json.dumps({"data_dir": str(tmp_path)}))
    ran = CliRunner().invoke(app, ["--config", str(settings), *arguments])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert (found["table"], found["dry_run"]) == ("log_rollups", True)
    assert sum(day["source_rows"] for day in found["days"]) == content.total()
    assert sum(day["derived_rows"] for day in found["days"]) == content.total()
    assert balance(running.config).problems == []


def test_maintenance_goes_on_while_past_days_are_derived(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    assert running.has_landed(write_segments(tmp_path, STREAMS[0], [0]))
    rounds: list[bool] = []
    original = Maintainer.round

    def noted(self: Maintainer, *given: Any) -> Any:
        rounds.append(True)
        return original(self, *given)

    def waiting(*_: Any, **__: Any) -> Any:
        count = len(rounds)
        assert running.pipeline._control.operation == "backfill"
        went_on = wait_until(lambda: len(rounds) > count + 1, seconds_max=30)
        raise Refused(f"went on: {went_on}")

    monkeypatch.setattr(Maintainer, "round", noted)
    monkeypatch.setattr(Maintainer, "is_anything_due", lambda _: True)
    monkeypatch.setattr(operations, "backfill", waiting)
    body = {"table": "log_rollups", "first": "2001-01-01"}
    with pytest.raises(Refused, match="went on: True"):
        in_pipeline(running.config, "backfill", body, None, silent)
    assert running.pipeline._control.operation is None


def test_a_dry_run_that_would_be_refused_exits_1(start: Start, tmp_path: Path, capsys: Any) -> None:
    running = start()
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert running.has_landed(content)
    everything = EraseRequest(tenant_of(tmp_path), "body IS NOT NULL", ("logs",), dry_run=True)
    assert erase_command(running.config, everything, api_key=None, report=None, json_output=False) == 1
    assert "add --yes" in capsys.readouterr().out


def test_errors_of_a_command_keep_their_type(start: Start, tmp_path: Path) -> None:
    running = start()
    assert running.has_landed(write_segments(tmp_path, STREAMS[0], [0]))
    tenant = tenant_of(tmp_path)
    in_pipeline(running.config, "tag", {"name": "twice"}, None, silent)
    with pytest.raises(Refused, match="exists already"):
        in_pipeline(running.config, "tag", {"name": "twice"}, None, silent)
    with pytest.raises(EverythingMatches, match="--yes"):
        in_pipeline(running.config, "erase", {"tenant": tenant, "where": "1 = 1"}, None, silent)


@pytest.mark.parametrize(
    ("operation", "body", "why"),
    [
        ("tag", {}, "no name"),
        ("tag", {"name": 7}, "no name"),
        ("erase", {}, "missing"),
        ("erase", {"tenant": "a", "where": "1 = 1", "yes": "no"}, "yes has a wrong type"),
        ("erase", {"tenant": "a", "where": "1 = 1", "tables": "logs"}, "tables has a wrong type"),
        ("erase", {"tenant": "a", "where": "1 = 1", "other": True}, "other"),
        ("backfill", {"first": "2026-11-18"}, "missing"),
        ("backfill", {"table": "log_rollups", "first": 7}, "first has a wrong type"),
        ("backfill", {"table": "logs", "first": "2026-11-18"}, "logs is not a derived table"),
        ("drop", {}, "there is no command"),
    ],
)
def test_an_invalid_request_is_refused(start: Start, operation: Any, body: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        in_pipeline(start().config, operation, body, None, silent)


def test_a_request_is_the_same_with_and_without_a_pipeline() -> None:
    request = EraseRequest("acme", "body = 'x'", ("logs",), drop_tags=True)
    body = dataclasses.asdict(request)
    assert erase_request(body) == erase_request(json.loads(json.dumps(body))) == request


def test_a_body_that_is_too_large_or_not_json_is_refused(start: Start) -> None:
    running = start()
    address = read_address(running.config)
    assert address is not None
    for body in (b"", b"[]", b"{", b"\xff", b"x" * ((1 << 20) + 1)):
        assert post(running, "/control/tag", body, address.token).status == 400


def test_only_the_local_token_and_admin_keys_are_accepted(start: Start) -> None:
    running = start(auth=AUTH)
    address = read_address(running.config)
    assert address is not None
    tag = [b'{"name": "%s"}' % name for name in (b"a", b"b")]
    for token, status in ((None, 401), ("guess", 401), (address.token[:-1], 401), (READER, 403)):
        assert post(running, "/control/tag", tag[0], token).status == status
    assert post(running, "/control/tag", tag[0], ADMIN).status == 200
    assert post(running, "/control/tag", tag[1], address.token).status == 200
    assert post(running, "/elsewhere", b"", ADMIN).status == 404


def test_without_keys_no_request_without_the_token_is_accepted(start: Start) -> None:
    running = start()
    for token in (None, "", "guess", ADMIN):
        assert post(running, "/control/tag", b'{"name": "a"}', token).status == 401


def test_the_token_is_for_its_owner_alone_and_ends_with_the_pipeline(start: Start, tmp_path: Path) -> None:
    running = start()
    file = tmp_path / "pipeline.control"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    running.stop()
    assert not file.exists()


def test_a_pipeline_removes_only_its_own_token(start: Start) -> None:
    running = start()
    other = Address("http://127.0.0.1:1", "other")
    write_address(running.config, other)
    running.stop()
    assert read_address(running.config) == other


def test_an_admin_key_reaches_the_configured_pipelines_and_a_standby_is_passed_over(
    start: Start, tmp_path: Path
) -> None:
    active = start(auth=AUTH)
    standby = Running(tmp_path, auth=AUTH)
    try:
        ports = [each.pipeline.port for each in (standby, active)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        far = Config.model_validate(
            {"data_dir": tmp_path / "elsewhere", "status": {"pipelines": ["http://127.0.0.1:1", *urls]}}
        )
        said: list[str] = []
        tagged = in_pipeline(far, "tag", {"name": "from-afar"}, ADMIN, said.append)
        assert tagged is not None
        assert tagged["name"] == "from-afar"
        assert "not active" in said[0]
        assert in_pipeline(far, "tag", {"name": "b"}, READER, said.append) is None
        assert "has no role admin" in said[-1]
        assert in_pipeline(far, "tag", {"name": "b"}, None, silent) is None
    finally:
        standby.stop()


def test_a_second_command_is_refused_while_one_runs_and_maintenance_waits(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_module, "QUERY_SECONDS_MAX", 3600)
    running = start()
    assert running.has_landed(write_segments(tmp_path, STREAMS[0], [0]))
    waiting = threading.Event()
    failed: list[Exception] = []
    rounds: list[bool] = []
    original = Maintainer.round

    def noted(self: Maintainer, *given: Any) -> Any:
        rounds.append(True)
        return original(self, *given)

    monkeypatch.setattr(Maintainer, "round", noted)

    def note(text: str) -> None:
        if "waiting" in text:
            waiting.set()

    def erase() -> None:
        body = {"tenant": tenant_of(tmp_path), "where": "body IS NOT NULL", "tables": ["logs"], "yes": True}
        try:
            in_pipeline(running.config, "erase", body, None, note)
        except FrazilError as error:
            failed.append(error)

    thread = threading.Thread(target=erase)
    thread.start()
    try:
        assert waiting.wait(60)
        with pytest.raises(FrazilError, match="another command"):
            in_pipeline(running.config, "tag", {"name": "b"}, None, silent)
        count = len(rounds)
        wait_until(lambda: len(rounds) > count, seconds_max=1)
        assert len(rounds) == count
    finally:
        running.stop()
        thread.join(60)
    assert not thread.is_alive()
    (error,) = failed
    assert isinstance(error, Stopped)
    assert running.pipeline._control.is_busy is False


def test_a_command_ends_when_its_client_disconnects(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_module, "QUERY_SECONDS_MAX", 3600)
    running = start()
    assert running.has_landed(write_segments(tmp_path, STREAMS[0], [0]))
    body = {"tenant": tenant_of(tmp_path), "where": "body IS NOT NULL", "tables": ["logs"], "yes": True}

    def leave(text: str) -> None:
        if "waiting" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_pipeline(running.config, "erase", body, None, leave)
    assert wait_until(lambda: not running.pipeline._control.is_busy, seconds_max=30)


def test_a_pipeline_that_is_gone_or_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate({"data_dir": tmp_path})
    assert in_pipeline(config, "tag", {"name": "a"}, None, silent) is None
    write_address(config, Address("http://127.0.0.1:1", "stale"))
    assert in_pipeline(config, "tag", {"name": "a"}, None, silent) is None
    monkeypatch.setattr(control_client, "_SILENCE_SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        write_address(config, Address(f"http://127.0.0.1:{server.getsockname()[1]}", "silent"))
        assert in_pipeline(config, "tag", {"name": "a"}, None, silent) is None
