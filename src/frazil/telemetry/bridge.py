"""Converts frazil's log records to OTLP: the event becomes the body, its fields become attributes."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context

from frazil.telemetry.spans import is_quiet
from frazil.telemetry.tracing import attributes, message_of

_EXCLUDED_LOGGERS = ("frazil.telemetry", "opentelemetry")
"""Loggers whose records are not sent, because they are about sending."""
_RESERVED_FIELDS = frozenset(
    {"event", "level", "logger", "timestamp", "exc_info", "stack_info", "_record", "_from_structlog"}
)
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}
_NO_CONTEXT = Context()


class LogBridge(logging.Handler):
    """A handler that sends log records, in addition to the handler that prints them."""

    def __init__(self, logger: Logger, level: str, *, sql_text: bool) -> None:
        super().__init__(logging.getLevelName(level.upper()))
        self._logger = logger
        self._sql_text = sql_text

    def emit(self, record: logging.LogRecord) -> None:
        if is_quiet() or record.name.startswith(_EXCLUDED_LOGGERS):
            return
        try:
            self._logger.emit(self._converted(record))
        except Exception:
            self.handleError(record)

    def _converted(self, record: logging.LogRecord) -> LogRecord:
        event: Mapping[str, Any] = record.msg if isinstance(record.msg, Mapping) else {}
        body = str(event["event"]) if "event" in event else record.getMessage()
        fields = {name: value for name, value in event.items() if name not in _RESERVED_FIELDS}
        found = attributes(fields, sql_text=self._sql_text) | {"logger.name": record.name}
        error = _error_of(event.get("exc_info") or record.exc_info)
        if error is not None:
            found |= _exception(error)
        converted = LogRecord(
            timestamp=int(record.created * 1e9),
            severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.INFO),
            severity_text=record.levelname,
            body=body,
            attributes=found,
        )
        if not converted.trace_flags or not converted.trace_flags.sampled:  # the trace is not sent
            converted.context, converted.trace_id, converted.span_id = _NO_CONTEXT, 0, 0
        return converted


def _error_of(exc_info: Any) -> BaseException | None:
    if exc_info is True:
        exc_info = sys.exc_info()
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    return exc_info if isinstance(exc_info, BaseException) else None


def _exception(error: BaseException) -> dict[str, str]:
    """Return the type, stack trace and, if it cannot contain user data, the message of an error."""
    found = {
        "exception.type": type(error).__name__,
        "exception.stacktrace": "".join(traceback.format_tb(error.__traceback__)),
    }
    if (message := message_of(error)) is not None:
        found["exception.message"] = message
    return found
