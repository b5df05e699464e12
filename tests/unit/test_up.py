"""`frazil up`: roles are restarted with growing pauses, stopped together, and given up on when hopeless."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import structlog
from rich.console import Console

from frazil import up
from frazil.config import ClientConfig, Config, DemoConfig, HttpConfig, ReceiveConfig, load_config
from frazil.up import _Role
from tests.components.process import wait_until


class Fake:
    """Stands in for `python -m frazil`: each role is a shell script that notes what happens to it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.command = folder / "python"
        self.command.write_text(
            textwrap.dedent(
                f"""\
                #!/bin/sh
                shift 2
                while [ "$1" = --config ]; do shift 2; done
                role=$1
                echo "$role start $$" >> {folder}/log
                trap 'echo "$role term" >> {folder}/log; exit 0' TERM
                . {folder}/$role
                """
            )
        )
        self.command.chmod(0o755)
        monkeypatch.setattr(up.sys, "executable", str(self.command))
        monkeypatch.setattr(up, "_BACKOFF_SECONDS", 0.05)
        for role in ("receive", "pipeline", "serve", "dashboard", "demo"):
            self.does(role, self.LIVES)

    LIVES = "while :; do sleep 0.05; done"

    def does(self, role: str, script: str) -> None:
        (self.folder / role).write_text(script + "\n")

    def log(self) -> list[str]:
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def starts(self, role: str) -> int:
        return sum(line.startswith(f"{role} start") for line in self.log())

    def pids(self) -> list[int]:
        return [int(line.split()[2]) for line in self.log() if " start " in line]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    made = Fake(tmp_path, monkeypatch)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)
    for pid in made.pids():
        assert not Path(f"/proc/{pid}/task").exists(), f"{made.log()} left a process"


def role(name: str = "receiver", argument: str = "receive") -> _Role:
    return _Role(name, [argument])


def watching(roles: list[_Role], until: Callable[[], bool]) -> int:
    """Runs the watch in this thread and stops it when `until` holds."""
    stop = threading.Event()

    def observe() -> None:
        wait_until(until, seconds_max=20, give_up=stop.is_set)
        stop.set()

    observer = threading.Thread(target=observe)
    observer.start()
    try:
        return up._watch(roles, stop)
    finally:
        stop.set()
        observer.join()
        up._stop(roles)


def test_a_role_that_dies_is_restarted(fake: Fake) -> None:
    fake.does("receive", f"[ $(grep -c start {fake.folder}/log) -ge 3 ] || exit 1\n{fake.LIVES}")
    receiver = role()
    receiver.start()
    assert watching([receiver], lambda: fake.starts("receive") >= 3) == 0
    assert fake.starts("receive") == 3


def test_pauses_grow_up_to_a_bound_and_shrink_after_health(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "_BACKOFF_SECONDS_MAX", 0.3)
    fake.does("receive", "exit 1")
    receiver = role()
    receiver.start()
    pauses: list[float] = []

    def observed() -> bool:
        if not pauses or receiver.pause_seconds != pauses[-1]:
            pauses.append(receiver.pause_seconds)
        return fake.starts("receive") >= 5

    watching([receiver], observed)
    assert pauses == sorted(pauses)
    assert receiver.pause_seconds == 0.3

    monkeypatch.setattr(up, "_HEALTHY_SECONDS", -1.0)  # every life counts as a healthy one
    receiver.start()
    before = fake.starts("receive")
    watching([receiver], lambda: fake.starts("receive") > before + 1)
    assert receiver.pause_seconds <= 0.1


def test_one_role_dying_leaves_the_others_alone(fake: Fake) -> None:
    fake.does("demo", "exit 1")
    roles = [role(), role("demo", "demo")]
    for one in roles:
        one.start()
    watching(roles, lambda: fake.starts("demo") >= 3)
    assert fake.starts("receive") == 1


def test_a_role_that_cannot_run_as_configured_ends_everything(fake: Fake) -> None:
    fake.does("receive", "exit 2")
    roles = [role(), role("demo", "demo")]
    for one in roles:
        one.start()
    assert watching(roles, lambda: False) == 2
    assert "demo term" in fake.log()


def test_a_role_that_ran_before_is_started_again_whatever_its_code(fake: Fake) -> None:
    """Its file was edited, or its port taken, meanwhile: no reason to end the others."""
    fake.does("receive", f"[ $(grep -c start {fake.folder}/log) -le 1 ] && exit 1\nexit 2")
    receiver = role()
    receiver.start()
    assert watching([receiver], lambda: fake.starts("receive") >= 4) == 0


def test_a_death_is_told_in_one_line_with_why_and_how_often(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.does("receive", "kill -9 $$")
    receiver = role()
    receiver.start()
    with structlog.testing.capture_logs() as told:
        watching([receiver], lambda: fake.starts("receive") >= 4)
    assert {line["event"] for line in told} == {"role exited; restart scheduled"}
    assert [line.get("consecutive_exits") for line in told[:3]] == [None, 2, 3]
    assert [line["restart_in_seconds"] for line in told[:3]] == [0.05, 0.1, 0.2]
    assert {line["reason"] for line in told} == {"killed by SIGKILL (possibly out of memory)"}


def test_those_whom_a_dead_role_left_behind_are_gone_before_it_starts_again(fake: Fake) -> None:
    """They would hold its ports. This one does not listen to SIGTERM."""
    left = (
        f"(trap '' TERM; echo \"left start $(exec sh -c 'echo $PPID')\" >> {fake.folder}/log; {fake.LIVES}) &"
    )
    fake.does(
        "receive",
        f"[ $(grep -c 'receive start' {fake.folder}/log) -ge 2 ] || {{ {left} sleep 0.3; exit 1; }}",
    )
    receiver = role()
    receiver.start()
    watching([receiver], lambda: fake.starts("receive") >= 2)
    (left_id,) = (int(line.split()[2]) for line in fake.log() if line.startswith("left"))
    assert wait_until(lambda: not Path(f"/proc/{left_id}/task").exists(), seconds_max=5)


def test_who_sends_is_stopped_before_who_receives(fake: Fake) -> None:
    roles = [role(), role("demo", "demo")]
    for one in roles:
        one.start()
    assert wait_until(lambda: len(fake.log()) == 2, seconds_max=10)
    time.sleep(0.1)  # for the shells to set their traps, after the line that says they are there
    up._stop(roles)
    assert [line for line in fake.log() if "term" in line] == ["demo term", "receive term"]
    up._stop(roles)
    up._stop([role()])  # never started


@pytest.mark.parametrize("is_impatient", [False, True])
def test_a_role_that_does_not_stop_is_killed_in_the_end_or_at_the_second_signal(
    fake: Fake, is_impatient: bool
) -> None:
    fake.does("receive", f"trap '' TERM\necho ready >> {fake.folder}/log\n{fake.LIVES}")
    stubborn, kind = role(), role("api", "serve")
    stubborn.stop_seconds = 1000 if is_impatient else 0.3
    for one in (stubborn, kind):
        one.start()
    assert wait_until(lambda: "ready" in fake.log() and fake.starts("serve") == 1, seconds_max=10)
    time.sleep(0.1)  # for the other shell to set its trap
    hurry = threading.Event()
    threading.Timer(0.5, hurry.set).start()
    up._stop([stubborn, kind], hurry if is_impatient else None)
    assert stubborn.process is not None
    assert stubborn.process.returncode == -signal.SIGKILL
    assert "serve term" in fake.log()


class Health(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"why\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def health() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Health,), {}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def configured(server: HTTPServer, *, demo: bool = True) -> Config:
    listen = f"127.0.0.1:{server.server_address[1]}"
    return Config(receive=ReceiveConfig(http=HttpConfig(listen=listen)), demo=DemoConfig(enabled=demo))


def signalled_when(condition: Callable[[], bool], number: int) -> threading.Thread:
    def observe() -> None:
        wait_until(condition, seconds_max=20)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=observe)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_roles_in_order(fake: Fake, health: HTTPServer, number: int) -> None:
    observer = signalled_when(lambda: fake.starts("demo") == 1, number)
    assert up.run(configured(health), None) == 0
    observer.join()
    starts = [line.split()[0] for line in fake.log() if "start" in line]
    assert starts[0] == "receive"
    assert sorted(starts[1:]) == ["dashboard", "demo", "pipeline", "serve"]
    terminated = [line.split()[0] for line in fake.log() if line.endswith("term")]
    assert terminated[:1] in (["demo"], [])  # a shell that has no trap yet says nothing


def test_the_demo_ignores_the_settings_of_the_client_commands(
    fake: Fake, health: HTTPServer, tmp_path: Path
) -> None:
    seen = tmp_path / "environment"
    fake.does("demo", f"env | grep ^FRAZIL_ > {seen}.part; mv {seen}.part {seen}; {fake.LIVES}")
    observer = signalled_when(seen.exists, signal.SIGTERM)
    assert up.run(configured(health), None) == 0
    observer.join()
    file = tmp_path / "frazil.yaml"
    file.write_text("client: {url: 'http://a', endpoint: 'http://b', api_key: fz_c, ca_file: /d}\n")
    environment = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    assert load_config(file, environment).client == ClientConfig()


def test_the_demo_starts_only_when_the_receiver_is_ready(fake: Fake, health: HTTPServer) -> None:
    health.RequestHandlerClass.status = 503  # type: ignore[attr-defined]
    observer = signalled_when(lambda: fake.starts("receive") == 1, signal.SIGTERM)
    assert up.run(configured(health), None) == 0
    observer.join()
    assert fake.starts("demo") == 0


def test_without_demo_there_are_all_roles_but_that(fake: Fake, health: HTTPServer) -> None:
    observer = signalled_when(
        lambda: all(fake.starts(name) == 1 for name in ("pipeline", "serve", "dashboard")), signal.SIGTERM
    )
    assert up.run(configured(health, demo=False), None) == 0
    observer.join()
    assert fake.starts("demo") == 0


def test_a_receiver_that_cannot_be_configured_ends_up_with_its_code(fake: Fake, health: HTTPServer) -> None:
    health.RequestHandlerClass.status = 503  # type: ignore[attr-defined]
    fake.does("receive", "exit 2")
    assert up.run(configured(health), None) == 2
    assert fake.starts("demo") == 0


def test_the_demo_starts_also_if_the_receiver_died_once_before_it_was_ready(
    fake: Fake, health: HTTPServer
) -> None:
    health.RequestHandlerClass.status = 503  # type: ignore[attr-defined]
    lives = f"[ $(grep -c 'receive start' {fake.folder}/log) -ge 2 ] || exit 1\n{fake.LIVES}"
    fake.does("receive", lives)

    def second_life() -> bool:
        if fake.starts("receive") >= 2:
            health.RequestHandlerClass.status = 200  # type: ignore[attr-defined]
        return fake.starts("demo") >= 1

    observer = signalled_when(second_life, signal.SIGTERM)
    assert up.run(configured(health), None) == 0
    observer.join()
    assert fake.starts("demo") == 1


def test_the_banner_shows_commands_that_work_with_keys(capsys: pytest.CaptureFixture[str]) -> None:
    key = {"name": "own", "tenant": "ops", "hash": f"sha256:{'0' * 64}", "roles": ["write"]}
    up._greet(Config.model_validate({"auth": {"keys": [key]}, "demo": {"enabled": True}}), demo=False)
    text = capsys.readouterr().err
    assert "export FRAZIL_API_KEY=" in text
    assert 'curl -s http://127.0.0.1:4318/v1/logs -H "authorization: Bearer $FRAZIL_API_KEY"' in text
    assert 'OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer $FRAZIL_API_KEY"' in text
    assert "Demo traffic is off, because API keys are configured" in text


def test_the_banner_without_keys_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    up._greet(Config(), demo=True)
    text = capsys.readouterr().err
    assert "FRAZIL_API_KEY" not in text
    assert "Demo traffic from a simulated shop is on" in text


@pytest.mark.parametrize(("columns", "is_framed"), [(200, True), (80, False)])
def test_lines_to_copy_are_whole_on_any_terminal(columns: int, is_framed: bool) -> None:
    output = io.StringIO()
    line = "curl " + "x" * 100
    up._print_framed(Console(file=output, width=columns), "frazil is up", ["[bold]Try[/bold]", line])
    assert line in output.getvalue()
    assert ("╭─ frazil is up" in output.getvalue()) == is_framed


def test_roles_end_when_the_process_that_started_them_is_killed(fake: Fake) -> None:
    program = (
        "import sys, time; from frazil.up import _Role; "
        f"sys.executable = {str(fake.command)!r}; _Role('receiver', ['receive']).start(); time.sleep(60)"
    )
    python = Path(sys.prefix) / "bin" / "python"
    parent = subprocess.Popen([python, "-c", program])
    assert wait_until(lambda: fake.starts("receive") == 1, seconds_max=20)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not Path(f"/proc/{fake.pids()[0]}").exists(), seconds_max=10)
