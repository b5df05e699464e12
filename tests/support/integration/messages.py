"""Small OTLP requests whose every record is good, for tests to send or to spoil. `service` is the sender."""

from __future__ import annotations

import itertools
import os
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from frazil.tables import Signal

UNIX_NANO = 1_790_000_000_000_000_000
_count = itertools.count()


def new_service() -> str:
    """A name that no other request of this run has."""
    return f"service-{next(_count)}-{os.urandom(4).hex()}"


def _resource(service: str) -> dict[str, Any]:
    return {"attributes": [KeyValue(key="service.name", value=AnyValue(string_value=service))]}


def logs(service: str, count: int = 1) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add(resource=_resource(service)).scope_logs.add()
    for index in range(count):
        scope.log_records.add(time_unix_nano=UNIX_NANO + index, body={"string_value": f"record {index}"})
    return request


def spans(service: str, count: int = 1) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add(resource=_resource(service)).scope_spans.add()
    for index in range(count):
        scope.spans.add(
            name=f"record {index}",
            trace_id=os.urandom(16),
            span_id=os.urandom(8),
            start_time_unix_nano=UNIX_NANO,
            end_time_unix_nano=UNIX_NANO + 1_000,
        )
    return request


def metrics(service: str, count: int = 1) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add(resource=_resource(service)).scope_metrics.add()
    for index in range(count):
        point = scope.metrics.add(name=f"record {index}").gauge.data_points.add(time_unix_nano=UNIX_NANO)
        point.as_int = index
    return request


def request(signal: Signal, service: str, count: int = 1) -> Any:
    return {"logs": logs, "spans": spans, "metrics": metrics}[signal](service, count)
