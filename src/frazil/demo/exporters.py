"""The SDK's OTLP exporters, one per signal, shared by all simulated services."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace.export import SpanExportResult

from frazil.demo.http_session import AbortableSession
from frazil.demo.options import DemoOptions
from frazil.errors import ConfigError
from frazil.telemetry.exporters import ExporterSettings

Signal = Literal["spans", "logs", "points"]
Export = Callable[[Sequence[Any]], bool]

_TIMEOUT_SECONDS = 10.0
"""Timeout of one batch, including the exporter's retries (the SDK's default)."""

_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.proto.grpc.exporter",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.exporter.otlp.proto.http._log_exporter",
    "opentelemetry.exporter.otlp.proto.http.metric_exporter",
)


@dataclass(frozen=True, slots=True)
class Points:
    """Metrics to send: from the SDK, or an OTLP message (see summary.py)."""

    data: MetricsData | ExportMetricsServiceRequest
    count: int


@dataclass(frozen=True, slots=True)
class Exporters:
    """Export functions, which return True if the receiver accepted the batch. `shutdown` ends retries."""

    exports: dict[Signal, Export]
    shutdowns: tuple[Callable[[], Any], ...]

    def shutdown(self) -> None:
        for shutdown in self.shutdowns:
            shutdown()


class _GrpcMetricExporter(GrpcMetricExporter):
    """Also sends encoded messages, with the same retries and connection."""

    def export_encoded(self, request: ExportMetricsServiceRequest) -> MetricExportResult:
        encoded: Any = request  # accepted by _translate_data
        return self._export(encoded)

    def _translate_data(self, data: Any) -> Any:
        return data if isinstance(data, ExportMetricsServiceRequest) else super()._translate_data(data)

    def _count_data(self, data: Any) -> int:
        if isinstance(data, ExportMetricsServiceRequest):
            return 1
        return int(super()._count_data(data))


class _HttpMetricExporter(HttpMetricExporter):
    """Also sends encoded messages, with the same retries and connection."""

    def export_encoded(self, request: ExportMetricsServiceRequest) -> MetricExportResult:
        return self._export_batch(request)


def make_exporters(options: DemoOptions) -> Exporters:
    if options.ca_file is not None:
        try:
            Path(options.ca_file).read_bytes()
        except OSError as error:
            raise ConfigError(f"demo: cannot read the CA file {options.ca_file}: {error.strerror}") from error
    settings = ExporterSettings(
        options.base_url,
        {"authorization": f"Bearer {options.api_key}"} if options.api_key else {},
        _TIMEOUT_SECONDS,
        None if options.ca_file is None else Path(options.ca_file),
        gzip=options.compression == "gzip",
    )
    spans: GrpcSpanExporter | HttpSpanExporter
    logs: GrpcLogExporter | HttpLogExporter
    metrics: _GrpcMetricExporter | _HttpMetricExporter
    aborts: list[Callable[[], Any]] = []
    if options.protocol == "grpc":
        spans = GrpcSpanExporter(**settings.grpc_arguments())
        logs = GrpcLogExporter(**settings.grpc_arguments())
        metrics = _GrpcMetricExporter(**settings.grpc_arguments())
    else:
        sessions = [AbortableSession() for _ in range(3)]
        aborts = [session.abort for session in sessions]
        spans = HttpSpanExporter(**settings.http_arguments("/v1/traces", sessions[0]))
        logs = HttpLogExporter(**settings.http_arguments("/v1/logs", sessions[1]))
        metrics = _HttpMetricExporter(**settings.http_arguments("/v1/metrics", sessions[2]))

    def export_points(batch: Sequence[Points]) -> bool:
        results = [
            metrics.export_encoded(points.data)
            if isinstance(points.data, ExportMetricsServiceRequest)
            else metrics.export(points.data)
            for points in batch
        ]
        return all(result is MetricExportResult.SUCCESS for result in results)

    return Exporters(
        {
            "spans": lambda batch: spans.export(batch) is SpanExportResult.SUCCESS,
            "logs": lambda batch: logs.export(batch) is LogRecordExportResult.SUCCESS,
            "points": export_points,
        },
        (spans.shutdown, logs.shutdown, metrics.shutdown, *aborts),
    )


class ExporterErrors(logging.Filter):
    """Captures the log messages of the exporters and keeps them off the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.last_error: str | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        # A retry that the shutdown aborted is not an error.
        if record.levelno >= logging.WARNING and "aborting retry" not in message:
            self.last_error = message
        return False


@contextmanager
def exporter_errors() -> Iterator[ExporterErrors]:
    """Capture the log messages of the exporters (one per retry) instead of printing them."""
    errors = ExporterErrors()
    loggers = [logging.getLogger(name) for name in _EXPORTER_LOGGERS]
    for logger in loggers:
        # First, because the SDK's own filter drops repeated messages.
        logger.filters.insert(0, errors)
    try:
        yield errors
    finally:
        for logger in loggers:
            logger.removeFilter(errors)
