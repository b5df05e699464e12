"""OTLP requests flattened to one value a record, to compare them modulo the grouping of resources and scopes.

Each record becomes nested tuples of `(field name, value)` with its scope, resource and schema URLs beside it;
fields at their default are left out. Two requests mean the same if and only if their sorted lists of records
are equal:

- NaN equals NaN; 0.0 and -0.0 differ; an int, a double, a bool and a string differ whatever their digits.
- An absent message (resource, scope, value, status, buckets) equals an empty one. An empty string, array or
  key-value list is not an empty value. Optional numbers (sum, min, max) that are zero are not absent.
- Attributes are maps: their order does not count. The order in key-value lists and all other lists does.
- All-zero ids equal absent ones in log records and exemplars, as does an all-zero parent; not so in links.
- Envelopes without records, and metrics without data points, stand for nothing.
- Unknown fields do not count.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_COMMON = "opentelemetry.proto.common.v1."
_ZERO_IS_ABSENT = {
    "opentelemetry.proto.logs.v1.LogRecord.trace_id",
    "opentelemetry.proto.logs.v1.LogRecord.span_id",
    "opentelemetry.proto.metrics.v1.Exemplar.trace_id",
    "opentelemetry.proto.metrics.v1.Exemplar.span_id",
    "opentelemetry.proto.trace.v1.Span.parent_span_id",
}


def canonical_logs(request: Message) -> list[Hashable]:
    """One value a log record, sorted."""
    return _sorted(
        (("log_record", canonical(record)), *envelope)
        for envelope, scope_logs in _scope_envelopes(request)
        for record in scope_logs.log_records
    )


def canonical_spans(request: Message) -> list[Hashable]:
    """One value a span, sorted."""
    return _sorted(
        (("span", canonical(span)), *envelope)
        for envelope, scope_spans in _scope_envelopes(request)
        for span in scope_spans.spans
    )


def canonical_metrics(request: Message) -> list[Hashable]:
    """One value a data point, sorted, with what its metric says of it."""
    return _sorted(
        (("data_point", canonical(point)), *description, *envelope)
        for envelope, scope_metrics in _scope_envelopes(request)
        for metric in scope_metrics.metrics
        for description, point in _data_points(metric)
    )


def canonical(message: Message) -> tuple[Any, ...]:
    """A message as nested tuples, by the rules above."""
    if message.DESCRIPTOR.full_name == _COMMON + "AnyValue":
        kind = message.WhichOneof("value")
        return () if kind is None else (kind, _scalar_or_message(getattr(message, kind)))
    pairs = ((field.name, _field(field, message)) for field in message.DESCRIPTOR.fields)
    return tuple((name, value) for name, value in pairs if value is not None)


def _sorted(records: Iterator[Hashable]) -> list[Hashable]:
    return sorted(records, key=repr)


def _scope_envelopes(request: Message) -> Iterator[tuple[tuple[Any, ...], Any]]:
    (resources_field,) = request.DESCRIPTOR.fields
    for resource_envelope in getattr(request, resources_field.name):
        scopes_field = resource_envelope.DESCRIPTOR.fields_by_number[2]
        for scope_envelope in getattr(resource_envelope, scopes_field.name):
            yield (
                (
                    ("scope", canonical(scope_envelope.scope)),
                    ("scope_schema_url", scope_envelope.schema_url),
                    ("resource", canonical(resource_envelope.resource)),
                    ("resource_schema_url", resource_envelope.schema_url),
                ),
                scope_envelope,
            )


def _data_points(metric: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    about_metric = [field for field in metric.DESCRIPTOR.fields if field.containing_oneof is None]
    about_data = [field for field in data.DESCRIPTOR.fields if field.name != "data_points"]
    description = (
        ("type", kind),
        ("metric", tuple((field.name, _field(field, metric)) for field in about_metric)),
        ("data", tuple((field.name, _field(field, data)) for field in about_data)),
    )
    for point in data.data_points:
        yield description, point


def _field(field: FieldDescriptor, message: Message) -> Any:
    """The field's value, or None when it is absent or as good as absent."""
    value = getattr(message, field.name)
    if field.is_repeated:
        items = [_scalar_or_message(item) for item in value]
        if _is_attribute_list(field):
            items.sort(key=repr)
        return tuple(items) or None
    if field.message_type is not None:
        if field.containing_oneof is not None and not message.HasField(field.name):
            return None
        return canonical(value) or (() if field.containing_oneof is not None else None)
    if field.has_presence:
        return _scalar_or_message(value) if message.HasField(field.name) else None
    if field.full_name in _ZERO_IS_ABSENT and not any(value):
        return None
    comparable = _scalar_or_message(value)
    return None if comparable == _scalar_or_message(field.default_value) else comparable


def _is_attribute_list(field: FieldDescriptor) -> bool:
    return (
        field.message_type is not None
        and field.message_type.full_name == _COMMON + "KeyValue"
        and field.containing_type.full_name != _COMMON + "KeyValueList"
    )


def _scalar_or_message(value: Any) -> Any:
    if isinstance(value, Message):
        return canonical(value)
    if isinstance(value, float):
        return repr(value)  # the shortest text that round-trips: NaN equals itself, -0.0 is not 0.0
    return value
