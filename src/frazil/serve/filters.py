"""Query parameters shared by searches, counts and traces, as filters of `query/reads`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query

from frazil.errors import RequestInvalid
from frazil.query.reads.filters import LogFilter, SpanFilter
from frazil.query.reads.time_range import TimeRange
from frazil.serve import parameters

_CHARS_MAX = 1_000


@dataclass(frozen=True)
class TimeParameters:
    """`from` and `to` as the client sent them: a cursor is valid only for these."""

    begin: Annotated[
        str,
        Query(
            alias="from",
            description="Earliest time, inclusive: ISO 8601, unix seconds, or relative such as `-15m`.",
            examples=["-15m"],
        ),
    ] = "-1h"
    to: Annotated[
        str, Query(description="Latest time, exclusive; in the same forms as `from`.", examples=["now"])
    ] = "now"

    def range(self) -> TimeRange:
        """Return the time range, with both ends relative to the same time. Raises RequestInvalid."""
        now = time.time()
        found = TimeRange(
            parameters.parse_time("from", self.begin, now), parameters.parse_time("to", self.to, now)
        )
        if found.begin >= found.end:
            raise RequestInvalid("`from` must be before `to`")
        return found


@dataclass(frozen=True)
class _Common:
    """The filters of both logs and spans."""

    service: Annotated[
        list[str] | None, Query(description="`service.name`. Repeatable: one must match.", examples=["cart"])
    ] = None
    q: Annotated[
        str | None,
        Query(
            description="Words that must all occur, ignoring case.",
            examples=["refused"],
            max_length=_CHARS_MAX,
        ),
    ] = None
    regex: Annotated[
        str | None, Query(description="A regular expression (RE2) that must match.", max_length=_CHARS_MAX)
    ] = None
    trace_id: Annotated[str | None, Query(description="32 hexadecimal digits.")] = None
    attr: Annotated[
        list[str] | None,
        Query(
            description="`key=value` or `key:value`: an attribute of the record, of its resource, or of an "
            "event of a span. Repeatable.",
            examples=["http.route=/cart"],
            max_length=20,
        ),
    ] = None

    def parsed(self) -> dict[str, Any]:
        return {
            "services": self.service or (),
            "words": self.q,
            "regex": self.regex,
            "trace_id": None if self.trace_id is None else parameters.trace_id(self.trace_id),
            "attributes": [parameters.attribute(pair) for pair in self.attr or ()],
        }


async def _log_filter(
    common: Annotated[_Common, Depends()],
    severity: Annotated[
        str | None, Query(description="Lowest severity: 1 to 24, or a name.", examples=["warn"])
    ] = None,
    received_from: Annotated[
        str | None,
        Query(
            description="Earliest time of arrival, independent of the record's own time: ISO 8601 or unix "
            "seconds. To follow new records, request what arrived since the last response.",
            examples=["2026-11-15T10:00:00Z"],
        ),
    ] = None,
) -> LogFilter:
    return LogFilter(
        **common.parsed(),
        severity_min=None if severity is None else parameters.severity(severity),
        received_from=None
        if received_from is None
        else parameters.parse_fixed_time("received_from", received_from),
    )


async def _span_filter(
    common: Annotated[_Common, Depends()],
    name: Annotated[str | None, Query(description="The exact span name.", examples=["GET /cart"])] = None,
    kind: Annotated[
        str | None, Query(description="internal, server, client, producer or consumer.", examples=["server"])
    ] = None,
    status: Annotated[str | None, Query(description="error, ok or unset.", examples=["error"])] = None,
    duration_min: Annotated[
        str | None,
        Query(description="Shortest duration: `250` or `250ms`, `1.5s`, `80us`.", examples=["250ms"]),
    ] = None,
    duration_max: Annotated[
        str | None, Query(description="Longest duration, in the same forms.", examples=["2s"])
    ] = None,
) -> SpanFilter:
    return SpanFilter(
        **common.parsed(),
        name=name,
        kind=None if kind is None else parameters.kind(kind),
        status=None if status is None else parameters.status(status),
        duration_nano_min=None if duration_min is None else parameters.duration("duration_min", duration_min),
        duration_nano_max=None if duration_max is None else parameters.duration("duration_max", duration_max),
    )


Times = Annotated[TimeParameters, Depends()]
Logs = Annotated[LogFilter, Depends(_log_filter)]
Spans = Annotated[SpanFilter, Depends(_span_filter)]
