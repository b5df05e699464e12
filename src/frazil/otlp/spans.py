"""Spans to rows of the `spans` table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.otlp.columns import (
    Envelope,
    Nanos,
    Rejects,
    Rows,
    long,
    nanos_or_null,
    text_or_null,
    timestamps,
)
from frazil.otlp.ids import hex_ids
from frazil.otlp.values import Attributes
from frazil.tables.specs import EVENT, LINK


def rows(envelope: Envelope, received: Nanos) -> Rows:
    spans, depth_max = envelope.records, envelope.depth_max
    received_of_row = received[envelope.request_of_row(envelope.scope_of_record)]
    rejects = Rejects(len(spans))
    attributes = Attributes(spans.field("attributes"), depth_max)
    start = rejects.unsigned("start_time_unix_nano", spans.field("start_time_unix_nano"))
    end = rejects.unsigned("end_time_unix_nano", spans.field("end_time_unix_nano"))
    status = spans.field("status")
    columns = {
        "time": timestamps(np.where(start != 0, start, np.where(end != 0, end, received_of_row))),
        "name": spans.field("name"),
        "kind": spans.field("kind"),
        "duration_nano": _durations(start, end),
        "status_code": status.field("code"),
        "status_message": text_or_null(status.field("message")),
        "trace_id": rejects.ids("trace_id", spans.field("trace_id"), 16, required=True),
        "span_id": rejects.ids("span_id", spans.field("span_id"), 8, required=True),
        "parent_span_id": rejects.ids("parent_span_id", spans.field("parent_span_id"), 8),
        "attributes": attributes.maps(),
        "attribute_types": attributes.types(),
        "events": _events(spans.field("events"), rejects, depth_max),
        "links": _links(spans.field("links"), rejects, depth_max),
        "start_time_unix_nano": nanos_or_null(start),
        "end_time_unix_nano": nanos_or_null(end),
        "trace_state": text_or_null(spans.field("trace_state")),
        "flags": long(spans.field("flags")),
        "dropped_attributes_count": long(spans.field("dropped_attributes_count")),
        "dropped_events_count": long(spans.field("dropped_events_count")),
        "dropped_links_count": long(spans.field("dropped_links_count")),
    }
    return Rows(columns, attributes, rejects, envelope.scope_of_record)


def _durations(start: Nanos, end: Nanos) -> pa.Int64Array:
    """Returns NULL if a time is unset. Durations may be negative; both times fit into 63 bits."""
    unknown = (start == 0) | (end == 0)
    return pa.array(end.view(np.int64) - start.view(np.int64), mask=unknown)


def _events(lists: pa.ListArray, rejects: Rejects, depth_max: int) -> pa.ListArray:
    events = lists.values
    if len(events) == 0:
        return pa.ListArray.from_arrays(lists.offsets, pa.array([], EVENT))
    element = Rejects(len(events))
    attributes = Attributes(events.field("attributes"), depth_max)
    time = element.unsigned("an event's time_unix_nano", events.field("time_unix_nano"))
    rejects.add_elements(element, lists)
    columns = [
        nanos_or_null(time),
        events.field("name"),
        attributes.maps(coded=False),
        attributes.types(),
        long(events.field("dropped_attributes_count")),
    ]
    return pa.ListArray.from_arrays(lists.offsets, pa.StructArray.from_arrays(columns, fields=list(EVENT)))


def _links(lists: pa.ListArray, rejects: Rejects, depth_max: int) -> pa.ListArray:
    """Keeps all-zero ids: the API allows a link without a valid context that has attributes."""
    links = lists.values
    if len(links) == 0:
        return pa.ListArray.from_arrays(lists.offsets, pa.array([], LINK))
    element = Rejects(len(links))
    attributes = Attributes(links.field("attributes"), depth_max)
    trace, span = (
        hex_ids(links.field(name), width, keep_zero=True)
        for name, width in (("trace_id", 16), ("span_id", 8))
    )
    element.add("a link's trace_id is not 16 bytes long", trace.wrong_length)
    element.add("a link's span_id is not 8 bytes long", span.wrong_length)
    rejects.add_elements(element, lists)
    columns = [
        trace.text,
        span.text,
        text_or_null(links.field("trace_state")),
        long(links.field("flags")),
        attributes.maps(coded=False),
        attributes.types(),
        long(links.field("dropped_attributes_count")),
    ]
    return pa.ListArray.from_arrays(lists.offsets, pa.StructArray.from_arrays(columns, fields=list(LINK)))
