"""The parameters that searches, counts and traces share, as requests of `query/reads`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

from frazil.errors import RequestInvalid
from frazil.query.reads.filters import LogFilter, SpanFilter
from frazil.query.reads.time_range import TimeRange
from frazil.serve import parameters

_CHARS_MAX = 1_000

_Services = Annotated[
    list[str] | None, Query(description="`service.name`; more than one may be given.", examples=["cart"])
]
_Words = Annotated[
    str | None,
    Query(description="Words that must all occur, in any case.", examples=["refused"], max_length=_CHARS_MAX),
]
_Regex = Annotated[
    str | None, Query(description="A regular expression (RE2) that must match.", max_length=_CHARS_MAX)
]
_TraceId = Annotated[str | None, Query(description="32 hexadecimal digits.")]
_Attributes = Annotated[
    list[str] | None,
    Query(
        description="`key=value` or `key:value`: an attribute of the record, of its resource, or of an event "
        "of a span. Repeatable.",
        examples=["http.route=/cart"],
        max_length=20,
    ),
]


@dataclass(frozen=True)
class Written:
    """`from` and `to` as the client wrote them: a cursor holds for these."""

    begin: str
    end: str

    def range(self) -> TimeRange:
        """Both relative to the same now. Raises RequestInvalid."""
        now = time.time()
        found = TimeRange(parameters.moment("from", self.begin, now), parameters.moment("to", self.end, now))
        if found.begin >= found.end:
            raise RequestInvalid("`from` must be before `to`")
        return found


async def _written(
    begin: Annotated[
        str,
        Query(
            alias="from",
            description="The earliest time: ISO 8601, unix seconds, or relative such as `-15m`.",
            examples=["-15m"],
        ),
    ] = "-1h",
    to: Annotated[
        str, Query(description="The time before which records are; as `from`.", examples=["now"])
    ] = "now",
) -> Written:
    return Written(begin, to)


async def _log_filter(
    service: _Services = None,
    severity: Annotated[
        str | None, Query(description="The lowest: 1 to 24, or a name.", examples=["warn"])
    ] = None,
    q: _Words = None,
    regex: _Regex = None,
    trace_id: _TraceId = None,
    attr: _Attributes = None,
    received_from: Annotated[
        str | None,
        Query(
            description="The earliest time of arrival, whatever time the record itself has: ISO 8601 or unix "
            "seconds. To follow what comes in, ask for what arrived since the last answer.",
            examples=["2026-11-15T10:00:00Z"],
        ),
    ] = None,
) -> LogFilter:
    return LogFilter(
        services=service or (),
        severity_min=None if severity is None else parameters.severity(severity),
        words=q,
        regex=regex,
        trace_id=None if trace_id is None else parameters.trace_id(trace_id),
        attributes=[parameters.attribute(pair) for pair in attr or ()],
        received_from=None if received_from is None else parameters.fixed("received_from", received_from),
    )


async def _span_filter(
    service: _Services = None,
    name: Annotated[str | None, Query(description="The operation, exactly.", examples=["GET /cart"])] = None,
    kind: Annotated[
        str | None, Query(description="internal, server, client, producer or consumer.", examples=["server"])
    ] = None,
    status: Annotated[str | None, Query(description="error, ok or unset.", examples=["error"])] = None,
    duration_min: Annotated[
        str | None, Query(description="`250` or `250ms`, `1.5s`, `80us`.", examples=["250ms"])
    ] = None,
    duration_max: Annotated[str | None, Query(description="As `duration_min`.", examples=["2s"])] = None,
    q: _Words = None,
    regex: _Regex = None,
    trace_id: _TraceId = None,
    attr: _Attributes = None,
) -> SpanFilter:
    return SpanFilter(
        services=service or (),
        name=name,
        kind=None if kind is None else parameters.kind(kind),
        status=None if status is None else parameters.status(status),
        duration_nano_min=None if duration_min is None else parameters.duration("duration_min", duration_min),
        duration_nano_max=None if duration_max is None else parameters.duration("duration_max", duration_max),
        words=q,
        regex=regex,
        trace_id=None if trace_id is None else parameters.trace_id(trace_id),
        attributes=[parameters.attribute(pair) for pair in attr or ()],
    )


Within = Annotated[Written, Depends(_written)]
Logs = Annotated[LogFilter, Depends(_log_filter)]
Spans = Annotated[SpanFilter, Depends(_span_filter)]
