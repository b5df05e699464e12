"""Log records to rows of the `logs` table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.otlp.columns import (
    Envelope,
    Nanos,
    Rejects,
    long,
    nanos_or_null,
    owners,
    repeated,
    text_or_null,
    timestamps,
)
from frazil.otlp.values import KINDS, Attributes, Codes, Values, render
from frazil.tables import Promoted
from frazil.tables.encoding import CODED


def rows(
    batch: pa.RecordBatch, promoted: Sequence[Promoted], received: Nanos, depth_max: int
) -> tuple[dict[str, Any], Rejects, Codes]:
    envelope = Envelope.of(batch, "scope_logs", depth_max)
    lists = envelope.scopes.field("log_records")
    records, scope_of_row = lists.values, owners(lists)
    request_of_row = envelope.request_of_row(scope_of_row)
    rejects = Rejects(len(records))
    attributes = Attributes(records.field("attributes"), depth_max)
    body = render(records.field("body"), depth_max)
    time = rejects.unsigned("time_unix_nano", records.field("time_unix_nano"))
    observed = rejects.unsigned("observed_time_unix_nano", records.field("observed_time_unix_nano"))
    columns = {
        "time": timestamps(
            np.where(time != 0, time, np.where(observed != 0, observed, received[request_of_row]))
        ),
        "severity_number": records.field("severity_number"),
        "severity_text": text_or_null(records.field("severity_text")),
        "event_name": text_or_null(records.field("event_name")),
        "trace_id": rejects.ids("trace_id", records.field("trace_id"), 16),
        "span_id": rejects.ids("span_id", records.field("span_id"), 8),
        "body": body.text,
        "body_type": kind_names(body),
        "attributes": attributes.maps(),
        "attribute_types": attributes.types(),
        "time_unix_nano": nanos_or_null(time),
        "observed_time_unix_nano": nanos_or_null(observed),
        "flags": long(records.field("flags")),
        "dropped_attributes_count": long(records.field("dropped_attributes_count")),
    }
    columns |= envelope.columns(scope_of_row) | promoted_columns(promoted, envelope, attributes, scope_of_row)
    return columns, rejects, request_of_row


def kind_names(values: Values) -> pa.Array:
    """NULL for strings and empty values, else the kind."""
    if values.kinds is None:
        return pa.nulls(len(values.text), CODED)
    codes = pa.array(values.kinds.astype(np.int32) - 1, mask=values.kinds == 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(KINDS[1:]))


def promoted_columns(
    promoted: Sequence[Promoted], envelope: Envelope, attributes: Attributes, scope_of_row: Codes
) -> dict[str, Any]:
    resource_of_row = envelope.resource_of_scope[scope_of_row]
    found: dict[str, Any] = {}
    for column in promoted:
        owner = envelope.resource_attributes if column.source == "resource" else attributes
        if not any(name in owner.key_names for name in column.attributes):
            coded = column.source == "resource" and column.type == "string"
            found[column.column] = pa.nulls(len(scope_of_row), CODED if coded else column.arrow_type)
        elif column.source == "resource":
            found[column.column] = repeated(owner.promoted(column), resource_of_row)
        else:
            found[column.column] = owner.promoted(column)
    return found
