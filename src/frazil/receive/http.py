"""OTLP over HTTP: an ASGI application without a framework, to control how each body is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from frazil import health, telemetry
from frazil.config import HttpConfig
from frazil.dependencies import Checked, reachable_check
from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.receive.admission import Admission, Ticket
from frazil.receive.body import ENCODINGS
from frazil.receive.intake import Intake, response
from frazil.receive.status import (
    DISCONNECTED,
    JSON,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PROTOBUF,
    TIMED_OUT,
    UNSUPPORTED_ENCODING,
    UNSUPPORTED_TYPE,
    Refusal,
    refusal,
)
from frazil.tables import Signal

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_BODY_TIMEOUTS_MAX = 10
"""The whole body may take this many times `body_timeout_seconds`, the limit between two pieces."""
_FAIR_BYTES_PER_SECOND = 256 * 1024
_DRAIN_SECONDS = 10.0

log = structlog.get_logger("frazil.receive")


class _Refused(Exception):
    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class _Disconnected(Exception):
    """The client closed the connection, or broke the framing of its body; granian reports both the same."""


class HttpApp:
    """Serves OTLP requests, health checks, status and metrics."""

    def __init__(self, intake: Intake) -> None:
        config = intake.config.receive.http
        self._intake = intake
        self._config = config
        self._bytes_max = intake.config.receive.limits.request_bytes_max
        self._signals: dict[str, Signal] = {
            config.logs_path: "logs",
            config.traces_path: "spans",
            config.metrics_path: "metrics",
        }
        self.stopping = False
        # Without traffic, only this check detects that the store is unreachable.
        check = reachable_check(intake.config)
        self._store = None if check is None else Checked(check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        signal = self._signals.get(path)
        if signal is None:
            await self._other(path, method, _headers(scope), send)
        elif method == "POST":
            headers = _headers(scope)
            with telemetry.server_span("receive", headers, signal=signal, transport="http"):
                await self._post(signal, headers, receive, send)
        elif method == "OPTIONS":
            await self._preflight(_headers(scope), send)
        else:
            headers = _headers(scope)
            self._intake.metrics.refused(signal, "http", METHOD_NOT_ALLOWED.reason)
            await self._refuse(METHOD_NOT_ALLOWED, headers, send, [(b"allow", b"POST, OPTIONS")])

    async def _post(self, signal: Signal, headers: dict[str, str], receive: Receive, send: Send) -> None:
        body = _Body(receive, self._config)
        try:
            content, content_type = await self._export(signal, headers, body)
        except _Disconnected:
            self._intake.metrics.refused(signal, "http", "disconnected")
            telemetry.refuse("disconnected")
            await self._refuse(DISCONNECTED, headers, send)  # without a response, granian would send 500
        except (_Refused, FrazilError) as error:
            refused = error.refusal if isinstance(error, _Refused) else refusal(error)
            await self._refused(signal, refused, body, headers, send)
        except Exception:
            log.exception("request failed unexpectedly", signal=signal, transport="http")
            await self._refused(signal, refusal(RuntimeError()), body, headers, send)
        else:
            await _send(send, 200, content, content_type, self._cors(headers))

    async def _refused(
        self, signal: Signal, refused: Refusal, body: _Body, headers: dict[str, str], send: Send
    ) -> None:
        self._intake.metrics.refused(signal, "http", refused.reason)
        telemetry.refuse(refused.reason)
        if refused is not TIMED_OUT:
            await body.drain(self._bytes_max)  # a client that is still sending does not read the response
        await self._refuse(refused, headers, send, () if body.ended else [(b"connection", b"close")])

    async def _export(self, signal: Signal, headers: dict[str, str], body: _Body) -> tuple[bytes, str]:
        content_type = _content_type(headers)
        if content_type is None:
            raise _Refused(UNSUPPORTED_TYPE)
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            encoding = ""
        elif encoding not in ENCODINGS:
            raise _Refused(UNSUPPORTED_ENCODING)
        if self.stopping:
            raise StoreUnavailable("the receiver is shutting down")
        intake = self._intake
        tenant = intake.tenant(headers.get("authorization"), headers.get("x-api-key"))
        intake.check_durable()
        bytes_max = intake.bytes_max(content_type)
        with await intake.admission.enter(_content_length(headers, bytes_max), tenant) as ticket:
            intake.metrics.in_flight(intake.admission.bytes)
            raw = await body.read(bytes_max, ticket, intake.admission)
            arrived = time.perf_counter()
            plain = await intake.decompress(raw, encoding or None, content_type, ticket, tenant)
            del raw
            ticket.resize(len(plain))
            request = await intake.protobuf(signal, plain, content_type, tenant)
            del plain
            receipt = await intake.accept(signal, request, tenant, "http", arrived)
        return response(signal, receipt, content_type), content_type

    async def _refuse(
        self, refused: Refusal, headers: dict[str, str], send: Send, extra: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        content_type = _content_type(headers) or JSON
        more = [*extra, *self._cors(headers)]
        if refused.retry_after_seconds is not None:
            more.append((b"retry-after", str(refused.retry_after_seconds).encode()))
        if refused.http == 401:
            more.append((b"www-authenticate", b"Bearer"))
        await _send(send, refused.http, refused.body(content_type), content_type, more)

    def _cors(self, headers: dict[str, str]) -> Headers:
        origin, allowed = headers.get("origin"), self._config.cors_origins
        if origin is None or not allowed or ("*" not in allowed and origin not in allowed):
            return []
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"origin")]

    async def _preflight(self, headers: dict[str, str], send: Send) -> None:
        cors = self._cors(headers)
        if cors:
            requested = headers.get("access-control-request-headers", "content-type")
            cors += [
                (b"access-control-allow-methods", b"POST"),
                (b"access-control-allow-headers", requested.encode("latin-1")),
                (b"access-control-max-age", b"7200"),
            ]
        await _send(send, 204, b"", None, cors)

    async def _other(self, path: str, method: str, headers: dict[str, str], send: Send) -> None:
        if method not in ("GET", "HEAD"):
            await self._refuse(NOT_FOUND, headers, send)
        elif path == "/metrics":
            text = await asyncio.to_thread(self._intake.metrics.exposition)
            await _send(send, 200, text, "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/status":
            report = await asyncio.to_thread(self._intake.metrics.status.report, await self._health())
            await _send(send, 200, report.model_dump_json().encode(), JSON)
        elif path in health.PATHS:
            found = health.Health("receiver") if path == "/livez" else await self._health()
            reply = found.response(path, headers.get("accept", ""))
            await _send(send, reply.status, reply.body, reply.content_type)
        else:
            await self._refuse(NOT_FOUND, headers, send)

    async def _health(self) -> health.Health:
        problem = await self._problem()
        return health.Health("receiver", failing={"receiver": problem} if problem else {})

    async def _problem(self) -> str:
        """Returns why data cannot be made durable, or an empty string."""
        if self.stopping:
            return "shutting down"
        if (failure := self._intake.journal.failure) is not None or self._store is None:
            return str(failure or "")
        return await asyncio.to_thread(self._store.problem)


class _SpeedCheck:
    """Checks every second whether a body arrives too slowly. Costs little for a body that arrives at once."""

    def __init__(self, admission: Admission, wait_seconds: float, now: float) -> None:
        self._admission = admission
        self._wait_seconds = wait_seconds
        self._begin = self._last = now
        self.total = 0

    def received(self, size: int) -> None:
        self.total += size
        self._last = asyncio.get_running_loop().time()

    @contextmanager
    def running(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Makes `scope` time out when the body is too slow."""
        loop = asyncio.get_running_loop()
        interval = min(1.0, self._wait_seconds / 2)
        timers: list[asyncio.TimerHandle] = []

        def check() -> None:
            if self._is_too_slow(loop.time()):
                scope.reschedule(loop.time())
            else:
                timers[:] = [loop.call_later(interval, check)]

        timers.append(loop.call_later(interval, check))
        try:
            yield
        finally:
            timers[0].cancel()

    def _is_too_slow(self, now: float) -> bool:
        if now - self._last >= self._wait_seconds:
            return True
        return self._admission.is_contested and self.total < (now - self._begin) * _FAIR_BYTES_PER_SECOND


class _Body:
    """The request's body as it arrives, with limits on its size, on each wait and on the total time."""

    def __init__(self, receive: Receive, config: HttpConfig) -> None:
        self._receive = receive
        self._wait_seconds = config.body_timeout_seconds
        self._ended = False

    @property
    def ended(self) -> bool:
        return self._ended

    async def read(self, bytes_max: int, ticket: Ticket, admission: Admission) -> bytes:
        """Returns the whole body. Its Content-Length is reserved, so slow senders fail while others wait."""
        loop = asyncio.get_running_loop()
        speed = _SpeedCheck(admission, self._wait_seconds, loop.time())
        pieces: list[bytes] = []
        try:
            async with asyncio.timeout(self._wait_seconds * _BODY_TIMEOUTS_MAX) as scope:
                with speed.running(scope):
                    while not self._ended:
                        piece = await self._next()
                        pieces.append(piece)
                        speed.received(len(piece))
                        if speed.total > bytes_max:
                            raise _too_large(bytes_max)
                        if speed.total > ticket.size:
                            ticket.resize(speed.total)
        except TimeoutError:
            raise _Refused(TIMED_OUT) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._ended = True
            raise _Disconnected
        self._ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def drain(self, bytes_max: int) -> None:
        """Reads and discards the rest of the body, within limits."""
        seen = 0
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                while not self._ended and seen <= bytes_max:
                    seen += len(await self._next())
        except (TimeoutError, _Disconnected):
            return


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _content_type(headers: dict[str, str]) -> str | None:
    """Returns None for an unsupported type. Ignores parameters and case."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    return given if given in (PROTOBUF, JSON) else None


def _content_length(headers: dict[str, str], bytes_max: int) -> int:
    try:
        length = int(headers.get("content-length", "0"))
    except ValueError:
        raise RequestInvalid("the content length is not a number") from None
    if length > bytes_max:
        raise _too_large(bytes_max)
    return length


def _too_large(bytes_max: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the request is larger than {bytes_max} bytes; send smaller batches", bytes_max=bytes_max
    )


async def _send(
    send: Send, status: int, body: bytes, content_type: str | None, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-length", str(len(body)).encode()), *extra]
    if content_type is not None:
        headers.append((b"content-type", content_type.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
