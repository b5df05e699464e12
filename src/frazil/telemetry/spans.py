"""What the rest of frazil calls. Without telemetry each call is a look at one variable."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from frazil.telemetry.tracing import Tracing

SELF_HEADER = "x-frazil-self"
"""On requests that carry frazil's own telemetry. Any client may send it: it loses nothing but the spans that
frazil would make about its requests."""

Fact = str | int | float | bool | None

_tracing: Tracing | None = None
_quiet: ContextVar[bool] = ContextVar("frazil_telemetry_quiet", default=False)


class Span(Protocol):
    """Facts become attributes: `rows` is `frazil.rows`, a name with a dot stays what it is."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def set(self, **facts: Fact) -> None: ...

    def rename(self, name: str) -> None: ...

    def fail(self, kind: str) -> None:
        """Marks it as failed, though nothing was raised."""

    def forget(self) -> None:
        """It turned out to be nothing: it is not sent."""


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
    """While it lasts, this task or thread makes no spans, and its log records are not sent."""

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


def use(tracing: Tracing | None) -> None:
    """From now on, in this process."""
    global _tracing
    _tracing = tracing


def is_quiet() -> bool:
    return _quiet.get()


def span(name: str, **facts: Fact) -> Span:
    """A part of the current span, or the root of a trace of its own."""
    if _tracing is None or _quiet.get():
        return NOTHING
    return _tracing.begin(name, facts)


def server_span(name: str, headers: Mapping[str, str], **facts: Fact) -> Span:
    """A request, as part of the trace that its `traceparent` names. `headers` are in lower case."""
    if _tracing is None:
        return NOTHING
    if SELF_HEADER in headers:
        return Quiet()
    return _tracing.begin_server(name, headers, facts)


def past(name: str, begin: float, end: float, **facts: Fact) -> None:
    """A part of the current span that is over already; the times are of `time.monotonic`."""
    if _tracing is not None and not _quiet.get():
        _tracing.past(name, begin, end, facts)


def note(**facts: Fact) -> None:
    """Facts about the current span."""
    if _tracing is not None and not _quiet.get():
        _tracing.note(facts)


def refuse(outcome: str) -> None:
    """The current span ends with a refusal."""
    if _tracing is not None and not _quiet.get():
        _tracing.refuse(outcome)
