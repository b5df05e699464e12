"""Who is logged in: a random token in a cookie, its API key in this process's memory."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

COOKIE = "frazil_session"
_SESSIONS_MAX = 10_000


class Sessions:
    def __init__(self, idle_seconds_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_seconds_max, self._clock = idle_seconds_max, clock
        self._keys: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def begin(self, key: str) -> str:
        """The token of a new session."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._drop_old()
            if len(self._keys) >= _SESSIONS_MAX:
                del self._keys[min(self._keys, key=lambda token: self._keys[token][1])]
            self._keys[token] = (key, self._clock())
        return token

    def key_of(self, token: str | None) -> str | None:
        """To ask is no use of the login: a page that is left open asks every few seconds."""
        with self._lock:
            self._drop_old()
            return self._keys.get(token or "", (None, 0.0))[0]

    def use(self, token: str | None) -> str | None:
        """The key, when somebody opens a page or chooses something: the login lasts anew from now on."""
        key = self.key_of(token)
        with self._lock:
            if token in self._keys and key is not None:
                self._keys[token] = (key, self._clock())
        return key

    def end(self, token: str | None) -> None:
        with self._lock:
            self._keys.pop(token or "", None)

    def _drop_old(self) -> None:
        old = self._clock() - self._idle_seconds_max
        for token in [token for token, (_, seen) in self._keys.items() if seen < old]:
            del self._keys[token]
