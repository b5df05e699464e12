"""Encodes rows of a table as an OTLP request, grouped by resource and scope."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Exemplar, Metric

from frazil.otlp.decode import conform
from frazil.otlp.json import any_value_from_json
from frazil.otlp.wire import REQUESTS
from frazil.tables import TableSpec

Row = dict[str, Any]

_RESOURCE_COLUMNS = (
    "resource_attributes",
    "resource_attribute_types",
    "resource_dropped_attributes_count",
    "resource_schema_url",
    "resource_entity_refs",
)
_SCOPE_COLUMNS = (
    "scope_name",
    "scope_version",
    "scope_attributes",
    "scope_attribute_types",
    "scope_dropped_attributes_count",
    "scope_schema_url",
)
_METRIC_COLUMNS = (
    "metric_name",
    "metric_type",
    "unit",
    "description",
    "metadata_attributes",
    "metadata_attribute_types",
    "aggregation_temporality",
    "is_monotonic",
)


def encode(table: pa.Table, spec: TableSpec) -> Message:
    """Returns an export request with these rows. Raises ValueError if the table has no OTLP records."""
    if (signal := spec.signal) is None:
        raise ValueError(f"{spec.name} has no OTLP records")
    request = REQUESTS[signal]()
    resources: dict[str, Any] = {}
    scopes: dict[str, Any] = {}
    metrics: dict[str, Metric] = {}
    for row in conform(table, spec).to_pylist():
        resource_key = repr([row[name] for name in _RESOURCE_COLUMNS])
        if resource_key not in resources:
            resources[resource_key] = _add_resource(request, signal, row)
        scope_key = resource_key + repr([row[name] for name in _SCOPE_COLUMNS])
        if scope_key not in scopes:
            scopes[scope_key] = _add_scope(resources[resource_key], signal, row)
        scope = scopes[scope_key]
        if signal == "logs":
            _log(scope.log_records.add(), row)
        elif signal == "spans":
            _span(scope.spans.add(), row)
        else:
            metric_key = scope_key + repr([row[name] for name in _METRIC_COLUMNS])
            if metric_key not in metrics:
                metrics[metric_key] = _metric(scope.metrics.add(), row)
            _POINTS[row["metric_type"]](metrics[metric_key], row)
    return request


def value(text: str | None, kind: str | None) -> AnyValue:
    """Returns the AnyValue of a text and its kind; None is the empty value."""
    if text is None:
        return AnyValue()
    match kind:
        case None | "string":
            return AnyValue(string_value=text)
        case "int":
            return AnyValue(int_value=int(text))
        case "double":
            return AnyValue(double_value=float(text))
        case "bool":
            return AnyValue(bool_value=text == "true")
        case "bytes":
            return AnyValue(bytes_value=base64.b64decode(text))
        case _:
            return any_value_from_json(orjson.loads(text))


def _attributes(pairs: Iterable[tuple[str, str | None]] | None, types: str | None) -> list[KeyValue]:
    kinds = json.loads(types) if types else {}
    return [KeyValue(key=key, value=value(text, kinds.get(key))) for key, text in pairs or ()]


def _add_resource(request: Any, signal: str, row: Row) -> Any:
    envelope = getattr(request, f"resource_{signal}").add(schema_url=row["resource_schema_url"] or "")
    resource = envelope.resource
    resource.attributes.extend(_attributes(row["resource_attributes"], row["resource_attribute_types"]))
    resource.dropped_attributes_count = row["resource_dropped_attributes_count"] or 0
    for ref in orjson.loads(row["resource_entity_refs"] or "[]"):
        resource.entity_refs.add(
            schema_url=ref.get("schemaUrl", ""),
            type=ref.get("type", ""),
            id_keys=ref.get("idKeys", ()),
            description_keys=ref.get("descriptionKeys", ()),
        )
    return envelope


def _add_scope(resource: Any, signal: str, row: Row) -> Any:
    envelope = getattr(resource, f"scope_{signal}").add(schema_url=row["scope_schema_url"] or "")
    scope = envelope.scope
    scope.name, scope.version = row["scope_name"] or "", row["scope_version"] or ""
    scope.attributes.extend(_attributes(row["scope_attributes"], row["scope_attribute_types"]))
    scope.dropped_attributes_count = row["scope_dropped_attributes_count"] or 0
    return envelope


def _id(text: str | None) -> bytes:
    return bytes.fromhex(text or "")


def _log(record: Any, row: Row) -> None:
    record.time_unix_nano = row["time_unix_nano"] or 0
    record.observed_time_unix_nano = row["observed_time_unix_nano"] or 0
    record.severity_number = row["severity_number"]
    record.severity_text = row["severity_text"] or ""
    record.event_name = row["event_name"] or ""
    record.trace_id, record.span_id = _id(row["trace_id"]), _id(row["span_id"])
    record.flags = row["flags"]
    record.dropped_attributes_count = row["dropped_attributes_count"]
    record.attributes.extend(_attributes(row["attributes"], row["attribute_types"]))
    if row["body"] is not None:
        record.body.CopyFrom(value(row["body"], row["body_type"]))


def _span(span: Any, row: Row) -> None:
    span.trace_id, span.span_id = _id(row["trace_id"]), _id(row["span_id"])
    span.parent_span_id = _id(row["parent_span_id"])
    span.trace_state = row["trace_state"] or ""
    span.name, span.kind, span.flags = row["name"] or "", row["kind"], row["flags"]
    span.start_time_unix_nano = row["start_time_unix_nano"] or 0
    span.end_time_unix_nano = row["end_time_unix_nano"] or 0
    span.attributes.extend(_attributes(row["attributes"], row["attribute_types"]))
    for name in ("dropped_attributes_count", "dropped_events_count", "dropped_links_count"):
        setattr(span, name, row[name])
    if row["status_code"] or row["status_message"]:
        span.status.code, span.status.message = row["status_code"] or 0, row["status_message"] or ""
    for event in row["events"] or ():
        span.events.add(
            time_unix_nano=event["time_unix_nano"] or 0,
            name=event["name"] or "",
            attributes=_attributes(event["attributes"], event["attribute_types"]),
            dropped_attributes_count=event["dropped_attributes_count"],
        )
    for link in row["links"] or ():
        span.links.add(
            trace_id=_id(link["trace_id"]),
            span_id=_id(link["span_id"]),
            trace_state=link["trace_state"] or "",
            flags=link["flags"],
            attributes=_attributes(link["attributes"], link["attribute_types"]),
            dropped_attributes_count=link["dropped_attributes_count"],
        )


def _metric(metric: Metric, row: Row) -> Metric:
    metric.name, metric.unit = row["metric_name"] or "", row["unit"] or ""
    metric.description = row["description"] or ""
    metric.metadata.extend(_attributes(row["metadata_attributes"], row["metadata_attribute_types"]))
    data = getattr(metric, row["metric_type"])
    data.SetInParent()
    if row["aggregation_temporality"] is not None:
        data.aggregation_temporality = row["aggregation_temporality"]
    if row["is_monotonic"] is not None:
        data.is_monotonic = row["is_monotonic"]
    return metric


def _point(points: Any, row: Row) -> Any:
    point = points.add(
        attributes=_attributes(row["attributes"], row["attribute_types"]),
        start_time_unix_nano=row["start_time_unix_nano"] or 0,
        time_unix_nano=row["time_unix_nano"] or 0,
        flags=row["flags"],
    )
    for exemplar in row["exemplars"] or ():
        point.exemplars.append(_exemplar(exemplar))
    return point


def _exemplar(row: Row) -> Exemplar:
    return Exemplar(
        filtered_attributes=_attributes(row["filtered_attributes"], row["filtered_attribute_types"]),
        time_unix_nano=row["time_unix_nano"] or 0,
        as_double=row["value_double"],
        as_int=row["value_int"],
        trace_id=_id(row["trace_id"]),
        span_id=_id(row["span_id"]),
    )


def _number(metric: Metric, row: Row) -> None:
    point = _point(getattr(metric, row["metric_type"]).data_points, row)
    if row["value_int"] is not None:
        point.as_int = row["value_int"]
    elif row["value_double"] is not None:
        point.as_double = row["value_double"]


def _set_present(point: Any, row: Row, *names: str) -> None:
    for name in names:
        if row[name] is not None:
            setattr(point, name, row[name])


def _histogram(metric: Metric, row: Row) -> None:
    point = _point(metric.histogram.data_points, row)
    _set_present(point, row, "count", "sum", "min", "max")
    point.bucket_counts.extend(row["bucket_counts"] or ())
    point.explicit_bounds.extend(row["explicit_bounds"] or ())


def _exponential_histogram(metric: Metric, row: Row) -> None:
    point = _point(metric.exponential_histogram.data_points, row)
    _set_present(point, row, "count", "sum", "min", "max", "scale", "zero_count", "zero_threshold")
    for name in ("positive", "negative"):
        if row[f"{name}_offset"] or row[f"{name}_bucket_counts"]:
            buckets = getattr(point, name)
            buckets.offset = row[f"{name}_offset"] or 0
            buckets.bucket_counts.extend(row[f"{name}_bucket_counts"] or ())


def _summary(metric: Metric, row: Row) -> None:
    point = _point(metric.summary.data_points, row)
    _set_present(point, row, "count", "sum")
    for quantile in row["quantile_values"] or ():
        point.quantile_values.add(quantile=quantile["quantile"], value=quantile["value"])


_POINTS: dict[str, Callable[[Metric, Row], None]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}
