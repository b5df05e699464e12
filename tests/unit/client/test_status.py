"""`frazil status` against servers on this machine that say what roles say."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from frazil.client import status as command
from frazil.client.status import StatusOptions, run
from frazil.errors import FrazilError
from tests.components.process import free_port
from tests.support.status_roles import page, serving

RECEIVER = page("receiver", 'frazil_receive_records_total{signal="logs",outcome="accepted"} 5\n')
WAITING = 'frazil_pipeline_leader 1\nfrazil_land_pending_bytes{table="logs"} 2500000\n'
PIPELINE = page("pipeline", WAITING, logs="the store does not respond")
WELL = page("pipeline", WAITING)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs; no role of its configuration does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("frazil.status.poll.APART_SECONDS", 0.01)
    return tmp_path


def configure(folder: Path, **status: Any) -> list[int]:
    """The ports of the configuration's own roles, on which nothing listens."""
    ports = [free_port() for _ in range(4)]
    receive, pipeline, serve, _ = (f"127.0.0.1:{port}" for port in ports)
    config = {
        "receive": {"http": {"listen": receive}},
        "pipeline": {"listen": pipeline},
        "serve": {"listen": serve},
        "dashboard": {"enabled": False},
        "status": status,
    }
    (folder / "frazil.yaml").write_text(yaml.safe_dump(config))
    return ports


def shown(options: StatusOptions, width: int = 160) -> tuple[int, str]:
    out = io.StringIO()
    code = run(options, Console(file=out, width=width))
    return code, out.getvalue()


def test_without_running_roles_it_shows_the_addresses_and_what_to_do(folder: Path) -> None:
    ports = configure(folder)
    code, text = shown(StatusOptions())
    assert code == 1
    assert text.startswith("no role is running on ")
    assert all(f"http://127.0.0.1:{port}" in text for port in ports[:3])
    assert "`frazil up`" in text


def test_with_the_api_down_the_roles_are_polled_directly(folder: Path) -> None:
    with serving(RECEIVER) as receiver, serving(PIPELINE) as pipeline:
        configure(folder, receivers=[receiver], pipelines=[pipeline])
        code, text = shown(StatusOptions())
        assert code == 1
        assert "degraded" in text
        assert "● receiver" in text
        assert "▲ pipeline" in text
        assert "logs: the store does not respond" in text
        assert "✗ api" in text
        assert "connection refused" in text
        assert "2.5 MB waiting" in text
        code, said = shown(StatusOptions(json_output=True))
    status = json.loads(said)
    assert (code, status["state"], status["history"]) == (1, "degraded", None)
    assert status["stages"]["wal"]["backlog"]["bytes"] == 2_500_000
    assert status["stages"]["receive"]["total"]["records_per_second"] is None, "these pages have no rates"


def test_exit_code_0_if_all_roles_are_ok_and_fits_a_small_terminal(folder: Path) -> None:
    api = page("api", "frazil_queries_running 0\n")
    with serving(RECEIVER) as receiver, serving(WELL) as pipeline, serving(api) as serve:
        configure(folder, receivers=[receiver], pipelines=[pipeline], apis=[serve])
        code, text = shown(StatusOptions(), width=80)
    assert code == 0
    assert "all roles ok" in text
    assert len(text.splitlines()) <= 30


def test_without_permission_the_roles_are_polled_directly_with_a_note(folder: Path) -> None:
    refusal = {"error": {"code": "forbidden", "message": "the API key shop may not do this: it needs admin"}}
    api = {"/api/v1/status?history=false": (403, json.dumps(refusal).encode())}
    with serving(RECEIVER) as receiver, serving(api) as serve:
        configure(folder, receivers=[receiver])
        settings = yaml.safe_load((folder / "frazil.yaml").read_text())
        settings["serve"]["listen"] = serve.removeprefix("http://")
        (folder / "frazil.yaml").write_text(yaml.safe_dump(settings))
        code, text = shown(StatusOptions(api_key="fz_x"))
    assert code == 1
    assert "polled the roles directly" in text
    assert "it needs admin" in text
    assert "● receiver" in text


def test_an_unreachable_explicit_url_is_an_error(folder: Path) -> None:
    configure(folder)
    with pytest.raises(FrazilError, match="cannot reach"):
        run(StatusOptions(url=f"http://127.0.0.1:{free_port()}"))


def test_watch_refreshes_until_interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: Iterator[None] = iter([None, None])

    def pause(seconds: float) -> None:
        assert seconds == command.WATCH_SECONDS
        if next(pauses, "end") == "end":
            raise KeyboardInterrupt

    with serving(RECEIVER) as receiver:
        configure(folder, receivers=[receiver])
        monkeypatch.setattr(command, "pause", pause)
        code, text = shown(StatusOptions(watch=True, json_output=True))
    looks = [json.loads(line) for line in text.splitlines()]
    assert (code, len(looks)) == (1, 3)
    assert looks[0]["at"] < looks[1]["at"] < looks[2]["at"]


def test_watch_leaves_the_last_status_on_the_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "pause", interrupted)
    out = io.StringIO()
    with serving(RECEIVER) as receiver:
        configure(folder, receivers=[receiver])
        code = run(StatusOptions(watch=True), Console(file=out, force_terminal=True, width=140, height=40))
    assert code == 1
    left = out.getvalue().rpartition("\x1b[?1049l")[2]  # after the alternate screen is closed
    assert "receiver" in left
