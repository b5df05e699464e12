"""The steps that HTTP and gRPC share: authenticate, check limits, decompress, make durable."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Forbidden, FrazilError, RequestTooLarge
from frazil.keys import KeyRing, given_key
from frazil.otlp.json import request_from_json, request_to_json
from frazil.otlp.shape import REPEATED_BYTES_MAX, Shape, ShapeLimits, shape_of
from frazil.otlp.wire import RESPONSES
from frazil.receive.admission import Admission, FairSlots, RateLimits, Ticket
from frazil.receive.body import decompress
from frazil.receive.metrics import ReceiverMetrics
from frazil.receive.status import JSON
from frazil.tables import Signal
from frazil.wal.group import Receipt
from frazil.wal.journal import Journal

THREAD_BYTES = 64 * 1024
"""Larger bodies are decompressed and converted in a thread instead of the event loop."""
_INFLATED_BYTES = 1 << 20
"""The same limit for the size after decompression."""
_OBJECTS = 2_000
"""The same limit for the number of JSON objects and arrays."""
_COUNTED_BYTES, _COUNTED_GROUPS = 1 << 19, 2_000
"""Requests up to this are counted in the event loop, in a few milliseconds."""
_THREADS_MAX = 2
"""Threads that decompress and count, for all tenants together; one per tenant."""
_WAITING_MAX = 256


@dataclass(frozen=True)
class Intake:
    """Receives requests in one worker, for both transports."""

    config: Config
    journal: Journal
    metrics: ReceiverMetrics
    admission: Admission
    keys: KeyRing
    rates: RateLimits
    _threads: FairSlots = field(
        default_factory=lambda: FairSlots(_THREADS_MAX, per_tenant=1, waiting_max=_WAITING_MAX)
    )
    _large_json: FairSlots = field(
        default_factory=lambda: FairSlots(1, per_tenant=1, waiting_max=_WAITING_MAX)
    )
    """One at a time, because parsing needs many times the body's memory."""

    @classmethod
    def of(cls, config: Config, journal: Journal, metrics: ReceiverMetrics) -> Intake:
        return cls(
            config,
            journal,
            metrics,
            Admission(config.receive.limits, tenants_share=has_several_tenants(config)),
            KeyRing(config.auth.keys),
            RateLimits(config.tenants.rate_limits),
        )

    def tenant(self, authorization: str | None, api_key: str | None) -> str:
        """Returns the tenant of the API key. Raises Unauthenticated, Forbidden or Overloaded (rate limit)."""
        if not self.keys:
            tenant = self.config.tenants.default
        else:
            key = self.keys.identify(given_key(authorization, api_key))
            if "write" not in key.roles:
                raise Forbidden(
                    f"the API key {key.name} lacks the role `write`: "
                    "add the role in auth.keys, or use another key"
                )
            tenant = key.tenant
        self.rates.check(tenant)
        return tenant

    def check_durable(self) -> None:
        """Raises the journal's failure, to refuse requests before they are read."""
        if (failure := self.journal.failure) is not None:
            raise failure.again()

    def bytes_max(self, content_type: str) -> int:
        limits = self.config.receive.limits
        return (
            min(limits.json_request_bytes_max, limits.request_bytes_max)
            if content_type == JSON
            else limits.request_bytes_max
        )

    async def decompress(
        self, body: bytes, encoding: str | None, content_type: str, ticket: Ticket, tenant: str
    ) -> bytes:
        """Decompresses the body within the limits, and resizes the ticket."""
        if encoding is None:
            return body
        bound = self.bytes_max(content_type)
        if len(body) <= THREAD_BYTES:
            try:
                return decompress(
                    body,
                    encoding,
                    min(bound, _INFLATED_BYTES),
                    lambda total: ticket.resize(max(len(body), total)),
                )
            except RequestTooLarge:
                if bound <= _INFLATED_BYTES:
                    raise
        loop = asyncio.get_running_loop()

        def grow(total: int) -> None:
            asyncio.run_coroutine_threadsafe(_call(ticket, max(len(body), total)), loop).result()

        async with self._threads.slot(tenant):
            return await asyncio.to_thread(decompress, body, encoding, bound, grow)

    async def protobuf(self, signal: Signal, body: bytes, content_type: str, tenant: str) -> bytes:
        """Converts the request to protobuf. Invalid JSON counts towards the tenant's rate limit."""
        if content_type != JSON:
            return body
        depth_max = self.config.receive.limits.nesting_depth_max
        try:
            objects = self._json_objects(body)
            if len(body) <= THREAD_BYTES and objects <= _OBJECTS:
                return request_from_json(signal, body, depth_max=depth_max)
            async with self._large_json.slot(tenant):
                return await asyncio.to_thread(request_from_json, signal, body, depth_max=depth_max)
        except FrazilError:
            self.rates.spend(tenant, len(body))
            raise

    def _json_objects(self, body: bytes) -> int:
        """Returns an upper bound on the objects and arrays in the body. Raises RequestTooLarge."""
        objects = body.count(b"{") + body.count(b"[")
        if objects > (bound := self.config.receive.limits.json_objects_max):
            raise _too_many(bound, "JSON objects and arrays", "json_objects_max")
        return objects

    async def _shape(self, body: bytes, tenant: str) -> Shape | None:
        """Counts the request's resources and records. Raises RequestTooLarge if they exceed the limits."""
        limits = self.config.receive.limits
        groups_max, records_max = limits.resources_per_request_max, limits.records_per_request_max
        shape = None
        if is_small := len(body) <= _COUNTED_BYTES:
            shape = shape_of(body, ShapeLimits(min(groups_max, _COUNTED_GROUPS), records_max))
        if not is_small or (shape is not None and _COUNTED_GROUPS < shape.groups <= groups_max):
            async with self._threads.slot(tenant):
                shape = await asyncio.to_thread(shape_of, body, ShapeLimits(groups_max, records_max))
        if shape is None:
            return None  # malformed: decoding will report the error
        if shape.groups > groups_max:
            raise _too_many(groups_max, "resources and scopes", "resources_per_request_max")
        if shape.records > records_max:
            raise _too_many(records_max, "records", "records_per_request_max")
        if shape.repeated_bytes > REPEATED_BYTES_MAX:
            raise RequestTooLarge(
                "too many records share too large a resource or scope; send smaller batches", bytes_max=0
            )
        return shape

    async def accept(
        self, signal: Signal, body: bytes, tenant: str, transport: str, arrived: float
    ) -> Receipt:
        """Returns when the request is durable. `arrived` is the `perf_counter` of its complete arrival."""
        self.rates.spend(tenant, len(body))
        telemetry.note(tenant=tenant)
        received_unix_nano = time.time_ns()
        shape = await self._shape(body, tenant)
        records = 0 if shape is None else shape.records
        receipt = await self.journal.append(signal, body, tenant, received_unix_nano, records)
        self.metrics.accepted(
            signal, transport, receipt.accepted, receipt.rejected, len(body), time.perf_counter() - arrived
        )
        telemetry.note(
            records=receipt.accepted,
            rejected=receipt.rejected,
            bytes=len(body),
            outcome="partial" if receipt.rejected else "ok",
        )
        return receipt


def _too_many(bound: int, items: str, limit: str) -> RequestTooLarge:
    message = f"the request has more than {bound} {items} (receive.limits.{limit}); send smaller batches"
    return RequestTooLarge(message, bytes_max=0)


def has_several_tenants(config: Config) -> bool:
    """Returns whether API keys of more than one tenant have the role write."""
    return len({key.tenant for key in config.auth.keys if "write" in key.roles}) > 1


async def _call(ticket: Ticket, total: int) -> None:
    ticket.resize(total)


_REJECTED_FIELD: dict[Signal, str] = {
    "logs": "rejected_log_records",
    "spans": "rejected_spans",
    "metrics": "rejected_data_points",
}


def response(signal: Signal, receipt: Receipt, content_type: str) -> bytes:
    """Returns an empty response, or `partial_success` if records were rejected."""
    if not receipt.rejected:
        return b"{}" if content_type == JSON else b""
    message = RESPONSES[signal]()
    partial = message.partial_success  # type: ignore[attr-defined]
    setattr(partial, _REJECTED_FIELD[signal], receipt.rejected)
    partial.error_message = receipt.reason
    return request_to_json(message) if content_type == JSON else message.SerializeToString()
