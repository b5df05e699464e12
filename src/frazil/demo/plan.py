"""Plans one journey: a tree of spans with their log lines, before it becomes telemetry.

Pure functions: times are seconds from the start of the trace, and randomness is a parameter. Parents contain
their children, except that a consumer starts after its producer has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote_plus

from opentelemetry.trace import SpanKind

from frazil.demo.facts import Facts
from frazil.demo.journeys import ENDPOINTS, ERRORS_FAULT, ERRORS_SERVICE, SLOW_STORE
from frazil.demo.options import Incident
from frazil.demo.randomness import lognormal
from frazil.demo.steps import (
    Cached,
    Call,
    DatabaseQuery,
    Endpoint,
    External,
    Fault,
    LogLine,
    Measure,
    Parallel,
    Publish,
    Severity,
    Step,
    Work,
)
from frazil.demo.topology import SERVICES, STORES

_HTTP_SERVER = "opentelemetry.instrumentation.asgi"
_HTTP_CLIENT = "opentelemetry.instrumentation.httpx"
_GRPC = "opentelemetry.instrumentation.grpc"
_KAFKA = "opentelemetry.instrumentation.confluent_kafka"
_APPLICATION = "shop.application"
_STORE_SCOPES = {
    "postgresql": "opentelemetry.instrumentation.psycopg",
    "redis": "opentelemetry.instrumentation.redis",
    "opensearch": "opentelemetry.instrumentation.opensearch",
}
# The gRPC status codes that are server errors according to the semantic conventions.
_GRPC_SERVER_ERRORS = frozenset({2, 4, 12, 13, 14, 15})
# Added latency of the slow store: 4 % of statements exceed its timeout of three seconds.
_SLOW_MEDIAN_SECONDS, _SLOW_SIGMA = 0.6, 0.9


@dataclass(slots=True)
class PlannedLine:
    at: float
    severity: Severity
    text: str
    attributes: dict[str, Any] = field(default_factory=dict)
    event: str | None = None
    structured: bool = False


@dataclass(slots=True)
class PlannedSpan:
    service: str
    instance: int
    scope: str
    name: str
    kind: SpanKind
    start: float
    end: float
    attributes: dict[str, Any]
    asynchronous: bool = False
    """True for a consumer: it may end after its parent, and links to it."""
    error: str | None = None
    """Status description if the status is error."""
    events: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    lines: list[PlannedLine] = field(default_factory=list)
    measures: tuple[Measure, ...] = ()
    children: list[PlannedSpan] = field(default_factory=list)

    def walk(self) -> Iterator[PlannedSpan]:
        yield self
        for child in self.children:
            yield from child.walk()

    def fail(self, error_type: str, description: str) -> None:
        self.attributes["error.type"] = error_type
        self.error = description


def plan_trace(entry: str, facts: Facts, random: Random, incident: Incident | None) -> PlannedSpan:
    """Return the root span of a journey that starts at this endpoint."""
    return _Planner(facts, random, incident).serve(ENDPOINTS[entry], 0.0)[0]


class _Planner:
    def __init__(self, facts: Facts, random: Random, incident: Incident | None) -> None:
        self._facts = facts
        self._random = random
        self._incident = incident

    def serve(self, endpoint: Endpoint, start: float) -> tuple[PlannedSpan, Fault | None]:
        """Return the span of an endpoint with all its descendants, and the fault that its caller sees."""
        span = PlannedSpan(
            service=endpoint.service,
            instance=self._random.randrange(SERVICES[endpoint.service].instances),
            start=start,
            end=start,
            **self._server_shape(endpoint),
        )
        own = lognormal(self._random, endpoint.milliseconds / 1e3, 0.35)
        cursor = start + own / 2
        fault = self._own_fault(endpoint)
        if fault is not None:
            self._raise(span, fault, cursor)
        else:
            for step in endpoint.steps:
                cursor, fault = self._take(span, step, cursor)
                if fault is not None:
                    break
        span.end = cursor + own / 2
        if fault is None:
            span.measures = endpoint.measures
            for line in endpoint.lines:
                if self._random.random() < line.chance:
                    span.lines.append(self._line(line, self._random.uniform(start, span.end)))
        self._respond(span, endpoint, fault)
        return span, fault and _propagated(fault)

    def _server_shape(self, endpoint: Endpoint) -> dict[str, Any]:
        service, facts = SERVICES[endpoint.service], self._facts
        server = {"server.address": f"{service.name}.shop.svc.cluster.local", "server.port": service.port}
        if endpoint.protocol == "http":
            attributes = {
                "http.request.method": endpoint.method,
                "http.route": endpoint.name,
                "url.scheme": "https" if service.name == "frontend" else "http",
                "url.path": endpoint.name.format_map(facts),
                "network.protocol.version": "2" if service.name == "frontend" else "1.1",
                **server,
            }
            if endpoint.name.endswith("/search"):
                attributes["url.query"] = f"q={quote_plus(facts['term'])}&page={facts['page']}"
            if service.name == "frontend":
                attributes |= {
                    "user_agent.original": facts["user_agent"],
                    "client.address": facts["client_address"],
                    "session.id": facts["session_id"],
                    "user.id": facts["user_id"],
                }
            name = f"{endpoint.method} {endpoint.name}"
            return {"scope": _HTTP_SERVER, "name": name, "kind": SpanKind.SERVER, "attributes": attributes}
        if endpoint.protocol == "grpc":
            attributes = {**_rpc(endpoint), **server}
            return {"scope": _GRPC, "name": endpoint.name, "kind": SpanKind.SERVER, "attributes": attributes}
        if endpoint.protocol == "consumer":
            attributes = {
                **self._message(endpoint.name),
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.consumer.group.name": endpoint.service,
            }
            name = f"process {endpoint.name}"
            return {"scope": _KAFKA, "name": name, "kind": SpanKind.CONSUMER, "attributes": attributes}
        attributes = {"shop.job.name": endpoint.name, "shop.job.batch": facts["batch"]}
        name = f"cron {endpoint.name}"
        return {"scope": _APPLICATION, "name": name, "kind": SpanKind.INTERNAL, "attributes": attributes}

    def _message(self, topic: str) -> dict[str, Any]:
        partition = sum(self._facts["order_id"].encode()) % 6
        return {
            "messaging.system": "kafka",
            "messaging.destination.name": topic,
            "messaging.destination.partition.id": str(partition),
            "messaging.kafka.message.key": self._facts["order_id"],
            "server.address": "kafka.data.svc.cluster.local",
            "server.port": 9092,
        }

    def _own_fault(self, endpoint: Endpoint) -> Fault | None:
        if self._incident == "errors" and endpoint.service == ERRORS_SERVICE:
            if self._random.random() < ERRORS_FAULT.chance:
                return ERRORS_FAULT
            return None
        return next((fault for fault in endpoint.faults if self._random.random() < fault.chance), None)

    def _raise(self, span: PlannedSpan, fault: Fault, at: float) -> None:
        """Record an exception: an event on the span, and a log line."""
        module = f"/srv/{span.service}/{span.service}/handlers.py"
        stack = (
            "Traceback (most recent call last):\n"
            f'  File "/srv/{span.service}/{span.service}/server.py", line 88, in dispatch\n'
            "    return handler(request, context)\n"
            f'  File "{module}", line {120 + len(fault.message)}, in handle\n'
            f"    raise {fault.exception}(...)\n"
            f"{fault.exception}: {fault.message}\n"
        )
        exception = {"exception.type": fault.exception, "exception.message": fault.message}
        span.events.append(("exception", at, {**exception, "exception.stacktrace": stack}))
        severity: Severity = "ERROR" if fault.http_status >= 500 else "WARN"
        text = f"{span.name} failed: {fault.exception}: {fault.message}"
        span.lines.append(
            PlannedLine(at, severity, text, {**exception, "shop.retryable": fault.grpc_status == 14})
        )

    def _respond(self, span: PlannedSpan, endpoint: Endpoint, fault: Fault | None) -> None:
        """Set the response status, and the span status according to the semantic conventions."""
        if endpoint.protocol == "http":
            status = fault.http_status if fault else 200 if endpoint.method == "GET" else 201
            span.attributes["http.response.status_code"] = status
            if status >= 500 and fault:
                span.fail(str(status), fault.message)
            if endpoint.service == "gateway":
                span.lines.append(self._access_line(span, status))
        elif endpoint.protocol == "grpc":
            code = fault.grpc_status if fault else 0
            span.attributes["rpc.grpc.status_code"] = code
            if fault and code in _GRPC_SERVER_ERRORS:
                span.fail(fault.exception, fault.message)
        elif fault:
            span.fail(fault.exception, fault.message)
            if endpoint.protocol == "consumer":
                text = f"message on {endpoint.name} moved to the dead letter queue: {fault.message}"
                span.lines.append(
                    PlannedLine(span.end, "FATAL", text, {"messaging.destination.name": "dead"})
                )

    def _access_line(self, span: PlannedSpan, status: int) -> PlannedLine:
        method, path = span.attributes["http.request.method"], span.attributes["url.path"]
        milliseconds = round((span.end - span.start) * 1e3, 2)
        attributes = {
            "http.response.status_code": status,
            "http.response.body.size": self._random.randint(180, 48_000),
            "duration_ms": milliseconds,
            "user.id": self._facts["user_id"],
        }
        text = f"{method} {path} {status} in {milliseconds} ms"
        return PlannedLine(span.end, "INFO", text, attributes, event="http.access")

    def _line(self, line: LogLine, at: float) -> PlannedLine:
        attributes = {f"shop.{name}": self._facts[name] for name in line.facts}
        text = line.text.format_map(self._facts)
        return PlannedLine(at, line.severity, text, attributes, line.event, line.structured)

    def _take(self, span: PlannedSpan, step: Step, at: float) -> tuple[float, Fault | None]:
        """Add the spans of a step as children. Returns its end time and a fault that stops the caller."""
        match step:
            case Work():
                return self._work(span, step, at), None
            case DatabaseQuery():
                return self._query(span, step, at)
            case Cached():
                return self._cached(span, step, at)
            case Call():
                return self._call(span, step, at)
            case External():
                return self._external(span, step, at)
            case Publish():
                return self._publish(span, step, at), None
            case Parallel():
                done = [self._take(span, one, at + i * 5e-5) for i, one in enumerate(step.steps)]
                return max(end for end, _ in done), next((fault for _, fault in done if fault), None)

    def _child(
        self, span: PlannedSpan, scope: str, name: str, kind: SpanKind, at: float, attributes: dict[str, Any]
    ) -> PlannedSpan:
        child = PlannedSpan(span.service, span.instance, scope, name, kind, at, at, attributes)
        span.children.append(child)
        return child

    def _work(self, span: PlannedSpan, step: Work, at: float) -> float:
        child = self._child(span, _APPLICATION, step.name, SpanKind.INTERNAL, at, {})
        child.end = at + lognormal(self._random, step.milliseconds / 1e3, step.sigma)
        return child.end

    def _query(self, span: PlannedSpan, step: DatabaseQuery, at: float) -> tuple[float, Fault | None]:
        store = STORES[step.store]
        child = self._child(
            span,
            _STORE_SCOPES[store.system],
            f"{step.operation} {step.target}",
            SpanKind.CLIENT,
            at,
            {
                "db.system.name": store.system,
                "db.namespace": store.namespace,
                "db.collection.name": step.target,
                "db.operation.name": step.operation,
                "db.query.summary": f"{step.operation} {step.target}",
                "db.query.text": step.text,
                "server.address": store.address,
                "server.port": store.port,
            },
        )
        seconds = lognormal(self._random, step.milliseconds / 1e3, step.sigma)
        if self._incident == "slow" and step.store == SLOW_STORE:
            seconds += lognormal(self._random, _SLOW_MEDIAN_SECONDS, _SLOW_SIGMA)
        child.end = at + min(seconds, store.timeout_seconds)
        if seconds <= store.timeout_seconds:
            return child.end, None
        fault = Fault(store.timeout_error, f"{step.operation} on {step.target} timed out", 504, 4)
        self._raise(child, fault, child.end)
        child.fail(fault.exception, fault.message)
        return child.end, fault

    def _cached(self, span: PlannedSpan, step: Cached, at: float) -> tuple[float, Fault | None]:
        cursor, fault = self._query(
            span, DatabaseQuery("cache", "GET", step.key.split(":")[0], "GET ?", 0.5), at
        )
        hit = self._random.random() < step.hit_chance
        looked_up = span.children[-1]
        looked_up.attributes["shop.cache.hit"] = hit
        looked_up.events.append(("cache.hit" if hit else "cache.miss", cursor, {"key": step.key}))
        for miss in () if hit else step.miss:
            if fault is None:
                cursor, fault = self._take(span, miss, cursor)
        return cursor, fault

    def _call(self, span: PlannedSpan, step: Call, at: float) -> tuple[float, Fault | None]:
        endpoint, fault = ENDPOINTS[step.endpoint], None
        for attempt in range(step.retries + 1):
            at, fault = self._call_once(span, endpoint, at, attempt)
            if fault is None or fault.http_status < 500:
                break
        if fault is not None and not step.required:
            span.events.append(("degraded", at, {"service": endpoint.service}))
            text = f"degraded response without {endpoint.service}: {fault.message}"
            span.lines.append(PlannedLine(at, "WARN", text, {"peer.service": endpoint.service}))
            return at, None
        if fault is not None and fault.http_status >= 500:
            text = f"call to {endpoint.service} failed: {fault.exception}: {fault.message}"
            attributes = {"peer.service": endpoint.service, "shop.attempts": step.retries + 1}
            span.lines.append(PlannedLine(at, "ERROR", text, attributes))
        return at, fault

    def _call_once(
        self, span: PlannedSpan, endpoint: Endpoint, at: float, attempt: int
    ) -> tuple[float, Fault | None]:
        service = SERVICES[endpoint.service]
        address = f"{service.name}.shop.svc.cluster.local"
        server = {"server.address": address, "server.port": service.port, "peer.service": service.name}
        if endpoint.protocol == "http":
            path = endpoint.name.format_map(self._facts)
            url = f"http://{address}:{service.port}{path}"
            attributes = {"http.request.method": endpoint.method, "url.full": url, **server}
            client = self._child(span, _HTTP_CLIENT, endpoint.method, SpanKind.CLIENT, at, attributes)
        else:
            client = self._child(
                span, _GRPC, endpoint.name, SpanKind.CLIENT, at, {**_rpc(endpoint), **server}
            )
        if attempt:
            client.attributes["http.request.resend_count"] = attempt
        served, fault = self.serve(endpoint, at + lognormal(self._random, 3e-4, 0.5))
        client.children.append(served)
        client.end = served.end + lognormal(self._random, 3e-4, 0.5)
        if endpoint.protocol == "http":
            client.attributes["http.response.status_code"] = served.attributes["http.response.status_code"]
            error_type = str(served.attributes["http.response.status_code"])
        else:
            client.attributes["rpc.grpc.status_code"] = served.attributes["rpc.grpc.status_code"]
            error_type = fault.exception if fault else ""
        if fault is not None:
            client.fail(error_type, fault.message)
        return client.end, fault

    def _external(self, span: PlannedSpan, step: External, at: float) -> tuple[float, Fault | None]:
        attributes: dict[str, Any] = {
            "http.request.method": step.method,
            "url.full": f"https://{step.host}{step.path}",
            "server.address": step.host,
            "server.port": 443,
            "network.protocol.version": "2",
        }
        child = self._child(span, _HTTP_CLIENT, step.method, SpanKind.CLIENT, at, attributes)
        seconds = lognormal(self._random, step.milliseconds / 1e3, step.sigma)
        child.end = at + min(seconds, step.timeout_seconds)
        fault = None
        if seconds > step.timeout_seconds:
            fault = Fault("httpx.ReadTimeout", f"{step.host} did not respond in time", 504, 4)
        elif self._random.random() < 0.003:
            fault = Fault("UpstreamError", f"{step.host} returned 503", 502, 14)
            attributes["http.response.status_code"] = 503
        else:
            attributes["http.response.status_code"] = 200
        if fault is not None:
            self._raise(child, fault, child.end)
            child.fail(fault.exception, fault.message)
        return child.end, fault

    def _publish(self, span: PlannedSpan, step: Publish, at: float) -> float:
        attributes = {
            **self._message(step.topic),
            "messaging.operation.type": "send",
            "messaging.operation.name": "produce",
        }
        producer = self._child(span, _KAFKA, f"send {step.topic}", SpanKind.PRODUCER, at, attributes)
        producer.end = at + lognormal(self._random, 3e-3, 0.5)
        for key in step.consumers:
            waited = lognormal(self._random, 0.06, 0.8)
            consumer, _ = self.serve(ENDPOINTS[key], producer.end + waited)
            consumer.asynchronous = True
            producer.children.append(consumer)
        return producer.end


def _rpc(endpoint: Endpoint) -> dict[str, Any]:
    service, method = endpoint.name.split("/")
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}


def _propagated(fault: Fault) -> Fault:
    """Return the fault as the caller reports it: timeouts and 4xx stay, other errors become 502."""
    if fault.http_status < 500 or fault.http_status == 504:
        return fault
    return Fault(fault.exception, fault.message, 502, fault.grpc_status)
