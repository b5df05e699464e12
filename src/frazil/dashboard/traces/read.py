"""Parses a trace from the API's OTLP/JSON. Tolerates invalid data from senders."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from frazil.query.reads.filters import SPAN_KINDS, STATUS_ERROR

Json = Mapping[str, Any]

SERVER, CLIENT, CONSUMER = 2, 3, 5
_NOTHING: Json = {}


@dataclass(frozen=True)
class SpanRecord:
    """A span of a trace. `handle` is the ID made unique within the trace. Times are unix nanoseconds."""

    handle: str
    id: str
    parent_id: str
    name: str
    service: str
    kind: int
    start_nano: int
    end_nano: int
    is_error: bool
    status_message: str
    otlp: Json
    resource: Json
    scope: Json
    is_timed: bool = True
    """Whether the span was sent with valid times."""

    @property
    def duration_ms(self) -> float:
        return (self.end_nano - self.start_nano) / 1e6


@dataclass(frozen=True)
class Event:
    time_nano: int
    name: str
    attributes: list[Attribute]

    def text(self, key: str) -> str:
        return next((attribute.text for attribute in self.attributes if attribute.key == key), "")


@dataclass(frozen=True)
class Link:
    trace_id: str
    span_id: str
    attributes: list[Attribute]


@dataclass(frozen=True)
class LogRecord:
    time_nano: int
    span_id: str
    service: str
    severity: int
    body: str
    attributes: list[Attribute]


@dataclass(frozen=True)
class Attribute:
    key: str
    text: str
    type: str


@dataclass(frozen=True)
class Trace:
    id: str
    spans: tuple[SpanRecord, ...]
    """Ordered by start."""
    logs: tuple[LogRecord, ...]
    """Ordered by time."""

    @property
    def start_nano(self) -> int:
        starts = (span.start_nano for span in self.spans)
        return min(starts, default=min((log.time_nano for log in self.logs), default=0))

    @property
    def end_nano(self) -> int:
        return max((span.end_nano for span in self.spans), default=self.start_nano)

    @property
    def errors(self) -> int:
        return sum(span.is_error for span in self.spans)

    def services(self) -> dict[str, int]:
        """Returns the number of spans by service, the largest first."""
        counts: dict[str, int] = {}
        for span in self.spans:
            counts[span.service] = counts.get(span.service, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def read_trace(id: str, response: Json) -> Trace:
    found = list(_parts(response, "resourceSpans", "scopeSpans", "spans"))
    known = [time for _, _, span in found for time in _times(span) if time > 0]
    earliest = min(known, default=0)
    spans = sorted(
        (_span(resource, scope, span, earliest) for resource, scope, span in found),
        key=lambda span: (span.start_nano, -span.end_nano, span.id),
    )
    logs = [_log(*part) for part in _parts(response, "resourceLogs", "scopeLogs", "logRecords")]
    return Trace(id, tuple(_with_handles(spans)), tuple(sorted(logs, key=lambda log: log.time_nano)))


def attributes(otlp: Json) -> list[Attribute]:
    """Returns the attributes of a span, event, link, resource, scope or log record."""
    return [_attribute(item) for item in otlp.get("attributes") or ()]


def events(span: SpanRecord) -> list[Event]:
    listed = [
        Event(_nano(event, "timeUnixNano"), str(event.get("name") or "event"), attributes(event))
        for event in span.otlp.get("events") or ()
    ]
    return sorted(listed, key=lambda event: event.time_nano)


def event_times(span: SpanRecord) -> list[tuple[int, bool]]:
    """Returns the time of each event, and whether it is an exception."""
    return [
        (_nano(event, "timeUnixNano"), event.get("name") == "exception")
        for event in span.otlp.get("events") or ()
    ]


def links(span: SpanRecord) -> list[Link]:
    return [
        Link(str(link.get("traceId") or ""), str(link.get("spanId") or ""), attributes(link))
        for link in span.otlp.get("links") or ()
    ]


def to_datetime(nano: int) -> dt.datetime:
    """Returns the time in microseconds, or 1970 if it is out of range."""
    try:
        return dt.datetime.fromtimestamp(nano // 1_000_000_000, dt.UTC).replace(
            microsecond=nano % 1_000_000_000 // 1_000
        )
    except (OverflowError, ValueError, OSError):
        return dt.datetime.fromtimestamp(0, dt.UTC)


def value(otlp: Any) -> tuple[Any, str]:
    """Returns the Python value of an OTLP value, and the name of its type."""
    if not isinstance(otlp, Mapping):
        return None, "empty"
    if "stringValue" in otlp:
        return str(otlp["stringValue"]), "string"
    if "intValue" in otlp:
        return int(otlp["intValue"]), "int"
    if "doubleValue" in otlp:
        return otlp["doubleValue"], "double"
    if "boolValue" in otlp:
        return bool(otlp["boolValue"]), "bool"
    if "bytesValue" in otlp:
        return _bytes(str(otlp["bytesValue"])), "bytes"
    if "arrayValue" in otlp:
        return [value(item)[0] for item in (otlp["arrayValue"] or _NOTHING).get("values") or ()], "array"
    if "kvlistValue" in otlp:
        pairs = (otlp["kvlistValue"] or _NOTHING).get("values") or ()
        return {str(pair.get("key") or ""): value(pair.get("value"))[0] for pair in pairs}, "map"
    return None, "empty"


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return orjson.dumps(value, default=str).decode()
    return str(value)


def _parts(response: Json, *names: str) -> Iterator[tuple[Json, Json, Json]]:
    outer, inner, leaf = names
    for resource in response.get(outer) or ():
        for scope in resource.get(inner) or ():
            for otlp in scope.get(leaf) or ():
                yield resource.get("resource") or _NOTHING, scope.get("scope") or _NOTHING, otlp


def _span(resource: Json, scope: Json, otlp: Json, earliest: int) -> SpanRecord:
    """Parses a span. Without times it starts with the trace; with an end before its start it takes 0 s."""
    start, end = _times(otlp)
    is_timed = 0 < start <= end
    start = start or end or earliest
    status = otlp.get("status") or _NOTHING
    return SpanRecord(
        handle="",
        id=str(otlp.get("spanId") or ""),
        parent_id=str(otlp.get("parentSpanId") or ""),
        name=str(otlp.get("name") or "(no name)"),
        service=_service(resource),
        kind=_kind(otlp.get("kind")),
        start_nano=start,
        end_nano=max(start, end),
        is_error=status.get("code") == STATUS_ERROR,
        status_message=str(status.get("message") or ""),
        otlp=otlp,
        resource=resource,
        scope=scope,
        is_timed=is_timed,
    )


def _log(resource: Json, _scope: Json, otlp: Json) -> LogRecord:
    body, _ = value(otlp.get("body"))
    return LogRecord(
        time_nano=_nano(otlp, "timeUnixNano") or _nano(otlp, "observedTimeUnixNano"),
        span_id=str(otlp.get("spanId") or ""),
        service=_service(resource),
        severity=int(otlp.get("severityNumber") or 0),
        body=text_of(body),
        attributes=attributes(otlp),
    )


def _with_handles(spans: Iterable[SpanRecord]) -> Iterator[SpanRecord]:
    seen: dict[str, int] = {}
    for span in spans:
        times = seen[span.id] = seen.get(span.id, 0) + 1
        is_plain = times == 1 and span.id
        yield replace(span, handle=span.id if is_plain else f"{span.id}~{times}")


def _attribute(item: Json) -> Attribute:
    found, type = value(item.get("value"))
    return Attribute(str(item.get("key") or ""), text_of(found), type)


def _service(resource: Json) -> str:
    for item in resource.get("attributes") or ():
        if item.get("key") == "service.name":
            return text_of(value(item.get("value"))[0]) or "(no service)"
    return "(no service)"


def _kind(otlp: Any) -> int:
    return otlp if isinstance(otlp, int) and 0 <= otlp < len(SPAN_KINDS) else 0


def _times(span: Json) -> tuple[int, int]:
    return _nano(span, "startTimeUnixNano"), _nano(span, "endTimeUnixNano")


def _nano(otlp: Json, name: str) -> int:
    try:
        return max(0, int(otlp.get(name) or 0))
    except (TypeError, ValueError):
        return 0


def _bytes(text: str) -> str:
    try:
        return base64.b64decode(text).hex(" ")
    except (binascii.Error, ValueError):
        return text
