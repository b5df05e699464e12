"""The telemetry of one process, from its providers to the outbox. Imported only where telemetry is on."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk._logs import (
    LoggerProvider,
    LogRecordLimits,
    LogRecordProcessor,
    ReadableLogRecord,
    ReadWriteLogRecord,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from frazil import __version__
from frazil.config import Config, TelemetryConfig
from frazil.telemetry.bridge import LogBridge
from frazil.telemetry.exporters import Complaints, make_exporters
from frazil.telemetry.outbox import Count, Kind, Outcome, SpanQueue
from frazil.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SCOPE = "frazil"
_ATTRIBUTES_MAX = 64
_ATTRIBUTE_CHARS_MAX = 8192


class Session:
    """Providers of its own, not the global ones: a library that brings instrumentation adds nothing."""

    def __init__(self, config: Config, role: str, registry: CollectorRegistry | None) -> None:
        settings = config.telemetry
        exporters = make_exporters(config)
        self._complaints = Complaints()
        self._complaints.listen()
        self._outbox = SpanQueue(
            exporters.exports,
            interval_seconds=settings.interval_seconds,
            queue_max=settings.queue_max,
            count=_counter(registry),
            reason=self._complaints.reason,
            abort=exporters.abort,
            endpoint=exporters.endpoint,
        )
        resource = resource_of(settings, role)
        spans = TracerProvider(
            sampler=sampler_of(settings, role),
            resource=resource,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attributes=_ATTRIBUTES_MAX, max_attribute_length=_ATTRIBUTE_CHARS_MAX),
        )
        spans.add_span_processor(_SpansTo(self._outbox))
        self.tracing = Tracing(spans.get_tracer(_SCOPE, __version__), sql_text=settings.sql_text)
        self._bridge: LogBridge | None = None
        if settings.logs_level != "none":
            limits = LogRecordLimits(
                max_attributes=_ATTRIBUTES_MAX, max_attribute_length=_ATTRIBUTE_CHARS_MAX
            )
            logs = LoggerProvider(resource=resource, shutdown_on_exit=False, log_record_limits=limits)
            logs.add_log_record_processor(_LogsTo(self._outbox))
            logger = logs.get_logger(_SCOPE, __version__)
            self._bridge = LogBridge(logger, settings.logs_level, sql_text=settings.sql_text)
            logging.getLogger().addHandler(self._bridge)

    def close(self) -> None:
        """Within two seconds."""
        self.silence()
        self._outbox.close()
        self._complaints.leave()

    def silence(self) -> None:
        if self._bridge is not None:
            logging.getLogger().removeHandler(self._bridge)


def resource_of(settings: TelemetryConfig, role: str) -> Resource:
    """Who speaks. An instance is one process."""
    return Resource(
        settings.resource
        | {
            "service.name": f"frazil-{role}",
            "service.namespace": settings.service_namespace,
            "service.version": __version__,
            "service.instance.id": str(uuid.uuid4()),
            "host.name": socket.gethostname(),
            "process.pid": os.getpid(),
        }
    )


def sampler_of(settings: TelemetryConfig, role: str) -> Sampler:
    """Parts follow their root. A client of the API decides with its traceparent; one that sends data does
    not, or it could have every request of its traced.
    """
    if role == "receiver":
        some = TraceIdRatioBased(settings.receive_ratio)
        return ParentBased(some, remote_parent_sampled=some, remote_parent_not_sampled=some)
    if role == "api":
        return ParentBased(
            TraceIdRatioBased(settings.api_ratio),
            remote_parent_sampled=ALWAYS_ON,
            remote_parent_not_sampled=ALWAYS_OFF,
        )
    return ParentBased(ALWAYS_ON)


def _counter(registry: CollectorRegistry | None) -> Count:
    if registry is None:
        return lambda kind, outcome, records: None
    from prometheus_client import Counter

    counter = Counter(
        "frazil_telemetry_records",
        "frazil's own spans and log records: sent, failed to be sent, or dropped as the queue was full",
        ("kind", "outcome"),
        registry=registry,
    )

    def count(kind: Kind, outcome: Outcome, records: int) -> None:
        counter.labels(kind, outcome).inc(records)

    return count


class _SpansTo(SpanProcessor):
    def __init__(self, outbox: SpanQueue) -> None:
        self._outbox = outbox

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        self._outbox.offer("spans", span)


def readable(log_record: ReadWriteLogRecord) -> ReadableLogRecord:
    """What exporters take."""
    resource = log_record.resource
    assert resource is not None  # noqa: S101 the SDK's logger always sets it
    return ReadableLogRecord(
        log_record.log_record, resource, log_record.instrumentation_scope, log_record.limits
    )


class _LogsTo(LogRecordProcessor):
    def __init__(self, outbox: SpanQueue) -> None:
        self._outbox = outbox

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self._outbox.offer("logs", readable(log_record))

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
