"""Telemetry with known faults that a healthy shop does not have, for the cookbook's questions to find."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.integration.clients import post
from tests.support.receiver import Receiver

SECOND = 1_000_000_000
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
SERVER, CLIENT = 2, 3
OLD_ERROR = "disk quota of volume 7 exceeded"
NEW_ERROR = "certificate of partner 12 has expired"


class KnownFaults:
    """`now` is when it is made; everything lies before it."""

    def __init__(self) -> None:
        self.now = time.time_ns()
        self._spans = ExportTraceServiceRequest()
        self._logs = ExportLogsServiceRequest()
        self._metrics = ExportMetricsServiceRequest()

    def plant(self) -> None:
        """One of each fault."""
        self._plant_logs()
        self._plant_traces()
        self._plant_metrics()

    def send(self, receiver: Receiver) -> None:
        for signal, request in (
            ("spans", self._spans),
            ("logs", self._logs),
            ("metrics", self._metrics),
        ):
            answer = post(receiver, signal, request.SerializeToString())  # type: ignore[arg-type]
            assert answer.status_code == 200, answer.text

    def _plant_logs(self) -> None:
        self.log("storage", OLD_ERROR, age_seconds=30 * 3600, severity=17)
        self.log("storage", OLD_ERROR.replace("7", "8"), age_seconds=1200, severity=17)
        self.log("storage", NEW_ERROR, age_seconds=1200, severity=17)
        self.log("offline", "came home", age_seconds=3 * 3600)
        for _ in range(3):
            self.log("batch", "no trace of it", age_seconds=1200, trace=_id("nowhere", 16))

    def _plant_traces(self) -> None:
        for number in range(20):  # a release of one of the demo's services: every fifth request fails
            status = 2 if number % 5 == 0 else 0
            self.span("cart", f"deploy-{number}", "root", version="1.9.0", status=status)
        self.span("reports", "n+1", "root", age_seconds=1200)
        for number in range(40):
            self.span(
                "reports",
                "n+1",
                f"select-{number}",
                "root",
                name="SELECT items",
                kind=CLIENT,
                age_seconds=1200,
                attributes={"db.system.name": "postgresql"},
            )
        self.span("courier", "storm", "root")
        for number in range(5):
            self.span(
                "courier", "storm", f"try-{number}", "root", name="POST /parcels", kind=CLIENT, status=2
            )
        self.span("lost", "no-parent", "child", "a parent that nobody sent", age_seconds=1200)
        self.span("early", "skew", "client", kind=CLIENT, age_seconds=1200)
        self.span("early", "skew", "server", "client", age_seconds=1202)
        for _ in range(2):
            self.span("again", "twice", "root", age_seconds=1200)
        for number in range(10):
            self.span("sampled", f"sampled-{number}", "root", trace_state="rojo=00f067aa,ot=rv:1a;th:c")

    def _plant_metrics(self) -> None:
        for value, age, start in ((10, 50, 300), (30, 40, 300), (50, 30, 300), (5, 20, 25), (25, 10, 25)):
            metric = self.metric("jobs", "jobs.done")
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, CUMULATIVE
            metric.sum.data_points.add(
                time_unix_nano=self._at(age), start_time_unix_nano=self._at(start), as_int=value
            )
        for age in (20, 10):
            metric = self.metric("jobs", "jobs.failed")
            metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, DELTA
            metric.sum.data_points.add(time_unix_nano=self._at(age), as_int=7)
        metric = self.metric("bucketed", "http.server.request.duration")
        metric.histogram.aggregation_temporality = CUMULATIVE
        metric.histogram.data_points.add(
            time_unix_nano=self._at(30), count=100, bucket_counts=[10, 80, 10, 0], explicit_bounds=[1, 2, 4]
        )
        metric = self.metric("bucketed", "db.client.operation.duration")
        metric.exponential_histogram.aggregation_temporality = CUMULATIVE
        point = metric.exponential_histogram.data_points.add(time_unix_nano=self._at(30), count=100, scale=0)
        point.positive.offset = 0
        point.positive.bucket_counts.extend([90, 10])
        for number in range(200):
            metric = self.metric("careless", "careless.requests")
            point_of_user = metric.gauge.data_points.add(time_unix_nano=self._at(30), as_int=number)
            point_of_user.attributes.append(_attribute("user.id", f"u-{number}"))
        for age, restarts in ((1200, 2), (600, 3), (60, 5)):
            metric = self.metric("cluster", "k8s.container.restarts", {"k8s.pod.name": "cart-0"})
            metric.gauge.data_points.add(time_unix_nano=self._at(age), as_int=restarts)
        for age in range(60, 120, 10):
            metric = self.metric("cluster", "build.info")
            metric.gauge.data_points.add(time_unix_nano=self._at(age), as_int=1)

    def _at(self, age_seconds: float) -> int:
        return self.now - int(age_seconds * SECOND)

    def log(
        self, service: str, body: str, *, age_seconds: float, severity: int = 9, trace: bytes = b""
    ) -> LogRecord:
        scope = self._logs.resource_logs.add(resource=_resource(service)).scope_logs.add()
        return scope.log_records.add(
            time_unix_nano=self._at(age_seconds),
            severity_number=severity,  # type: ignore[arg-type]
            body={"string_value": body},
            trace_id=trace,
        )

    def span(
        self,
        service: str,
        trace: str,
        span: str,
        parent: str = "",
        *,
        name: str = "work",
        kind: int = SERVER,
        age_seconds: float = 120,
        milliseconds: float = 8,
        status: int = 0,
        version: str = "1.0.0",
        trace_state: str = "",
        attributes: Mapping[str, str] | None = None,
    ) -> Span:
        resource = _resource(service, {"service.version": version})
        start = self._at(age_seconds)
        return (
            self._spans.resource_spans.add(resource=resource)
            .scope_spans.add()
            .spans.add(
                trace_id=_id(trace, 16),
                span_id=_id(span, 8),
                parent_span_id=_id(parent, 8) if parent else b"",
                name=name,
                kind=kind,  # type: ignore[arg-type]
                start_time_unix_nano=start,
                end_time_unix_nano=start + int(milliseconds * 1_000_000),
                status={"code": status},
                trace_state=trace_state,
                attributes=[_attribute(key, value) for key, value in (attributes or {}).items()],
            )
        )

    def metric(self, service: str, name: str, attributes: Mapping[str, str] | None = None) -> Metric:
        resource = _resource(service, attributes)
        return (
            self._metrics.resource_metrics.add(resource=resource).scope_metrics.add().metrics.add(name=name)
        )


def _id(text: str, size: int) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:size]


def _attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def _resource(service: str, attributes: Mapping[str, str] | None = None) -> dict[str, Any]:
    named = {"service.name": service, "host.name": f"{service}-host", **(attributes or {})}
    return {"attributes": [_attribute(key, value) for key, value in named.items()]}
