"""frazil's log records as OTLP logs: the event is the body, its facts are attributes."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context

from frazil.telemetry.facts import attributes, message_of
from frazil.telemetry.spans import is_quiet

_OURS = ("frazil.telemetry", "opentelemetry")
"""What tells of sending is not sent."""
_KNOWN = frozenset(
    {"event", "level", "logger", "timestamp", "exc_info", "stack_info", "_record", "_from_structlog"}
)
_SEVERITIES = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}
_APART = Context()


class LogBridge(logging.Handler):
    """Beside the handler that prints."""

    def __init__(self, logger: Logger, level: str, *, sql_text: bool) -> None:
        super().__init__(logging.getLevelName(level.upper()))
        self._logger = logger
        self._sql_text = sql_text

    def emit(self, record: logging.LogRecord) -> None:
        if is_quiet() or record.name.startswith(_OURS):
            return
        try:
            self._logger.emit(self._made(record))
        except Exception:
            self.handleError(record)

    def _made(self, record: logging.LogRecord) -> LogRecord:
        event: Mapping[str, Any] = record.msg if isinstance(record.msg, Mapping) else {}
        body = str(event["event"]) if "event" in event else record.getMessage()
        facts = {name: value for name, value in event.items() if name not in _KNOWN}
        told = attributes(facts, sql_text=self._sql_text) | {"logger.name": record.name}
        error = _error_of(event.get("exc_info") or record.exc_info)
        if error is not None:
            told |= _exception(error)
        made = LogRecord(
            timestamp=int(record.created * 1e9),
            severity_number=_SEVERITIES.get(record.levelno, SeverityNumber.INFO),
            severity_text=record.levelname,
            body=body,
            attributes=told,
        )
        if not made.trace_flags or not made.trace_flags.sampled:  # of a trace that nobody will find
            made.context, made.trace_id, made.span_id = _APART, 0, 0
        return made


def _error_of(exc_info: Any) -> BaseException | None:
    if exc_info is True:
        exc_info = sys.exc_info()
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    return exc_info if isinstance(exc_info, BaseException) else None


def _exception(error: BaseException) -> dict[str, str]:
    """Where it happened. The text of an error only where it cannot quote data; standard error has it."""
    told = {
        "exception.type": type(error).__name__,
        "exception.stacktrace": "".join(traceback.format_tb(error.__traceback__)),
    }
    if (message := message_of(error)) is not None:
        told["exception.message"] = message
    return told
