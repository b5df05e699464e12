"""OTLP/JSON documents, read as the receiver reads them."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.otlp.json import request_from_json
from tests.support.otlp_requests import logs_requests, metrics_requests, trace_requests

DEPTH_MAX = 32
REQUEST_TYPES: dict[str, Any] = {
    "logs": ExportLogsServiceRequest,
    "spans": ExportTraceServiceRequest,
    "metrics": ExportMetricsServiceRequest,
}
REQUESTS = {"logs": logs_requests(), "spans": trace_requests(), "metrics": metrics_requests()}
each_signal = pytest.mark.parametrize("signal", list(REQUESTS))
patient = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def read(signal: str, document: Any) -> Any:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    return REQUEST_TYPES[signal].FromString(request_from_json(signal, body, depth_max=DEPTH_MAX))


def read_record(record: Any) -> LogRecord:
    body = record if isinstance(record, bytes) else orjson.dumps(record)
    request = read("logs", b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[' + body + b"]}]}]}")
    return request.resource_logs[0].scope_logs[0].log_records[0]


def read_point(point: Any) -> Any:
    body = point if isinstance(point, bytes) else orjson.dumps(point)
    head = b'{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"exponentialHistogram":{"dataPoints":['
    request = read("metrics", head + body + b"]}}]}]}]}")
    return request.resource_metrics[0].scope_metrics[0].metrics[0].exponential_histogram.data_points[0]


def exactly(message: Message) -> bytes:
    """Bytes that are equal if and only if messages are, with every NaN the same one."""
    copy = type(message)()
    copy.CopyFrom(message)
    _unify_nans(copy)
    return copy.SerializeToString(deterministic=True)


def _unify_nans(message: Message) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if field.is_repeated else [value]:
                _unify_nans(item)
        elif field.is_repeated:
            value[:] = [math.nan if item != item else item for item in value]
        elif value != value:
            setattr(message, field.name, math.nan)
