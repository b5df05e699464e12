"""Log records to rows of the `logs` table."""

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
from frazil.otlp.values import KINDS, Attributes, Values, render
from frazil.tables.encoding import CODED


def rows(envelope: Envelope, received: Nanos) -> Rows:
    records = envelope.records
    received_of_row = received[envelope.request_of_row(envelope.scope_of_record)]
    rejects = Rejects(len(records))
    attributes = Attributes(records.field("attributes"), envelope.depth_max)
    body = render(records.field("body"), envelope.depth_max)
    time = rejects.unsigned("time_unix_nano", records.field("time_unix_nano"))
    observed = rejects.unsigned("observed_time_unix_nano", records.field("observed_time_unix_nano"))
    columns = {
        "time": timestamps(np.where(time != 0, time, np.where(observed != 0, observed, received_of_row))),
        "severity_number": records.field("severity_number"),
        "severity_text": text_or_null(records.field("severity_text")),
        "event_name": text_or_null(records.field("event_name")),
        "trace_id": rejects.ids("trace_id", records.field("trace_id"), 16),
        "span_id": rejects.ids("span_id", records.field("span_id"), 8),
        "body": body.text,
        "body_type": _kind_names(body),
        "attributes": attributes.maps(),
        "attribute_types": attributes.types(),
        "time_unix_nano": nanos_or_null(time),
        "observed_time_unix_nano": nanos_or_null(observed),
        "flags": long(records.field("flags")),
        "dropped_attributes_count": long(records.field("dropped_attributes_count")),
    }
    return Rows(columns, attributes, rejects, envelope.scope_of_record)


def _kind_names(values: Values) -> pa.Array:
    """Returns the kind of each value; NULL for strings and empty values."""
    if values.kinds is None:
        return pa.nulls(len(values.text), CODED)
    codes = pa.array(values.kinds.astype(np.int32) - 1, mask=values.kinds == 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(KINDS[1:]))
