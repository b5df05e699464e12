"""A bounded queue and one thread, which send the records of one signal to its exporter.

The SDK's batch processors do not count sent and lost records, and need up to half a minute to shut down when
the receiver is down.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class ExportQueue(Generic[T]):
    """Sends items in batches, in order. Each item is counted once, as sent or as failed.

    When the queue is full, the oldest items are dropped, as in a real service. With `wait_when_full`, the
    producer waits instead, for simulated time.
    """

    def __init__(
        self,
        name: str,
        export: Callable[[Sequence[T]], bool],
        *,
        batch_items_max: int,
        queue_items_max: int,
        linger_seconds: float = 1.0,
        wait_when_full: bool = False,
        weigh: Callable[[T], int] = lambda _: 1,
    ) -> None:
        self._export = export
        self._batch_items_max = batch_items_max
        self._queue_items_max = queue_items_max
        self._linger_seconds = linger_seconds
        self._wait_when_full = wait_when_full
        self._weigh = weigh
        self._queue: deque[T] = deque()
        self._changed = Condition()
        self._closing = False
        self._abandoned = False
        self._progress = time.monotonic()
        self.sent = 0
        self.failed = 0
        self._thread = Thread(target=self._work, name=f"frazil-demo-{name}", daemon=True)
        self._thread.start()

    def offer(self, item: T) -> None:
        with self._changed:
            while len(self._queue) >= self._queue_items_max and not self._closing:
                if self._wait_when_full:
                    self._changed.wait()
                else:
                    self.failed += self._weigh(self._queue.popleft())
            if self._closing:
                self.failed += self._weigh(item)
                return
            self._queue.append(item)
            if len(self._queue) == self._batch_items_max:
                self._changed.notify_all()

    def close(self) -> None:
        """Stop accepting items. Returns immediately; queued items are still sent."""
        with self._changed:
            self._closing = True
            self._progress = time.monotonic()
            self._changed.notify_all()

    def drained(self, deadline: float, stall_seconds: float) -> bool:
        """Wait until a closed queue is empty. Returns False at the deadline or after a stall."""
        while self._thread.is_alive():
            left = min(deadline, self._progress + stall_seconds) - time.monotonic()
            if left <= 0:
                return False
            self._thread.join(left)
        return True

    def abandon(self) -> None:
        """Stop after the current export."""
        with self._changed:
            self._closing = self._abandoned = True
            self._changed.notify_all()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def count_rest(self) -> None:
        """Count the remaining items as failed."""
        with self._changed:
            self.failed += sum(map(self._weigh, self._queue))
            self._queue.clear()

    def _work(self) -> None:
        while batch := self._next_batch():
            weight = sum(map(self._weigh, batch))
            try:
                delivered = self._export(batch)
            except Exception:
                # The exporters raise if they are shut down during an export.
                delivered = False
            with self._changed:
                if delivered:
                    self.sent += weight
                    self._progress = time.monotonic()
                else:
                    self.failed += weight

    def _next_batch(self) -> list[T]:
        """Wait for a full batch or the linger time. Returns an empty list at the end."""
        with self._changed:
            while not self._changed.wait_for(self._is_ready, self._linger_seconds) and not self._queue:
                pass
            if self._abandoned:
                return []
            batch = [self._queue.popleft() for _ in range(min(self._batch_items_max, len(self._queue)))]
            self._changed.notify_all()
            return batch

    def _is_ready(self) -> bool:
        return self._closing or len(self._queue) >= self._batch_items_max
