"""From the SDK's providers to the receiver: one lane and one exporter for each signal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from opentelemetry.context import Context
from opentelemetry.sdk._logs import LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from frazil.demo.exporters import Points, exporters_overheard, make_exporters
from frazil.demo.lanes import ExportQueue
from frazil.demo.options import DemoOptions, DemoTotals
from frazil.telemetry.session import readable

T = TypeVar("T")

# Batches as large as the SDK's. The queues hold about five minutes of the default traffic.
_BATCH_ITEMS_MAX = 512
_SPANS_MAX = 20_000
_LOGS_MAX = 10_000
_COLLECTIONS_MAX = 64
# At the end the rest is sent while batches are delivered; after this long without one, it is given up.
_STALL_SECONDS = 2.0
# How long to wait for a thread whose exporter has been shut down under it.
_JOIN_SECONDS = 0.5


class Pipeline:
    """Made ready to send; `close` must be called, and may be called twice."""

    def __init__(self, options: DemoOptions, *, wait_when_full: bool) -> None:
        self._exporters = make_exporters(options)
        self._resources = ExitStack()
        self._listener = self._resources.enter_context(exporters_overheard())
        self._spans = ExportQueue[ReadableSpan](
            "spans",
            self._heard(self._exporters.export_spans),
            batch_items_max=_BATCH_ITEMS_MAX,
            queue_items_max=_SPANS_MAX,
            wait_when_full=wait_when_full,
        )
        self._logs = ExportQueue[ReadableLogRecord](
            "logs",
            self._heard(self._exporters.export_logs),
            batch_items_max=_BATCH_ITEMS_MAX,
            queue_items_max=_LOGS_MAX,
            wait_when_full=wait_when_full,
        )
        self._points = ExportQueue[Points](
            "points",
            self._heard(self._exporters.export_points),
            batch_items_max=1,
            queue_items_max=_COLLECTIONS_MAX,
            wait_when_full=wait_when_full,
            weigh=lambda points: points.count,
        )
        self._lanes = (self._spans, self._logs, self._points)
        self._closed = False
        self.span_processor: SpanProcessor = _SpansTo(self._spans)
        self.log_processor: LogRecordProcessor = _LogsTo(self._logs)

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
            last_error=self._listener.last_error,
        )

    def close(self, seconds_max: float) -> None:
        """Send what is queued, within bounds; then end the threads and the connections."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + seconds_max
        for lane in self._lanes:
            lane.close()
        drained = [lane.drained(deadline, _STALL_SECONDS) for lane in self._lanes]
        if not all(drained):
            for lane in self._lanes:
                lane.abandon()
        self._exporters.shutdown()
        for lane in self._lanes:
            lane.join(_JOIN_SECONDS)
            lane.count_rest()
        self._resources.close()

    def _heard(self, export: Callable[[Sequence[T]], bool]) -> Callable[[Sequence[T]], bool]:
        """Forget the last complaint when a batch is delivered."""

        def exporting(batch: Sequence[T]) -> bool:
            delivered = export(batch)
            if delivered:
                self._listener.last_error = None
            return delivered

        return exporting


class _SpansTo(SpanProcessor):
    """Shared by all providers; a provider's shutdown does not end it."""

    def __init__(self, lane: ExportQueue[ReadableSpan]) -> None:
        self._lane = lane

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        self._lane.offer(span)


class _LogsTo(LogRecordProcessor):
    """Shared by all providers; a provider's shutdown does not end it."""

    def __init__(self, lane: ExportQueue[ReadableLogRecord]) -> None:
        self._lane = lane

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self._lane.offer(readable(log_record))

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
