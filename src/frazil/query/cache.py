"""A least-recently-used cache bounded by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SizedCache(Generic[K, V]):
    """A cache with a limit on bytes. Thread-safe. Does not keep entries over `entry_bytes_max` (default: a
    quarter of `bytes_max`).
    """

    def __init__(self, bytes_max: int, entry_bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self._entry_bytes_max = bytes_max // 4 if entry_bytes_max is None else entry_bytes_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: K) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def fits(self, size: int) -> bool:
        return size <= self._entry_bytes_max

    def put(self, key: K, value: V, size: int) -> None:
        if not self.fits(size):
            return
        with self._lock:
            previous = self._entries.pop(key, None)
            self._bytes += size - (0 if previous is None else previous[1])
            self._entries[key] = (value, size)
            while self._bytes > self._bytes_max:
                _, (_, evicted) = self._entries.popitem(last=False)
                self._bytes -= evicted

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0
