"""Asks a role how it does and what it has counted, over HTTP. What keeps it from answering is the answer."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ProtocolError, SSLError, TimeoutError

from frazil.config import StatusConfig
from frazil.status.places import Place
from frazil.status.samples import SampleReader, Samples
from frazil.tls import OwnRole

State = Literal["ok", "degraded", "down"]

NOTHING_LISTENS = "nothing listens there"
CONNECT_SECONDS_MAX = 1.0
READ_SECONDS_MAX = 3.0
BODY_BYTES_MAX = 8 << 20
_ASKED_AT_ONCE_MAX = 16
_CHUNK_BYTES = 1 << 16
_REASONS_MAX = 20
_REASON_LENGTH_MAX = 500
_VERDICT = re.compile(r"frazil (?P<version>\S+) \w+: (?P<verdict>.*)", re.DOTALL)


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
        self._plain = urllib3.PoolManager(maxsize=2)
        self._trusted: urllib3.PoolManager | None = None
        self._own: dict[Path, OwnRole] = {}
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
        self._plain.clear()
        if self._trusted is not None:
            self._trusted.clear()
        for role in self._own.values():
            role.close()

    def _get(self, place: Place, path: str) -> tuple[int, bytes]:
        for last in (False, True):
            try:
                response = self._pool(place).request(
                    "GET",
                    place.url + path,
                    preload_content=False,
                    redirect=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=READ_SECONDS_MAX),
                )
                return response.status, _read(response)
            except ProtocolError:
                if last:  # else a kept connection that the role has just closed
                    raise
        raise AssertionError("unreachable")

    def _pool(self, place: Place) -> urllib3.PoolManager:
        if not place.url.startswith("https"):
            return self._plain
        if place.certificate is not None:
            return self._own.setdefault(place.certificate, OwnRole(place.certificate, self._secure)).pool()
        if self._trusted is None:
            self._trusted = self._secure(ssl.create_default_context(cafile=self._config.ca_file))
        return self._trusted

    def _secure(
        self, ssl_context: ssl.SSLContext, assert_hostname: Literal[False] | None = None
    ) -> urllib3.PoolManager:
        if self._config.client_cert_file is not None:
            ssl_context.load_cert_chain(
                self._config.client_cert_file, self._config.client_key_file, password=lambda: ""
            )
        return urllib3.PoolManager(maxsize=2, ssl_context=ssl_context, assert_hostname=assert_hostname)


def understand(place: Place, status: int, body: bytes) -> Heard:
    """A role's answer to the question for its health: text, or JSON with `problems`."""
    text = body.decode("utf-8", "replace").strip()
    if (said := _json(text)) is not None:
        problems, version = said.get("problems", {}), said.get("version")
        reasons = (
            [f"{part}: {why}" for part, why in problems.items()]
            if isinstance(problems, Mapping)
            else [str(problem) for problem in problems]
        )
    elif (match := _VERDICT.fullmatch(text)) is not None:
        version, verdict = match["version"], match["verdict"].removeprefix("not ready: ").strip()
        reasons = [] if verdict == "ok" else verdict.split("; ")
    else:
        return Heard(place, "down", [f"something else answers there ({status}): check the address"])
    if status != 200 and not reasons:
        reasons = [f"it answered {status}"]
    reasons = [reason[:_REASON_LENGTH_MAX] for reason in reasons[:_REASONS_MAX]]
    return Heard(place, "degraded" if reasons else "ok", reasons, str(version) if version else None)


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    is_ours = isinstance(said, Mapping) and isinstance(said.get("problems", None), Mapping | list)
    return said if is_ours else None


def _read(response: urllib3.BaseHTTPResponse) -> bytes:
    deadline, body = time.monotonic() + READ_SECONDS_MAX, bytearray()
    try:
        for chunk in response.stream(_CHUNK_BYTES):
            body += chunk
            if len(body) > BODY_BYTES_MAX:
                raise ValueError(f"its answer has more than {BODY_BYTES_MAX >> 20} MiB")
            if time.monotonic() > deadline:
                raise ValueError(f"its answer takes longer than {READ_SECONDS_MAX:g} s")
        response.release_conn()
    except BaseException:
        response.close()
        raise
    return bytes(body)


def _why(error: Exception) -> str:
    """The operating system's words, without the objects that urllib3 puts around them."""
    if isinstance(error, SSLError) or isinstance(error.__cause__, ssl.SSLError):
        return f"its certificate is not trusted, or it wants ours: {str(error).rpartition(': ')[2]}"[:300]
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, ConnectionRefusedError):
        return NOTHING_LISTENS
    if isinstance(error, TimeoutError) and not isinstance(error, NewConnectionError):
        return "it does not answer in time"
    if isinstance(cause, OSError) and cause.strerror:
        named = f"{cause.filename}: " if cause.filename else ""
        return f"{named}{cause.strerror}"
    return str(error).rpartition(": ")[2] or type(error).__name__
