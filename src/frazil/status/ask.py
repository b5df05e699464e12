"""Asks a role how it does and what it has counted, over HTTP. What keeps it from answering is the answer."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from urllib3.exceptions import HTTPError, NewConnectionError, SSLError, TimeoutError

from frazil import health, http_client
from frazil.config import StatusConfig
from frazil.http_client import HttpClient
from frazil.status.places import Place
from frazil.status.samples import SampleReader, Samples

State = Literal["ok", "degraded", "down"]

NOTHING_LISTENS = "nothing listens there"
CONNECT_SECONDS_MAX = 1.0
READ_SECONDS_MAX = 3.0
BODY_BYTES_MAX = 8 << 20
_ASKED_AT_ONCE_MAX = 16
_REASONS_MAX = 20
_REASON_LENGTH_MAX = 500


@dataclass(frozen=True)
class Heard:
    """What a role has said. `samples` is None if it has not."""

    place: Place
    state: State
    reasons: Sequence[str] = ()
    version: str | None = None
    samples: Samples | None = field(default=None, repr=False)


class Asker:
    """Keeps connections, and a thread for each role that is asked: one that hangs must not hold up others."""

    def __init__(self, config: StatusConfig) -> None:
        self._config = config
        self._reader = SampleReader()
        self._clients: dict[Path | None, HttpClient] = {}
        self._threads = ThreadPoolExecutor(_ASKED_AT_ONCE_MAX, "status")

    def asking(self, places: Sequence[Place]) -> list[Future[Heard]]:
        """All of them at once."""
        return [self._threads.submit(self.ask, place) for place in places]

    def ask_all(self, places: Sequence[Place]) -> list[Heard]:
        return [asked.result() for asked in self.asking(places)]

    def ask(self, place: Place) -> Heard:
        """Never raises for what a role does or does not say."""
        try:
            status, body = self._get(place, "/healthz")
        except (HTTPError, OSError, ValueError) as error:
            return Heard(place, "down", [_why(error)])
        heard = understand(place, status, body)
        if heard.state == "down":
            return heard
        try:
            status, body = self._get(place, "/metrics")
            if status != 200:
                raise ValueError(f"it answered {status}")
            samples = self._reader.read(body.decode("utf-8"))
        except (HTTPError, OSError, ValueError) as error:
            reasons = [*heard.reasons, f"its metrics cannot be read: {_why(error)}"]
            return Heard(place, "degraded", reasons, heard.version)
        return Heard(place, heard.state, heard.reasons, heard.version, samples)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients.values():
            client.close()

    def _get(self, place: Place, path: str) -> tuple[int, bytes]:
        client = self._clients.setdefault(place.certificate, self._client(place.certificate))
        return client.get(place.url + path, seconds_max=READ_SECONDS_MAX, bytes_max=BODY_BYTES_MAX)

    def _client(self, certificate: Path | None) -> HttpClient:
        config = self._config
        pair = None if config.client_cert_file is None else (config.client_cert_file, config.client_key_file)
        return HttpClient(
            ca_file=config.ca_file,
            client_certificate=pair,
            own_certificate=certificate,
            connect_seconds=CONNECT_SECONDS_MAX,
        )


def understand(place: Place, status: int, body: bytes) -> Heard:
    """Returns what a role said of its health."""
    report = health.parse(body)
    if report is None:
        return Heard(place, "down", [f"something else answers there ({status}): check the address"])
    reasons = report.reasons()
    if status != 200 and not reasons:
        reasons = [f"it answered {status}"]
    reasons = [reason[:_REASON_LENGTH_MAX] for reason in reasons[:_REASONS_MAX]]
    return Heard(place, "degraded" if reasons else "ok", reasons, report.version)


def _why(error: Exception) -> str:
    """The operating system's words, without the objects that urllib3 puts around them."""
    if isinstance(error, SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return f"its certificate is not trusted, or it wants ours: {str(error).rpartition(': ')[2]}"[:300]
    if isinstance(error.__cause__, ConnectionRefusedError):
        return NOTHING_LISTENS
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return "it does not answer in time"
    return http_client.reason(error)
