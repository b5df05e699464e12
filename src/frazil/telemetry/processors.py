"""SDK processors that pass spans and log records to a callback."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry.context import Context
from opentelemetry.sdk._logs import LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor


class SpanForwarder(SpanProcessor):
    def __init__(self, forward: Callable[[ReadableSpan], None]) -> None:
        self._forward = forward

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        pass

    def on_end(self, span: ReadableSpan) -> None:
        self._forward(span)


class LogForwarder(LogRecordProcessor):
    def __init__(self, forward: Callable[[ReadableLogRecord], None]) -> None:
        self._forward = forward

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        resource = log_record.resource
        assert resource is not None  # noqa: S101 the SDK's logger always sets it
        self._forward(
            ReadableLogRecord(
                log_record.log_record, resource, log_record.instrumentation_scope, log_record.limits
            )
        )

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True
