"""Requests whose records are told apart by a text: a log's body, a span's name."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def logs_request(texts: Iterable[str]) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for text in texts:
        scope.log_records.add(time_unix_nano=time.time_ns()).body.string_value = text
    return bytes(request.SerializeToString())


def spans_request(texts: Iterable[str]) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for text in texts:
        now = time.time_ns()
        span = scope.spans.add(name=text, start_time_unix_nano=now, end_time_unix_nano=now)
        span.trace_id, span.span_id = os.urandom(16), os.urandom(8)
    return bytes(request.SerializeToString())
