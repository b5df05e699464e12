"""OTLP requests for measuring: realistic in shape, all distinct, made once before the clock starts."""

from __future__ import annotations

import random
from collections.abc import Iterator

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BASE_UNIX_NANO = 1_790_000_000_000_000_000
_WORDS = [
    "request",
    "completed",
    "cache",
    "miss",
    "user",
    "session",
    "order",
    "payment",
    "accepted",
    "retry",
    "upstream",
    "connection",
    "pool",
    "timeout",
    "inventory",
    "reserved",
    "shipment",
    "label",
    "printed",
    "token",
    "refreshed",
    "query",
    "planned",
    "batch",
    "flushed",
]
_ROUTES = ("/api/cart", "/api/cart/{id}", "/api/checkout", "/api/products/{id}", "/api/search", "/healthz")
_METHODS = ("GET", "POST", "PUT", "DELETE")


def _resource(resource: object, rng: random.Random) -> None:
    """Six resource attributes, as SDKs and the Kubernetes attributes processor set them."""
    service = rng.choice(("frontend", "cart", "checkout", "payment", "search", "catalog"))
    values = {
        "service.name": service,
        "service.version": f"1.{rng.randrange(20)}.0",
        "deployment.environment.name": "production",
        "k8s.namespace.name": "shop",
        "k8s.pod.name": f"{service}-{rng.getrandbits(40):010x}",
        "host.name": f"node-{rng.randrange(50)}",
    }
    for key, value in values.items():
        resource.attributes.add(key=key).value.string_value = value  # type: ignore[attr-defined]


def _attributes(owner: object, rng: random.Random) -> None:
    """Five attributes: three strings (one of them unique), an int and a double."""
    add = owner.attributes.add  # type: ignore[attr-defined]
    add(key="http.request.method").value.string_value = rng.choice(_METHODS)
    add(key="http.route").value.string_value = rng.choice(_ROUTES)
    add(key="http.response.status_code").value.int_value = rng.choice((200, 200, 200, 201, 404, 500))
    add(key="user.id").value.string_value = f"u{rng.getrandbits(32):08x}"
    add(key="app.elapsed_ms").value.double_value = round(rng.expovariate(1 / 40), 3)


def logs_request(seed: int, records: int = 1000) -> bytes:
    rng = random.Random(seed)
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    _resource(resource_logs.resource, rng)
    scope_logs = resource_logs.scope_logs.add()
    scope_logs.scope.name = "shop.http"
    scope_logs.scope.version = "1.4.2"
    for index in range(records):
        record = scope_logs.log_records.add()
        record.time_unix_nano = BASE_UNIX_NANO + seed * 1_000_000_000 + index * 1_000_003
        record.observed_time_unix_nano = record.time_unix_nano + 1500
        record.severity_number = rng.choice((5, 9, 9, 9, 9, 13, 17))
        record.severity_text = {5: "DEBUG", 9: "INFO", 13: "WARN", 17: "ERROR"}[record.severity_number]
        record.body.string_value = " ".join(rng.choices(_WORDS, k=9)) + f" id={rng.getrandbits(48):x}"
        _attributes(record, rng)
        record.trace_id = rng.randbytes(16)
        record.span_id = rng.randbytes(8)
    return request.SerializeToString()


def spans_request(seed: int, records: int = 1000) -> bytes:
    """Spans in traces of ten; every fifth has an event, every twentieth a link, every tenth an error."""
    rng = random.Random(seed)
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    _resource(resource_spans.resource, rng)
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "shop.http"
    trace_id, parent = b"", b""
    for index in range(records):
        if index % 10 == 0:
            trace_id, parent = rng.randbytes(16), b""
        span = scope_spans.spans.add()
        span.trace_id = trace_id
        span.span_id = rng.randbytes(8)
        span.parent_span_id = parent
        parent = span.span_id
        span.name = f"{rng.choice(_METHODS)} {rng.choice(_ROUTES)}"
        span.kind = rng.choice((1, 2, 3))
        span.start_time_unix_nano = BASE_UNIX_NANO + seed * 1_000_000_000 + index * 1_000_003
        span.end_time_unix_nano = span.start_time_unix_nano + int(rng.expovariate(1 / 40e6))
        _attributes(span, rng)
        if index % 5 == 0:
            event = span.events.add(name="exception", time_unix_nano=span.end_time_unix_nano)
            event.attributes.add(key="exception.type").value.string_value = "TimeoutError"
            event.attributes.add(
                key="exception.message"
            ).value.string_value = f"no answer {rng.getrandbits(32)}"
        if index % 20 == 0:
            span.links.add(trace_id=rng.randbytes(16), span_id=rng.randbytes(8))
        if index % 10 == 0:
            span.status.code = 2
    return request.SerializeToString()


def metrics_request(seed: int, records: int = 1000) -> bytes:
    """Half gauges and sums, half histograms with ten buckets; five attributes a point."""
    rng = random.Random(seed)
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    _resource(resource_metrics.resource, rng)
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.name = "shop.runtime"
    now = BASE_UNIX_NANO + seed * 1_000_000_000
    for index in range(10):
        metric = scope_metrics.metrics.add(name=f"shop.metric.{index}", unit="ms")
        for _ in range(records // 10):
            if index % 2 == 0:
                points = metric.gauge.data_points if index % 4 == 0 else metric.sum.data_points
                point = points.add(time_unix_nano=now, start_time_unix_nano=now - 10**10)
                point.as_double = rng.random() * 100
            else:
                point = metric.histogram.data_points.add(
                    time_unix_nano=now, start_time_unix_nano=now - 10**10
                )
                point.bucket_counts.extend(rng.randrange(100) for _ in range(11))
                point.explicit_bounds.extend((1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
                point.count = sum(point.bucket_counts)
                point.sum = rng.random() * 1000
            _attributes(point, rng)
        if metric.WhichOneof("data") == "sum":
            metric.sum.aggregation_temporality = 2
            metric.sum.is_monotonic = True
        if metric.WhichOneof("data") == "histogram":
            metric.histogram.aggregation_temporality = 2
    return request.SerializeToString()


def large_logs_request(seed: int, records: int) -> bytes:
    """One resource and one scope with many records: 10,000 distinct ones, over and over (made quickly)."""
    request = ExportLogsServiceRequest.FromString(logs_request(seed, min(records, 10_000)))
    scope_logs = request.resource_logs[0].scope_logs[0]
    distinct = list(scope_logs.log_records)
    for _ in range(records // len(distinct) - 1):
        scope_logs.log_records.extend(distinct)
    return request.SerializeToString()


MAKERS = {"logs": logs_request, "spans": spans_request, "metrics": metrics_request}


def requests(signal: str, count: int, records: int = 1000, first_seed: int = 0) -> Iterator[bytes]:
    for seed in range(first_seed, first_seed + count):
        yield MAKERS[signal](seed, records)
