"""A trace as the API answers it, in OTLP/JSON, as records to lay out. What senders claim is not believed."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from frazil.query.reads.filters import SPAN_KINDS, STATUS_ERROR

Told = Mapping[str, Any]

SERVER, CLIENT, CONSUMER = 2, 3, 5
_NOTHING: Told = {}


@dataclass(frozen=True)
class SpanRecord:
    """`handle` is its id, and unlike the id it is unique within the trace. Times are unix nanoseconds."""

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
    told: Told
    resource: Told
    scope: Told
    is_timed: bool = True
    """Whether it was sent with times of its own that make sense."""

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
    """In order of their start."""
    logs: tuple[LogRecord, ...]
    """In order of time."""

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
        """How many spans each has; the one with the most comes first."""
        counts: dict[str, int] = {}
        for span in self.spans:
            counts[span.service] = counts.get(span.service, 0) + 1
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def read_trace(id: str, answer: Told) -> Trace:
    told = list(_parts(answer, "resourceSpans", "scopeSpans", "spans"))
    known = [time for _, _, span in told for time in _times(span) if time > 0]
    earliest = min(known, default=0)
    spans = sorted(
        (_span(resource, scope, span, earliest) for resource, scope, span in told),
        key=lambda span: (span.start_nano, -span.end_nano, span.id),
    )
    logs = [_log(*part) for part in _parts(answer, "resourceLogs", "scopeLogs", "logRecords")]
    return Trace(id, tuple(_with_handles(spans)), tuple(sorted(logs, key=lambda log: log.time_nano)))


def attributes(told: Told) -> list[Attribute]:
    """Of a span, an event, a link, a resource, a scope or a log record."""
    return [_attribute(item) for item in told.get("attributes") or ()]


def events(span: SpanRecord) -> list[Event]:
    listed = [
        Event(_nano(event, "timeUnixNano"), str(event.get("name") or "event"), attributes(event))
        for event in span.told.get("events") or ()
    ]
    return sorted(listed, key=lambda event: event.time_nano)


def event_times(span: SpanRecord) -> list[tuple[int, bool]]:
    """When, and whether it is an exception: all that a row of the waterfall needs."""
    return [
        (_nano(event, "timeUnixNano"), event.get("name") == "exception")
        for event in span.told.get("events") or ()
    ]


def links(span: SpanRecord) -> list[Link]:
    return [
        Link(str(link.get("traceId") or ""), str(link.get("spanId") or ""), attributes(link))
        for link in span.told.get("links") or ()
    ]


def moment(nano: int) -> dt.datetime:
    """The time to the microsecond; 1970 for what no calendar has."""
    try:
        return dt.datetime.fromtimestamp(nano // 1_000_000_000, dt.UTC).replace(
            microsecond=nano % 1_000_000_000 // 1_000
        )
    except (OverflowError, ValueError, OSError):
        return dt.datetime.fromtimestamp(0, dt.UTC)


def value(told: Any) -> tuple[Any, str]:
    """An OTLP value as Python has it, and the name of its type."""
    if not isinstance(told, Mapping):
        return None, "empty"
    if "stringValue" in told:
        return str(told["stringValue"]), "string"
    if "intValue" in told:
        return int(told["intValue"]), "int"
    if "doubleValue" in told:
        return told["doubleValue"], "double"
    if "boolValue" in told:
        return bool(told["boolValue"]), "bool"
    if "bytesValue" in told:
        return _bytes(str(told["bytesValue"])), "bytes"
    if "arrayValue" in told:
        return [value(item)[0] for item in (told["arrayValue"] or _NOTHING).get("values") or ()], "array"
    if "kvlistValue" in told:
        pairs = (told["kvlistValue"] or _NOTHING).get("values") or ()
        return {str(pair.get("key")): value(pair.get("value"))[0] for pair in pairs}, "map"
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


def _parts(answer: Told, *names: str) -> Iterator[tuple[Told, Told, Told]]:
    outer, inner, leaf = names
    for resource in answer.get(outer) or ():
        for scope in resource.get(inner) or ():
            for told in scope.get(leaf) or ():
                yield resource.get("resource") or _NOTHING, scope.get("scope") or _NOTHING, told


def _span(resource: Told, scope: Told, told: Told, earliest: int) -> SpanRecord:
    """One without times is put where the trace starts; one that ends before it starts lasts no time."""
    start, end = _times(told)
    is_timed = 0 < start <= end
    start = start or end or earliest
    status = told.get("status") or _NOTHING
    return SpanRecord(
        handle="",
        id=str(told.get("spanId") or ""),
        parent_id=str(told.get("parentSpanId") or ""),
        name=str(told.get("name") or "(no name)"),
        service=_service(resource),
        kind=_kind(told.get("kind")),
        start_nano=start,
        end_nano=max(start, end),
        is_error=status.get("code") == STATUS_ERROR,
        status_message=str(status.get("message") or ""),
        told=told,
        resource=resource,
        scope=scope,
        is_timed=is_timed,
    )


def _log(resource: Told, _scope: Told, told: Told) -> LogRecord:
    body, _ = value(told.get("body"))
    return LogRecord(
        time_nano=_nano(told, "timeUnixNano") or _nano(told, "observedTimeUnixNano"),
        span_id=str(told.get("spanId") or ""),
        service=_service(resource),
        severity=int(told.get("severityNumber") or 0),
        body=text_of(body),
        attributes=attributes(told),
    )


def _with_handles(spans: Iterable[SpanRecord]) -> Iterator[SpanRecord]:
    seen: dict[str, int] = {}
    for span in spans:
        times = seen[span.id] = seen.get(span.id, 0) + 1
        is_plain = times == 1 and span.id
        yield replace(span, handle=span.id if is_plain else f"{span.id}~{times}")


def _attribute(item: Told) -> Attribute:
    held, type = value(item.get("value"))
    return Attribute(str(item.get("key") or ""), text_of(held), type)


def _service(resource: Told) -> str:
    for item in resource.get("attributes") or ():
        if item.get("key") == "service.name":
            return text_of(value(item.get("value"))[0]) or "(no service)"
    return "(no service)"


def _kind(told: Any) -> int:
    return told if isinstance(told, int) and 0 <= told < len(SPAN_KINDS) else 0


def _times(span: Told) -> tuple[int, int]:
    return _nano(span, "startTimeUnixNano"), _nano(span, "endTimeUnixNano")


def _nano(told: Told, name: str) -> int:
    try:
        return max(0, int(told.get(name) or 0))
    except (TypeError, ValueError):
        return 0


def _bytes(text: str) -> str:
    try:
        return base64.b64decode(text).hex(" ")
    except (binascii.Error, ValueError):
        return text
