"""What handlers are given: the query service and the configuration, as the application holds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from frazil.config import Config

if TYPE_CHECKING:
    from frazil.query.service import QueryService

_LOOK_SECONDS = 0.02


@dataclass
class Lifecycle:
    queries: QueryService
    stopping: bool = False
    requests: int = 0
    """Those that are being answered."""
    _closing: asyncio.Task[None] | None = None

    async def emptied(self) -> None:
        """Nothing new is taken; what is being answered may be answered."""
        self.stopping = True
        while self.requests:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def end(self) -> asyncio.Task[None]:
        """Begins to close the query service, once: the signal and the end of the lifespan both ask for it."""
        self.stopping = True
        if self._closing is None:
            self._closing = asyncio.create_task(self.queries.close())
        return self._closing


def _queries(request: Request) -> Any:
    return request.app.state.queries


def _config(request: Request) -> Config:
    return request.app.state.config  # type: ignore[no-any-return]


def _life(request: Request) -> Lifecycle:
    return request.app.state.life  # type: ignore[no-any-return]


if TYPE_CHECKING:
    RunningQuery = Annotated[QueryService, Depends(_queries)]
else:  # FastAPI looks at annotations while it runs, and describing the API needs no query service
    RunningQuery = Annotated[Any, Depends(_queries)]
Settings = Annotated[Config, Depends(_config)]
Living = Annotated[Lifecycle, Depends(_life)]
