"""Sends telemetry from the SDK's providers to the receiver: one queue and one exporter per signal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from frazil.demo.export_queue import ExportQueue
from frazil.demo.exporters import Export, Points, Signal, exporter_errors, make_exporters
from frazil.demo.options import DemoOptions, DemoTotals
from frazil.telemetry.processors import LogForwarder, SpanForwarder

# Maximum items per batch (512, as in the SDK) and per queue: about five minutes of the default traffic.
_ITEMS_MAX: dict[Signal, tuple[int, int]] = {"spans": (512, 20_000), "logs": (512, 10_000), "points": (1, 64)}
# At the end, queued records are dropped after this long without a delivered batch.
_STALL_SECONDS = 2.0
# Wait for a thread after the shutdown of its exporter.
_JOIN_SECONDS = 0.5


class Sender:
    """Queues and sends all three signals. `close` must be called, and can be called twice."""

    def __init__(self, options: DemoOptions, *, wait_when_full: bool) -> None:
        self._exporters = make_exporters(options)
        self._resources = ExitStack()
        self._errors = self._resources.enter_context(exporter_errors())
        self._queues = {
            signal: ExportQueue[Any](
                signal,
                self._clearing_errors(export),
                batch_items_max=_ITEMS_MAX[signal][0],
                queue_items_max=_ITEMS_MAX[signal][1],
                wait_when_full=wait_when_full,
                weigh=lambda item: item.count if isinstance(item, Points) else 1,
            )
            for signal, export in self._exporters.exports.items()
        }
        self._closed = False
        self.span_processor = SpanForwarder(self._queues["spans"].offer)
        self.log_processor = LogForwarder(self._queues["logs"].offer)

    def send_points(self, points: Points) -> None:
        self._queues["points"].offer(points)

    def totals(self, traces: int) -> DemoTotals:
        return DemoTotals(
            traces,
            **{signal: queue.sent for signal, queue in self._queues.items()},
            **{f"{signal}_failed": queue.failed for signal, queue in self._queues.items()},
            last_error=self._errors.last_error,
        )

    def close(self, seconds_max: float) -> None:
        """Send the queued records within the time limit, then close threads and connections."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + seconds_max
        queues = self._queues.values()
        for queue in queues:
            queue.close()
        drained = [queue.drained(deadline, _STALL_SECONDS) for queue in queues]
        if not all(drained):
            for queue in queues:
                queue.abandon()
        self._exporters.shutdown()
        for queue in queues:
            queue.join(_JOIN_SECONDS)
            queue.count_rest()
        self._resources.close()

    def _clearing_errors(self, export: Export) -> Export:
        """Wrap `export` to clear the last error when a batch is delivered."""

        def wrapped(batch: Sequence[Any]) -> bool:
            delivered = export(batch)
            if delivered:
                self._errors.last_error = None
            return delivered

        return wrapped
