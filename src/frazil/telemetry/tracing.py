"""Spans with the OpenTelemetry API. Imported only if telemetry is enabled."""

from __future__ import annotations

import re
import time
from asyncio import CancelledError
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import Any, Self

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from frazil.errors import Transient
from frazil.telemetry.spans import Fact

_PROPAGATOR = TraceContextTextMapPropagator()
_PROPAGATED = ("traceparent", "tracestate")
_NO_PARENT = Context()
_SECRET = re.compile(r"(^|_)(authorization|credentials?|keys?|passwords?|secrets?|tokens?|cookies?)$", re.I)
_NEVER = frozenset({"params", "parameters"})
_SQL = frozenset({"sql"})
HIDDEN = "[hidden]"


class Tracing:
    def __init__(self, tracer: trace.Tracer, *, sql_text: bool) -> None:
        self._tracer = tracer
        self._sql_text = sql_text

    def begin(self, name: str, facts: Mapping[str, Fact]) -> OpenSpan:
        return OpenSpan(self, name, facts, SpanKind.INTERNAL, None)

    def begin_server(self, name: str, headers: Mapping[str, str], facts: Mapping[str, Fact]) -> OpenSpan:
        carrier = {each: headers[each] for each in _PROPAGATED if each in headers}
        parent = _PROPAGATOR.extract(carrier, _NO_PARENT) if carrier else _NO_PARENT
        return OpenSpan(self, name, facts, SpanKind.SERVER, parent)

    def record(self, name: str, begin: float, end: float, facts: Mapping[str, Fact]) -> None:
        if not trace.get_current_span().is_recording():
            return
        now, now_ns = time.monotonic(), time.time_ns()
        at = [now_ns - int((now - monotonic) * 1e9) for monotonic in (begin, end)]
        made = self._tracer.start_span(name, attributes=self.attributes(facts), start_time=at[0])
        made.end(at[1])

    def set_current(self, facts: Mapping[str, Fact]) -> None:
        current = trace.get_current_span()
        if current.is_recording():
            current.set_attributes(self.attributes(facts))

    def refuse(self, outcome: str) -> None:
        current = trace.get_current_span()
        if current.is_recording():
            current.set_attributes({"frazil.outcome": outcome, "error.type": outcome})
            current.set_status(Status(StatusCode.ERROR))

    def attributes(self, facts: Mapping[str, Fact]) -> dict[str, str | int | float | bool]:
        return attributes(facts, sql_text=self._sql_text)

    def start(self, name: str, kind: SpanKind, parent: Context | None) -> trace.Span:
        return self._tracer.start_span(name, parent, kind)


class OpenSpan:
    """A span that is current for one task or thread until it ends."""

    def __init__(
        self, tracing: Tracing, name: str, facts: Mapping[str, Fact], kind: SpanKind, parent: Context | None
    ) -> None:
        self._tracing = tracing
        self._begin = name, kind, parent
        self._facts = facts
        self._span: trace.Span = trace.INVALID_SPAN
        self._token: Token[Context] | None = None
        self._is_discarded = False

    def __enter__(self) -> Self:
        self._span = self._tracing.start(*self._begin)
        if self._span.is_recording():
            self._span.set_attributes(self._tracing.attributes(self._facts))
        self._token = contexts.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._token is not None:
            contexts.detach(self._token)
        if self._is_discarded and error is None:
            return  # a span that does not end is not sent
        if isinstance(error, CancelledError):
            self.set(outcome="cancelled")
        elif isinstance(error, Exception):
            self.fail(type(error).__name__, message_of(error))
        self._span.end()

    def set(self, **facts: Fact) -> None:
        if self._span.is_recording():
            self._span.set_attributes(self._tracing.attributes(facts))

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, kind: str, description: str | None = None) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, description))

    def forget(self) -> None:
        self._is_discarded = True


def attributes(facts: Mapping[str, Any], *, sql_text: bool) -> dict[str, str | int | float | bool]:
    """Convert facts to attributes. Names without a dot get the prefix `frazil.`; None is omitted.

    Secrets are hidden; parameters, and SQL unless `sql_text` is set, are omitted.
    """
    found: dict[str, str | int | float | bool] = {}
    for name, value in facts.items():
        if value is None or name in _NEVER or (name in _SQL and not sql_text):
            continue
        key = name if "." in name else f"frazil.{name}"
        if _SECRET.search(name):
            found[key] = HIDDEN
        else:
            found[key] = value if isinstance(value, str | int | float | bool) else str(value)
    return found


def message_of(error: BaseException) -> str | None:
    """Return the message of an error if it cannot contain user data, otherwise None."""
    return str(error) if isinstance(error, Transient | OSError) else None
