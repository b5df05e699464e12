"""Dependencies of request handlers: the query service, the configuration and the lifecycle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from frazil.config import Config

if TYPE_CHECKING:
    from frazil.query.service import QueryService

_POLL_SECONDS = 0.02


@dataclass
class Lifecycle:
    queries: QueryService
    stopping: bool = False
    requests: int = 0
    _closing: asyncio.Task[None] | None = None

    async def drain(self) -> None:
        """Refuse new requests, and wait until those in progress have finished."""
        self.stopping = True
        while self.requests:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)

    def end(self) -> asyncio.Task[None]:
        """Close the query service. Both the signal handler and the end of the lifespan call this."""
        self.stopping = True
        if self._closing is None:
            self._closing = asyncio.create_task(self.queries.close())
        return self._closing


def _queries(request: Request) -> Any:
    return request.app.state.queries


def _config(request: Request) -> Config:
    return request.app.state.config  # type: ignore[no-any-return]


def _lifecycle(request: Request) -> Lifecycle:
    return request.app.state.lifecycle  # type: ignore[no-any-return]


if TYPE_CHECKING:
    QueryServiceDep = Annotated[QueryService, Depends(_queries)]
else:  # FastAPI evaluates annotations at run time, and describing the API must not import the query service
    QueryServiceDep = Annotated[Any, Depends(_queries)]
ConfigDep = Annotated[Config, Depends(_config)]
LifecycleDep = Annotated[Lifecycle, Depends(_lifecycle)]
