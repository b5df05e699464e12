"""Requests the status of every role over HTTP. A role that does not answer is reported with the reason."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from urllib3.exceptions import HTTPError, NewConnectionError, SSLError, TimeoutError

from frazil import http_client, role_status
from frazil.config import Config, StatusConfig, TlsConfig
from frazil.config.values import local_url
from frazil.health import Role
from frazil.http_client import HttpClient
from frazil.role_status import RoleReport

State = Literal["ok", "degraded", "down"]

NOTHING_LISTENS = "connection refused: nothing listens at this address"
CONNECT_SECONDS_MAX = 1.0
READ_SECONDS_MAX = 3.0
BODY_BYTES_MAX = 8 << 20
_ASKED_AT_ONCE_MAX = 16
_REASONS_MAX = 20
_REASON_LENGTH_MAX = 500


@dataclass(frozen=True)
class Endpoint:
    role: Role
    url: str
    certificate: Path | None = None
    """Of this configuration's own role, which is identified by it, whatever name the certificate is for. None
    for plain text and for other roles.
    """


def places(config: Config) -> list[Endpoint]:
    """Returns every role to be asked, in the order in which data goes through them."""
    status, receive, serve, dashboard = config.status, config.receive, config.serve, config.dashboard
    pipeline = local_url(config.pipeline.listen, tls=False)
    found = [
        *_of("receiver", status.receivers, receive.url("http"), receive.tls),
        *_of("pipeline", status.pipelines, pipeline, None),
        *_of("api", status.apis, serve.url, serve.tls),
    ]
    if status.dashboard or dashboard.enabled:
        found += _of("dashboard", status.dashboard, dashboard.url, dashboard.tls)
    return found


def _of(role: Role, named: tuple[str, ...], own: str, tls: TlsConfig | None) -> list[Endpoint]:
    if named:
        return [Endpoint(role, url) for url in named]
    return [Endpoint(role, own, None if tls is None else tls.cert_file)]


@dataclass(frozen=True)
class PolledRole:
    """What a role has answered. `report` is None if it has not."""

    place: Endpoint
    state: State
    reasons: Sequence[str] = ()
    report: RoleReport | None = field(default=None, repr=False)


class Poller:
    """Keeps connections, and a thread for each role that is asked: one that hangs must not delay others."""

    def __init__(self, config: StatusConfig) -> None:
        self._config = config
        self._clients: dict[Path | None, HttpClient] = {}
        self._threads = ThreadPoolExecutor(_ASKED_AT_ONCE_MAX, "status")

    def asking(self, places: Sequence[Endpoint]) -> list[Future[PolledRole]]:
        """All of them at once."""
        return [self._threads.submit(self.ask, place) for place in places]

    def ask_all(self, places: Sequence[Endpoint]) -> list[PolledRole]:
        return [asked.result() for asked in self.asking(places)]

    def ask(self, place: Endpoint) -> PolledRole:
        """Does not raise, whatever a role answers."""
        try:
            client = self._clients.setdefault(place.certificate, self._client(place.certificate))
            status, body = client.get(
                f"{place.url}/status", seconds_max=READ_SECONDS_MAX, bytes_max=BODY_BYTES_MAX
            )
        except (HTTPError, OSError, ValueError) as error:
            return PolledRole(place, "down", [_why(error)])
        return understand(place, status, body)

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


def understand(place: Endpoint, status: int, body: bytes) -> PolledRole:
    report = role_status.parse(body) if status == 200 else None
    if report is None:
        why = f"unexpected response (HTTP {status}): check that the address is of this role and release"
        return PolledRole(place, "down", [why])
    reasons = [reason[:_REASON_LENGTH_MAX] for reason in report.reasons()[:_REASONS_MAX]]
    return PolledRole(place, "degraded" if reasons else "ok", reasons, report)


def _why(error: Exception) -> str:
    if isinstance(error, SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return f"TLS failed (untrusted certificate, or client certificate required): {str(error).rpartition(': ')[2]}"[
            :300
        ]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return NOTHING_LISTENS
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return "no response in time"
    return http_client.reason(error)
