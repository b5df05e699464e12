"""OTLP requests with spans and metrics as a shop's Collector sends them, for what depends on how rows
relate: traces across services, and series that go on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from bench.payloads import BASE_UNIX_NANO
from frazil.tables import Signal

_INTERNAL, _SERVER, _CLIENT, _PRODUCER, _CONSUMER = 1, 2, 3, 4, 5
_TRACE = (
    ("gateway", "{method} {route}", _SERVER, None),
    ("gateway", "authorize", _INTERNAL, 0),
    ("gateway", "{method} {service}", _CLIENT, 0),
    ("{service}", "{method} {route}", _SERVER, 2),
    ("{service}", "load {entity}", _INTERNAL, 3),
    ("{service}", "SELECT {entity}", _CLIENT, 4),
    ("{service}", "GET {entity}", _CLIENT, 3),
    ("{service}", "{entity} publish", _PRODUCER, 3),
    ("mailer", "{entity} process", _CONSUMER, 7),
    ("mailer", "POST /v1/mails", _CLIENT, 8),
)
"""The spans of a trace: service, name, kind, and the place of the parent."""
_ROUTES = tuple(
    f"/api/{noun}{suffix}" for noun in ("cart", "orders", "items", "users") for suffix in ("", "/{id}")
)
_ENTITIES = ("orders", "stock", "users", "carts")
_SERVICES = ("cart", "checkout", "payment", "search", "catalog", "shipping")
_PODS = 4
"""Of each service."""


@dataclass(frozen=True)
class AppSpans:
    """Traces of ten spans of three services, all in one request."""

    first_unix_nano: int = BASE_UNIX_NANO
    spans_per_second: int = 5_000
    records_per_request: int = 1000
    signal: Signal = "spans"

    def body(self, seed: int) -> bytes:
        rng = random.Random(seed)
        request = ExportTraceServiceRequest()
        scopes: dict[tuple[str, int], object] = {}
        first = self._first_unix_nano(seed)
        for number in range(self.records_per_request // len(_TRACE)):
            moment = first + number * len(_TRACE) * 10**9 // self.spans_per_second
            _add_trace(request, scopes, rng, moment)
        return request.SerializeToString()

    def received_unix_nano(self, seed: int) -> int:
        return self._first_unix_nano(seed + 1) + 10**9

    def _first_unix_nano(self, seed: int) -> int:
        return self.first_unix_nano + seed * self.records_per_request * 10**9 // self.spans_per_second


def _add_trace(
    request: ExportTraceServiceRequest, scopes: dict[tuple[str, int], object], rng: random.Random, moment: int
) -> None:
    words = {
        "service": rng.choice(_SERVICES),
        "method": rng.choice(("GET", "GET", "POST", "PUT")),
        "route": rng.choice(_ROUTES),
        "entity": rng.choice(_ENTITIES),
    }
    trace_id, ids = rng.randbytes(16), [rng.randbytes(8) for _ in _TRACE]
    duration = int(rng.lognormvariate(17, 0.8))
    failed = rng.random() < 0.02
    for place, (service, name, kind, parent) in enumerate(_TRACE):
        service = service.format_map(words)
        pod = rng.randrange(_PODS)
        scope = scopes.get((service, pod))
        if scope is None:
            owner = request.resource_spans.add()
            _add_resource(owner.resource, service, pod)
            scope = scopes[service, pod] = owner.scope_spans.add()
        span = scope.spans.add()  # type: ignore[attr-defined]
        span.trace_id, span.span_id = trace_id, ids[place]
        if parent is not None:
            span.parent_span_id = ids[parent]
        span.name, span.kind = name.format_map(words), kind
        span.start_time_unix_nano = moment + place * 200_000
        span.end_time_unix_nano = span.start_time_unix_nano + int(
            duration * (1 - place * 0.08) * rng.uniform(0.7, 1)
        )
        if failed and place in (0, 2, 3):
            span.status.code = 2
        _describe(span, place, kind, words, rng)


def _describe(span: object, place: int, kind: int, words: dict[str, str], rng: random.Random) -> None:
    values: dict[str, str | int] = {"thread.id": rng.randrange(16)}
    if kind == _SERVER or place == 2:
        values |= {"http.request.method": words["method"], "http.route": words["route"]}
        values |= {
            "http.response.status_code": rng.choice((200, 200, 200, 201, 404)),
            "user.id": f"u-{rng.randrange(50_000)}",
        }
    elif place == 5:
        values |= {"db.system.name": "postgresql", "db.namespace": "shop", "server.address": "db-0.shop"}
    elif place == 6:
        values |= {"db.system.name": "redis", "server.address": "cache.shop"}
    elif kind in (_PRODUCER, _CONSUMER):
        values |= {"messaging.system": "kafka", "messaging.destination.name": words["entity"]}
    elif place == 9:
        values |= {"http.request.method": "POST", "server.address": "mail.example.com"}
    for key, value in values.items():
        into = span.attributes.add(key=key).value  # type: ignore[attr-defined]
        if isinstance(value, str):
            into.string_value = value
        else:
            into.int_value = value


def _add_resource(resource: object, service: str, pod: int) -> None:
    values = {
        "service.name": service,
        "service.version": "1.4.2",
        "deployment.environment.name": "production",
        "k8s.namespace.name": "shop",
        "k8s.pod.name": f"{service}-{pod}",
        "host.name": f"node-{pod}",
    }
    for key, value in values.items():
        resource.attributes.add(key=key).value.string_value = value  # type: ignore[attr-defined]


@dataclass(frozen=True)
class AppMetrics:
    """The points of one pod once in `interval_seconds`, one pod after the other: gauges, cumulative sums and
    histograms of ten buckets. Each point is of a series that has the same attributes in every request of the
    pod.
    """

    first_unix_nano: int = BASE_UNIX_NANO
    pods: int = 100
    interval_seconds: int = 60
    records_per_request: int = 1000
    signal: Signal = "metrics"

    def body(self, seed: int) -> bytes:
        pod, turn = seed % self.pods, seed // self.pods
        of_series, rng = random.Random(pod), random.Random(seed)
        now, start = self._time(seed), self.first_unix_nano - 10**12
        request = ExportMetricsServiceRequest()
        owner = request.resource_metrics.add()
        _add_resource(owner.resource, _SERVICES[pod % len(_SERVICES)], pod)
        scope = owner.scope_metrics.add()
        for number in range(20):
            metric = scope.metrics.add(name=f"shop.metric.{number}", unit="ms")
            for _ in range(self.records_per_request // 20):
                attributes = {
                    "http.route": of_series.choice(_ROUTES),
                    "http.request.method": of_series.choice(("GET", "POST", "PUT")),
                    "shop.worker": f"{of_series.getrandbits(32):08x}",
                }
                _add_point(metric, number, now, start, turn, rng, attributes)
        return request.SerializeToString()

    def received_unix_nano(self, seed: int) -> int:
        return self._time(seed) + 2 * 10**9

    def _time(self, seed: int) -> int:
        return self.first_unix_nano + seed * self.interval_seconds * 10**9 // self.pods


def _add_point(
    metric: Metric,
    number: int,
    now: int,
    start: int,
    turn: int,
    rng: random.Random,
    attributes: dict[str, str],
) -> None:
    if number % 4 == 3:
        point = metric.histogram.data_points.add(time_unix_nano=now, start_time_unix_nano=start)
        point.bucket_counts.extend(rng.randrange(turn + 1, turn + 100) for _ in range(11))
        point.explicit_bounds.extend((1, 2, 5, 10, 20, 50, 100, 200, 500, 1000))
        point.count, point.sum = sum(point.bucket_counts), rng.random() * 1000
        metric.histogram.aggregation_temporality = 2
    elif number % 4 == 1:
        point = metric.sum.data_points.add(time_unix_nano=now, start_time_unix_nano=start)
        point.as_int = turn * 100 + rng.randrange(100)
        metric.sum.aggregation_temporality, metric.sum.is_monotonic = 2, True
    else:
        point = metric.gauge.data_points.add(time_unix_nano=now)
        point.as_double = rng.random() * 100
    for key, value in attributes.items():
        point.attributes.add(key=key).value.string_value = value
