"""A result on its way: taken from the worker as fast as it comes, given to the client as fast as it reads."""

from __future__ import annotations

import asyncio
import tempfile
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
        self._size = 0
        self._ended = False
        self._error: Exception | None = None
        self._changed = asyncio.Condition()
        self._abandoned = False

    @property
    def size(self) -> int:
        return self._size

    async def write(self, data: bytes) -> None:
        if self._abandoned:
            return
        async with self._changed:
            self._file.seek(self._size)
            if self._size + len(data) > _MEMORY_BYTES:
                await asyncio.to_thread(self._file.write, data)
            else:
                self._file.write(data)
            self._size += len(data)
            self._changed.notify_all()

    async def end(self, error: Exception | None = None) -> None:
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
                self._file.seek(at)
                data = self._file.read(min(_READ_BYTES, self._size - at))
            at += len(data)
            yield data

    def whole(self) -> bytes:
        """After a good end."""
        self._file.seek(0)
        return self._file.read()

    def abandon(self) -> None:
        """Nobody reads it any more."""
        self._abandoned = True
        self._file.close()
