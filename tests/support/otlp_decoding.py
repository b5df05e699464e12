"""OTLP requests of a few records, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from frazil.otlp.decode import Decoded, Decoder, conform
from frazil.tables import Promoted, Signal

RECEIVED = 1_790_000_000_123_456_789
TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))


def decode(signal: Signal, *bodies: bytes, extra: Sequence[Promoted] = (), depth_max: int = 32) -> Decoded:
    decoder = Decoder(signal, extra, depth_max=depth_max)
    decoded = decoder.decode(bodies, ["t"] * len(bodies), [RECEIVED] * len(bodies))
    conform(decoded.table, decoder.spec).validate(full=True)
    return decoded


def rows(signal: Signal, *bodies: bytes, **options: Any) -> list[dict[str, Any]]:
    decoded = decode(signal, *bodies, **options)
    assert not decoded.rejected.any(), decoded.reasons
    return decoded.table.to_pylist()


def text(value: str) -> AnyValue:
    return AnyValue(string_value=value)


def logs(*records: LogRecord, resource: Sequence[KeyValue] = ()) -> bytes:
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.extend(resource)
    envelope.scope_logs.add().log_records.extend(records)
    return request.SerializeToString()


def spans(*items: Span) -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(items)
    return request.SerializeToString()


def a_span(**fields: Any) -> Span:
    return Span(**{"trace_id": TRACE, "span_id": SPAN} | fields)


def metrics(*items: Metric) -> bytes:
    request = ExportMetricsServiceRequest()
    request.resource_metrics.add().scope_metrics.add().metrics.extend(items)
    return request.SerializeToString()


def a_point(type_name: str, **fields: Any) -> Metric:
    metric = Metric(name="m")
    getattr(metric, type_name).data_points.add(**fields)
    return metric


GOOD: dict[Signal, bytes] = {
    "logs": logs(LogRecord(body=text("good")), LogRecord(body=text("too"))),
    "spans": spans(a_span(name="good"), a_span(name="too")),
    "metrics": metrics(a_point("gauge", as_int=1), a_point("histogram", count=1)),
}
