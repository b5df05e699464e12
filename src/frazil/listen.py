"""Settings of all HTTP listeners: granian, TLS, and reloading of renewed certificates."""

from __future__ import annotations

import os
import resource
import signal
import threading
from typing import Any

import structlog
from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels

from frazil.config import TlsConfig, split_listen
from frazil.tls import is_usable, stamps

CONNECTIONS_MAX = 16_384
"""Open connections in each worker. granian's back-pressure counts connections, idle ones too, not requests: a
small number would let a few idle clients block all others."""

_OVERLAP_SECONDS = 8.0
"""How long an old worker keeps running after its successor starts, so that the successor listens first, also
on a busy machine. A stop in that time waits for it."""

log = structlog.get_logger("frazil.listen")


def settings(
    listen: str, tls: TlsConfig | None, *, header_timeout_seconds: float, header_bytes_max: int
) -> dict[str, Any]:
    """Return the arguments of `Granian` for an ASGI application on `listen`."""
    host, port = split_listen(listen)
    return {
        "address": host,
        "port": port,
        "interface": Interfaces.ASGI,
        "loop": Loops.uvloop,
        "http": HTTPModes.auto,
        "websockets": False,
        "backpressure": CONNECTIONS_MAX,
        "http1_settings": HTTP1Settings(
            header_read_timeout=int(header_timeout_seconds * 1000), max_buffer_size=header_bytes_max
        ),
        "http2_settings": HTTP2Settings(max_headers_size=header_bytes_max),
        "log_level": LogLevels.warning,
        "log_dictconfig": {"loggers": {"_granian": {"propagate": True}}},  # into frazil's own log
        "respawn_failed_workers": True,
        "respawn_interval": _OVERLAP_SECONDS,
        **_tls_settings(tls),
    }


def _tls_settings(tls: TlsConfig | None) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl_cert": tls.cert_file,
        "ssl_key": tls.key_file,
        "ssl_ca": tls.client_ca_file,
        "ssl_client_verify": tls.client_ca_file is not None,
        "ssl_protocol_min": SSLProtocols.tls12,
    }


def allow_many_files() -> None:
    """Raise the limit on open files to the hard limit: each connection is a file, and shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX * 2 if hard == resource.RLIM_INFINITY else min(hard, CONNECTIONS_MAX * 2)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def watch_certificates(tls: TlsConfig | None) -> None:
    """Replace workers one by one when certificates change: granian reads them when a worker starts."""
    if tls is None:
        return

    def watch() -> None:
        seen = stamps(tls)
        pause = threading.Event()
        while True:
            pause.wait(tls.reload_interval_seconds)
            now = stamps(tls)
            if now is not None and now != seen and is_usable(tls):
                seen = now
                log.info("certificates changed; workers restarted")
                os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=watch, daemon=True, name="certificates").start()
