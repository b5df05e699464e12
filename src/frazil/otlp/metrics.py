"""Data points of all five types to rows of the `metrics` table."""

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
from frazil.otlp.ids import hex_ids
from frazil.otlp.logs import promoted_columns
from frazil.otlp.series import series_ids
from frazil.otlp.values import Attributes, Codes
from frazil.tables import Promoted
from frazil.tables.specs import EXEMPLAR, QUANTILE, table_spec

TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_OPTIONAL = [
    pa.field(column.name, column.type) for column in table_spec("metrics").columns if not column.required
]


def rows(
    batch: pa.RecordBatch, promoted: Sequence[Promoted], received: Nanos, depth_max: int
) -> list[tuple[dict[str, Any], Rejects, Codes]]:
    """A part for each metric type that occurs; one empty part if none does."""
    envelope = Envelope.of(batch, "scope_metrics", depth_max)
    lists = envelope.scopes.field("metrics")
    metrics, scope_of_metric = lists.values, owners(lists)
    metadata = Attributes(metrics.field("metadata"), depth_max)
    parts: list[tuple[dict[str, Any], Rejects, Codes]] = []
    for type_name in TYPES:
        data = metrics.field(type_name)
        point_lists = data.field("data_points")
        points = point_lists.values
        if len(points) == 0 and not (type_name == TYPES[-1] and not parts):
            continue
        metric_of_row = owners(point_lists)
        scope_of_row = scope_of_metric[metric_of_row]
        request_of_row = envelope.request_of_row(scope_of_row)
        rejects = Rejects(len(points))
        attributes = Attributes(points.field("attributes"), depth_max)
        time = rejects.nanos("time_unix_nano", points.field("time_unix_nano"))
        start = rejects.nanos("start_time_unix_nano", points.field("start_time_unix_nano"))
        columns: dict[str, Any] = {field.name: pa.nulls(len(points), field.type) for field in _OPTIONAL}
        columns |= {
            "time": timestamps(np.where(time != 0, time, received[request_of_row])),
            "metric_name": repeated(metrics.field("name"), metric_of_row),
            "metric_type": repeated(pa.array([type_name]), np.zeros(len(points), dtype=np.int32)),
            "unit": repeated(text_or_null(metrics.field("unit")), metric_of_row),
            "description": repeated(text_or_null(metrics.field("description")), metric_of_row),
            "series_id": series_ids(envelope, metrics, type_name, attributes, scope_of_row, metric_of_row),
            "attributes": attributes.maps(),
            "attribute_types": attributes.types(),
            "metadata_attributes": metadata.repeated_maps(metric_of_row),
            "metadata_attribute_types": repeated(metadata.types(), metric_of_row),
            "start_time_unix_nano": nanos_or_null(start),
            "time_unix_nano": nanos_or_null(time),
            "flags": long(points.field("flags")),
        }
        columns |= _OF_TYPE[type_name](points, rejects)
        if type_name in ("sum", "histogram", "exponential_histogram"):
            columns["aggregation_temporality"] = data.field("aggregation_temporality").take(
                pa.array(metric_of_row)
            )
        if type_name == "sum":
            columns["is_monotonic"] = data.field("is_monotonic").take(pa.array(metric_of_row))
        if type_name != "summary":
            columns["exemplars"] = _exemplars(points.field("exemplars"), rejects, depth_max)
        columns |= envelope.columns(scope_of_row) | promoted_columns(
            promoted, envelope, attributes, scope_of_row
        )
        parts.append((columns, rejects, request_of_row))
    return parts


def _number(points: pa.StructArray, rejects: Rejects) -> dict[str, Any]:
    return {"value_double": points.field("as_double"), "value_int": points.field("as_int")}


def _counter(name: str, points: pa.StructArray, rejects: Rejects) -> pa.Int64Array:
    return pa.array(rejects.nanos(name, points.field(name)).view(np.int64))


def _counters(name: str, lists: pa.ListArray, rejects: Rejects) -> pa.ListArray:
    element = Rejects(len(lists.values))
    values = element.nanos(name, lists.values)
    rejects.add_elements(element, lists)
    return pa.ListArray.from_arrays(lists.offsets, pa.array(values.view(np.int64)))


def _histogram(points: pa.StructArray, rejects: Rejects) -> dict[str, Any]:
    return {
        "count": _counter("count", points, rejects),
        "sum": points.field("sum"),
        "min": points.field("min"),
        "max": points.field("max"),
        "bucket_counts": _counters("bucket_counts", points.field("bucket_counts"), rejects),
        "explicit_bounds": _plain_list(points.field("explicit_bounds")),
    }


def _exponential_histogram(points: pa.StructArray, rejects: Rejects) -> dict[str, Any]:
    positive, negative = points.field("positive"), points.field("negative")
    return {
        "count": _counter("count", points, rejects),
        "sum": points.field("sum"),
        "min": points.field("min"),
        "max": points.field("max"),
        "scale": points.field("scale"),
        "zero_count": _counter("zero_count", points, rejects),
        "zero_threshold": points.field("zero_threshold"),
        "positive_offset": positive.field("offset"),
        "positive_bucket_counts": _counters(
            "positive bucket_counts", positive.field("bucket_counts"), rejects
        ),
        "negative_offset": negative.field("offset"),
        "negative_bucket_counts": _counters(
            "negative bucket_counts", negative.field("bucket_counts"), rejects
        ),
    }


def _summary(points: pa.StructArray, rejects: Rejects) -> dict[str, Any]:
    lists = points.field("quantile_values")
    quantiles = pa.StructArray.from_arrays(
        [lists.values.field("quantile"), lists.values.field("value")], fields=list(QUANTILE)
    )
    return {
        "count": _counter("count", points, rejects),
        "sum": points.field("sum"),
        "quantile_values": pa.ListArray.from_arrays(lists.offsets, quantiles),
    }


_OF_TYPE = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}


def _plain_list(lists: pa.ListArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


def _exemplars(lists: pa.ListArray, rejects: Rejects, depth_max: int) -> pa.ListArray:
    exemplars = lists.values
    if len(exemplars) == 0:
        return pa.ListArray.from_arrays(lists.offsets, pa.array([], EXEMPLAR))
    element = Rejects(len(exemplars))
    attributes = Attributes(exemplars.field("filtered_attributes"), depth_max)
    time = element.nanos("an exemplar's time_unix_nano", exemplars.field("time_unix_nano"))
    trace, span = hex_ids(exemplars.field("trace_id"), 16), hex_ids(exemplars.field("span_id"), 8)
    element.add("an exemplar's trace_id is not 16 bytes long", trace.wrong_length)
    element.add("an exemplar's span_id is not 8 bytes long", span.wrong_length)
    rejects.add_elements(element, lists)
    columns = [
        nanos_or_null(time),
        exemplars.field("as_double"),
        exemplars.field("as_int"),
        trace.text,
        span.text,
        attributes.maps(coded=False),
        attributes.types(),
    ]
    return pa.ListArray.from_arrays(lists.offsets, pa.StructArray.from_arrays(columns, fields=list(EXEMPLAR)))
