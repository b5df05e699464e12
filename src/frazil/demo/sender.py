"""Sends telemetry from the SDK's providers to the receiver: one queue and one exporter per signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan

from frazil.demo.export_queue import ExportQueue
from frazil.demo.exporters import Points, exporter_errors, make_exporters
from frazil.demo.options import DemoOptions, DemoTotals
from frazil.telemetry.processors import LogForwarder, SpanForwarder

T = TypeVar("T")

# Batches as large as the SDK's. The queues hold about five minutes of the default traffic.
_BATCH_ITEMS_MAX = 512
_SPANS_MAX = 20_000
_LOGS_MAX = 10_000
_COLLECTIONS_MAX = 64
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
        self._spans = ExportQueue[ReadableSpan](
            "spans",
            self._clearing_errors(self._exporters.export_spans),
            batch_items_max=_BATCH_ITEMS_MAX,
            queue_items_max=_SPANS_MAX,
            wait_when_full=wait_when_full,
        )
        self._logs = ExportQueue[ReadableLogRecord](
            "logs",
            self._clearing_errors(self._exporters.export_logs),
            batch_items_max=_BATCH_ITEMS_MAX,
            queue_items_max=_LOGS_MAX,
            wait_when_full=wait_when_full,
        )
        self._points = ExportQueue[Points](
            "points",
            self._clearing_errors(self._exporters.export_points),
            batch_items_max=1,
            queue_items_max=_COLLECTIONS_MAX,
            wait_when_full=wait_when_full,
            weigh=lambda points: points.count,
        )
        self._queues = (self._spans, self._logs, self._points)
        self._closed = False
        self.span_processor = SpanForwarder(self._spans.offer)
        self.log_processor = LogForwarder(self._logs.offer)

    def send_points(self, points: Points) -> None:
        self._points.offer(points)

    def totals(self, traces: int) -> DemoTotals:
        return DemoTotals(
            traces=traces,
            spans=self._spans.sent,
            logs=self._logs.sent,
            points=self._points.sent,
            spans_failed=self._spans.failed,
            logs_failed=self._logs.failed,
            points_failed=self._points.failed,
            last_error=self._errors.last_error,
        )

    def close(self, seconds_max: float) -> None:
        """Send the queued records within the time limit, then close threads and connections."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + seconds_max
        for queue in self._queues:
            queue.close()
        drained = [queue.drained(deadline, _STALL_SECONDS) for queue in self._queues]
        if not all(drained):
            for queue in self._queues:
                queue.abandon()
        self._exporters.shutdown()
        for queue in self._queues:
            queue.join(_JOIN_SECONDS)
            queue.count_rest()
        self._resources.close()

    def _clearing_errors(self, export: Callable[[Sequence[T]], bool]) -> Callable[[Sequence[T]], bool]:
        """Wrap `export` to clear the last error when a batch is delivered."""

        def exporting(batch: Sequence[T]) -> bool:
            delivered = export(batch)
            if delivered:
                self._errors.last_error = None
            return delivered

        return exporting
