"""Bounded queues of spans and log records, and one thread that exports them. Producers never wait.

The SDK's batch processors do not count dropped records, log every failure, and may take half a minute to shut
down.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import structlog

from frazil.telemetry.spans import Quiet
from frazil.times import backoff_seconds

Kind = Literal["spans", "logs"]
Outcome = Literal["sent", "failed", "dropped"]
Export = Callable[[Sequence[Any]], bool]
Count = Callable[[Kind, Outcome, int], None]

_BATCH_MAX = 512
_BACKOFF_SECONDS_MAX = 60.0
_WARNING_INTERVAL_SECONDS = 60.0
"""Minimum time between two warnings about the endpoint."""
_LAST_EXPORT_SECONDS = 1.5
_ABORT_SECONDS = 0.3

log = structlog.get_logger("frazil.telemetry")


class BatchExporter:
    """Queues records and exports them in batches.

    `exports` send a batch and return True on success. `abort` ends a running export. `reason` returns why the
    last export failed.
    """

    def __init__(
        self,
        exports: Mapping[Kind, Export],
        *,
        interval_seconds: float,
        queue_max: int,
        count: Count,
        reason: Callable[[], str],
        abort: Callable[[], None],
        endpoint: str,
    ) -> None:
        self._exports = exports
        self._interval_seconds = interval_seconds
        self._queue_max = queue_max
        self._count = count
        self._reason = reason
        self._abort = abort
        self._endpoint = endpoint
        self._queues: dict[Kind, deque[Any]] = {kind: deque() for kind in exports}
        self._changed = threading.Condition()
        self._closing = False
        self._failures = 0
        self._warned_at: float | None = None
        self._is_warned = False
        self._lost = 0
        self._thread = threading.Thread(target=self._work, name="frazil-telemetry", daemon=True)
        self._thread.start()

    def offer(self, kind: Kind, item: Any) -> None:
        """Queue a record, or drop it if the queue is full."""
        with self._changed:
            queue = self._queues[kind]
            is_dropped = self._closing or len(queue) >= self._queue_max
            if not is_dropped:
                queue.append(item)
                if len(queue) == min(_BATCH_MAX, self._queue_max):
                    self._changed.notify_all()
        if is_dropped:
            self._lost += 1
            self._count(kind, "dropped", 1)

    def close(self) -> None:
        """Export the queued records once, within a time limit. The rest is dropped."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_LAST_EXPORT_SECONDS)
        with contextlib.suppress(Exception):  # the exporters may raise while they are in use
            self._abort()
        self._thread.join(_ABORT_SECONDS)
        for kind, queue in self._queues.items():
            if queue:
                self._count(kind, "dropped", len(queue))
                queue.clear()

    def _work(self) -> None:
        with Quiet():  # log records of this thread are about sending
            while self._wait():
                self._send_all()
            if not self._failures:
                self._send_all()

    def _wait(self) -> bool:
        """Wait for a full batch or the next interval. Returns False when closing."""
        pause = backoff_seconds(self._failures + 1, self._interval_seconds, _BACKOFF_SECONDS_MAX)
        pause = max(pause, self._interval_seconds)
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._has_full_batch(), pause)
            return not self._closing

    def _has_full_batch(self) -> bool:
        return not self._failures and any(
            len(queue) >= min(_BATCH_MAX, self._queue_max) for queue in self._queues.values()
        )

    def _send_all(self) -> None:
        for kind, export in self._exports.items():
            while batch := self._take(kind):
                if not self._send(kind, export, batch):
                    return

    def _take(self, kind: Kind) -> list[Any]:
        with self._changed:
            queue = self._queues[kind]
            return [queue.popleft() for _ in range(min(_BATCH_MAX, len(queue)))]

    def _send(self, kind: Kind, export: Export, batch: Sequence[Any]) -> bool:
        try:
            is_sent = export(batch)
        except Exception as error:  # the exporters raise if they are shut down during an export
            is_sent, reason = False, repr(error)
        else:
            reason = self._reason()
        self._count(kind, "sent" if is_sent else "failed", len(batch))
        if is_sent:
            self._on_success()
        else:
            self._lost += len(batch)
            self._on_failure(reason)
        return is_sent

    def _on_failure(self, reason: str) -> None:
        self._failures = min(self._failures + 1, 16)
        now = time.monotonic()
        if self._closing or (
            self._warned_at is not None and now - self._warned_at < _WARNING_INTERVAL_SECONDS
        ):
            return
        if not self._is_warned:
            self._is_warned, self._warned_at = True, now
            log.warning("telemetry export failed", endpoint=self._endpoint, reason=reason[:300])

    def _on_success(self) -> None:
        self._failures = 0
        if self._is_warned:
            self._is_warned = False
            log.info("telemetry export recovered", endpoint=self._endpoint, dropped=self._lost)
        self._lost = 0
