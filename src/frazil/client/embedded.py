"""A query service inside this process, in a thread with its own event loop, for use without an API."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.client.transport import Reply
from frazil.query.model import Progress, Query, TableInfo

if TYPE_CHECKING:
    from frazil.config import Config
    from frazil.query.service import QueryService

T = TypeVar("T")
CLOSE_SECONDS_MAX = 10.0


class EmbeddedTransport:
    """Reads the tables and the WAL of `config`. The constructor starts the query service."""

    def __init__(self, config: Config, tenant: str | None = None) -> None:
        _configure_logging()
        self._tenant = config.tenants.default if tenant is None else tenant
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="frazil-client", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            self._queries = self._wait(self._start(config))
        except BaseException:
            self._stop()
            raise

    @property
    def address(self) -> str:
        return "this machine's files"

    def execute(self, query: Query) -> Reply:
        query = dataclasses.replace(query, tenant=self._tenant, unowned=True, who="embedded")
        result = self._wait(self._queries.execute(query))
        content = self._chunks(result.content)
        return Reply(stats=result.stats, content=content, close=lambda: self._close_content(result.content))

    def tables(self) -> Sequence[TableInfo]:
        return self._wait(self._queries.tables(self._tenant, whole=True))

    def progress(self, id: str) -> Progress | None:
        return self._wait(_call(self._queries.progress, self._tenant, id))

    def cancel(self, id: str) -> bool:
        return self._wait(_call(self._queries.cancel, self._tenant, id))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            asyncio.run_coroutine_threadsafe(self._queries.close(), self._loop).result(CLOSE_SECONDS_MAX)
        finally:
            self._stop()

    async def _start(self, config: Config) -> QueryService:
        from frazil.query.service import QueryService

        queries = QueryService(config)
        try:
            await queries.start()
        except BaseException:
            await queries.close()
            raise
        return queries

    def _chunks(self, content: AsyncIterator[bytes]) -> Iterator[bytes]:
        try:
            while (chunk := self._wait(_next(content))) is not None:
                yield chunk
        finally:
            self._close_content(content)

    def _close_content(self, content: AsyncIterator[bytes]) -> None:
        close = getattr(content, "aclose", None)
        if close is not None and not self._closed:
            self._wait(close())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop(self) -> None:
        """Cancel all tasks, then stop the loop: workers must not outlive this process."""
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_tasks(), self._loop).result(CLOSE_SECONDS_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS_MAX)
        if not self._thread.is_alive():
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # On Ctrl-C, cancel the work too.
            future.cancel()
            raise


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await asyncio.get_running_loop().shutdown_asyncgens()


async def _next(content: AsyncIterator[bytes]) -> bytes | None:
    return await anext(content, None)


async def _call(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in the event loop's thread."""
    return function(*arguments)


def _configure_logging() -> None:
    """Send structlog to the application's `logging`. By default it prints to standard output."""
    import structlog

    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
