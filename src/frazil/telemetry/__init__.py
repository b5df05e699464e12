"""frazil's own traces and logs, over OTLP, into itself or elsewhere (docs/self-observability.md).

    with span("land.commit", table="logs") as commit:
        commit.set(snapshot=…)

While telemetry is off, which is the default, a span is one shared object that does nothing and the SDK is not
imported. `start` is called once in each process that does work, after the last fork; children of a fork have
no telemetry. Exports carry `SELF_HEADER`: whoever receives them makes no telemetry about that, or each export
would be the cause of the next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import structlog

from frazil.telemetry.spans import NOTHING, SELF_HEADER, Span, note, past, refuse, server_span, span, use

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
    """Begins to send, if the configuration says so. Never raises: work goes on without.

    `registry` is where it counts what was sent, failed and dropped.
    """
    global _session
    if not config.telemetry.enabled or _session is not None:
        return
    try:
        from frazil.telemetry.session import Session

        _session = Session(config, role, registry)
    except Exception as error:
        log.warning("frazil's own telemetry cannot be sent", reason=str(error))
        return
    use(_session.tracing)
    os.register_at_fork(after_in_child=_forget)


def stop() -> None:
    """Sends what is left, for two seconds at most. Safe when never started and when called twice."""
    global _session
    session, _session = _session, None
    use(None)
    if session is not None:
        session.close()


def _forget() -> None:
    """In a forked child: the thread that sends is not there."""
    global _session
    session, _session = _session, None
    use(None)
    if session is not None:
        session.silence()
