"""What all sessions of this process share. The script that Streamlit runs for each of them finds it here."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from frazil.config import Config
from frazil.dashboard.api_client import ApiClient, ApiError
from frazil.dashboard.sessions import Sessions

_ASKED_AGAIN_SECONDS = 30.0


@dataclass
class AppState:
    door: ApiClient
    sessions: Sessions
    has_keys: bool
    is_demo: bool
    otlp_http: str
    otlp_grpc: str
    _locked: tuple[float, bool] = field(default=(0.0, False))

    @property
    def is_locked(self) -> bool:
        """Whether one must log in: this configuration has keys, or the API asks for one."""
        if self.has_keys:
            return True
        until, locked = self._locked
        if time.monotonic() > until:
            try:
                self.door.request("GET", "/api/v1/tables", None)
            except ApiError as trouble:
                locked = trouble.is_about_the_key if trouble.status else locked
            else:
                locked = False
            self._locked = (time.monotonic() + _ASKED_AGAIN_SECONDS, locked)
        return locked

    def key_of(self, token: str | None) -> str | None:
        """Of a session that lasts; None where nobody needs one. Raises Trouble after its end."""
        key = self.sessions.key_of(token)
        if key is None and self.is_locked:
            raise ApiError("log in again", code="unauthenticated", status=401)
        return key


_open: list[AppState] = []


def open_house(config: Config) -> AppState:
    dashboard = config.dashboard
    url, own = dashboard.api_url, None
    if url is None:
        url, own = config.serve.url, config.serve.tls
    house = AppState(
        # Longer than a question may wait and run: who gives up is the API, which says why.
        door=ApiClient(
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
    _open[:] = [house]
    return house


def app_state() -> AppState:
    return _open[0]
