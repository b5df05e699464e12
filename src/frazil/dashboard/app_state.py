"""State shared by all browser sessions of this process. The script that Streamlit runs reads it from here."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from frazil.config import Config
from frazil.dashboard.api_client import ApiClient, ApiError

COOKIE = "frazil_session"
_SESSIONS_MAX = 10_000
_LOCK_CHECK_SECONDS = 30.0
_LOCK_ANSWER_SECONDS_MAX = 3.0
"""An API that requires a key refuses quickly. Every page load waits for this check."""


class Sessions:
    """Logins: a random token in a cookie, and the user's API key in this process's memory."""

    def __init__(self, idle_seconds_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_seconds_max, self._clock = idle_seconds_max, clock
        self._keys: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> str:
        """Returns the token of a new session."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_expired()
            if len(self._keys) >= _SESSIONS_MAX:
                del self._keys[min(self._keys, key=lambda token: self._keys[token][1])]
            self._keys[token] = (key, self._clock())
        return token

    def key_of(self, token: str | None) -> str | None:
        """Returns the API key without extending the session: an open page calls this every few seconds."""
        with self._lock:
            self._drop_expired()
            return self._keys.get(token or "", (None, 0.0))[0]

    def use(self, token: str | None) -> str | None:
        """Returns the API key and extends the session. Called when a user opens a page or uses a control."""
        key = self.key_of(token)
        with self._lock:
            if token in self._keys and key is not None:
                self._keys[token] = (key, self._clock())
        return key

    def end(self, token: str | None) -> None:
        with self._lock:
            self._keys.pop(token or "", None)

    def _drop_expired(self) -> None:
        oldest = self._clock() - self._idle_seconds_max
        for token in [token for token, (_, used) in self._keys.items() if used < oldest]:
            del self._keys[token]


@dataclass
class AppState:
    api_client: ApiClient
    sessions: Sessions
    has_keys: bool
    is_demo: bool
    otlp_http: str
    otlp_grpc: str
    _locked: tuple[float, bool] = field(default=(0.0, False))

    @property
    def is_locked(self) -> bool:
        """Whether users must log in: this configuration has API keys, or the API requires one."""
        if self.has_keys:
            return True
        until, locked = self._locked
        if time.monotonic() > until:
            try:
                self.api_client.request("GET", "/api/v1/tables", None, seconds_max=_LOCK_ANSWER_SECONDS_MAX)
            except ApiError as error:
                locked = error.is_auth_error if error.status else locked
            else:
                locked = False
            self._locked = (time.monotonic() + _LOCK_CHECK_SECONDS, locked)
        return locked

    def key_of(self, token: str | None) -> str | None:
        """Returns the API key of a session, None if none is needed. Raises ApiError if it has expired."""
        key = self.sessions.key_of(token)
        if key is None and self.is_locked:
            raise ApiError("log in again", code="unauthenticated", status=401)
        return key


_current: list[AppState] = []


def open_app_state(config: Config) -> AppState:
    dashboard = config.dashboard
    url, own = dashboard.api_url, None
    if url is None:
        url, own = config.serve.url, config.serve.tls
    state = AppState(
        # Longer than a query may wait and run, so that the API times out first and reports the reason.
        api_client=ApiClient(
            url,
            dashboard.api_ca_file,
            config.query.queue_seconds_max + config.query.seconds_max + 15,
            own_certificate=None if own is None else own.cert_file,
        ),
        sessions=Sessions(dashboard.session_seconds),
        has_keys=bool(config.auth.keys),
        is_demo=config.demo.enabled,
        otlp_http=config.receive.url("http"),
        otlp_grpc=config.receive.url("grpc") if config.receive.grpc.enabled else "",
    )
    _current[:] = [state]
    return state


def app_state() -> AppState:
    return _current[0]
