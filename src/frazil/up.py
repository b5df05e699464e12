"""`frazil up`: run every role as a child process, restart those that exit, and stop them together."""

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
from frazil.config import ClientConfig, Config
from frazil.http_client import HttpClient
from frazil.ports import with_ports
from frazil.process import die_with_parent
from frazil.times import backoff_seconds

_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 30.0
_HEALTHY_SECONDS = 60.0
_READY_SECONDS = 60.0
_REFUSING_SECONDS = 5.0
"""How long other roles wait for a receiver that responds but refuses data, which may last long."""
_STOP_SECONDS = 12.0
"""Enough for a running commit. One that is interrupted is repeated after the next start."""
_DEMO_STOP_SECONDS = 3.0
_FRAME_COLUMNS = 4
_EXAMPLE_LOG = '{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"hello"}}]}]}]}'
_EXAMPLE_QUERY = "SELECT service_name, count(*) FROM logs GROUP BY ALL"
_EXIT_CONFIG_ERROR = 2
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
    """Consecutive exits, each within a minute of the start."""
    starts: int = 0
    stop_seconds: float = _STOP_SECONDS
    environment: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        self.process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "frazil", *self.arguments],
            stdout=subprocess.DEVNULL if self.quiet else None,
            env=os.environ | self.environment,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others in order
            preexec_fn=die_with_parent,
        )
        self.started = time.monotonic()
        self.restart_at = None
        self.starts += 1

    @property
    def pause_seconds(self) -> float:
        """Wait before the next start."""
        return backoff_seconds(max(self.deaths, 1), _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX)

    def died(self, now: float, code: int) -> None:
        """Log the exit and schedule a restart. Orphaned children may hold ports: end them."""
        if now - self.started > _HEALTHY_SECONDS:
            self.deaths = 0
        self.deaths += 1
        log.error(
            "role exited; restart scheduled",
            role=self.name,
            reason=_reason(code),
            restart_in_seconds=self.pause_seconds,
            **({"consecutive_exits": self.deaths} if self.deaths > 1 else {}),
        )
        self.restart_at = now + self.pause_seconds
        self.signal_group(signal.SIGTERM)

    def start_again(self) -> None:
        self.signal_group(signal.SIGKILL)  # they had the pause to end; acked data is durable
        self.start()

    def signal_group(self, number: int) -> None:
        """Send a signal to all processes that are left of the last start."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)


def run(config: Config, config_path: Path | None) -> int:
    """Run until SIGINT or SIGTERM. Roles that exit are restarted with exponential backoff."""
    common = [] if config_path is None else ["--config", str(config_path)]
    config = with_ports(config)
    ports = {
        "FRAZIL_RECEIVE__HTTP__LISTEN": config.receive.http.listen,
        "FRAZIL_RECEIVE__GRPC__LISTEN": config.receive.grpc.listen,
        "FRAZIL_PIPELINE__LISTEN": config.pipeline.listen,
        "FRAZIL_SERVE__LISTEN": config.serve.listen,
        "FRAZIL_DASHBOARD__LISTEN": config.dashboard.listen,
    }
    # The receiver completes requests in progress first, however slow the store is.
    grace = max(_STOP_SECONDS, config.receive.shutdown_grace_seconds + config.wal.write_timeout_seconds + 5)
    receiver = _Role("receiver", [*common, "receive"], stop_seconds=grace, environment=ports)
    pipeline = _Role("pipeline", [*common, "pipeline"], environment=ports)
    api = _Role("api", [*common, "serve"], environment=ports)
    roles = [receiver, pipeline, api]
    has_demo = config.demo.enabled and not config.auth.keys and config.receive.tls is None
    if config.dashboard.enabled:
        shown = ports | {"FRAZIL_DEMO__ENABLED": str(has_demo).lower()}
        roles.append(_Role("dashboard", [*common, "dashboard"], environment=shown))
    if has_demo:
        rate = str(config.demo.traces_per_second)
        demo = [*common, "demo", "--rate", rate]
        # The demo sends to this receiver, whatever the client commands use.
        own = ports | {f"FRAZIL_CLIENT__{name.upper()}": "null" for name in ClientConfig.model_fields}
        roles.append(_Role("demo", demo, quiet=True, stop_seconds=_DEMO_STOP_SECONDS, environment=own))
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
        else:  # the receiver exited: start the others after its first restart
            for role in roles[1:]:
                role.restart_at = time.monotonic() + 2 * _BACKOFF_SECONDS
        return _watch(roles, stop)
    finally:
        stop.set()
        telemetry.stop()  # first: its last spans may go to this receiver
        _stop(roles, hurry)


def _ready(config: Config, receiver: _Role, stop: threading.Event) -> bool:
    """Wait until the receiver is ready. Return False if it exits or if `stop` is set."""
    deadline = time.monotonic() + _READY_SECONDS
    client, url, last_reason = HttpClient(connect_seconds=1), f"{config.receive.url('http')}/readyz", ""
    while time.monotonic() < deadline and not stop.is_set():
        assert receiver.process is not None  # noqa: S101
        if receiver.process.poll() is not None:
            return False
        if config.receive.tls is not None:
            return True  # a request would need the CA certificate, and perhaps a client certificate
        try:
            status, body = client.get(url, seconds_max=1, accept="text/plain")
        except (HTTPError, OSError, ValueError):
            stop.wait(0.1)
            continue
        if status == 200:
            return True
        reason = body.decode(errors="replace").strip()
        if reason != last_reason:
            log.warning("receiver not ready; waiting", reason=reason)
            deadline = min(deadline, time.monotonic() + _REFUSING_SECONDS)
        last_reason = reason
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
            is_new = role.starts == 1 and now - role.started < _HEALTHY_SECONDS
            if code == _EXIT_CONFIG_ERROR and is_new:
                log.error(
                    "role rejected the configuration; all roles will stop; the log of the role has the error",
                    role=role.name,
                )
                return code
            role.died(now, code)
    return 0


def _reason(code: int) -> str:
    if code == -signal.SIGKILL:
        return "killed by SIGKILL (possibly out of memory)"
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _stop(roles: list[_Role], hurry: threading.Event | None = None) -> None:
    """Stop the demo first, so that its requests do not fail; then all other roles at once.

    A second Ctrl-C sets `hurry`: then roles are killed without waiting.
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
        is_hurried = hurry.wait(0.02)
        for role, process in alive.values():
            if is_hurried or time.monotonic() - begun > role.stop_seconds:
                log.warning("role did not stop in time and was killed; acked data is durable", role=role.name)
                process.kill()
                process.wait()
                role.signal_group(signal.SIGKILL)


def _command() -> str:
    """Return the command that runs this frazil, which may not be on the PATH."""
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
    is_keyed = bool(config.auth.keys)
    key = "            export FRAZIL_API_KEY=…   (`status` needs the role admin)"
    sdk_key = 'OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer $FRAZIL_API_KEY" ' if is_keyed else ""
    curl_key = ' -H "authorization: Bearer $FRAZIL_API_KEY"' if is_keyed else ""
    lines = [
        f"[bold]Dashboard[/bold]            {shown}",
        f"[bold]Ingest[/bold]    OTLP/gRPC  {grpc if config.receive.grpc.enabled else 'off'}",
        f"          OTLP/HTTP  {http}   (protobuf or JSON; gzip, zstd, deflate)",
        f"[bold]Query[/bold]     API        {config.serve.url}   (SQL, logs, traces; docs at /api/docs)",
        "",
        *(["[bold]Try[/bold]       set an API key for the commands below:", key] if is_keyed else []),
        f"{' ' * 9 if is_keyed else '[bold]Try[/bold]' + ' ' * 6} send from an SDK or a Collector:",
        f"            {sdk_key}OTEL_EXPORTER_OTLP_ENDPOINT={grpc} your-program",
        "          send one log record with curl:",
        f"            curl -s {http}/v1/logs{curl_key} -H 'content-type: application/json' -d \\",
        f"            '{_EXAMPLE_LOG}'",
        "          run a query:",
        f"            {frazil} query '{_EXAMPLE_QUERY}'",
        f"          show the health:       {frazil} status",
        f"          verify row counts:     {frazil} verify",
        f"          show metrics:          curl -s {http}/metrics | grep ^frazil",
        f"          simulate an incident:  {frazil} demo --incident errors --duration 2m",
        f"[bold]Tables[/bold]    {config.lake.namespace}.logs, .spans, .metrics in {_catalog(config)}",
        f"          new rows land within {config.land.age_max(config.wal.type):g} s; queries see them "
        f"{'then' if config.wal.type == 'kafka' else 'before'}",
    ]
    if demo:
        lines += ["", "Demo traffic from a simulated shop is on; `make run DEMO=0` starts without it."]
    elif config.demo.enabled:
        reason = "API keys are" if is_keyed else "TLS is"
        lines += ["", f"Demo traffic is off, because {reason} configured; `{frazil} demo` sends some."]
    lines += ["", "Ctrl-C stops all roles. Acknowledged data is durable."]
    _print_framed(Console(stderr=True), "frazil is up", lines)


def _print_framed(console: Console, title: str, lines: list[str]) -> None:
    """Print without a frame if a frame would wrap lines: users copy them."""
    text = Text.from_markup("\n".join(lines))
    if console.measure(text).maximum + _FRAME_COLUMNS <= console.width:
        console.print(Panel(text, title=title, title_align="left"))
    else:
        console.print(Text(f"{title}\n", style="bold"), text, sep="\n", soft_wrap=True)
