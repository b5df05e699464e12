"""Answers on their way to a client: chunk by chunk, stopped when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import structlog
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from frazil.errors import FrazilError, LimitReached
from frazil.query.model import QueryResult

T = TypeVar("T")
_UNREAD_SECONDS_MAX = 60.0

log = structlog.get_logger("frazil.serve")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _watching(receive: Receive) -> AsyncIterator[asyncio.Task[None]]:
    watch = asyncio.create_task(_disconnected(receive))
    try:
        yield watch
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await watch


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client is gone. The request's body is read."""
    task = asyncio.create_task(work)
    try:
        async with _watching(request.receive) as watch:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _cancelled(task)


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Ends `task`. An answer that it got at the last moment is closed, or a worker would wait for ever."""
    if task.done():
        return
    task.cancel()
    with suppress(asyncio.CancelledError, FrazilError):
        result = await task
        if isinstance(result, QueryResult):
            await close(result.content)


async def close(content: AsyncIterator[bytes]) -> None:
    """Lets the worker go that waits for its answer to be taken."""
    if (aclose := getattr(content, "aclose", None)) is not None:
        await aclose()


async def collected(answer: QueryResult, bytes_max: int, what: str) -> bytes:
    """The whole body, for answers that are small."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in answer.content:
            size += len(piece)
            if size > bytes_max:
                raise LimitReached(
                    f"{what} is larger than {bytes_max} bytes; ask POST /api/v1/sql for the columns you need",
                    limit="bytes",
                )
            pieces.append(piece)
    finally:
        await close(answer.content)
    return b"".join(pieces)


class StreamedAnswer(Response):
    """Passes chunks on as they come. A client never takes a broken answer for a whole one: the status is sent
    with the first chunk, and what fails later ends the connection without the end of the body.
    """

    def __init__(self, content: AsyncIterator[bytes], headers: Mapping[str, str], media_type: str) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with _watching(receive) as watch:
                pump = asyncio.create_task(self._pump(send))
                await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
                if not pump.done():
                    pump.cancel()
                    with suppress(asyncio.CancelledError):
                        await pump
                    return
                pump.result()
        finally:
            await close(self._content)

    async def _pump(self, send: Send) -> None:
        began = False
        try:
            async for chunk in self._content:
                if not began:
                    began = True
                    await self._begin(send)
                async with asyncio.timeout(_UNREAD_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            log.warning("nobody reads an answer; it is ended")
            return
        except FrazilError as error:
            if not began:
                raise
            log.warning("an answer broke on its way", reason=type(error).__name__)
            return  # no end of the body: the server closes the connection instead
        if not began:
            await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
