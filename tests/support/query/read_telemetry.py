"""Small OTLP requests with times of the test's choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

BEGIN = 1_790_000_000
"""Unix seconds. Records are counted from here."""


def value(given: Any) -> AnyValue:
    if isinstance(given, AnyValue):
        return given
    if isinstance(given, bool):
        return AnyValue(bool_value=given)
    if isinstance(given, int):
        return AnyValue(int_value=given)
    if isinstance(given, float):
        return AnyValue(double_value=given)
    return AnyValue(string_value=given)


def pairs(attributes: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value(given)) for key, given in attributes.items()]


def logs(*records: Mapping[str, Any], service: str = "cart", **resource: Any) -> ExportLogsServiceRequest:
    """Each record: `nanos` after BEGIN, `body`, `attributes` and fields of LogRecord."""
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.extend(pairs({"service.name": service, **resource}))
    scope = envelope.scope_logs.add()
    for given in records:
        fields = dict(given)
        scope.log_records.add(
            time_unix_nano=BEGIN * 10**9 + fields.pop("nanos", 0),
            body=value(fields.pop("body", "")),
            attributes=pairs(fields.pop("attributes", {})),
            **fields,
        )
    return request


def exception(type: str, message: str, **attributes: Any) -> Span.Event:
    """As SDKs record it on a span."""
    given = {"exception.type": type, "exception.message": message, **attributes}
    return Span.Event(name="exception", time_unix_nano=BEGIN * 10**9, attributes=pairs(given))


def spans(*records: Mapping[str, Any], service: str = "cart") -> ExportTraceServiceRequest:
    """Each record: `nanos` after BEGIN, `took` in nanoseconds, `attributes` and fields of Span."""
    request = ExportTraceServiceRequest()
    envelope = request.resource_spans.add()
    envelope.resource.attributes.extend(pairs({"service.name": service}))
    scope = envelope.scope_spans.add()
    for number, given in enumerate(records, 1):
        fields = {"trace_id": b"\1" * 16, "span_id": number.to_bytes(8), "name": "GET /cart", **given}
        start = BEGIN * 10**9 + fields.pop("nanos", 0)
        scope.spans.add(
            start_time_unix_nano=start,
            end_time_unix_nano=start + fields.pop("took", 1_000),
            attributes=pairs(fields.pop("attributes", {})),
            **fields,
        )
    return request
