"""Who is asked, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frazil.config import Config, TlsConfig
from frazil.config.values import local_url

RoleName = Literal["receiver", "pipeline", "api", "dashboard"]


@dataclass(frozen=True)
class Place:
    role: RoleName
    url: str
    certificate: Path | None = None
    """What this configuration's own role shows to who comes by TLS: it is known by it, whatever name it is
    for. None for plain text and for other roles.
    """


def places(config: Config) -> list[Place]:
    """Every role that is to be asked, in the order in which data goes through them."""
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


def _of(role: RoleName, named: tuple[str, ...], own: str, tls: TlsConfig | None) -> list[Place]:
    if named:
        return [Place(role, url) for url in named]
    return [Place(role, own, None if tls is None else tls.cert_file)]
