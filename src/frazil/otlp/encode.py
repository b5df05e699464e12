"""Encodes rows of a table as an OTLP request, grouped by resource and scope."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

import orjson
import pyarrow as pa
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, EntityRef, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from frazil.otlp.decode import conform
from frazil.otlp.json import any_value_from_json
from frazil.otlp.wire import REQUESTS
from frazil.tables import TableSpec

Row = dict[str, Any]

_ENTITY_FIELDS = {field.json_name: field.name for field in EntityRef.DESCRIPTOR.fields}
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
            resources[resource_key] = _resource(getattr(request, f"resource_{signal}"), row)
        scope_key = resource_key + repr([row[name] for name in _SCOPE_COLUMNS])
        if scope_key not in scopes:
            scopes[scope_key] = _scope(getattr(resources[resource_key], f"scope_{signal}"), row)
        scope = scopes[scope_key]
        if signal == "logs":
            _log(scope.log_records, row)
        elif signal == "spans":
            _span(scope.spans, row)
        else:
            metric_key = scope_key + repr([row[name] for name in _METRIC_COLUMNS])
            if metric_key not in metrics:
                metrics[metric_key] = _metric(scope.metrics, row)
            _point(getattr(metrics[metric_key], row["metric_type"]).data_points, row)
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


# Protobuf's constructors ignore arguments that are None, so a NULL is an unset field.


def _attributes(pairs: Iterable[tuple[str, str | None]] | None, types: str | None) -> list[KeyValue]:
    kinds = json.loads(types) if types else {}
    return [KeyValue(key=key, value=value(text, kinds.get(key))) for key, text in pairs or ()]


def _fields(row: Row, *names: str) -> Row:
    """Returns the fields that have the same name and form in rows and in OTLP."""
    return {name: row[name] for name in names}


def _ids(row: Row, *names: str) -> Row:
    return {name: bytes.fromhex(row[name] or "") for name in names}


def _resource(resources: Any, row: Row) -> Any:
    return resources.add(
        schema_url=row["resource_schema_url"],
        resource={
            "attributes": _attributes(row["resource_attributes"], row["resource_attribute_types"]),
            "dropped_attributes_count": row["resource_dropped_attributes_count"],
            "entity_refs": [
                EntityRef(**{_ENTITY_FIELDS[key]: item for key, item in ref.items()})
                for ref in orjson.loads(row["resource_entity_refs"] or "[]")
            ],
        },
    )


def _scope(scopes: Any, row: Row) -> Any:
    return scopes.add(
        schema_url=row["scope_schema_url"],
        scope={
            "name": row["scope_name"],
            "version": row["scope_version"],
            "attributes": _attributes(row["scope_attributes"], row["scope_attribute_types"]),
            "dropped_attributes_count": row["scope_dropped_attributes_count"],
        },
    )


def _log(records: Any, row: Row) -> None:
    records.add(
        **_fields(row, "time_unix_nano", "observed_time_unix_nano", "severity_number", "severity_text"),
        **_fields(row, "event_name", "flags", "dropped_attributes_count"),
        **_ids(row, "trace_id", "span_id"),
        attributes=_attributes(row["attributes"], row["attribute_types"]),
        body=None if row["body"] is None else value(row["body"], row["body_type"]),
    )


def _span(spans: Any, row: Row) -> None:
    has_status = row["status_code"] or row["status_message"]
    spans.add(
        **_fields(row, "trace_state", "name", "kind", "flags", "start_time_unix_nano", "end_time_unix_nano"),
        **_fields(row, "dropped_attributes_count", "dropped_events_count", "dropped_links_count"),
        **_ids(row, "trace_id", "span_id", "parent_span_id"),
        attributes=_attributes(row["attributes"], row["attribute_types"]),
        status={"code": row["status_code"], "message": row["status_message"]} if has_status else None,
        events=[
            {
                **_fields(event, "time_unix_nano", "name", "dropped_attributes_count"),
                "attributes": _attributes(event["attributes"], event["attribute_types"]),
            }
            for event in row["events"] or ()
        ],
        links=[
            {
                **_fields(link, "trace_state", "flags", "dropped_attributes_count"),
                **_ids(link, "trace_id", "span_id"),
                "attributes": _attributes(link["attributes"], link["attribute_types"]),
            }
            for link in row["links"] or ()
        ],
    )


def _metric(metrics: Any, row: Row) -> Metric:
    metric: Metric = metrics.add(
        name=row["metric_name"],
        **_fields(row, "unit", "description"),
        metadata=_attributes(row["metadata_attributes"], row["metadata_attribute_types"]),
    )
    data = getattr(metric, row["metric_type"])
    data.SetInParent()
    for name in ("aggregation_temporality", "is_monotonic"):
        if row[name] is not None:
            setattr(data, name, row[name])
    return metric


def _point(points: Any, row: Row) -> None:
    points.add(
        **_fields(row, "start_time_unix_nano", "time_unix_nano", "flags"),
        **_VALUES[row["metric_type"]](row),
        attributes=_attributes(row["attributes"], row["attribute_types"]),
        **({"exemplars": [_exemplar(each) for each in row["exemplars"]]} if row["exemplars"] else {}),
    )


def _exemplar(row: Row) -> Row:
    return {
        "filtered_attributes": _attributes(row["filtered_attributes"], row["filtered_attribute_types"]),
        "time_unix_nano": row["time_unix_nano"],
        **_number(row),
        **_ids(row, "trace_id", "span_id"),
    }


def _number(row: Row) -> Row:
    return {"as_int": row["value_int"], "as_double": row["value_double"]}


def _histogram(row: Row) -> Row:
    return _fields(row, "count", "sum", "min", "max", "bucket_counts", "explicit_bounds")


def _exponential_histogram(row: Row) -> Row:
    return _fields(row, "count", "sum", "min", "max", "scale", "zero_count", "zero_threshold") | {
        name: {"offset": row[f"{name}_offset"], "bucket_counts": row[f"{name}_bucket_counts"]}
        for name in ("positive", "negative")
        if row[f"{name}_offset"] or row[f"{name}_bucket_counts"]
    }


def _summary(row: Row) -> Row:
    return _fields(row, "count", "sum", "quantile_values")


_VALUES: dict[str, Callable[[Row], Row]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}
