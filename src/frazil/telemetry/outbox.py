"""What waits to be sent, and the one thread that sends it: bounded, never waited for.

The SDK's batch processors are not used: they neither count what they drop nor say once that the other side is
down, and they may take half a minute to end.
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
_SAY_SECONDS = 60.0
"""An endpoint that comes and goes is told of no more often than this."""
_LAST_EXPORT_SECONDS = 1.5
_LAST_WORDS_SECONDS = 0.3

log = structlog.get_logger("frazil.telemetry")


class SpanQueue:
    """`exports` send a batch and return whether it was taken; `abort` ends one that is under way; `reason`
    says why the last one failed.
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
        self._said_at: float | None = None
        self._is_said = False
        self._lost = 0
        self._thread = threading.Thread(target=self._work, name="frazil-telemetry", daemon=True)
        self._thread.start()

    def offer(self, kind: Kind, item: Any) -> None:
        """Never waits: what finds no room is dropped."""
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
        """Tries once to send what is left; what is then still under way is given up."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_LAST_EXPORT_SECONDS)
        with contextlib.suppress(Exception):  # of libraries that are used while they are closed
            self._abort()
        self._thread.join(_LAST_WORDS_SECONDS)
        for kind, queue in self._queues.items():
            if queue:
                self._count(kind, "dropped", len(queue))
                queue.clear()

    def _work(self) -> None:
        with Quiet():  # whatever is logged in here is about sending
            while self._wait():
                self._send_all()
            if not self._failures:
                self._send_all()

    def _wait(self) -> bool:
        """For something to send, or for the time to try again; False when it is over."""
        pause = backoff_seconds(self._failures + 1, self._interval_seconds, _BACKOFF_SECONDS_MAX)
        pause = max(pause, self._interval_seconds)
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._is_much(), pause)
            return not self._closing

    def _is_much(self) -> bool:
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
        except Exception as error:  # the exporters raise when they are shut down under way
            is_sent, reason = False, repr(error)
        else:
            reason = self._reason()
        self._count(kind, "sent" if is_sent else "failed", len(batch))
        if is_sent:
            self._works_again()
        else:
            self._lost += len(batch)
            self._fails(reason)
        return is_sent

    def _fails(self, reason: str) -> None:
        self._failures = min(self._failures + 1, 16)
        now = time.monotonic()
        if self._closing or (self._said_at is not None and now - self._said_at < _SAY_SECONDS):
            return
        if not self._is_said:
            self._is_said, self._said_at = True, now
            log.warning(
                "frazil's own telemetry cannot be sent; some is dropped until it can",
                endpoint=self._endpoint,
                reason=reason[:300],
            )

    def _works_again(self) -> None:
        self._failures = 0
        if self._is_said:
            self._is_said = False
            log.info("frazil's own telemetry is sent again", endpoint=self._endpoint, dropped=self._lost)
        self._lost = 0
