"""Adds security headers, metrics and traces to every response, and hides the details of unexpected errors."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frazil import telemetry
from frazil.serve.errors import DEFECT
from frazil.serve.state import Lifecycle

_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_DEFAULTS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Headers of responses that do not set them."""
_TRACED = ("/api/", "/iceberg/")

log = structlog.get_logger("frazil.serve")


class ResponseMiddleware:
    def __init__(self, app: ASGIApp, registry: CollectorRegistry, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle
        self._requests = Counter(
            "frazil_api_requests",
            "Finished HTTP requests of the API, by route and status.",
            ["route", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "frazil_api_request_seconds",
            "Time from the headers of an API request to the last byte of its response.",
            ["route"],
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        def begin(code: int) -> None:
            nonlocal status
            status = code

        self._lifecycle.requests += 1
        try:
            with _traced(scope) as span:
                await self._respond(scope, receive, _with_headers(send, begin), lambda: status)
                _describe(span, scope, status)
        finally:
            self._lifecycle.requests -= 1
            self._requests.labels(_route(scope), str(status)).inc()
            self._seconds.labels(_route(scope)).observe(time.perf_counter() - started)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, status: Callable[[], int]) -> None:
        try:
            await self._app(scope, receive, send)
        except Exception:
            log.exception("request failed with an internal error", route=_route(scope))
            if status() == 0:
                await DEFECT.response()(scope, receive, send)
            # Otherwise the body stays incomplete, and the server closes the connection.


def _traced(scope: Scope) -> telemetry.Span:
    """Start a span for requests to the API and the Iceberg catalog; not for health checks and scrapes."""
    if not scope["path"].startswith(_TRACED):
        return telemetry.NOTHING
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return telemetry.server_span(scope["method"], headers, **{"http.request.method": scope["method"]})


def _describe(span: telemetry.Span, scope: Scope, status: int) -> None:
    """Set the route, which is known only after the request was routed, and the status."""
    route = _route(scope)
    span.rename(f"{scope['method']} {route}")
    span.set(**{"http.route": route})
    span.set(**{"http.response.status_code": status})
    if status >= 500:
        span.fail(str(status))


def _with_headers(send: Send, begin: Callable[[int], None]) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            begin(message["status"])
            headers = list(message.get("headers", ()))
            names = {name.lower() for name, _ in headers}
            headers += _HEADERS
            headers += [default for default in _DEFAULTS if default[0] not in names]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def _route(scope: Scope) -> str:
    """Return the declared path: paths as sent would make the metric's cardinality unbounded."""
    return str(getattr(scope.get("route"), "path", "none"))
