"""Authenticates gRPC calls and limits their memory before their messages are read.

gRPC reads a whole message before its handler runs, so a check in the handler is too late: eight clients with
60 MiB each would be in memory before the first is refused. An interceptor runs when only the headers have
been received. It lets a few calls read their messages at the same time; a slot is free again when the message
has been admitted to the budget, or refused. Slots are assigned to tenants in turn. If there are several
tenants, none has all slots, so that calls whose message does not arrive delay only their own tenant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import grpc
import grpc.aio

from frazil.errors import FrazilError, Overloaded
from frazil.receive.admission import FairSlots
from frazil.receive.intake import Intake, has_several_tenants
from frazil.receive.status import Refusal, refusal
from frazil.tables import Signal

_READING_MAX = 3
_WAITING_MAX = 256
"""Calls of one tenant that wait for a slot. More are refused at once."""
_READING_SECONDS_MAX = 2.0
"""A call holds its slot at most this long while its message arrives: the client may be gone."""
_CONTESTED_SECONDS = 0.4
"""The same limit while other calls wait: a slow client must not block them."""

Abort = Callable[[Any, Signal, Refusal], Awaitable[None]]


class ReadSlot:
    """A slot held from before a message is read until it is admitted. `release` is idempotent."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_release: Callable[[], None] | None = on_release
        self._timer = loop.call_later(_READING_SECONDS_MAX, self.release)
        self._contested_at = loop.time() + _CONTESTED_SECONDS
        self._reading = True

    @property
    def is_slow(self) -> bool:
        """Whether the message is late, so that other calls may take the slot."""
        return self._reading and asyncio.get_running_loop().time() >= self._contested_at

    @property
    def is_held(self) -> bool:
        return self._on_release is not None

    def arrived(self) -> None:
        """Stops the timeout: the message is in memory, so the slot is held until it is admitted."""
        self._reading = False
        self._timer.cancel()

    def release(self) -> None:
        if self._on_release is not None:
            self._timer.cancel()
            on_release, self._on_release = self._on_release, None
            on_release()


_SLOT: ContextVar[ReadSlot | None] = ContextVar("read_slot", default=None)


@contextmanager
def admitting() -> Iterator[None]:
    """Wraps the admission of a message that has been read, in the call's own context."""
    slot = _SLOT.get()
    if slot is not None:
        slot.arrived()
    try:
        yield
    finally:
        if slot is not None:
            slot.release()


class AdmissionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The interceptor that admits gRPC calls. `signals` maps services to signals; `abort` ends a call with a
    refusal.
    """

    def __init__(self, intake: Intake, signals: Mapping[str, Signal], abort: Abort) -> None:
        self._intake = intake
        self._signals = signals
        self._abort = abort
        share = _READING_MAX - 1 if has_several_tenants(intake.config) else _READING_MAX
        # A tenant that sends large messages reads one at a time: others would wait in memory for the budget.
        self._slots = FairSlots(
            _READING_MAX,
            per_tenant=lambda tenant: 1 if intake.admission.has_large(tenant) else share,
            waiting_max=_WAITING_MAX,
        )
        self._held: list[ReadSlot] = []

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        try:
            await self._enter(dict(details.invocation_metadata or ()))
        except FrazilError as error:
            service = details.method.strip("/").partition("/")[0]
            return self._refusing(self._signals[service], refusal(error))
        return handler

    async def _enter(self, metadata: dict[str, Any]) -> None:
        tenant = self._intake.tenant(metadata.get("authorization"), metadata.get("x-api-key"))
        self._intake.check_durable()
        assigned = self._slots.request(tenant)
        try:
            await self._wait(assigned)
        except BaseException:
            self._slots.release(tenant, assigned)
            raise
        slot = ReadSlot(partial(self._slots.release, tenant, assigned))
        self._held = [other for other in self._held if other.is_held] + [slot]
        _SLOT.set(slot)

    async def _wait(self, assigned: asyncio.Future[None]) -> None:
        """Returns when a slot is assigned. Releases the slots of slow calls while waiting."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._intake.config.receive.limits.admission_wait_seconds
        while not assigned.done():
            await asyncio.wait({assigned}, timeout=_CONTESTED_SECONDS / 3)
            if assigned.done():
                return
            for slot in [slot for slot in self._held if slot.is_slow]:
                slot.release()
            if loop.time() >= deadline and not assigned.done():
                raise Overloaded("other large requests are being read; retry later", bound="memory")

    def _refusing(self, signal: Signal, refused: Refusal) -> Any:
        """Returns a streaming handler, which unlike a unary one can respond without reading the message."""

        async def refuse(_: Any, context: Any) -> None:
            await self._abort(context, signal, refused)

        return grpc.stream_unary_rpc_method_handler(refuse)
