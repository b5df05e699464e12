"""The OpenTelemetry SDK's own OTLP exporters, one for each signal, shared by all services."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from frazil.demo.http_session import CuttableSession
from frazil.demo.options import DemoOptions
from frazil.errors import ConfigError

_TIMEOUT_SECONDS = 10.0
"""How long the exporters try to deliver one batch, retries included (the SDK's default)."""

_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)


@dataclass(frozen=True, slots=True)
class Points:
    """A collection of metrics on its way: from the SDK, or an OTLP message made by hand (see summary.py)."""

    data: MetricsData | ExportMetricsServiceRequest
    count: int


@dataclass(frozen=True, slots=True)
class Exporters:
    """Each function returns whether the receiver took the batch; `shutdown` ends retries under way."""

    export_spans: Callable[[Sequence[ReadableSpan]], bool]
    export_logs: Callable[[Sequence[ReadableLogRecord]], bool]
    export_points: Callable[[Sequence[Points]], bool]
    shutdowns: tuple[Callable[[], Any], ...]

    def shutdown(self) -> None:
        for shutdown in self.shutdowns:
            shutdown()


class _GrpcMetricExporter(GrpcMetricExporter):
    """Also takes messages that are encoded already, and gives them the same retries and connection."""

    def export_encoded(self, request: ExportMetricsServiceRequest) -> MetricExportResult:
        encoded: Any = request  # which _translate_data lets through
        return self._export(encoded)

    def _translate_data(self, data: Any) -> Any:
        return data if isinstance(data, ExportMetricsServiceRequest) else super()._translate_data(data)

    def _count_data(self, data: Any) -> int:
        if isinstance(data, ExportMetricsServiceRequest):
            return 1
        return int(super()._count_data(data))


class _HttpMetricExporter(HttpMetricExporter):
    """Also takes messages that are encoded already, and gives them the same retries and connection."""

    def export_encoded(self, request: ExportMetricsServiceRequest) -> MetricExportResult:
        return self._export_batch(request)


def make_exporters(options: DemoOptions) -> Exporters:
    spans: GrpcSpanExporter | HttpSpanExporter
    logs: GrpcLogExporter | HttpLogExporter
    metrics: _GrpcMetricExporter | _HttpMetricExporter
    if options.protocol == "grpc":
        arguments = _grpc_arguments(options)
        cuts: tuple[Callable[[], Any], ...] = ()
        spans, logs = GrpcSpanExporter(**arguments), GrpcLogExporter(**arguments)
        metrics = _GrpcMetricExporter(**arguments)
    else:
        sessions = [CuttableSession() for _ in range(3)]
        cuts = tuple(session.cut for session in sessions)
        spans = HttpSpanExporter(**_http_arguments(options, "traces", sessions[0]))
        logs = HttpLogExporter(**_http_arguments(options, "logs", sessions[1]))
        metrics = _HttpMetricExporter(**_http_arguments(options, "metrics", sessions[2]))

    def export_points(batch: Sequence[Points]) -> bool:
        results = [
            metrics.export_encoded(points.data)
            if isinstance(points.data, ExportMetricsServiceRequest)
            else metrics.export(points.data)
            for points in batch
        ]
        return all(result is MetricExportResult.SUCCESS for result in results)

    return Exporters(
        export_spans=lambda batch: spans.export(batch) is SpanExportResult.SUCCESS,
        export_logs=lambda batch: logs.export(batch) is LogRecordExportResult.SUCCESS,
        export_points=export_points,
        shutdowns=(spans.shutdown, logs.shutdown, metrics.shutdown, *cuts),
    )


def _grpc_arguments(options: DemoOptions) -> dict[str, Any]:
    url = urlsplit(options.base_url)
    credentials = None
    if url.scheme == "https":
        credentials = grpc.ssl_channel_credentials(_read_ca(options.ca_file) if options.ca_file else None)
    return {
        "endpoint": options.base_url,
        "insecure": url.scheme == "http",
        "credentials": credentials,
        "headers": (("authorization", f"Bearer {options.api_key}"),) if options.api_key else None,
        "timeout": _TIMEOUT_SECONDS,
        "compression": grpc.Compression.Gzip
        if options.compression == "gzip"
        else grpc.Compression.NoCompression,
        # A proxy from the environment must not see what is meant for this machine.
        "channel_options": (("grpc.enable_http_proxy", 0),) if _is_loopback(url.hostname) else None,
    }


def _http_arguments(options: DemoOptions, signal: str, session: CuttableSession) -> dict[str, Any]:
    if options.ca_file:
        _read_ca(options.ca_file)
    session.trust_env = not _is_loopback(urlsplit(options.base_url).hostname)
    return {
        "endpoint": f"{options.base_url}/v1/{signal}",
        "certificate_file": options.ca_file,
        "headers": {"authorization": f"Bearer {options.api_key}"} if options.api_key else None,
        "timeout": _TIMEOUT_SECONDS,
        "compression": HttpCompression.Gzip
        if options.compression == "gzip"
        else HttpCompression.NoCompression,
        "session": session,
    }


def _read_ca(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"demo: cannot read the CA file {path}: {error.strerror}") from error


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


class _Listener(logging.Filter):
    """Keeps what the exporters complain about, and keeps it off the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.last_error: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        # That a retry was ended by our own shutdown explains nothing; what it retried for does.
        if record.levelno >= logging.WARNING and "aborting retry" not in message:
            self.last_error = message
        return False


@contextmanager
def exporters_overheard() -> Iterator[_Listener]:
    """While this lasts, the exporters' log lines (one for each retry) are heard, not printed."""
    listener = _Listener()
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGGERS]
    for logger in loggers:
        # First in line: the SDK's own filter would swallow repeated lines before this one hears them.
        logger.filters.insert(0, listener)
    try:
        yield listener
    finally:
        for logger in loggers:
            logger.removeFilter(listener)
