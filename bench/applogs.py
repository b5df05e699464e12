"""OTLP requests with logs as applications write them, for what depends on how alike records are: sizes.

A shop of 40 pods. A request is what an SDK sends at a time: 512 records of one pod, below the loggers that
wrote them, with 15 resource attributes. Texts are of 40 kinds with values in them, which are attributes too;
users and products come up as often as some do, order ids and keys are random, one line in a hundred has a
stack trace. Lines of one request of the shop share a trace id and come one after the other; what runs in the
background has none, nor have two services of seven that are not traced: two records of three have one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

Ids = Literal["traces", "all"]
"""`traces`: as above. `all`: a trace id and a span id of its own on every record, the worst that can be."""
RECORDS_PER_REQUEST = 512
PODS = 40
_USERS, _PRODUCTS = 50_000, 2_000
_SEVERITIES = {"DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17}
_TRACE_LINES_MAX = 6
_UNTRACED = ("search", "catalog")
Value = str | int | float


@dataclass(frozen=True)
class _Line:
    weight: int
    severity: str
    logger: str
    text: str
    attributes: tuple[str, ...] = ()
    in_trace: bool = True


def _often(rng: random.Random, count: int) -> int:
    """Some come up far more often than others."""
    return int(count * rng.random() ** 3)


_DRAWN: dict[str, tuple[str, Callable[[random.Random], Value]]] = {
    "user": ("user.id", lambda rng: f"u-{100_000 + _often(rng, _USERS)}"),
    "session": ("session.id", lambda rng: f"{rng.getrandbits(64):016x}"),
    "order": ("shop.order.id", lambda rng: f"o-{rng.getrandbits(40):010x}"),
    "product": ("shop.product.id", lambda rng: f"SKU-{10_000 + _often(rng, _PRODUCTS)}"),
    "quantity": ("shop.quantity", lambda rng: rng.choice((1, 1, 1, 2, 3))),
    "total": ("shop.order.total", lambda rng: round(rng.lognormvariate(4, 0.8), 2)),
    "currency": ("shop.currency", lambda rng: rng.choice(("EUR", "EUR", "EUR", "USD", "GBP"))),
    "method": ("http.request.method", lambda rng: rng.choice(("GET", "GET", "GET", "POST", "PUT"))),
    "route": ("http.route", lambda rng: rng.choice(_ROUTES)),
    "status": ("http.response.status_code", lambda rng: rng.choice(_STATUSES)),
    "size": ("http.response.body.size", lambda rng: int(rng.lognormvariate(8, 1))),
    "address": ("client.address", lambda rng: f"203.0.{_often(rng, 256)}.{rng.randrange(256)}"),
    "agent": ("user_agent.original", lambda rng: rng.choice(_AGENTS)),
    "ms": ("shop.duration_ms", lambda rng: round(rng.lognormvariate(3, 0.9), 1)),
    "table": ("db.collection.name", lambda rng: rng.choice(("orders", "stock", "users", "carts"))),
    "rows": ("db.response.returned_rows", lambda rng: _often(rng, 500)),
    "key": ("shop.cache.key", lambda rng: f"product:{10_000 + _often(rng, _PRODUCTS)}"),
    "topic": ("messaging.destination.name", lambda rng: rng.choice(("orders", "shipments", "mails"))),
    "partition": ("messaging.destination.partition.id", lambda rng: str(rng.randrange(12))),
    "offset": ("messaging.kafka.offset", lambda rng: 40_000_000 + rng.randrange(2_000_000)),
    "attempt": ("shop.attempt", lambda rng: rng.choice((1, 1, 1, 2, 3))),
    "peer": ("server.address", lambda rng: rng.choice(("db-0.shop", "db-1.shop", "cache.shop"))),
    "count": ("shop.count", lambda rng: _often(rng, 5000)),
    "percent": ("shop.percent", lambda rng: round(rng.uniform(20, 95), 1)),
    "term": ("shop.search.term", lambda rng: " ".join(rng.choices(_TERMS, k=rng.choice((1, 2, 2, 3))))),
    "carrier": ("shop.carrier", lambda rng: rng.choice(("dhl", "ups", "colissimo", "royal-mail"))),
    "error": ("exception.type", lambda rng: rng.choice(_ERRORS)),
    "stack": ("exception.stacktrace", lambda rng: _stack(rng)),
}
_ROUTES = (
    "/api/cart",
    "/api/cart/{id}",
    "/api/checkout",
    "/api/products",
    "/api/products/{id}",
    "/api/search",
    "/api/session",
    "/healthz",
)
_STATUSES = (200,) * 14 + (201, 204, 304, 400, 404, 500)
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 Mobile Safari/604.1",
    "ShopApp/7.3.1 (Android 15; Pixel 8)",
    "kube-probe/1.33",
)
_TERMS = ("rain", "jacket", "tent", "wool", "socks", "stove", "merino", "torch", "carbon", "poles", "shoes")
_ERRORS = ("TimeoutError", "ConnectionResetError", "PoolTimeout", "KeyError", "CardDeclined", "OutOfStock")
_FRAMES = (
    ("shop/http/server.py", "handle"),
    ("shop/http/route.py", "dispatch"),
    ("shop/orders/place.py", "place_order"),
    ("shop/orders/store.py", "insert"),
    ("shop/payment/client.py", "charge"),
    ("shop/db/pool.py", "acquire"),
    ("shop/db/cursor.py", "execute"),
    ("shop/cache/client.py", "get_many"),
)


def _stack(rng: random.Random) -> str:
    """Few places fail, each in a few ways."""
    place = random.Random(rng.randrange(30))
    frames = (
        f'  File "/app/{file}", line {place.randrange(20, 400)}, in {name}'
        for file, name in place.choices(_FRAMES, k=place.randrange(5, 11))
    )
    return "\n".join(("Traceback (most recent call last):", *frames))


_HTTP, _DB, _CACHE, _APP, _BUS, _RUNTIME = "http", "db", "cache", "app", "messaging", "runtime"
_EVERYWHERE = (
    _Line(
        26,
        "INFO",
        _HTTP,
        "{method} {route} {status} {size} {ms}ms",
        ("method", "route", "status", "size", "address", "agent", "ms"),
    ),
    _Line(6, "DEBUG", _HTTP, "request of {session} took {ms} ms", ("session", "ms")),
    _Line(5, "DEBUG", _DB, "query on {table} returned {rows} rows in {ms} ms", ("table", "rows", "ms")),
    _Line(2, "WARN", _DB, "slow query on {table}: {ms} ms, {rows} rows", ("table", "rows", "ms")),
    _Line(1, "ERROR", _DB, "connection to {peer} lost, attempt {attempt}", ("peer", "attempt", "error")),
    _Line(5, "DEBUG", _CACHE, "miss for {key}", ("key",)),
    _Line(1, "WARN", _CACHE, "{peer} answered after {ms} ms, reading around it", ("peer", "ms")),
    _Line(1, "ERROR", _APP, "request failed: {error}", ("error", "stack", "user")),
    _Line(2, "INFO", _RUNTIME, "gc gen2 paused {ms} ms, heap {percent} %", ("ms", "percent"), False),
    _Line(3, "DEBUG", _RUNTIME, "event loop lag {ms} ms", ("ms",), False),
    _Line(2, "INFO", _RUNTIME, "health check answered in {ms} ms", (), False),
    _Line(1, "WARN", _RUNTIME, "pool to {peer} at {percent} %", ("peer", "percent"), False),
)
_SERVICES: dict[str, tuple[_Line, ...]] = {
    "frontend": (
        _Line(12, "INFO", _APP, "rendered {route} for {user} in {ms} ms", ("user", "route", "ms")),
        _Line(2, "INFO", _APP, "{user} signed in from {address}", ("user", "session", "address")),
        _Line(1, "WARN", _APP, "rate limit for {address}: {count} requests", ("address", "count")),
    ),
    "cart": (
        _Line(10, "INFO", _APP, "{quantity} x {product} added for {user}", ("product", "quantity", "user")),
        _Line(3, "INFO", _APP, "cart of {user} emptied", ("user", "order")),
        _Line(1, "WARN", _APP, "{product} is no longer sold, dropped from {count} carts", ("product",)),
    ),
    "checkout": (
        _Line(
            8,
            "INFO",
            _APP,
            "order {order} placed by {user}: {quantity} items, {total} {currency}",
            ("order", "user", "quantity", "total", "currency"),
        ),
        _Line(4, "INFO", _BUS, "sent {order} to {topic}/{partition}", ("order", "topic", "partition")),
        _Line(1, "ERROR", _APP, "order {order} failed: {error}", ("order", "user", "error", "stack")),
    ),
    "payment": (
        _Line(8, "INFO", _APP, "charged {total} {currency} for {order}", ("order", "total", "currency")),
        _Line(2, "WARN", _APP, "card declined for {order}, attempt {attempt}", ("order", "attempt")),
        _Line(1, "ERROR", _APP, "payment timeout for {order} after {ms} ms", ("order", "ms", "error")),
        _Line(1, "INFO", _APP, "settled {count} payments", ("count",), False),
    ),
    "search": (
        _Line(10, "INFO", _APP, "search for '{term}' found {count} in {ms} ms", ("term", "count", "ms")),
        _Line(2, "WARN", _APP, "slow search for '{term}': {ms} ms", ("term", "ms")),
        _Line(1, "INFO", _APP, "index refreshed, {count} products changed", ("count",), False),
    ),
    "catalog": (
        _Line(8, "DEBUG", _APP, "product {product} looked up in {ms} ms", ("product", "ms")),
        _Line(2, "INFO", _APP, "price of {product} is now {total} {currency}", ("product", "total")),
        _Line(1, "WARN", _APP, "stock of {product} is low: {quantity}", ("product", "quantity")),
    ),
    "fulfilment": (
        _Line(8, "INFO", _BUS, "read {topic}/{partition}@{offset}", ("topic", "partition", "offset"), False),
        _Line(6, "INFO", _APP, "label for {order} at {carrier}", ("order", "carrier")),
        _Line(1, "WARN", _BUS, "{topic}/{partition} lags by {count}", ("topic", "partition", "count"), False),
    ),
}


class _Pod:
    """One of those that send. All that it says of itself stays the same."""

    def __init__(self, number: int) -> None:
        rng = random.Random(f"pod {number}")
        self.service = list(_SERVICES)[number % len(_SERVICES)]
        self.resource = {
            "service.name": self.service,
            "service.namespace": "shop",
            "service.version": f"4.{rng.randrange(3)}.{rng.randrange(8)}",
            "service.instance.id": f"{rng.getrandbits(128):032x}",
            "deployment.environment.name": "production",
            "host.name": f"node-{rng.randrange(12):02}.eu-central-1.compute.internal",
            "cloud.region": "eu-central-1",
            "k8s.cluster.name": "shop-eu",
            "k8s.namespace.name": "shop",
            "k8s.deployment.name": self.service,
            "k8s.pod.name": f"{self.service}-{rng.getrandbits(36):09x}-{rng.getrandbits(20):05x}",
            "k8s.container.name": self.service,
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": "1.44.0",
        }
        lines = (*_EVERYWHERE, *_SERVICES[self.service])
        self.in_trace = _weighted([line for line in lines if line.in_trace])
        self.background = _weighted([line for line in lines if not line.in_trace])
        self.background_share = sum(line.weight for line in lines if not line.in_trace) / sum(
            line.weight for line in lines
        )


def _weighted(lines: list[_Line]) -> tuple[list[_Line], list[int]]:
    return lines, list(itertools.accumulate(line.weight for line in lines))


_PODS_MADE: dict[int, _Pod] = {}


def app_logs_request(
    seed: int,
    records: int = RECORDS_PER_REQUEST,
    *,
    first_unix_nano: int,
    length_nanos: int,
    ids: Ids = "traces",
) -> bytes:
    """Of the pod whose turn it is, spread over that time, in order."""
    rng = random.Random(f"{seed} {ids}")
    pod = _PODS_MADE.setdefault(seed % PODS, _Pod(seed % PODS))
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    for key, value in pod.resource.items():
        resource_logs.resource.attributes.add(key=key).value.string_value = value
    resource_logs.schema_url = "https://opentelemetry.io/schemas/1.37.0"
    by_logger: dict[str, object] = {}
    moments = sorted(rng.randrange(length_nanos) for _ in range(records))
    for moment, (line, trace_id, span_id) in zip(moments, _lines(pod, rng, ids), strict=False):
        scope_logs = by_logger.get(line.logger)
        if scope_logs is None:
            scope_logs = by_logger[line.logger] = resource_logs.scope_logs.add()
            scope_logs.scope.name = f"shop.{pod.service}.{line.logger}"
        record = scope_logs.log_records.add()  # type: ignore[attr-defined]
        record.time_unix_nano = first_unix_nano + moment
        record.observed_time_unix_nano = record.time_unix_nano + rng.randrange(20_000, 90_000)
        _fill(record, line, rng)
        if trace_id:
            record.trace_id, record.span_id, record.flags = trace_id, span_id, 1
    return request.SerializeToString()


def _lines(pod: _Pod, rng: random.Random, ids: Ids) -> Iterator[tuple[_Line, bytes, bytes]]:
    """Without end: what background work says, and the lines of one request of the shop after the other."""
    while True:
        if rng.random() < pod.background_share:
            line = rng.choices(pod.background[0], cum_weights=pod.background[1])[0]
            yield line, *_own(rng, ids, b"", b"")
            continue
        trace_id, span_id = (b"", b"") if pod.service in _UNTRACED else (rng.randbytes(16), rng.randbytes(8))
        for line in rng.choices(
            pod.in_trace[0], cum_weights=pod.in_trace[1], k=rng.randrange(1, _TRACE_LINES_MAX)
        ):
            yield line, *_own(rng, ids, trace_id, span_id)


def _own(rng: random.Random, ids: Ids, trace_id: bytes, span_id: bytes) -> tuple[bytes, bytes]:
    return (rng.randbytes(16), rng.randbytes(8)) if ids == "all" else (trace_id, span_id)


_NAMES: dict[_Line, tuple[str, ...]] = {}


def _names(line: _Line) -> tuple[str, ...]:
    """All values that a line needs, in its text or as attributes."""
    if line not in _NAMES:
        in_text = [name for name in _DRAWN if f"{{{name}}}" in line.text]
        _NAMES[line] = tuple(dict.fromkeys((*line.attributes, *in_text)))
    return _NAMES[line]


def _fill(record: LogRecord, line: _Line, rng: random.Random) -> None:
    values = {name: _DRAWN[name][1](rng) for name in _names(line)}
    record.severity_number = _SEVERITIES[line.severity]
    record.severity_text = line.severity
    record.body.string_value = line.text.format_map(values)
    for name in line.attributes:
        value = values[name]
        into = record.attributes.add(key=_DRAWN[name][0]).value
        if isinstance(value, str):
            into.string_value = value
        elif isinstance(value, int):
            into.int_value = value
        else:
            into.double_value = value
