"""A service without OpenTelemetry: its Prometheus summary, as a scraper would forward it.

The SDK cannot create summaries. This module builds the OTLP message, and the SDK's metric exporter sends it.
"""

from __future__ import annotations

from collections import deque
from random import Random

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Metric,
    ResourceMetrics,
    ScopeMetrics,
    Summary,
    SummaryDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

SERVICE = "loyalty-legacy"
_OPERATIONS = (("accrue", 0.012), ("redeem", 0.035))
_QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
_WINDOW = 400


def _text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


class LegacySummary:
    """Cumulative request durations of the loyalty service, with quantiles over recent observations."""

    def __init__(self, random: Random, start_unix_nanos: int) -> None:
        self._random = random
        self._start_unix_nanos = start_unix_nanos
        self._counts = dict.fromkeys((name for name, _ in _OPERATIONS), 0)
        self._sums = dict.fromkeys((name for name, _ in _OPERATIONS), 0.0)
        self._windows = {name: deque[float](maxlen=_WINDOW) for name, _ in _OPERATIONS}

    def scrape(self, unix_nanos: int, seconds_since_last: float) -> tuple[ExportMetricsServiceRequest, int]:
        """Simulate the time since the last scrape. Returns the message and its number of data points."""
        points = []
        for name, median in _OPERATIONS:
            window = self._windows[name]
            for _ in range(1 + int(seconds_since_last * self._random.uniform(1.0, 6.0))):
                seconds = median * self._random.lognormvariate(0.0, 0.6)
                window.append(seconds)
                self._counts[name] += 1
                self._sums[name] += seconds
            ranked = sorted(window)
            points.append(
                SummaryDataPoint(
                    attributes=[_text("operation", name), _text("code", "200")],
                    start_time_unix_nano=self._start_unix_nanos,
                    time_unix_nano=unix_nanos,
                    count=self._counts[name],
                    sum=self._sums[name],
                    quantile_values=[
                        SummaryDataPoint.ValueAtQuantile(
                            quantile=q, value=ranked[round(q * (len(ranked) - 1))]
                        )
                        for q in _QUANTILES
                    ],
                )
            )
        metric = Metric(
            name="loyalty_request_duration_seconds",
            description="Time to serve a request.",
            unit="s",
            summary=Summary(data_points=points),
        )
        scope = InstrumentationScope(
            name="github.com/open-telemetry/opentelemetry-collector-contrib/receiver/prometheusreceiver",
            version="0.139.0",
        )
        resource = Resource(
            attributes=[
                _text("service.name", SERVICE),
                _text("service.instance.id", "loyalty.legacy.internal:9102"),
                _text("server.address", "loyalty.legacy.internal"),
                _text("server.port", "9102"),
                _text("url.scheme", "http"),
            ]
        )
        scoped = ScopeMetrics(scope=scope, metrics=[metric])
        request = ExportMetricsServiceRequest(
            resource_metrics=[ResourceMetrics(resource=resource, scope_metrics=[scoped])]
        )
        return request, len(points)
