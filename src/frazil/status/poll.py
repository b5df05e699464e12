"""Requests the status of every role over HTTP: once for a command, or periodically inside the API.

A role that does not respond is reported as down, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import structlog
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError, TimeoutError

from frazil import http_client, role_status
from frazil.config import Config, StatusConfig, TlsConfig
from frazil.config.values import local_url
from frazil.health import Role
from frazil.http_client import HttpClient
from frazil.status.model import Status
from frazil.status.stages import Endpoint, PolledRole, PolledRoles, stages
from frazil.status.watcher import Watcher

NOTHING_LISTENS = "connection refused: nothing listens at this address"
CONNECT_SECONDS_MAX = 1.0
READ_SECONDS_MAX = 3.0
BODY_BYTES_MAX = 8 << 20
_CONCURRENT_MAX = 16
_REASONS_MAX = 20
_REASON_LENGTH_MAX = 500
PAUSE_SECONDS_MIN = 0.5  # between two polls, however long they take
_START_SECONDS = 1.0  # before the first poll: the API polls itself too, and responds only after startup
FRESH_SECONDS = 1.5  # `Sampler.status` polls again if the last poll is older
APART_SECONDS = 1.0  # between the two polls that rates need

log = structlog.get_logger("frazil.status")


def endpoints(config: Config) -> list[Endpoint]:
    """Returns the endpoints of all roles, in the order of the data flow."""
    status, receive, serve, dashboard = config.status, config.receive, config.serve, config.dashboard
    roles: list[tuple[Role, tuple[str, ...], str, TlsConfig | None]] = [
        ("receiver", status.receivers, receive.url("http"), receive.tls),
        ("pipeline", status.pipelines, local_url(config.pipeline.listen, tls=False), None),
        ("api", status.apis, serve.url, serve.tls),
    ]
    if status.dashboard or dashboard.enabled:
        roles.append(("dashboard", status.dashboard, dashboard.url, dashboard.tls))
    return [
        Endpoint(role, url, None if configured or tls is None else tls.cert_file)
        for role, configured, own, tls in roles
        for url in configured or (own,)
    ]


class Poller:
    """Polls roles, with a connection and a thread per role: a role that hangs does not delay the others."""

    def __init__(self, config: StatusConfig) -> None:
        self._config = config
        self._clients: dict[Path | None, HttpClient] = {}
        self._threads = ThreadPoolExecutor(_CONCURRENT_MAX, "status")

    def submit(self, endpoints: Sequence[Endpoint]) -> list[Future[PolledRole]]:
        return [self._threads.submit(self.poll, endpoint) for endpoint in endpoints]

    def poll(self, endpoint: Endpoint) -> PolledRole:
        """Does not raise, whatever the role responds."""
        try:
            client = self._clients.setdefault(endpoint.certificate, self._client(endpoint.certificate))
            status, body = client.get(
                f"{endpoint.url}/status", seconds_max=READ_SECONDS_MAX, bytes_max=BODY_BYTES_MAX
            )
        except (HTTPError, OSError, ValueError) as error:
            return PolledRole(endpoint, "down", [_why(error)])
        return parse_response(endpoint, status, body)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _client(self, certificate: Path | None) -> HttpClient:
        config = self._config
        pair = None if config.client_cert_file is None else (config.client_cert_file, config.client_key_file)
        return HttpClient(
            ca_file=config.ca_file,
            client_certificate=pair,
            own_certificate=certificate,
            connect_seconds=CONNECT_SECONDS_MAX,
        )


def parse_response(endpoint: Endpoint, status: int, body: bytes) -> PolledRole:
    report = role_status.parse(body) if status == 200 else None
    if report is None:
        why = f"unexpected response (HTTP {status}): another service, or another release of frazil"
        return PolledRole(endpoint, "down", [why])
    reasons = [reason[:_REASON_LENGTH_MAX] for reason in report.reasons()[:_REASONS_MAX]]
    return PolledRole(endpoint, "degraded" if reasons else "ok", reasons, report)


def _why(error: Exception) -> str:
    if isinstance(error, SSLError) or isinstance(error.__cause__, ssl.SSLError):
        reason = str(error).rpartition(": ")[2]
        return f"TLS failed (untrusted certificate, or client certificate required): {reason}"[:300]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return NOTHING_LISTENS
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return "no response in time"
    return http_client.reason(error)


def failing_tables(config: Config) -> dict[str, tuple[str, str]] | None:
    """Polls the pipelines once. Returns the derived tables that are stopped or failing, with the state and
    the reason. None if no active pipeline responds.
    """
    poller = Poller(config.status)
    try:
        pipelines = [each for each in endpoints(config) if each.role == "pipeline"]
        roles = PolledRoles([future.result() for future in poller.submit(pipelines)])
    finally:
        poller.close()
    if not roles.has_leader:
        return None
    tables = stages(roles, config).derive.tables
    return {
        name: (table.state, table.reason or "see the log of the pipeline")
        for name, table in tables.items()
        if table.state in ("stopped", "failing")
    }


class StatusPoller:
    """Polls the status for a caller without an event loop. Keeps no history."""

    def __init__(self, config: Config) -> None:
        self._poller, self._endpoints, self._watcher = (
            Poller(config.status),
            endpoints(config),
            Watcher(config),
        )
        self._has_rates = False

    def poll(self) -> Status:
        """Polls all roles. The first call polls twice, to have rates, unless all roles are down."""
        while True:
            self._watcher.update([future.result() for future in self._poller.submit(self._endpoints)])
            found = self._watcher.status(history=False)
            if self._has_rates or found.state == "down":
                return found
            self._has_rates = True
            time.sleep(APART_SECONDS)

    def close(self) -> None:
        self._poller.close()


class Sampler:
    """Polls periodically in one event loop. `stop` is safe without `start`, and when called twice."""

    def __init__(self, config: Config) -> None:
        self._poller, self._endpoints, self._watcher = (
            Poller(config.status),
            endpoints(config),
            Watcher(config),
        )
        self._seconds = config.status.sample_seconds
        self._lock = asyncio.Lock()
        self._polled_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._poller.close()

    async def status(self, *, history: bool = True) -> Status:
        """Returns the current status. Polls if the last poll is older than FRESH_SECONDS."""
        await self._poll(FRESH_SECONDS)
        return self._watcher.status(history=history)

    async def _run(self) -> None:
        await asyncio.sleep(_START_SECONDS)
        while True:
            begin = time.monotonic()
            try:
                await self._poll(0.0)
                self._watcher.sample()
            except Exception:  # must end neither the API nor this loop
                log.exception("polling the roles failed")
            await asyncio.sleep(max(PAUSE_SECONDS_MIN, begin + self._seconds - time.monotonic()))

    async def _poll(self, age_seconds_max: float) -> None:
        async with self._lock:
            if self._polled_at is not None and time.monotonic() - self._polled_at < age_seconds_max:
                return
            # In threads of the poller: queries must not wait for threads that wait for a role.
            polled = await asyncio.gather(*map(asyncio.wrap_future, self._poller.submit(self._endpoints)))
            self._polled_at = time.monotonic()
            self._watcher.update(polled)
