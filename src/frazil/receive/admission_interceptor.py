"""Before a gRPC message is read: who sends it, and is there room for it?

gRPC reads a message as a whole before its handler runs, so the handler's own check of memory comes too late:
eight clients with 60 MiB each would be in memory before the first is refused. An interceptor runs earlier,
when only the headers are here. It lets a few calls at a time read their message; a place is free again when
the message has been admitted to the budget, or refused. Tenants take turns, and where there are several, none
has all places: calls whose message does not come delay only those of their own tenant.
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
from frazil.receive.admission import Turns
from frazil.receive.intake import Intake, has_several_tenants
from frazil.receive.status import Refusal, refusal
from frazil.tables import Signal

_READING_MAX = 3
_WAITING_MAX = 256
"""Calls of one tenant that wait for a place. More are refused at once."""
_READING_SECONDS_MAX = 2.0
"""A call keeps its place no longer than this while its message comes: its client may have gone."""
_CONTESTED_SECONDS = 0.4
"""And no longer than this while others wait: a slow client must not keep them out."""

Abort = Callable[[Any, Signal, Refusal], Awaitable[None]]


class ReadSlot:
    """Held from before a message is read until it is admitted. Leaving twice is harmless."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._give_back: Callable[[], None] | None = give_back
        self._timer = loop.call_later(_READING_SECONDS_MAX, self.leave)
        self._contested_at = loop.time() + _CONTESTED_SECONDS
        self._reading = True

    @property
    def is_slow(self) -> bool:
        """Its message should have been here by now; others may take its place."""
        return self._reading and asyncio.get_running_loop().time() >= self._contested_at

    @property
    def is_held(self) -> bool:
        return self._give_back is not None

    def arrived(self) -> None:
        """The message is here as a whole: it holds memory now, so its place until it is admitted."""
        self._reading = False
        self._timer.cancel()

    def leave(self) -> None:
        if self._give_back is not None:
            self._timer.cancel()
            give_back, self._give_back = self._give_back, None
            give_back()


_PLACE: ContextVar[ReadSlot | None] = ContextVar("place", default=None)


@contextmanager
def in_doorway() -> Iterator[None]:
    """Around the admission of a message that has been read, in the call's own context."""
    place = _PLACE.get()
    if place is not None:
        place.arrived()
    try:
        yield
    finally:
        if place is not None:
            place.leave()


class AdmissionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """`signals` says which service is for which signal; `abort` ends a call with a refusal."""

    def __init__(self, intake: Intake, signals: Mapping[str, Signal], abort: Abort) -> None:
        self._intake = intake
        self._signals = signals
        self._abort = abort
        share = _READING_MAX - 1 if has_several_tenants(intake.config) else _READING_MAX
        self._turns = Turns(_READING_MAX, per_tenant=share, waiting_max=_WAITING_MAX)
        self._places: list[ReadSlot] = []

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
        turn = self._turns.ask(tenant)
        try:
            await self._until(turn)
        except BaseException:
            self._turns.leave(tenant, turn)
            raise
        place = ReadSlot(partial(self._turns.leave, tenant, turn))
        self._places = [other for other in self._places if other.is_held] + [place]
        _PLACE.set(place)

    async def _until(self, turn: asyncio.Future[None]) -> None:
        """Returns when the turn has come. Meanwhile, places of calls that are slow are given to others."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._intake.config.receive.limits.admission_wait_seconds
        while not turn.done():
            await asyncio.wait({turn}, timeout=_CONTESTED_SECONDS / 3)
            if turn.done():
                return
            for place in [place for place in self._places if place.is_slow]:
                place.leave()
            if loop.time() >= deadline and not turn.done():
                raise Overloaded("other large requests are being read; try again shortly", bound="memory")

    def _refusing(self, signal: Signal, refused: Refusal) -> Any:
        """A streaming handler: unlike a unary one it may answer without reading the message."""

        async def refuse(_: Any, context: Any) -> None:
            await self._abort(context, signal, refused)

        return grpc.stream_unary_rpc_method_handler(refuse)
