"""The telemetry of one process: providers, exporters and counters. Imported only if telemetry is enabled."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from functools import partial
from typing import TYPE_CHECKING

from opentelemetry.sdk._logs import LoggerProvider, LogRecordLimits
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler, TraceIdRatioBased

from frazil import __version__
from frazil.config import Config, TelemetryConfig
from frazil.telemetry.batch_exporter import BatchExporter, Count, Kind, Outcome
from frazil.telemetry.bridge import LogBridge
from frazil.telemetry.exporters import ExporterErrors, make_exporters
from frazil.telemetry.processors import LogForwarder, SpanForwarder
from frazil.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_SCOPE = "frazil"
_ATTRIBUTES_MAX = 64
_ATTRIBUTE_CHARS_MAX = 8192


class Session:
    """The telemetry of this process. Uses its own providers instead of the global ones, which instrumented
    libraries would use too.
    """

    def __init__(self, config: Config, role: str, registry: CollectorRegistry | None) -> None:
        settings = config.telemetry
        exporters = make_exporters(config)
        self._errors = ExporterErrors()
        self._errors.attach()
        self._exporter = BatchExporter(
            exporters.exports,
            interval_seconds=settings.interval_seconds,
            queue_max=settings.queue_max,
            count=_counter(registry),
            reason=self._errors.reason,
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
        spans.add_span_processor(SpanForwarder(partial(self._exporter.offer, "spans")))
        self.tracing = Tracing(spans.get_tracer(_SCOPE, __version__), sql_text=settings.sql_text)
        self._bridge: LogBridge | None = None
        if settings.logs_level != "none":
            limits = LogRecordLimits(
                max_attributes=_ATTRIBUTES_MAX, max_attribute_length=_ATTRIBUTE_CHARS_MAX
            )
            logs = LoggerProvider(resource=resource, shutdown_on_exit=False, log_record_limits=limits)
            logs.add_log_record_processor(LogForwarder(partial(self._exporter.offer, "logs")))
            logger = logs.get_logger(_SCOPE, __version__)
            self._bridge = LogBridge(logger, settings.logs_level, sql_text=settings.sql_text)
            logging.getLogger().addHandler(self._bridge)

    def close(self) -> None:
        """Send the queued records and stop, within two seconds."""
        self.detach_log_bridge()
        self._exporter.close()
        self._errors.detach()

    def detach_log_bridge(self) -> None:
        if self._bridge is not None:
            logging.getLogger().removeHandler(self._bridge)


def resource_of(settings: TelemetryConfig, role: str) -> Resource:
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
    """Return the sampler of a role. Child spans follow their root.

    A client of the API decides with its traceparent. A client that sends data does not: it could otherwise
    have all its requests traced.
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
        "Spans and log records of frazil's own telemetry, by outcome: sent, failed, or dropped (queue full).",
        ("kind", "outcome"),
        registry=registry,
    )

    def count(kind: Kind, outcome: Outcome, records: int) -> None:
        counter.labels(kind, outcome).inc(records)

    return count
