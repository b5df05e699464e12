"""`frazil up`: every role as a process of one tree, restarted when it dies, stopped together."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog
from rich.console import Console
from rich.panel import Panel

from frazil.config import Config
from frazil.family import end_with_parent
from frazil.ports import with_ports

_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
_HEALTHY_SECONDS = 60.0
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_COMMIT_SECONDS = 60.0
"""A pipeline finishes the commit that is under way."""
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
    backoff: float = _BACKOFF_SECONDS
    restart_at: float | None = None
    stop_seconds: float = 0.0
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


def run(config: Config, config_path: Path | None) -> int:
    """Runs until SIGINT or SIGTERM; a role that dies is restarted, with growing pauses."""
    common = [] if config_path is None else ["--config", str(config_path)]
    config = with_ports(config)
    ports = {
        "FRAZIL_RECEIVE__HTTP__LISTEN": config.receive.http.listen,
        "FRAZIL_RECEIVE__GRPC__LISTEN": config.receive.grpc.listen,
        "FRAZIL_PIPELINE__LISTEN": config.pipeline.listen,
        "FRAZIL_SERVE__LISTEN": config.serve.listen,
    }
    grace = config.receive.shutdown_grace_seconds + config.wal.write_timeout_seconds + 5
    receiver = _Role("receiver", [*common, "receive"], stop_seconds=grace, environment=ports)
    pipeline = _Role("pipeline", [*common, "pipeline"], stop_seconds=_COMMIT_SECONDS, environment=ports)
    api = _Role("api", [*common, "serve"], environment=ports)
    roles = [receiver, pipeline, api]
    if config.demo.enabled and (config.auth.keys or config.receive.tls is not None):
        log.warning(
            "no demo traffic: it has no API key or certificate; send it with `frazil demo --api-key …`"
        )
    elif config.demo.enabled:
        rate = str(config.demo.traces_per_second)
        roles.append(_Role("demo", [*common, "demo", "--rate", rate], quiet=True, environment=ports))
    stop = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    receiver.start()
    try:
        if _ready(config, receiver, stop):
            _greet(config, demo=roles[-1].name == "demo")
            for role in roles[1:]:
                role.start()
        else:  # the receiver died at first: the others come when it has had time to come back
            for role in roles[1:]:
                role.restart_at = time.monotonic() + 2 * _BACKOFF_SECONDS
        return _watch(roles, stop)
    finally:
        _stop(roles)


def _ready(config: Config, receiver: _Role, stop: threading.Event) -> bool:
    """Waits for the receiver's first yes. A `no` later is not fatal: it says why, and goes on trying."""
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and not stop.is_set():
        assert receiver.process is not None  # noqa: S101
        if receiver.process.poll() is not None:
            return False
        if config.receive.tls is not None:
            return True  # asking would need the authority of the certificate, and perhaps a client's own
        try:
            with urllib.request.urlopen(f"{config.receive.url('http')}/readyz", timeout=1):  # noqa: S310
                return True
        except urllib.error.HTTPError as error:
            log.warning("receiver is not ready", reason=error.read().decode().strip())
            stop.wait(1)
        except OSError:
            stop.wait(0.1)
    return not stop.is_set()


def _watch(roles: list[_Role], stop: threading.Event) -> int:
    while not stop.wait(0.2):
        now = time.monotonic()
        for role in roles:
            if role.restart_at is not None:
                if now >= role.restart_at:
                    role.start()
                continue
            if role.process is None or (code := role.process.poll()) is None:
                continue
            if code == _NOT_WORTH_TRYING_AGAIN:
                return code
            if now - role.started > _HEALTHY_SECONDS:
                role.backoff = _BACKOFF_SECONDS
            log.error(
                "a process died and is restarted", role=role.name, code=code, after_seconds=role.backoff
            )
            role.restart_at = now + role.backoff
            role.backoff = min(role.backoff * 2, _BACKOFF_SECONDS_MAX)
    return 0


def _stop(roles: list[_Role]) -> None:
    """In reverse: first those who send, then the one that receives."""
    for role in reversed(roles):
        if role.process is None or role.process.poll() is not None:
            continue
        role.process.terminate()
        try:
            role.process.wait(max(_STOP_SECONDS, role.stop_seconds))
        except subprocess.TimeoutExpired:
            log.error("a process did not stop and is killed", role=role.name)
            role.process.kill()
            role.process.wait()


def _command() -> str:
    """How to call frazil here: it may not be on the path."""
    return "frazil" if shutil.which("frazil") else os.path.relpath(sys.argv[0])


def _catalog(config: Config) -> str:
    kind = config.lake.catalog.type
    where = os.path.relpath(config.catalog_file) if kind == "sqlite" else ""
    return {"sqlite": f"the SQLite catalog {where}", "postgres": "Postgres", "rest": "the REST catalog"}[kind]


def _greet(config: Config, *, demo: bool) -> None:
    frazil = _command()
    http, grpc = config.receive.url("http"), config.receive.url("grpc")
    lines = [
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
        f"       what is durable, landed:  {frazil} verify",
        f"       watch the counters:       curl -s {http}/metrics | grep ^frazil",
        f"       break something:          {frazil} demo --incident errors --duration 2m",
        f"[bold]Tables[/bold] {config.lake.namespace}.logs, .spans, .metrics in {_catalog(config)}",
        f"       at most {config.land.age_max(config.wal.type):g} s after their data; SQL sees it sooner",
    ]
    if demo:
        lines += ["", "Demo traffic from a simulated shop is flowing; `make run DEMO=0` starts without it."]
    lines += ["", "Ctrl-C stops everything; what was acked stays."]
    Console(stderr=True).print(
        Panel("\n".join(lines), title="frazil is up", title_align="left"), soft_wrap=True
    )
