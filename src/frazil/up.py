"""`frazil up`: every role as a process of one tree, restarted when it dies, stopped together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from urllib3.exceptions import HTTPError

from frazil import telemetry
from frazil.config import Config
from frazil.http_client import HttpClient
from frazil.ports import with_ports
from frazil.process import end_with_parent
from frazil.times import backoff_seconds

_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
_HEALTHY_SECONDS = 60.0
_READY_SECONDS = 60.0
_REFUSING_SECONDS = 5.0
"""A receiver that answers but takes no data may go on so for long: the others need not wait for it."""
_STOP_SECONDS = 12.0
"""Enough for a commit that is under way. One that is cut off is done again after the next start."""
_DEMO_STOP_SECONDS = 3.0
_FRAME_COLUMNS = 4
_QUESTION = "SELECT service_name, count(*) FROM logs GROUP BY ALL"
_NOT_WORTH_TRYING_AGAIN = 2
"""The exit code of a role that cannot run as configured."""

log = structlog.get_logger("frazil.up")


@dataclass
class _Role:
    name: str
    arguments: list[str]
    quiet: bool = False
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restart_at: float | None = None
    deaths: int = 0
    """In a row, each before it was healthy for a while."""
    lives: int = 0
    stop_seconds: float = _STOP_SECONDS
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "frazil", *self.arguments],
            stdout=subprocess.DEVNULL if self.quiet else None,
            env=os.environ | self.environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
            preexec_fn=end_with_parent,
        )
        self.started = time.monotonic()
        self.restart_at = None
        self.lives += 1

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next start."""
        return backoff_seconds(max(self.deaths, 1), _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX)

    def died(self, now: float, code: int) -> None:
        """Says so, and sets when to start again. Those that it left behind may hold its ports."""
        if now - self.started > _HEALTHY_SECONDS:
            self.deaths = 0
        self.deaths += 1
        log.error(
            "a process died and is started again",
            role=self.name,
            why=_reason(code),
            in_seconds=self.pause_seconds,
            **({"times_in_a_row": self.deaths} if self.deaths > 1 else {}),
        )
        self.restart_at = now + self.pause_seconds
        self.end_family(signal.SIGTERM)

    def start_again(self) -> None:
        self.end_family(signal.SIGKILL)  # they had the pause to end; what was acked is safe
        self.start()

    def end_family(self, number: int) -> None:
        """To whoever is left of the last life."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def run(config: Config, config_path: Path | None) -> int:
    """Runs until SIGINT or SIGTERM; a role that dies is restarted, with growing pauses."""
    common = [] if config_path is None else ["--config", str(config_path)]
    config = with_ports(config)
    ports = {
        "FRAZIL_RECEIVE__HTTP__LISTEN": config.receive.http.listen,
        "FRAZIL_RECEIVE__GRPC__LISTEN": config.receive.grpc.listen,
        "FRAZIL_PIPELINE__LISTEN": config.pipeline.listen,
        "FRAZIL_SERVE__LISTEN": config.serve.listen,
        "FRAZIL_DASHBOARD__LISTEN": config.dashboard.listen,
    }
    # Requests that are under way are answered first, however slow the store is.
    grace = max(_STOP_SECONDS, config.receive.shutdown_grace_seconds + config.wal.write_timeout_seconds + 5)
    receiver = _Role("receiver", [*common, "receive"], stop_seconds=grace, environment=ports)
    pipeline = _Role("pipeline", [*common, "pipeline"], environment=ports)
    api = _Role("api", [*common, "serve"], environment=ports)
    roles = [receiver, pipeline, api]
    has_demo = config.demo.enabled and not config.auth.keys and config.receive.tls is None
    if config.dashboard.enabled:
        shown = ports | {"FRAZIL_DEMO__ENABLED": str(has_demo).lower()}
        roles.append(_Role("dashboard", [*common, "dashboard"], environment=shown))
    if config.demo.enabled and not has_demo:
        log.warning(
            "no demo traffic: it has no API key or certificate; send it with `frazil demo --api-key …`"
        )
    elif has_demo:
        rate = str(config.demo.traces_per_second)
        demo = [*common, "demo", "--rate", rate]
        roles.append(_Role("demo", demo, quiet=True, stop_seconds=_DEMO_STOP_SECONDS, environment=ports))
    stop, hurry = threading.Event(), threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    telemetry.start(config, "up")
    receiver.start()
    try:
        if _ready(config, receiver, stop):
            _greet(config, demo=has_demo)
            for role in roles[1:]:
                role.start()
        else:  # the receiver died at first: the others come when it has had time to come back
            for role in roles[1:]:
                role.restart_at = time.monotonic() + 2 * _BACKOFF_SECONDS
        return _watch(roles, stop)
    finally:
        stop.set()
        telemetry.stop()  # first: the receiver that takes what is left may be one of them
        _stop(roles, hurry)


def _ready(config: Config, receiver: _Role, stop: threading.Event) -> bool:
    """Waits for the receiver's first yes. A `no` later is not fatal: it says why, and goes on trying."""
    deadline = time.monotonic() + _READY_SECONDS
    client, url, told = HttpClient(connect_seconds=1), f"{config.receive.url('http')}/readyz", ""
    while time.monotonic() < deadline and not stop.is_set():
        assert receiver.process is not None  # noqa: S101
        if receiver.process.poll() is not None:
            return False
        if config.receive.tls is not None:
            return True  # asking would need the authority of the certificate, and perhaps a client's own
        try:
            status, body = client.get(url, seconds_max=1, accept="text/plain")
        except (HTTPError, OSError, ValueError):
            stop.wait(0.1)
            continue
        if status == 200:
            return True
        reason = body.decode(errors="replace").strip()
        if reason != told:
            log.warning("the receiver takes no data yet, and goes on trying", reason=reason)
            deadline = min(deadline, time.monotonic() + _REFUSING_SECONDS)
        told = reason
        stop.wait(0.5)
    return not stop.is_set()


def _watch(roles: list[_Role], stop: threading.Event) -> int:
    while not stop.wait(0.2):
        now = time.monotonic()
        for role in roles:
            if role.restart_at is not None:
                if now >= role.restart_at:
                    role.start_again()
                continue
            if role.process is None or (code := role.process.poll()) is None:
                continue
            is_new = role.lives == 1 and now - role.started < _HEALTHY_SECONDS
            if code == _NOT_WORTH_TRYING_AGAIN and is_new:
                log.error(
                    "stopping: this process cannot run as configured, for the reason above", role=role.name
                )
                return code
            role.died(now, code)
    return 0


def _reason(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by somebody, or by the kernel for want of memory"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _stop(roles: list[_Role], hurry: threading.Event | None = None) -> None:
    """First those who send, who would complain; then all others at once.

    `hurry` is set by a second Ctrl-C: then nobody is waited for.
    """
    hurry = threading.Event() if hurry is None else hurry
    senders = [role for role in roles if role.name == "demo"]
    _end(senders, hurry)
    _end([role for role in roles if role not in senders], hurry)


def _end(roles: list[_Role], hurry: threading.Event) -> None:
    alive = {role.name: (role, role.process) for role in roles if role.process is not None}
    for _, process in alive.values():
        if process.poll() is None:
            process.terminate()
    begun = time.monotonic()
    while alive := {name: pair for name, pair in alive.items() if pair[1].poll() is None}:
        is_impatient = hurry.wait(0.02)
        for role, process in alive.values():
            if is_impatient or time.monotonic() - begun > role.stop_seconds:
                log.warning(
                    "a process did not stop in time and is killed; what was acked is safe", role=role.name
                )
                process.kill()
                process.wait()
                role.end_family(signal.SIGKILL)


def _command() -> str:
    """How to call frazil here: it may not be on the path."""
    if shutil.which("frazil"):
        return "frazil"
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{os.path.relpath(sys.executable)} -m frazil"
    return os.path.relpath(sys.argv[0])


def _catalog(config: Config) -> str:
    kind = config.lake.catalog.type
    where = os.path.relpath(config.catalog_file) if kind == "sqlite" else ""
    return {"sqlite": f"the SQLite catalog {where}", "postgres": "Postgres", "rest": "the REST catalog"}[kind]


def _greet(config: Config, *, demo: bool) -> None:
    frazil = _command()
    http, grpc = config.receive.url("http"), config.receive.url("grpc")
    shown = f"[bold]{config.dashboard.url}[/bold]" if config.dashboard.enabled else "off"
    lines = [
        f"[bold]Look[/bold]   Dashboard  {shown}",
        f"[bold]Send[/bold]   OTLP/gRPC  {grpc if config.receive.grpc.enabled else 'off'}",
        f"       OTLP/HTTP  {http}   (protobuf or JSON; gzip, zstd, deflate)",
        f"[bold]Ask[/bold]    API        {config.serve.url}   (SQL, logs, traces; docs at /api/docs)",
        "",
        "[bold]Try[/bold]    point an SDK or Collector here:",
        f"         OTEL_EXPORTER_OTLP_ENDPOINT={grpc} your-program",
        "       send one log with curl:",
        f"         curl -s {http}/v1/logs -H 'content-type: application/json' -d \\",
        """         '{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"hello"}}]}]}]}'""",
        "       ask:",
        f"         {frazil} query '{_QUESTION}'",
        f"       how it does:              {frazil} status",
        f"       what is durable, landed:  {frazil} verify",
        f"       watch the counters:       curl -s {http}/metrics | grep ^frazil",
        f"       break something:          {frazil} demo --incident errors --duration 2m",
        f"[bold]Tables[/bold] {config.lake.namespace}.logs, .spans, .metrics in {_catalog(config)}",
        f"       at most {config.land.age_max(config.wal.type):g} s after their data; SQL sees it sooner",
    ]
    if demo:
        lines += ["", "Demo traffic from a simulated shop is flowing; `make run DEMO=0` starts without it."]
    lines += ["", "Ctrl-C stops everything; what was acked stays."]
    _print_framed(Console(stderr=True), "frazil is up", lines)


def _print_framed(console: Console, title: str, lines: list[str]) -> None:
    """Without a frame where that would cut lines off: they are there to be copied."""
    text = Text.from_markup("\n".join(lines))
    if console.measure(text).maximum + _FRAME_COLUMNS <= console.width:
        console.print(Panel(text, title=title, title_align="left"))
    else:
        console.print(Text(f"{title}\n", style="bold"), text, sep="\n", soft_wrap=True)
