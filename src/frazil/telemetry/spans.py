"""The tracing functions for the rest of frazil. Without telemetry, each call only checks one variable."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from frazil.telemetry.tracing import Tracing

SELF_HEADER = "x-frazil-self"
"""Marks requests that carry frazil's own telemetry. Other clients that send it only lose frazil's spans about
their requests."""

Fact = str | int | float | bool | None

_tracing: Tracing | None = None
_quiet: ContextVar[bool] = ContextVar("frazil_telemetry_quiet", default=False)


class Span(Protocol):
    """A span. Facts become attributes: `rows` becomes `frazil.rows`; a name with a dot is unchanged."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def set(self, **facts: Fact) -> None: ...

    def rename(self, name: str) -> None: ...

    def fail(self, kind: str) -> None:
        """Mark the span as failed without an exception."""

    def forget(self) -> None:
        """Do not send the span."""


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass

    def set(self, **facts: Fact) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def fail(self, kind: str) -> None:
        pass

    def forget(self) -> None:
        pass


NOTHING: Span = _Nothing()


class Quiet(_Nothing):
    """Suppresses spans and sending of log records in this task or thread."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token: Token[bool] | None = None

    def __enter__(self) -> Self:
        self._token = _quiet.set(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._token is not None:
            _quiet.reset(self._token)


def set_tracing(tracing: Tracing | None) -> None:
    global _tracing
    _tracing = tracing


def is_quiet() -> bool:
    return _quiet.get()


def span(name: str, **facts: Fact) -> Span:
    """Return a child of the current span, or the root of a new trace."""
    if _tracing is None or _quiet.get():
        return NOTHING
    return _tracing.begin(name, facts)


def server_span(name: str, headers: Mapping[str, str], **facts: Fact) -> Span:
    """Return the span of a request, in the trace of its `traceparent`. Header names are in lower case."""
    if _tracing is None:
        return NOTHING
    if SELF_HEADER in headers:
        return Quiet()
    return _tracing.begin_server(name, headers, facts)


def past(name: str, begin: float, end: float, **facts: Fact) -> None:
    """Record a child of the current span that has already ended. Times are from `time.monotonic`."""
    if _tracing is not None and not _quiet.get():
        _tracing.record(name, begin, end, facts)


def note(**facts: Fact) -> None:
    """Add facts to the current span."""
    if _tracing is not None and not _quiet.get():
        _tracing.set_current(facts)


def refuse(outcome: str) -> None:
    """Mark the current span as a rejected request."""
    if _tracing is not None and not _quiet.get():
        _tracing.refuse(outcome)
