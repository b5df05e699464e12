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
    Rows,
    long,
    nanos_or_null,
    owners,
    repeated,
    text_or_null,
    timestamps,
)
from frazil.otlp.ids import hex_ids
from frazil.otlp.series import series_ids
from frazil.otlp.values import Attributes, DuplicateOneof
from frazil.tables.columns import QUANTILE
from frazil.tables.specs import EXEMPLAR, table_spec

TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_COMMON = ("attributes", "start_time_unix_nano", "time_unix_nano", "flags")
_WITH_TEMPORALITY = ("sum", "histogram", "exponential_histogram")


def rows(envelope: Envelope, received: Nanos) -> Rows:
    """Returns a row per data point, ordered by type. The fields common to all types are decoded at once."""
    metrics, depth_max = envelope.records, envelope.depth_max
    _check_oneof([metrics.field(name) for name in TYPES])
    point_lists = {name: metrics.field(name).field("data_points") for name in TYPES}
    present = [name for name in TYPES if len(point_lists[name].values)] or [TYPES[0]]
    counts = [len(point_lists[name].values) for name in present]
    metric_of_row = np.concatenate([owners(point_lists[name]) for name in present])
    scope_of_row = envelope.scope_of_record[metric_of_row]
    received_of_row = received[envelope.request_of_row(scope_of_row)]
    common = {
        name: pa.concat_arrays([point_lists[type_name].values.field(name) for type_name in present])
        for name in _COMMON
    }
    rejects = Rejects(len(metric_of_row))
    attributes = Attributes(common["attributes"], depth_max)
    metadata = Attributes(metrics.field("metadata"), depth_max)
    time = rejects.unsigned("time_unix_nano", common["time_unix_nano"])
    start = rejects.unsigned("start_time_unix_nano", common["start_time_unix_nano"])
    type_of_row = np.repeat(np.array([TYPES.index(name) for name in present], dtype=np.int32), counts)
    columns = {
        "time": timestamps(np.where(time != 0, time, received_of_row)),
        "metric_name": repeated(metrics.field("name"), metric_of_row),
        "metric_type": pa.DictionaryArray.from_arrays(pa.array(type_of_row), pa.array(TYPES)),
        "unit": repeated(text_or_null(metrics.field("unit")), metric_of_row),
        "description": repeated(text_or_null(metrics.field("description")), metric_of_row),
        "series_id": series_ids(envelope, metrics, type_of_row, attributes, scope_of_row, metric_of_row),
        "attributes": attributes.maps(),
        "attribute_types": attributes.types(),
        "metadata_attributes": metadata.repeated_maps(metric_of_row),
        "metadata_attribute_types": repeated(metadata.types(), metric_of_row),
        "start_time_unix_nano": nanos_or_null(start),
        "time_unix_nano": nanos_or_null(time),
        "flags": long(common["flags"]),
    }
    columns |= _type_columns(metrics, point_lists, present, rejects, depth_max)
    return Rows(columns, attributes, rejects, scope_of_row)


def _type_columns(
    metrics: pa.StructArray,
    point_lists: dict[str, pa.ListArray],
    present: Sequence[str],
    rejects: Rejects,
    depth_max: int,
) -> dict[str, Any]:
    """Returns the columns that only some types have; NULL in the rows of the other types."""
    parts: dict[str, list[pa.Array]] = {name: [] for name in _SPECIFIC}
    first = 0
    for type_name in present:
        points, metric_of_point = point_lists[type_name].values, pa.array(owners(point_lists[type_name]))
        own_rejects = Rejects(len(points))
        own = _OF_TYPE[type_name](points, own_rejects)
        if type_name in _WITH_TEMPORALITY:
            temporality = metrics.field(type_name).field("aggregation_temporality")
            own["aggregation_temporality"] = temporality.take(metric_of_point)
        if type_name == "sum":
            own["is_monotonic"] = metrics.field(type_name).field("is_monotonic").take(metric_of_point)
        if type_name != "summary":
            own["exemplars"] = _exemplars(points.field("exemplars"), own_rejects, depth_max)
        for name, type_ in _SPECIFIC.items():
            parts[name].append(own[name] if name in own else pa.nulls(len(points), type_))
        rejects.add_range(own_rejects, first)
        first += len(points)
    return {
        name: pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0] for name, arrays in parts.items()
    }


def _number(points: pa.StructArray, rejects: Rejects) -> dict[str, Any]:
    _check_oneof([points.field("as_double"), points.field("as_int")])
    return {"value_double": points.field("as_double"), "value_int": points.field("as_int")}


def _check_oneof(members: Sequence[pa.Array]) -> None:
    """Raises DuplicateOneof if a row has more than one of the oneof's members."""
    present = [np.asarray(member.is_valid()) for member in members if member.null_count < len(member)]
    if len(present) > 1 and (np.sum(present, axis=0) > 1).any():
        raise DuplicateOneof


def _counter(name: str, points: pa.StructArray, rejects: Rejects) -> pa.Int64Array:
    return pa.array(rejects.unsigned(name, points.field(name)).view(np.int64))


def _counters(name: str, lists: pa.ListArray, rejects: Rejects) -> pa.ListArray:
    element = Rejects(len(lists.values))
    values = element.unsigned(name, lists.values)
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
_SPECIFIC = {
    column.name: column.type
    for column in table_spec("metrics").columns
    if column.name
    in [
        "value_double",
        "value_int",
        "count",
        "sum",
        "min",
        "max",
        "aggregation_temporality",
        "is_monotonic",
        "bucket_counts",
        "explicit_bounds",
        "scale",
        "zero_count",
        "zero_threshold",
        "positive_offset",
        "positive_bucket_counts",
        "negative_offset",
        "negative_bucket_counts",
        "quantile_values",
        "exemplars",
    ]
}


def _plain_list(lists: pa.ListArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(lists.offsets, lists.values)


def _exemplars(lists: pa.ListArray, rejects: Rejects, depth_max: int) -> pa.ListArray:
    exemplars = lists.values
    if len(exemplars) == 0:
        return pa.ListArray.from_arrays(lists.offsets, pa.array([], EXEMPLAR))
    _check_oneof([exemplars.field("as_double"), exemplars.field("as_int")])
    element = Rejects(len(exemplars))
    attributes = Attributes(exemplars.field("filtered_attributes"), depth_max)
    time = element.unsigned("an exemplar's time_unix_nano", exemplars.field("time_unix_nano"))
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
