"""Stores for tests: in memory, and as slow, failing or dishonest as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from frazil.wal import Entry


class MemoryStore:
    """Keeps objects in a dictionary. `before_create` may block or raise; `created` lists paths in order."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.created: list[str] = []
        self.before_create: Callable[[str, bytes], None] = lambda path, data: None
        self._lock = threading.Lock()

    def create(self, path: str, data: bytes) -> None:
        self.before_create(path, data)
        with self._lock:
            if self.objects.get(path, data) != data:
                raise FileExistsError(path)
            self.objects[path] = data
            self.created.append(path)

    def read(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def list(self, prefix: str) -> Iterator[Entry]:
        for path in sorted(self.objects):
            if path.startswith(prefix):
                yield Entry(path, len(self.objects[path]))

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)

    def describe(self) -> str:
        return "memory"
