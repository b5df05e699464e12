"""frazil's own traces and logs, sent over OTLP to itself or elsewhere (docs/self-observability.md).

    with span("land.commit", table="logs") as commit:
        commit.set(snapshot=…)

Telemetry is off by default: a span is then one shared object without effect, and the SDK is not imported.
Call `start` once in each process, after the last fork; forked children have no telemetry. Exports carry
`SELF_HEADER`. A receiver creates no telemetry about requests with it: each export would cause the next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import structlog

from frazil.telemetry.spans import (
    NOTHING,
    SELF_HEADER,
    Span,
    note,
    past,
    refuse,
    server_span,
    set_tracing,
    span,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from frazil.config import Config
    from frazil.telemetry.session import Session

__all__ = [
    "NOTHING",
    "SELF_HEADER",
    "Role",
    "Span",
    "note",
    "past",
    "refuse",
    "server_span",
    "span",
    "start",
    "stop",
]

Role = Literal["receiver", "pipeline", "api", "dashboard", "up"]

log = structlog.get_logger("frazil.telemetry")
_session: Session | None = None


def start(config: Config, role: Role, registry: CollectorRegistry | None = None) -> None:
    """Start sending if telemetry is enabled. Never raises: on an error, the process runs without telemetry.

    `registry` gets the counters of sent, failed and dropped records.
    """
    global _session
    if not config.telemetry.enabled or _session is not None:
        return
    try:
        from frazil.telemetry.session import Session

        _session = Session(config, role, registry)
    except Exception as error:
        log.warning("telemetry not started", reason=str(error))
        return
    set_tracing(_session.tracing)
    os.register_at_fork(after_in_child=_disable_after_fork)


def stop() -> None:
    """Send the queued records, for at most two seconds. Safe if never started or called twice."""
    global _session
    session, _session = _session, None
    set_tracing(None)
    if session is not None:
        session.close()


def _disable_after_fork() -> None:
    """Turn telemetry off in a forked child, which has no exporter thread."""
    global _session
    session, _session = _session, None
    set_tracing(None)
    if session is not None:
        session.detach_log_bridge()
