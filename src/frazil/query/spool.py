"""Results on their way: taken from the worker as fast as they come, given to clients as fast as they read."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

_MEMORY_BYTES = 8 << 20
_READ_BYTES = 256 << 10


class Spool:
    """The first megabytes are kept in memory, and nothing is given out before they are full or all is there:
    until then an error is an error, not half an answer. The rest goes through a temporary file.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES, dir=str(folder))  # noqa: SIM115
        self._using = threading.Lock()
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Condition()

    @property
    def size(self) -> int:
        return self._size

    @property
    def has_ended(self) -> bool:
        return self._ended

    async def write(self, data: bytes) -> None:
        async with self._changed:
            if self._size + len(data) > _MEMORY_BYTES:
                await asyncio.to_thread(self._append, data)
            else:
                self._append(data)
            self._changed.notify_all()

    def _append(self, data: bytes) -> None:
        with self._using:
            if self._file.closed:
                return
            self._file.seek(self._size)
            self._file.write(data)
            self._size += len(data)

    async def end(self, error: Exception | None = None, last: bytes = b"") -> None:
        """`last` is the end of a good answer."""
        if last:
            try:
                await self.write(last)
            except OSError as failed:
                error = failed
        async with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    async def ready(self) -> None:
        """Raises the error if there was one before much had come."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or self._size > _MEMORY_BYTES)
            if self._error is not None:
                raise self._error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Ends with the error where one came after the beginning had been given out."""
        at = 0
        while True:
            async with self._changed:
                while not self._ended and self._size <= at:
                    await self._changed.wait()
                if self._error is not None:
                    raise self._error
                if at >= self._size:
                    return
                data = self._read(at, min(_READ_BYTES, self._size - at))
            if not data:
                return
            at += len(data)
            yield data

    def _read(self, at: int, size: int) -> bytes:
        with self._using:
            if self._file.closed:
                return b""
            self._file.seek(at)
            return self._file.read(size)

    def whole(self) -> bytes | None:
        """After a good end. None where nobody reads it any more."""
        return self._read(0, self._size) or None

    def abandon(self) -> None:
        """Nobody reads it any more."""
        with self._using:
            self._file.close()
