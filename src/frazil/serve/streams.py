"""Streams results to clients, and cancels work when a client disconnects."""

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
    """The client disconnected."""


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


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Cancels it and raises ClientGone if the client disconnects. The request's
    body must have been read.
    """
    task = asyncio.create_task(work)
    try:
        async with _watching(request.receive) as watch:
            await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _cancel(task)


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel `task`. Closes a result that it still returns: otherwise a query would wait for its reader."""
    if task.done():
        return
    task.cancel()
    with suppress(asyncio.CancelledError, FrazilError):
        result = await task
        if isinstance(result, QueryResult):
            await close(result.content)


async def close(content: AsyncIterator[bytes]) -> None:
    """Close a result, which releases the resources of its query."""
    if (aclose := getattr(content, "aclose", None)) is not None:
        await aclose()


async def read_all(result: QueryResult, bytes_max: int, what: str) -> bytes:
    """Return the whole body of a small result. Raises LimitReached if it is larger than `bytes_max`."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in result.content:
            size += len(piece)
            if size > bytes_max:
                raise LimitReached(
                    f"{what} is larger than {bytes_max} bytes: select fewer columns with POST /api/v1/sql",
                    limit="bytes",
                )
            pieces.append(piece)
    finally:
        await close(result.content)
    return b"".join(pieces)


class StreamedResult(Response):
    """Sends chunks as they arrive. The status is sent with the first chunk; after a later failure the
    connection is closed before the body is complete, so that clients detect it.
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
            log.warning("result aborted: the client did not read the result", seconds=_UNREAD_SECONDS_MAX)
            return
        except FrazilError as error:
            if not began:
                raise
            log.warning("result aborted: the query failed", reason=type(error).__name__)
            return  # the body stays incomplete, and the server closes the connection
        if not began:
            await self._begin(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(start)
