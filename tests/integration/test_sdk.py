"""The OpenTelemetry SDK for Python as a client: what it is told comes out as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from tests.support.integration.clients import rows_of
from tests.support.integration.messages import UNIX_NANO, new_service
from tests.support.receiver import Receiver


@dataclass(frozen=True)
class Exporters:
    """Makes exporters for one transport and compression."""

    logs: Callable[[], Any]
    spans: Callable[[], Any]
    metrics: Callable[[], Any]


@pytest.fixture(params=["grpc", "grpc gzip", "http", "http gzip", "http deflate"])
def exporters(receiver: Receiver, request: pytest.FixtureRequest) -> Exporters:
    transport, _, name = request.param.partition(" ")
    if transport == "grpc":
        compression = grpc.Compression.Gzip if name else grpc.Compression.NoCompression
        arguments = {"endpoint": receiver.grpc, "insecure": True, "compression": compression}
        return Exporters(
            lambda: GrpcLogs(**arguments), lambda: GrpcSpans(**arguments), lambda: GrpcMetrics(**arguments)
        )
    chosen = Compression(name or "none")

    def made(exporter: Any, path: str) -> Callable[[], Any]:
        return lambda: exporter(endpoint=receiver.http + path, compression=chosen)

    return Exporters(
        made(HttpLogs, "/v1/logs"), made(HttpSpans, "/v1/traces"), made(HttpMetrics, "/v1/metrics")
    )


@contextmanager
def _ended(provider: Any) -> Iterator[Any]:
    """Ends it with the block, which exports what is left."""
    try:
        yield provider
    finally:
        provider.shutdown()


def _resource(service: str) -> Resource:
    return Resource.create(
        {"service.name": service, "service.version": "1.2", "replicas": 3, "tags": ["a", "b"]}
    )


def _types(row: dict[str, Any], prefix: str = "") -> dict[str, str]:
    return json.loads(row[f"{prefix}attribute_types"] or "{}")


def test_spans(receiver: Receiver, exporters: Exporters) -> None:
    provider = TracerProvider(resource=_resource(service := new_service()))
    provider.add_span_processor(BatchSpanProcessor(exporters.spans()))
    with _ended(provider):
        tracer = provider.get_tracer("shop", "1.0", "https://example.com/schema", {"scope.attribute": True})
        attributes = {"http.route": "/a", "count": 5, "ratio": 0.5, "on": False, "list": [1, 2]}
        with tracer.start_as_current_span("parent", kind=SpanKind.SERVER, attributes=attributes) as parent:
            parent.add_event("happened", {"why": "because"}, timestamp=UNIX_NANO)
            link = Link(parent.get_span_context(), {"relation": "follows"})
            child = tracer.start_span("child", kind=SpanKind.CLIENT, links=[link])
            child.set_status(Status(StatusCode.ERROR, "it broke"))
            child.end()
    rows = {row["name"]: row for row in rows_of(receiver, "spans", service)}
    assert set(rows) == {"parent", "child"}
    context, child_context = parent.get_span_context(), child.get_span_context()
    first, second = rows["parent"], rows["child"]
    assert first["trace_id"] == second["trace_id"] == trace.format_trace_id(context.trace_id)
    assert first["span_id"] == second["parent_span_id"] == trace.format_span_id(context.span_id)
    assert second["span_id"] == trace.format_span_id(child_context.span_id)
    assert first["parent_span_id"] is None
    assert (first["kind"], second["kind"]) == (2, 3)
    assert (first["status_code"], second["status_code"], second["status_message"]) == (0, 2, "it broke")
    assert first["start_time_unix_nano"] == parent.start_time  # type: ignore[attr-defined]
    assert first["end_time_unix_nano"] == parent.end_time  # type: ignore[attr-defined]
    assert first["duration_nano"] == first["end_time_unix_nano"] - first["start_time_unix_nano"]
    assert first["attributes"]["http.route"] == first["http_route"] == "/a"
    assert (first["attributes"]["count"], first["attributes"]["ratio"]) == ("5", "0.5")
    assert first["attributes"]["on"] == "false"
    assert json.loads(first["attributes"]["list"]) == {
        "arrayValue": {"values": [{"intValue": "1"}, {"intValue": "2"}]}
    }
    assert _types(first) == {"count": "int", "ratio": "double", "on": "bool", "list": "array"}
    (event,) = first["events"]
    assert (event["name"], event["time_unix_nano"], event["attributes"]) == (
        "happened",
        UNIX_NANO,
        {"why": "because"},
    )
    (kept,) = second["links"]
    assert (kept["trace_id"], kept["span_id"]) == (first["trace_id"], first["span_id"])
    assert kept["attributes"] == {"relation": "follows"}
    assert (first["scope_name"], first["scope_version"]) == ("shop", "1.0")
    assert first["scope_schema_url"] == "https://example.com/schema"
    assert first["scope_attributes"] == {"scope.attribute": "true"}
    assert first["resource_attributes"]["replicas"] == "3"
    assert first["resource_attributes"]["telemetry.sdk.language"] == "python"
    assert _types(first, "resource_") == {"replicas": "int", "tags": "array"}
    assert first["service_version"] == "1.2"


def test_logs(receiver: Receiver, exporters: Exporters) -> None:
    provider = LoggerProvider(resource=_resource(service := new_service()))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporters.logs()))
    with _ended(provider):
        logger = provider.get_logger("shop", "1.0")
        for index in range(20):
            logger.emit(
                LogRecord(
                    timestamp=UNIX_NANO + index,
                    observed_timestamp=UNIX_NANO + 1_000,
                    severity_number=SeverityNumber.WARN,
                    severity_text="WARNING",
                    body={"text": f"record {index}", "index": index},
                    attributes={"index": index, "nested": {"a": [True, b"\x00\xff"]}},
                    event_name="tick",
                )
            )
    rows = sorted(rows_of(receiver, "logs", service), key=lambda row: row["time_unix_nano"])
    assert [row["time_unix_nano"] for row in rows] == [UNIX_NANO + index for index in range(20)]
    last = rows[-1]
    assert (last["observed_time_unix_nano"], last["event_name"]) == (UNIX_NANO + 1_000, "tick")
    assert (last["severity_number"], last["severity_text"]) == (13, "WARNING")
    assert last["body_type"] == "kvlist"
    fields = {item["key"]: item["value"] for item in json.loads(last["body"])["kvlistValue"]["values"]}
    assert fields == {"text": {"stringValue": "record 19"}, "index": {"intValue": "19"}}
    assert last["attributes"]["index"] == "19"
    assert "AP8=" in last["attributes"]["nested"]
    assert _types(last) == {"index": "int", "nested": "kvlist"}


def test_metrics_with_exemplars(receiver: Receiver, exporters: Exporters) -> None:
    service = new_service()
    reader = PeriodicExportingMetricReader(exporters.metrics(), export_interval_millis=3_600_000)
    exponential = View(instrument_name="exponential", aggregation=ExponentialBucketHistogramAggregation())
    tracer = TracerProvider().get_tracer("test")
    provider = MeterProvider(
        [reader], _resource(service), exemplar_filter=AlwaysOnExemplarFilter(), views=[exponential]
    )
    with _ended(provider), tracer.start_as_current_span("measured") as span:
        meter = provider.get_meter("shop", "1.0")
        counter = meter.create_counter("counter", "1", "what it counts")
        counter.add(2, {"route": "/a"})
        counter.add(3, {"route": "/a"})
        meter.create_up_down_counter("up_down").add(-1.5)
        meter.create_gauge("gauge", "By").set(7)
        histogram = meter.create_histogram("histogram", "ms", explicit_bucket_boundaries_advisory=[1.0, 10.0])
        wide = meter.create_histogram("exponential")
        for value in (0.5, 5, 50):
            histogram.record(value)
            wide.record(value)
    points = rows_of(receiver, "metrics", service)
    rows = {row["metric_name"]: row for row in points}
    assert len(points) == 5
    assert {name: row["metric_type"] for name, row in rows.items()} == {
        "counter": "sum",
        "up_down": "sum",
        "gauge": "gauge",
        "histogram": "histogram",
        "exponential": "exponential_histogram",
    }
    counted = rows["counter"]
    assert (counted["value_int"], counted["value_double"], counted["is_monotonic"]) == (5, None, True)
    assert (counted["unit"], counted["description"], counted["attributes"]) == (
        "1",
        "what it counts",
        {"route": "/a"},
    )
    assert counted["aggregation_temporality"] == 2
    assert (rows["up_down"]["value_double"], rows["up_down"]["is_monotonic"]) == (-1.5, False)
    assert (rows["gauge"]["value_int"], rows["gauge"]["unit"]) == (7, "By")
    measured = rows["histogram"]
    assert (measured["count"], measured["sum"], measured["min"], measured["max"]) == (3, 55.5, 0.5, 50.0)
    assert (measured["bucket_counts"], measured["explicit_bounds"]) == ([1, 1, 1], [1.0, 10.0])
    assert (rows["exponential"]["count"], rows["exponential"]["sum"]) == (3, 55.5)
    assert sum(rows["exponential"]["positive_bucket_counts"]) == 3
    context = span.get_span_context()
    exemplar = measured["exemplars"][0]
    assert exemplar["trace_id"] == trace.format_trace_id(context.trace_id)
    assert exemplar["span_id"] == trace.format_span_id(context.span_id)
    assert (exemplar["value_double"] or exemplar["value_int"]) in (0.5, 5, 50)
    assert all(row["service_name"] == service and row["scope_name"] == "shop" for row in rows.values())
