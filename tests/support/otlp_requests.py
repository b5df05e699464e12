"""Hypothesis strategies for OTLP requests of every shape the specification allows, and their wire encodings.

Requests hold only records that a receiver must keep: ids have the right length (or are absent where they may
be), times and counters fit in 63 bits, attribute keys are unique within a list. Records, resources and scopes
are drawn from small pools, so that duplicates are common and a request of many records stays cheap to draw.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    EntityRef,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Exemplar,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

DEPTH_MAX = 8

# Scalars ------------------------------------------------------------------------------------------

_AWKWARD_TEXT = [
    "",
    "\x00",
    "a\x00b",
    "\ufeff",
    "e\u0301",
    "\u05e9\u05dc\u05d5\u05dd \u202eabc",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0010ffff",
    "\uffff\ufffd",
    'a"b',
    "a'b",
    "a,b=c",
    "a=b",
    "back\\slash",
    "line\nfeed\r\ttab",
    "\u2028\u2029\x7f\x85",
    " ",
    "null",
    "NaN",
    "1",
    "true",
    "{}",
    "[1]",
    "service.name",
]
texts = st.sampled_from(_AWKWARD_TEXT) | st.text(max_size=6)
keys = st.sampled_from(["service.name", "http.route", "a", "b", *_AWKWARD_TEXT]) | st.text(max_size=4)
blobs = st.sampled_from([b"", b"\x00", b"\xff\xfe", b"\xfb\xff\xbf", bytes(range(16))]) | st.binary(
    max_size=6
)
doubles = (
    st.sampled_from(
        [
            *(0.0, -0.0, 1.0, 0.1, -1e-7, 1e16, 1e22, 1 / 3, 2.0**53, 2.0**63, -(2.0**63)),
            *(5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308),
            *(float("nan"), float("inf"), float("-inf")),
        ]
    )
    | st.floats()
)


def _integers(low: int, high: int, *likely: int) -> SearchStrategy[int]:
    return st.sampled_from([low, low + 1, high - 1, high, *likely]) | st.integers(low, high)


int64s = _integers(-(2**63), 2**63 - 1, 0, 1, -1, 42, 2**31, 2**53 + 1, -(2**53) - 1)
int32s = _integers(-(2**31), 2**31 - 1, 0, 1, -1, 3)
uint32s = _integers(0, 2**32 - 1, 1, 2**31, 0x100, 0x301)
counters = _integers(0, 2**63 - 1, 1, 7, 2**32, 2**53 + 1)
times = _integers(0, 2**63 - 1, 1, 999, 1_700_000_000_000_000_000, 1_700_000_000_123_456_789)
severities = st.integers(0, 24) | int32s
span_kinds = st.integers(0, 5) | int32s
status_codes = st.integers(0, 2) | int32s
temporalities = st.integers(0, 2) | int32s

_trace_ids = st.integers(1, 2**128 - 1).map(lambda number: number.to_bytes(16, "big"))
_span_ids = st.integers(1, 2**64 - 1).map(lambda number: number.to_bytes(8, "big"))
_trace_ids_or_zero = st.just(bytes(16)) | _trace_ids
_span_ids_or_zero = st.just(bytes(8)) | _span_ids


def _messages(
    message_type: type[Message], required: dict[str, SearchStrategy[Any]], **optional: SearchStrategy[Any]
) -> SearchStrategy[Any]:
    """Messages with all of the required fields and any of the optional ones set."""
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: message_type(**fields))


# Values and attributes ----------------------------------------------------------------------------

_leaves = st.one_of(
    texts.map(lambda value: AnyValue(string_value=value)),
    st.booleans().map(lambda value: AnyValue(bool_value=value)),
    int64s.map(lambda value: AnyValue(int_value=value)),
    doubles.map(lambda value: AnyValue(double_value=value)),
    blobs.map(lambda value: AnyValue(bytes_value=value)),
    st.builds(lambda: AnyValue()),
)


def _array(values: list[AnyValue]) -> AnyValue:
    return AnyValue(array_value=ArrayValue(values=values))


def _kvlist(entries: dict[str, AnyValue | None]) -> AnyValue:
    return AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key=k, value=v) for k, v in entries.items()]))


@st.composite
def _nested_chains(draw: Callable[[SearchStrategy[Any]], Any], depth_max: int) -> AnyValue:
    """One value at the bottom of up to `depth_max` arrays and key-value lists: deep, yet cheap to draw."""
    value = draw(_leaves)
    for level in draw(st.lists(st.none() | keys, min_size=1, max_size=depth_max)):
        value = _array([value]) if level is None else _kvlist({level: value})
    return value  # type: ignore[no-any-return]


def any_values(depth_max: int = DEPTH_MAX) -> SearchStrategy[AnyValue]:
    """Values of every kind, arrays and key-value lists nested at most `depth_max` deep."""
    if depth_max == 0:
        return _leaves
    branches = _leaves
    for _ in range(min(depth_max, 2)):
        inner = branches
        branches = st.one_of(
            _leaves,
            st.lists(inner, max_size=3).map(_array),
            st.dictionaries(keys, st.none() | inner, max_size=3).map(_kvlist),
        )
    return st.one_of(_leaves, branches, _nested_chains(depth_max))


def attribute_lists(depth_max: int = DEPTH_MAX, size_max: int = 3) -> SearchStrategy[list[KeyValue]]:
    """Attributes with unique keys; a value may be absent."""
    values = st.one_of(_leaves, any_values(depth_max), st.none())
    return st.dictionaries(keys, values, max_size=size_max).map(
        lambda entries: [KeyValue(key=key, value=value) for key, value in entries.items()]
    )


# Resources and scopes -----------------------------------------------------------------------------

_attributes = attribute_lists()
_few_attributes = attribute_lists(depth_max=2, size_max=2)
_keys_lists = st.lists(keys, max_size=2)

_entity_refs = _messages(
    EntityRef, {}, schema_url=texts, type=texts, id_keys=_keys_lists, description_keys=_keys_lists
)
resources = _messages(
    Resource,
    {},
    attributes=_attributes,
    dropped_attributes_count=uint32s,
    entity_refs=st.lists(_entity_refs, max_size=2),
)
scopes = _messages(
    InstrumentationScope,
    {},
    name=texts,
    version=texts,
    attributes=_attributes,
    dropped_attributes_count=uint32s,
)


def _mostly_filled(items: SearchStrategy[Any], size_max: int) -> SearchStrategy[list[Any]]:
    """Lists that are empty a quarter of the time; plain `st.lists` gives half, which wastes examples."""
    return st.integers(0, 3).flatmap(
        lambda number: st.lists(items, min_size=min(number, 1), max_size=size_max)
    )


@st.composite
def _requests(
    draw: Callable[[SearchStrategy[Any]], Any],
    request_type: type[Message],
    resource_envelope_type: type[Message],
    scope_envelope_type: type[Message],
    records: SearchStrategy[Message],
) -> Any:
    """Envelopes around records. The field names follow from the types: every signal has the same outline."""
    (resources_field,) = (field.name for field in request_type.DESCRIPTOR.fields)
    scopes_field = resource_envelope_type.DESCRIPTOR.fields_by_number[2].name
    records_field = scope_envelope_type.DESCRIPTOR.fields_by_number[2].name
    resource_pool = draw(st.lists(st.none() | resources, min_size=1, max_size=2))
    scope_pool = draw(st.lists(st.none() | scopes, min_size=1, max_size=2))
    record_pool = draw(st.lists(records, min_size=1, max_size=4))
    scope_envelopes = _messages(
        scope_envelope_type,
        {
            "scope": st.sampled_from(scope_pool),
            records_field: _mostly_filled(st.sampled_from(record_pool), 5),
        },
        schema_url=texts,
    )
    resource_envelopes = _messages(
        resource_envelope_type,
        {
            "resource": st.sampled_from(resource_pool),
            scopes_field: _mostly_filled(scope_envelopes, 3),
        },
        schema_url=texts,
    )
    return request_type(**{resources_field: draw(_mostly_filled(resource_envelopes, 3))})


# Logs ---------------------------------------------------------------------------------------------

log_records = _messages(
    LogRecord,
    {},
    time_unix_nano=times,
    observed_time_unix_nano=times,
    severity_number=severities,
    severity_text=texts,
    body=any_values(),
    attributes=_attributes,
    dropped_attributes_count=uint32s,
    flags=uint32s,
    trace_id=_trace_ids_or_zero,
    span_id=_span_ids_or_zero,
    event_name=texts,
)


def logs_requests() -> SearchStrategy[ExportLogsServiceRequest]:
    return _requests(ExportLogsServiceRequest, ResourceLogs, ScopeLogs, log_records)


# Traces -------------------------------------------------------------------------------------------

_events = _messages(
    Span.Event,
    {},
    time_unix_nano=times,
    name=texts,
    attributes=_few_attributes,
    dropped_attributes_count=uint32s,
)
_links = _messages(
    Span.Link,
    {},
    trace_id=_trace_ids_or_zero,
    span_id=_span_ids_or_zero,
    trace_state=texts,
    attributes=_few_attributes,
    dropped_attributes_count=uint32s,
    flags=uint32s,
)
spans = _messages(
    Span,
    {"trace_id": _trace_ids, "span_id": _span_ids},
    trace_state=texts,
    parent_span_id=_span_ids_or_zero,
    flags=uint32s,
    name=texts,
    kind=span_kinds,
    start_time_unix_nano=times,
    end_time_unix_nano=times,
    attributes=_attributes,
    dropped_attributes_count=uint32s,
    events=st.lists(_events, max_size=2),
    dropped_events_count=uint32s,
    links=st.lists(_links, max_size=2),
    dropped_links_count=uint32s,
    status=_messages(Status, {}, message=texts, code=status_codes),
)


def trace_requests() -> SearchStrategy[ExportTraceServiceRequest]:
    return _requests(ExportTraceServiceRequest, ResourceSpans, ScopeSpans, spans)


# Metrics ------------------------------------------------------------------------------------------

_number_values = st.one_of(
    st.just({}),
    int64s.map(lambda value: {"as_int": value}),
    doubles.map(lambda value: {"as_double": value}),
)


def _with_number(message_type: type[Message], **optional: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Messages whose value is an int, a double or nothing."""
    return st.builds(
        lambda fields, number: message_type(**fields, **number),
        st.fixed_dictionaries({}, optional=optional),
        _number_values,
    )


_exemplars = st.lists(
    _with_number(
        Exemplar,
        filtered_attributes=_few_attributes,
        time_unix_nano=times,
        span_id=_span_ids_or_zero,
        trace_id=_trace_ids_or_zero,
    ),
    max_size=2,
)
_point_fields: dict[str, SearchStrategy[Any]] = {
    "attributes": _attributes,
    "start_time_unix_nano": times,
    "time_unix_nano": times,
    "flags": uint32s,
}
_distribution_fields: dict[str, SearchStrategy[Any]] = {
    **_point_fields,
    "count": counters,
    "sum": doubles,
    "min": doubles,
    "max": doubles,
    "exemplars": _exemplars,
}
_number_points = _with_number(NumberDataPoint, **_point_fields, exemplars=_exemplars)
_histogram_points = _messages(
    HistogramDataPoint,
    {},
    **_distribution_fields,
    bucket_counts=st.lists(counters, max_size=4),
    explicit_bounds=st.lists(doubles, max_size=4),
)
_buckets = _messages(
    ExponentialHistogramDataPoint.Buckets,
    {},
    offset=int32s,
    bucket_counts=st.lists(counters, max_size=4),
)
_exponential_points = _messages(
    ExponentialHistogramDataPoint,
    {},
    **_distribution_fields,
    scale=int32s,
    zero_count=counters,
    positive=_buckets,
    negative=_buckets,
    zero_threshold=doubles,
)
_summary_points = _messages(
    SummaryDataPoint,
    {},
    **_point_fields,
    count=counters,
    sum=doubles,
    quantile_values=st.lists(
        _messages(SummaryDataPoint.ValueAtQuantile, {}, quantile=doubles, value=doubles), max_size=3
    ),
)


def _data(
    message_type: type[Message], points: SearchStrategy[Message], **optional: SearchStrategy[Any]
) -> SearchStrategy[Any]:
    return _messages(message_type, {"data_points": _mostly_filled(points, 2)}, **optional)


_metric_data = st.one_of(
    st.just({}),
    _data(Gauge, _number_points).map(lambda data: {"gauge": data}),
    _data(Sum, _number_points, aggregation_temporality=temporalities, is_monotonic=st.booleans()).map(
        lambda data: {"sum": data}
    ),
    _data(Histogram, _histogram_points, aggregation_temporality=temporalities).map(
        lambda data: {"histogram": data}
    ),
    _data(ExponentialHistogram, _exponential_points, aggregation_temporality=temporalities).map(
        lambda data: {"exponential_histogram": data}
    ),
    _data(Summary, _summary_points).map(lambda data: {"summary": data}),
)
metrics = st.builds(
    lambda fields, data: Metric(**fields, **data),
    st.fixed_dictionaries(
        {}, optional={"name": texts, "description": texts, "unit": texts, "metadata": _few_attributes}
    ),
    _metric_data,
)


def metrics_requests() -> SearchStrategy[ExportMetricsServiceRequest]:
    return _requests(ExportMetricsServiceRequest, ResourceMetrics, ScopeMetrics, metrics)


# Wire encodings -----------------------------------------------------------------------------------


def with_unknown_fields(request: Message, seed: int = 0) -> bytes:
    """The request's bytes with unknown fields of every wire type in messages at every depth."""
    return _WireWriter(random.Random(seed), unknown=True).message(request)


def permuted_wire(request: Message, seed: int = 0) -> bytes:
    """Bytes that every protobuf parser reads as the same request, though few writers would write them so.

    Fields out of order and repeated fields interleaved with others, packed scalars split into several runs or
    not packed at all, varints longer than they need be, defaults written out, scalars written twice (the last
    one counts).
    """
    return _WireWriter(random.Random(seed), permuted=True).message(request)


def split_wire(request: Message, seed: int = 0) -> bytes:
    """As `permuted_wire`, and messages that occur once (resource, scope …) in parts that parsers merge."""
    return _WireWriter(random.Random(seed), permuted=True, split=True).message(request)


_VARINT, _FIXED64, _LENGTH, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_FIELD = FieldDescriptor
_FIXED_FORMATS = {
    _FIELD.TYPE_DOUBLE: (_FIXED64, "<d"),
    _FIELD.TYPE_FIXED64: (_FIXED64, "<Q"),
    _FIELD.TYPE_SFIXED64: (_FIXED64, "<q"),
    _FIELD.TYPE_FLOAT: (_FIXED32, "<f"),
    _FIELD.TYPE_FIXED32: (_FIXED32, "<I"),
    _FIELD.TYPE_SFIXED32: (_FIXED32, "<i"),
}


class _WireWriter:
    """Writes a message as protobuf wire bytes with the liberties that the encoding allows."""

    def __init__(
        self, rng: random.Random, *, unknown: bool = False, permuted: bool = False, split: bool = False
    ) -> None:
        self.rng = rng
        self.unknown = unknown
        self.permuted = permuted
        self.split = split

    def message(self, message: Message, *, whole: bool = True) -> bytes:
        # One queue a field: the order within a field counts, the order of fields does not.
        queues = [self._field(field, value) for field, value in message.ListFields()]
        if self.permuted:
            if whole:  # in a part, a default could overwrite what another part says
                queues += self._explicit_defaults(message)
            return self._interleave(queues)
        chunks = [chunk for queue in queues for chunk in queue]
        if self.unknown:
            for _ in range(self.rng.choice([0, 1, 1, 2])):
                chunks.insert(self.rng.randint(0, len(chunks)), self._unknown_field())
        return b"".join(chunks)

    def _interleave(self, queues: list[list[bytes]]) -> bytes:
        queues = [queue for queue in queues if queue]
        out = []
        while queues:
            queue = self.rng.choice(queues)
            out.append(queue.pop(0))
            queues = [queue for queue in queues if queue]
        return b"".join(out)

    def _field(self, field: FieldDescriptor, value: Any) -> list[bytes]:
        if field.message_type is not None:
            values = value if field.is_repeated else [value]
            parts = [part for item in values for part in self._parts(field, item)]
            return [self._tag(field.number, _LENGTH) + self._length_prefixed(part) for part in parts]
        if not field.is_repeated:
            chunk = self._scalar_with_tag(field, value)
            if self.permuted and self.rng.random() < 0.2:
                return [self._scalar_with_tag(field, field.default_value), chunk]
            return [chunk]
        if field.type in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES):
            return [self._scalar_with_tag(field, item) for item in value]
        return self._packable(field, list(value))

    def _parts(self, field: FieldDescriptor, message: Message) -> list[bytes]:
        encoded = self.message(message)
        if not (self.split and not field.is_repeated and self.rng.random() < 0.5):
            return [encoded]
        fields = message.ListFields()
        first, second = type(message)(), type(message)()
        for descriptor, _ in fields:
            part = first if self.rng.random() < 0.5 else second
            _copy_field(descriptor, message, part)
        return [self.message(first, whole=False), self.message(second, whole=False)]

    def _packable(self, field: FieldDescriptor, values: list[Any]) -> list[bytes]:
        if not self.permuted:
            packed = b"".join(self._scalar(field, value) for value in values)
            return [self._tag(field.number, _LENGTH) + self._length_prefixed(packed)]
        chunks = []
        while values:
            run = self.rng.randint(0, len(values))
            if run == 0:
                chunks.append(self._scalar_with_tag(field, values.pop(0)))
                continue
            packed = b"".join(self._scalar(field, value) for value in values[:run])
            chunks.append(self._tag(field.number, _LENGTH) + self._length_prefixed(packed))
            del values[:run]
        return chunks

    def _explicit_defaults(self, message: Message) -> list[list[bytes]]:
        return [
            [self._scalar_with_tag(field, field.default_value)]
            for field in message.DESCRIPTOR.fields
            if not field.is_repeated
            and not field.has_presence
            and not field.name.endswith("strindex")
            and not any(present is field for present, _ in message.ListFields())
            and self.rng.random() < 0.3
        ]

    def _scalar_with_tag(self, field: FieldDescriptor, value: Any) -> bytes:
        if field.type in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES):
            data = value.encode() if isinstance(value, str) else value
            return self._tag(field.number, _LENGTH) + self._length_prefixed(data)
        wire_type = _FIXED_FORMATS[field.type][0] if field.type in _FIXED_FORMATS else _VARINT
        return self._tag(field.number, wire_type) + self._scalar(field, value)

    def _scalar(self, field: FieldDescriptor, value: Any) -> bytes:
        if field.type in _FIXED_FORMATS:
            return struct.pack(_FIXED_FORMATS[field.type][1], value)
        if field.type in (_FIELD.TYPE_SINT32, _FIELD.TYPE_SINT64):
            value = 2 * value if value >= 0 else -2 * value - 1
        return self._varint(int(value) & (2**64 - 1), bytes_max=10)

    def _tag(self, number: int, wire_type: int) -> bytes:
        return self._varint(number << 3 | wire_type, bytes_max=5)

    def _length_prefixed(self, data: bytes) -> bytes:
        return self._varint(len(data), bytes_max=5) + data

    def _varint(self, value: int, bytes_max: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        if self.permuted and self.rng.random() < 0.2:
            for _ in range(self.rng.randint(0, bytes_max - len(out))):
                out[-1] |= 0x80
                out.append(0)
        return bytes(out)

    def _unknown_field(self, depth: int = 0) -> bytes:
        number = self.rng.choice([100, 2047, 19_000 - 1, 2**29 - 1])
        wire_type = self.rng.choice([_VARINT, _FIXED64, _LENGTH, _GROUP_START, _FIXED32])
        tag = self._tag(number, wire_type)
        if wire_type == _VARINT:
            return tag + self._varint(self.rng.getrandbits(64), bytes_max=10)
        if wire_type == _FIXED64:
            return tag + self.rng.randbytes(8)
        if wire_type == _FIXED32:
            return tag + self.rng.randbytes(4)
        if wire_type == _LENGTH:
            return tag + self._length_prefixed(self.rng.randbytes(self.rng.randint(0, 12)))
        inner = b"".join(self._unknown_field(depth + 1) for _ in range(self.rng.randint(0, 2 - depth)))
        return tag + inner + self._tag(number, _GROUP_END)


def _copy_field(field: FieldDescriptor, source: Message, target: Message) -> None:
    value = getattr(source, field.name)
    if field.is_repeated:
        getattr(target, field.name).extend(value)
    elif field.message_type is not None:
        getattr(target, field.name).MergeFrom(value)
        getattr(target, field.name).SetInParent()
    else:
        setattr(target, field.name, value)
