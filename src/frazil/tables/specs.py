"""The declarations of all tables. Other code gets them from `table_specs`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial

import pyarrow as pa

from frazil.tables.columns import (
    ATTRIBUTES,
    QUANTILE,
    TIMESTAMP,
    Column,
    MergedAs,
    Signal,
    TableSpec,
    Tier,
    View,
    in_tier_order,
)
from frazil.tables.derived.log_patterns import LOG_PATTERNS
from frazil.tables.derived.log_rollups import LOG_ROLLUPS
from frazil.tables.derived.metric_cardinality import METRIC_CARDINALITY
from frazil.tables.derived.metric_rollups import METRIC_ROLLUPS
from frazil.tables.derived.series import SERIES
from frazil.tables.derived.service_edges import SERVICE_EDGES
from frazil.tables.derived.service_versions import SERVICE_VERSIONS
from frazil.tables.derived.span_metrics import SPAN_METRICS
from frazil.tables.derived.traces import TRACES
from frazil.tables.promoted import Promoted, promoted_of

SIGNALS: tuple[Signal, ...] = ("logs", "spans", "metrics")

_STRING, _INT, _LONG, _DOUBLE, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()

_TYPES_DOC = (
    "JSON object with the type of each value that was not a string: bool, int, double, bytes, array or kvlist. "
    "A key with a NULL value had an empty value"
)

EVENT = pa.struct(
    {
        "time_unix_nano": _LONG,
        "name": _STRING,
        "attributes": ATTRIBUTES,
        "attribute_types": _STRING,
        "dropped_attributes_count": _LONG,
    }
)
LINK = pa.struct(
    {
        "trace_id": _STRING,
        "span_id": _STRING,
        "trace_state": _STRING,
        "flags": _LONG,
        "attributes": ATTRIBUTES,
        "attribute_types": _STRING,
        "dropped_attributes_count": _LONG,
    }
)
EXEMPLAR = pa.struct(
    {
        "time_unix_nano": _LONG,
        "value_double": _DOUBLE,
        "value_int": _LONG,
        "trace_id": _STRING,
        "span_id": _STRING,
        "filtered_attributes": ATTRIBUTES,
        "filtered_attribute_types": _STRING,
    }
)


def _attributes(prefix: str, source: str, doc: str, *, tier: Tier = "warm") -> list[Column]:
    types = Column(f"{prefix}attribute_types", _STRING, source, _TYPES_DOC, tier, coded=bool(prefix))
    return [Column(f"{prefix}attributes", ATTRIBUTES, source, doc, tier), types]


def _envelope(group: str) -> list[Column]:
    """Returns the columns that every record inherits from its resource and scope, and those that frazil adds."""
    resource, scope = f"Resource{group}", f"Scope{group}"
    return [
        Column("tenant_id", _STRING, "the API key", "Tenant that sent the record", "hot", required=True, coded=True),
        *_attributes("resource_", f"{resource}.resource.attributes", "Resource attributes as text"),
        Column("scope_name", _STRING, f"{scope}.scope.name", "Instrumentation scope", coded=True),
        Column("scope_version", _STRING, f"{scope}.scope.version", "Version of the scope", "cold", coded=True),
        *_attributes("scope_", f"{scope}.scope.attributes", "Scope attributes as text", tier="cold"),
        Column("scope_dropped_attributes_count", _LONG, f"{scope}.scope.dropped_attributes_count", "Scope attributes that the client dropped", "cold"),
        Column("scope_schema_url", _STRING, f"{scope}.schema_url", "Schema of the scope's records", "cold", coded=True),
        Column("resource_dropped_attributes_count", _LONG, f"{resource}.resource.dropped_attributes_count", "Resource attributes that the client dropped", "cold"),
        Column("resource_schema_url", _STRING, f"{resource}.schema_url", "Schema of the resource", "cold", coded=True),
        Column("resource_entity_refs", _STRING, f"{resource}.resource.entity_refs", "Entities that the resource attributes describe, as OTLP/JSON", "cold", coded=True),
        Column("received_time", TIMESTAMP, "the receiver's clock", "When the request arrived", "cold", required=True),
    ]  # fmt: skip


_TIME_DOC = "used to filter and partition, in microseconds"

_LOGS: list[Column] = [
    Column("time", TIMESTAMP, "LogRecord.time_unix_nano, else observed_time_unix_nano, else the received time", f"Time of the event: {_TIME_DOC}", "hot", required=True),
    Column("severity_number", _INT, "LogRecord.severity_number", "1-4 trace, 5-8 debug, 9-12 info, 13-16 warn, 17-20 error, 21-24 fatal; 0 unknown", "hot"),
    Column("severity_text", _STRING, "LogRecord.severity_text", "Severity as the source wrote it", "hot"),
    Column("event_name", _STRING, "LogRecord.event_name", "Name of the event, for logs that are events", "hot"),
    Column("trace_id", _STRING, "LogRecord.trace_id", "Trace that the record belongs to, 32 lower-case hex digits", "hot"),
    Column("span_id", _STRING, "LogRecord.span_id", "Span that the record belongs to, 16 lower-case hex digits", "hot"),
    Column("body", _STRING, "LogRecord.body", "Message. Text is unchanged; other values are encoded as `body_type` says", "hot"),
    Column("body_type", _STRING, "LogRecord.body", "NULL for text; else bool, int, double, bytes (base64), array or kvlist (OTLP/JSON)", coded=True),
    *_attributes("", "LogRecord.attributes", "Record attributes as text"),
    Column("time_unix_nano", _LONG, "LogRecord.time_unix_nano", "Exact time of the event; NULL if the source gave none", "cold"),
    Column("observed_time_unix_nano", _LONG, "LogRecord.observed_time_unix_nano", "When the record was first observed; NULL if unknown", "cold"),
    Column("flags", _LONG, "LogRecord.flags", "Lowest byte: W3C trace flags", "cold"),
    Column("dropped_attributes_count", _LONG, "LogRecord.dropped_attributes_count", "Attributes that the client dropped", "cold"),
]  # fmt: skip

_SPANS: list[Column] = [
    Column("time", TIMESTAMP, "Span.start_time_unix_nano, else end_time_unix_nano, else the received time", f"Start of the span: {_TIME_DOC}", "hot", required=True),
    Column("name", _STRING, "Span.name", "Name of the operation", "hot"),
    Column("kind", _INT, "Span.kind", "1 internal, 2 server, 3 client, 4 producer, 5 consumer; 0 unspecified", "hot"),
    Column("duration_nano", _LONG, "Span.end_time_unix_nano - start_time_unix_nano", "Duration in nanoseconds; NULL if either time is unknown", "hot"),
    Column("status_code", _INT, "Span.status.code", "0 unset, 1 ok, 2 error", "hot"),
    Column("trace_id", _STRING, "Span.trace_id", "32 lower-case hex digits", "hot", required=True),
    Column("span_id", _STRING, "Span.span_id", "16 lower-case hex digits", "hot", required=True),
    Column("parent_span_id", _STRING, "Span.parent_span_id", "Parent span; NULL for the root of a trace", "hot"),
    Column("status_message", _STRING, "Span.status.message", "Description of the error"),
    *_attributes("", "Span.attributes", "Span attributes as text"),
    Column("events", pa.list_(EVENT), "Span.events", "Events during the span"),
    Column("links", pa.list_(LINK), "Span.links", "Links to related spans"),
    Column("start_time_unix_nano", _LONG, "Span.start_time_unix_nano", "Exact start", "cold"),
    Column("end_time_unix_nano", _LONG, "Span.end_time_unix_nano", "Exact end", "cold"),
    Column("trace_state", _STRING, "Span.trace_state", "W3C trace state", "cold"),
    Column("flags", _LONG, "Span.flags", "Lowest byte: W3C trace flags; bits 8 and 9: whether the parent is remote", "cold"),
    Column("dropped_attributes_count", _LONG, "Span.dropped_attributes_count", "Attributes that the client dropped", "cold"),
    Column("dropped_events_count", _LONG, "Span.dropped_events_count", "Events that the client dropped", "cold"),
    Column("dropped_links_count", _LONG, "Span.dropped_links_count", "Links that the client dropped", "cold"),
]  # fmt: skip

_METRICS: list[Column] = [
    Column("time", TIMESTAMP, "DataPoint.time_unix_nano, else the received time", f"Time of the measurement: {_TIME_DOC}", "hot", required=True),
    Column("metric_name", _STRING, "Metric.name", "Name of the metric", "hot", coded=True),
    Column("metric_type", _STRING, "Metric.data", "gauge, sum, histogram, exponential_histogram or summary", "hot", required=True, coded=True),
    Column("unit", _STRING, "Metric.unit", "Unit, in UCUM notation", "hot", coded=True),
    Column("series_id", _LONG, "a hash of name, unit, type, resource, scope and attributes", "Points with the same id belong to one series", "hot", required=True),
    Column("value_double", _DOUBLE, "NumberDataPoint.as_double", "Value of a gauge or sum that was sent as a double", "hot"),
    Column("value_int", _LONG, "NumberDataPoint.as_int", "Value of a gauge or sum that was sent as an integer", "hot"),
    Column("count", _LONG, "DataPoint.count", "Number of measurements in a histogram or summary", "hot"),
    Column("sum", _DOUBLE, "DataPoint.sum", "Sum of the measurements; NULL if not recorded", "hot"),
    Column("min", _DOUBLE, "DataPoint.min", "Smallest measurement; NULL if not recorded", "hot"),
    Column("max", _DOUBLE, "DataPoint.max", "Largest measurement; NULL if not recorded", "hot"),
    Column("aggregation_temporality", _INT, "aggregation_temporality", "1 delta, 2 cumulative; NULL where the type has none"),
    Column("is_monotonic", _BOOL, "Sum.is_monotonic", "Whether a sum only grows; NULL for other types"),
    *_attributes("", "DataPoint.attributes", "Point attributes as text"),
    Column("bucket_counts", pa.list_(_LONG), "HistogramDataPoint.bucket_counts", "Measurements in each bucket"),
    Column("explicit_bounds", pa.list_(_DOUBLE), "HistogramDataPoint.explicit_bounds", "Upper bounds of all buckets but the last"),
    Column("scale", _INT, "ExponentialHistogramDataPoint.scale", "Resolution: the base is 2^(2^-scale)"),
    Column("zero_count", _LONG, "ExponentialHistogramDataPoint.zero_count", "Measurements within the zero threshold"),
    Column("zero_threshold", _DOUBLE, "ExponentialHistogramDataPoint.zero_threshold", "Width of the zero bucket"),
    Column("positive_offset", _INT, "ExponentialHistogramDataPoint.positive.offset", "Index of the first positive bucket"),
    Column("positive_bucket_counts", pa.list_(_LONG), "ExponentialHistogramDataPoint.positive.bucket_counts", "Positive measurements in each bucket"),
    Column("negative_offset", _INT, "ExponentialHistogramDataPoint.negative.offset", "Index of the first negative bucket"),
    Column("negative_bucket_counts", pa.list_(_LONG), "ExponentialHistogramDataPoint.negative.bucket_counts", "Negative measurements in each bucket"),
    Column("quantile_values", pa.list_(QUANTILE), "SummaryDataPoint.quantile_values", "Quantiles that the client computed"),
    Column("exemplars", pa.list_(EXEMPLAR), "DataPoint.exemplars", "Sample measurements with the trace they were taken in"),
    Column("start_time_unix_nano", _LONG, "DataPoint.start_time_unix_nano", "Start of the interval that the point covers; NULL if unknown", "cold"),
    Column("time_unix_nano", _LONG, "DataPoint.time_unix_nano", "Exact time; NULL if the client gave none", "cold"),
    Column("flags", _LONG, "DataPoint.flags", "Bit 0: no recorded value", "cold"),
    Column("description", _STRING, "Metric.description", "What the metric measures", "cold", coded=True),
    *_attributes("metadata_", "Metric.metadata", "Metadata of the metric as text", tier="cold"),
]  # fmt: skip


def _promoted(promoted: Iterable[Promoted], record: str) -> list[Column]:
    return [
        Column(
            item.column,
            item.arrow_type,
            f"attribute {', else '.join(f'`{name}`' for name in item.attributes)} of the "
            f"{'resource' if item.source == 'resource' else record}",
            "Promoted: a copy of the attribute",
            "hot",
            coded=item.source == "resource",
        )
        for item in promoted
    ]


_DECLARED: dict[Signal, tuple[str, str, str, list[Column], tuple[str, ...], tuple[str, ...]]] = {
    "logs": ("Logs", "record", "One row per log record.", _LOGS, ("service_name", "time"), ("trace_id",)),
    "spans": ("Spans", "span", "One row per span.", _SPANS, ("service_name", "time"), ("trace_id",)),
    "metrics": (
        "Metrics",
        "point",
        "One row per data point, of all five metric types.",
        _METRICS,
        ("metric_name", "service_name", "time"),
        (),
    ),
}


def table_spec(signal: Signal, extra: Iterable[Promoted] = ()) -> TableSpec:
    """Returns the table of a signal, with the default promoted columns and `extra`, those of the
    configuration.
    """
    group, record, doc, own, sort_by, bloom_filters = _DECLARED[signal]
    promoted = promoted_of(signal, extra)
    envelope = _envelope(group)
    tenant, rest = envelope[0], envelope[1:]
    columns = in_tier_order([tenant, *own, *_promoted(promoted, record), *rest])
    merged_as: MergedAs = "sorted" if signal == "metrics" else "time_ordered"
    return TableSpec(
        signal,
        doc,
        columns,
        sort_by,
        (*bloom_filters, *(item.column for item in promoted if item.bloom)),
        signal=signal,
        merged_as=merged_as,
        views=(_EVENTS,) if signal == "logs" else (),
        promoted=promoted,
    )


_EVENTS = View("events", "Logs that have an event name.", not_null="event_name")
SEGMENT = Column(
    "_segment",
    _STRING,
    "the write-ahead log",
    "Source of the row in the write-ahead log: stream/sequence of a segment, or topic/partition/offset",
    "cold",
    required=True,
    coded=True,
    internal=True,
)


def landed_spec(signal: Signal, extra: Iterable[Promoted] = ()) -> TableSpec:
    """Returns the table as it is in the lake: the columns of the write-ahead log, and `_segment`."""
    return table_spec(signal, extra).with_columns(SEGMENT)


SET_ASIDE = TableSpec(
    "set_aside",
    "One row per segment or message that could not be landed, with the reason and its bytes or their location.",
    (
        Column("tenant_id", _STRING, "the message's header or key", "Tenant that sent the message; NULL for a segment, which may contain records of several tenants", "hot", coded=True),
        Column("time", TIMESTAMP, "the pipeline's clock", "When it was set aside", "hot", required=True),
        Column("table_name", _STRING, "the topic or folder", "Table in which it should have landed", "hot", required=True),
        Column("source", _STRING, "the write-ahead log", "stream/sequence, or topic/partition/offset, as in `_segment`", "hot", required=True),
        Column("reason", _STRING, "the decoder", "Why it cannot be read", "hot", required=True),
        Column("bytes", _LONG, "the write-ahead log", "Size in bytes", required=True),
        Column("location", _STRING, "the write-ahead log", "Location of the copy of a segment; NULL for a message"),
        Column("payload", pa.binary(), "the message", "Bytes of a message; NULL for a segment", "cold"),
    ),
    sort_by=("time",),
    partition_by=("tenant_id",),
    merged_as=None,
    retained="age",
    erased="whole",
)  # fmt: skip

_OWN = (
    SET_ASIDE,
    LOG_ROLLUPS,
    LOG_PATTERNS,
    SPAN_METRICS,
    SERVICE_VERSIONS,
    SERVICE_EDGES,
    TRACES,
    SERIES,
    METRIC_ROLLUPS,
    METRIC_CARDINALITY,
)
"""The tables that do not depend on the configuration."""
Declaration = Callable[[tuple[Promoted, ...]], TableSpec]
_DECLARATIONS: dict[str, Declaration] = {signal: partial(landed_spec, signal) for signal in SIGNALS}
_DECLARATIONS |= {spec.name: lambda _, spec=spec: spec for spec in _OWN}  # type: ignore[misc]
_views: dict[str, TableSpec] = {}
"""The tables of views that exist in the lake of this process."""
_declaring = threading.Lock()


def table_specs(extra: Iterable[Promoted] = ()) -> Mapping[str, TableSpec]:
    """Returns all tables by name, as they are in the lake. `extra` are the columns that the configuration
    promotes. Raises ValueError if a promoted column has the name of another column.
    """
    return _table_specs(tuple(extra))


@lru_cache(maxsize=16)
def _table_specs(extra: tuple[Promoted, ...]) -> Mapping[str, TableSpec]:
    return {name: declaration(extra) for name, declaration in _DECLARATIONS.items()} | _views


def declare_views(specs: Iterable[TableSpec]) -> None:
    """Makes tables of views known to this process, in place of earlier declarations. Called from any thread. Raises
    ValueError if one has the name of another table.
    """
    global _views
    found = {spec.name: spec for spec in specs}
    if taken := sorted({*found} & reserved_names()):
        raise ValueError(f"{taken[0]} is the name of another table")
    with _declaring:
        if (after := _views | found) != _views:
            _views = after
            _table_specs.cache_clear()


def forget_views() -> None:
    """Makes this process know no views. For tests."""
    global _views
    with _declaring:
        if _views:
            _views = {}
            _table_specs.cache_clear()


def reserved_names() -> frozenset[str]:
    """Returns the names of tables and of their views that no user can give to a view."""
    specs = [declaration(()) for declaration in _DECLARATIONS.values()]
    return frozenset(name for spec in specs for name in (spec.name, *(view.name for view in spec.views)))


def derived_specs(source: str | None = None) -> Sequence[TableSpec]:
    """Returns the derived tables: all of them, or those of one source."""
    specs = [spec for spec in table_specs().values() if spec.derived is not None]
    return [spec for spec in specs if source is None or (spec.derived and spec.derived.source == source)]


def view_tables() -> Mapping[str, str]:
    """Returns the table of each view."""
    return {view.name: spec.name for spec in table_specs().values() for view in spec.views}


@contextlib.contextmanager
def declared(spec: TableSpec) -> Iterator[None]:
    """Declares one more table in this process for the duration of the block. For tests."""
    if spec.name in _DECLARATIONS:
        raise ValueError(f"table {spec.name} is already declared")
    _DECLARATIONS[spec.name] = lambda _: spec
    _table_specs.cache_clear()
    try:
        yield
    finally:
        del _DECLARATIONS[spec.name]
        _table_specs.cache_clear()
