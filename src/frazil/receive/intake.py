"""What both transports do with a request once its bytes are here: who sent it, may it come in, make it
durable.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Forbidden
from frazil.keys import KeyRing
from frazil.otlp.json import request_from_json, request_to_json
from frazil.otlp.wire import RESPONSES
from frazil.receive.admission import Admission, RateLimits, Ticket
from frazil.receive.body import decompressed
from frazil.receive.metrics import ReceiverMetrics
from frazil.receive.status import JSON
from frazil.tables import Signal
from frazil.wal.group import Receipt
from frazil.wal.journal import Journal

if TYPE_CHECKING:
    from frazil.wal.kafka.journal import KafkaJournal

THREAD_BYTES = 64 * 1024
"""Bodies over this are decompressed and translated beside the event loop, not in it."""


@dataclass(frozen=True)
class Intake:
    config: Config
    journal: Journal | KafkaJournal
    metrics: ReceiverMetrics
    admission: Admission
    keys: KeyRing
    rates: RateLimits
    _one_large_json: asyncio.Lock = field(default_factory=asyncio.Lock)

    @classmethod
    def of(cls, config: Config, journal: Journal | KafkaJournal, metrics: ReceiverMetrics) -> Intake:
        return cls(
            config,
            journal,
            metrics,
            Admission(config.receive.limits),
            KeyRing(config.auth.keys),
            RateLimits(config.tenants.rate_limits),
        )

    def tenant(self, authorization: str | None, api_key: str | None) -> str:
        """From the authenticated identity alone; raises Unauthenticated, Forbidden or Overloaded (rate)."""
        if not self.keys:
            tenant = self.config.tenants.default
        else:
            scheme, _, token = (authorization or "").partition(" ")
            key = self.keys.identify(token.strip() if scheme.lower() == "bearer" else api_key)
            if "write" not in key.roles:
                raise Forbidden(f"the API key {key.name} may not write")
            tenant = key.tenant
        self.rates.check(tenant)
        return tenant

    def check_durable(self) -> None:
        """Refuses early while nothing can be made durable."""
        if (failure := self.journal.failure) is not None:
            raise failure.again()

    def bytes_max(self, content_type: str) -> int:
        limits = self.config.receive.limits
        return (
            min(limits.json_request_bytes_max, limits.request_bytes_max)
            if content_type == JSON
            else limits.request_bytes_max
        )

    async def plain(self, body: bytes, encoding: str | None, content_type: str, ticket: Ticket) -> bytes:
        """The body, decompressed within the limits. The ticket grows with it."""
        if encoding is None:
            return body
        bound = self.bytes_max(content_type)
        if len(body) <= THREAD_BYTES:
            return decompressed(body, encoding, bound, lambda total: ticket.resize(max(len(body), total)))
        loop = asyncio.get_running_loop()

        def grow(total: int) -> None:
            asyncio.run_coroutine_threadsafe(_call(ticket, max(len(body), total)), loop).result()

        return await asyncio.to_thread(decompressed, body, encoding, bound, grow)

    async def protobuf(self, signal: Signal, body: bytes, content_type: str) -> bytes:
        if content_type != JSON:
            return body
        depth_max = self.config.receive.limits.nesting_depth_max
        if len(body) <= THREAD_BYTES:
            return request_from_json(signal, body, depth_max=depth_max)
        async with self._one_large_json:
            return await asyncio.to_thread(request_from_json, signal, body, depth_max=depth_max)

    async def accept(
        self, signal: Signal, body: bytes, tenant: str, transport: str, arrived: float
    ) -> Receipt:
        """Returns when the request is durable. `arrived` is when it was here as a whole (`perf_counter`)."""
        self.rates.spend(tenant, len(body))
        telemetry.note(tenant=tenant)
        receipt = await self.journal.append(signal, body, tenant, time.time_ns())
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


async def _call(ticket: Ticket, total: int) -> None:
    ticket.resize(total)


_REJECTED_FIELD: dict[Signal, str] = {
    "logs": "rejected_log_records",
    "spans": "rejected_spans",
    "metrics": "rejected_data_points",
}


def response(signal: Signal, receipt: Receipt, content_type: str) -> bytes:
    """Empty for full success; `partial_success` where records were rejected."""
    if not receipt.rejected:
        return b"{}" if content_type == JSON else b""
    message = RESPONSES[signal]()
    partial = message.partial_success  # type: ignore[attr-defined]
    setattr(partial, _REJECTED_FIELD[signal], receipt.rejected)
    partial.error_message = receipt.reason
    return request_to_json(message) if content_type == JSON else message.SerializeToString()
