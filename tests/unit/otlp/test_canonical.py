"""The yardstick of the lossless tests must itself be right: equal for what means the same, else different."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from tests.support.otlp_canonical import canonical, canonical_logs, canonical_metrics, canonical_spans
from tests.support.otlp_requests import (
    logs_requests,
    metrics_requests,
    permuted_wire,
    split_wire,
    trace_requests,
    with_unknown_fields,
)

_ANY_VALUE = AnyValue.DESCRIPTOR.full_name
Canonical = Callable[[Message], list[Any]]
SIGNALS = [
    pytest.param(logs_requests(), canonical_logs, id="logs"),
    pytest.param(trace_requests(), canonical_spans, id="spans"),
    pytest.param(metrics_requests(), canonical_metrics, id="metrics"),
]
seeds = st.integers(0, 2**32)
patient = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@pytest.mark.parametrize(("requests", "canonical_of"), SIGNALS)
@pytest.mark.parametrize("encode", [with_unknown_fields, permuted_wire, split_wire])
def test_every_wire_encoding_of_a_request_reads_as_the_same_request(
    requests: Any, canonical_of: Canonical, encode: Callable[[Message, int], bytes]
) -> None:
    @patient
    @given(requests, seeds)
    def check(request: Message, seed: int) -> None:
        assert canonical_of(type(request).FromString(encode(request, seed))) == canonical_of(request)

    check()


@pytest.mark.parametrize(("requests", "canonical_of"), SIGNALS)
def test_one_envelope_a_record_in_any_order_means_the_same(requests: Any, canonical_of: Canonical) -> None:
    @patient
    @given(requests, seeds)
    def check(request: Message, seed: int) -> None:
        envelopes = list(_one_record_each(request))
        random.Random(seed).shuffle(envelopes)
        (field,) = request.DESCRIPTOR.fields
        regrouped = type(request)(**{field.name: envelopes})
        assert canonical_of(regrouped) == canonical_of(request)
        assert len(canonical_of(request)) >= len(envelopes) or canonical_of is canonical_metrics

    check()


@pytest.mark.parametrize(("requests", "canonical_of"), SIGNALS)
def test_the_order_of_attributes_does_not_count(requests: Any, canonical_of: Canonical) -> None:
    @patient
    @given(requests, seeds)
    def check(request: Message, seed: int) -> None:
        shuffled = type(request)()
        shuffled.CopyFrom(request)
        _shuffle_attributes(shuffled, random.Random(seed))
        assert canonical_of(shuffled) == canonical_of(request)

    check()


@pytest.mark.slow
@pytest.mark.parametrize(("requests", "canonical_of"), SIGNALS)
def test_a_change_of_any_single_field_shows(requests: Any, canonical_of: Canonical) -> None:
    @patient
    @given(requests, seeds)
    def check(request: Message, seed: int) -> None:
        number = len(list(_changes(request)))
        for index in random.Random(seed).sample(range(number), min(number, 10)):
            _check_change(request, index, canonical_of)

    check()


@pytest.mark.parametrize(
    ("request_type", "canonical_of"),
    [
        (ExportLogsServiceRequest, canonical_logs),
        (ExportTraceServiceRequest, canonical_spans),
        (ExportMetricsServiceRequest, canonical_metrics),
    ],
)
def test_a_change_of_each_field_of_a_full_request_shows(
    request_type: type[Message], canonical_of: Canonical
) -> None:
    request = _filled(request_type)
    names = [name for name, _ in _changes(request)]
    for index in range(len(names)):
        _check_change(request, index, canonical_of)
    scalars = {name for name in _fields_below(request_type.DESCRIPTOR) if not name.endswith("strindex")}
    assert scalars <= set(names) | {f"{_ANY_VALUE}.{field.name}" for field in AnyValue.DESCRIPTOR.fields}


def _check_change(request: Message, index: int, canonical_of: Canonical) -> None:
    changed = type(request)()
    changed.CopyFrom(request)
    name, change = list(_changes(changed))[index]
    change()
    assert canonical_of(changed) != canonical_of(request), name


def _value(**fields: Any) -> AnyValue:
    return AnyValue(**fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Span(status=Status()), Span()),
        (LogRecord(body=AnyValue()), LogRecord()),
        (KeyValue(key="a", value=AnyValue()), KeyValue(key="a")),
        (
            ExponentialHistogramDataPoint(positive=ExponentialHistogramDataPoint.Buckets()),
            ExponentialHistogramDataPoint(),
        ),
        (ResourceSpans(resource={}), ResourceSpans()),
        (LogRecord(trace_id=bytes(16), span_id=bytes(8)), LogRecord()),
        (Exemplar(trace_id=bytes(16), span_id=bytes(8)), Exemplar()),
        (Span(parent_span_id=bytes(8)), Span()),
        (_value(double_value=math.nan), _value(double_value=-math.nan)),
    ],
)
def test_what_means_the_same_is_equal(one: Message, other: Message) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_value(), _value(string_value="")),
        (_value(), _value(array_value=ArrayValue())),
        (_value(array_value=ArrayValue()), _value(kvlist_value=KeyValueList())),
        (_value(array_value=ArrayValue()), _value(array_value=ArrayValue(values=[AnyValue()]))),
        (_value(string_value=""), _value(bytes_value=b"")),
        (_value(double_value=0.0), _value(double_value=-0.0)),
        (_value(int_value=1), _value(double_value=1.0)),
        (_value(int_value=1), _value(bool_value=True)),
        (_value(int_value=1), _value(string_value="1")),
        (HistogramDataPoint(sum=0.0), HistogramDataPoint()),
        (Exemplar(as_int=0), Exemplar()),
        (Exemplar(as_int=0), Exemplar(as_double=0.0)),
        (Span.Link(trace_id=bytes(16)), Span.Link()),
        (Span(trace_id=bytes(16)), Span()),
        (
            _value(kvlist_value=KeyValueList(values=[KeyValue(key="a"), KeyValue(key="b")])),
            _value(kvlist_value=KeyValueList(values=[KeyValue(key="b"), KeyValue(key="a")])),
        ),
    ],
)
def test_what_differs_is_not_equal(one: Message, other: Message) -> None:
    assert canonical(one) != canonical(other)


# Regrouping ---------------------------------------------------------------------------------------


def _one_record_each(request: Any) -> Iterator[Message]:
    (resources_field,) = request.DESCRIPTOR.fields
    for resource_envelope in getattr(request, resources_field.name):
        scopes_field = resource_envelope.DESCRIPTOR.fields_by_number[2].name
        for scope_envelope in getattr(resource_envelope, scopes_field):
            records_field = scope_envelope.DESCRIPTOR.fields_by_number[2].name
            for record in getattr(scope_envelope, records_field):
                for part in _one_point_each(record):
                    scope_alone = _copy_without(scope_envelope, records_field)
                    getattr(scope_alone, records_field).append(part)
                    resource_alone = _copy_without(resource_envelope, scopes_field)
                    getattr(resource_alone, scopes_field).append(scope_alone)
                    yield resource_alone


def _one_point_each(record: Any) -> Iterator[Message]:
    kind = record.WhichOneof("data") if record.DESCRIPTOR.name == "Metric" else None
    if kind is None:
        yield record
        return
    for point in getattr(record, kind).data_points:
        alone = _copy_without(record, "")
        del getattr(alone, kind).data_points[:]
        getattr(alone, kind).data_points.append(point)
        yield alone


def _copy_without(message: Any, field: str) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    if field:
        copy.ClearField(field)
    return copy


def _shuffle_attributes(message: Message, rng: random.Random) -> None:
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in value if field.is_repeated else [value]:
            _shuffle_attributes(item, rng)
        if field.name in ("attributes", "filtered_attributes", "metadata"):
            attributes = list(value)
            rng.shuffle(attributes)
            message.ClearField(field.name)
            getattr(message, field.name).extend(attributes)


# Changes ------------------------------------------------------------------------------------------

_Change = tuple[str, Callable[[], Any]]  # the field's name, and what changes it


def _changes(message: Any) -> Iterator[_Change]:
    """Every change of one field that a record can show, below a message that holds records."""
    name = message.DESCRIPTOR.full_name
    if message.DESCRIPTOR.name == "AnyValue":
        yield from _changes_of_value(message)
        return
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.name == "key_strindex":
            continue
        if field.is_repeated:
            yield from _changes_of_list(message, field)
        elif field.message_type is not None:
            if field.containing_oneof is None or message.HasField(field.name):
                yield from _changes(value)
        elif not field.has_presence or message.HasField(field.name):
            yield f"{name}.{field.name}", _setter(message, field.name, _another(field, value))
            if field.has_presence:
                yield f"{name}.{field.name}", _clearer(message, field.name)
        else:  # sets it, and in a oneof unsets the other
            yield f"{name}.{field.name}", _setter(message, field.name, field.default_value)


def _changes_of_value(value: Any) -> Iterator[_Change]:
    name = value.DESCRIPTOR.full_name
    kind = value.WhichOneof("value")
    if kind is None:
        yield name, _setter(value, "string_value", "")
        return
    yield name, _clearer(value, kind)
    field = value.DESCRIPTOR.fields_by_name[kind]
    if field.message_type is not None:
        yield from _changes(getattr(value, kind))
    else:
        yield name, _setter(value, kind, _another(field, getattr(value, kind)))


def _changes_of_list(message: Any, field: FieldDescriptor) -> Iterator[_Change]:
    name = f"{message.DESCRIPTOR.full_name}.{field.name}"
    items = getattr(message, field.name)
    envelopes = field.message_type is not None and field.number in (1, 2) and _holds_records(field)
    for index, item in enumerate(items):
        if field.message_type is None:
            yield name, _item_setter(items, index, _another(field, item))
        elif not envelopes or _has_records(item):
            yield from _changes(item)
        if not envelopes or _has_records(item):
            yield name, _remover(items, index)
    if not envelopes and field.name not in ("log_records", "spans", "metrics", "data_points"):
        addition = field.message_type._concrete_class() if field.message_type else field_default(field)
        yield name, lambda: items.append(addition)


def field_default(field: FieldDescriptor) -> Any:
    return {FieldDescriptor.CPPTYPE_STRING: "", FieldDescriptor.CPPTYPE_DOUBLE: 0.0}.get(field.cpp_type, 0)


def _holds_records(field: FieldDescriptor) -> bool:
    return field.message_type.name.startswith(("Resource", "Scope")) or field.message_type.name == "Metric"


def _has_records(message: Any) -> bool:
    if message.DESCRIPTOR.name == "Metric":
        kind = message.WhichOneof("data")
        return kind is not None and bool(getattr(message, kind).data_points)
    inner = message.DESCRIPTOR.fields_by_number[2]
    items = getattr(message, inner.name)
    return any(_has_records(item) for item in items) if _holds_records(inner) else bool(items)


def _another(field: FieldDescriptor, value: Any) -> Any:
    """A value that differs from `value` as little as it can."""
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return value + b"\x01"
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return 0.0 if math.isnan(value) else -value if value == 0 else math.nextafter(value, 0.0)
    return value ^ 1


def _setter(message: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(message, name, value)


def _clearer(message: Any, name: str) -> Callable[[], None]:
    return lambda: message.ClearField(name)


def _item_setter(items: Any, index: int, value: Any) -> Callable[[], None]:
    return lambda: items.__setitem__(index, value)


def _remover(items: Any, index: int) -> Callable[[], None]:
    return lambda: items.__delitem__(index)


def _filled(message_type: Any, kind: str = "") -> Any:
    """A message with every field set; of a oneof, the first member or the one that is called `kind`."""
    message = message_type()
    for field in message_type.DESCRIPTOR.fields:
        choice = field.containing_oneof is not None and len(field.containing_oneof.fields) > 1
        first = kind or (field.containing_oneof.fields[0].name if choice else "")
        if field.name == "key_strindex" or (choice and field.name != first):
            continue
        value = getattr(message, field.name)
        if field.message_type is None:
            filling = _another(field, field_default(field) if field.is_repeated else field.default_value)
            if field.is_repeated:
                value.append(filling)
            else:
                setattr(message, field.name, filling)
        elif field.name == "metrics":
            kinds = field.message_type.oneofs_by_name["data"].fields
            value.extend(_filled(field.message_type._concrete_class, one.name) for one in kinds)
        elif field.is_repeated:
            value.append(_filled(field.message_type._concrete_class))
        else:
            value.CopyFrom(_filled(field.message_type._concrete_class))
    return message


def _fields_below(descriptor: Any, seen: set[str] | None = None) -> Iterator[str]:
    """The full names of all scalar fields, and of lists of anything but envelopes."""
    seen = set() if seen is None else seen
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from _fields_below(field.message_type, seen)
        if (field.message_type is None and descriptor.name not in ("ArrayValue", "KeyValueList")) or (
            field.name in ("attributes", "events", "links", "exemplars", "entity_refs", "metadata")
        ):
            yield field.full_name
