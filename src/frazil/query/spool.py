"""A buffer between a worker, which writes as fast as it can, and a client, which reads as fast as it can."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path

_MEMORY_BYTES = 8 << 20
_READ_BYTES = 256 << 10


class Spool:
    """Holds the first megabytes in memory and the rest in a temporary file. Reading begins when the memory
    part is full or the result is complete, so that early errors are reported as errors and not as cut-off
    results.
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
        """End the result with an error, or with the bytes `last`."""
        if last:
            try:
                await self.write(last)
            except OSError as failed:
                error = failed
        async with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    async def ready(self) -> None:
        """Wait until reading can begin. Raises the error if the query failed before that."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ended or self._size > _MEMORY_BYTES)
            if self._error is not None:
                raise self._error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the result in chunks. Raises the error if the query failed after reading began."""
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

    def read_all(self) -> bytes | None:
        """Return the complete result; None if the reader has disconnected."""
        return self._read(0, self._size) or None

    def abandon(self) -> None:
        """Discard the data: the reader has disconnected."""
        with self._using:
            self._file.close()
