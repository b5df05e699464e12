"""frazil's own log, on standard error: text on a terminal, else one JSON line per event. Never payloads.

log = structlog.get_logger("frazil.receive")
log.info("listening", address="127.0.0.1:4318")
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import orjson
import structlog

from frazil.config import LogConfig

# Libraries that log every request or connection at level info.
_CHATTY = ("granian.access", "httpx", "httpcore", "urllib3", "botocore", "grpc", "py4j", "pyiceberg")


def configure_logging(config: LogConfig, stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's logging to `stream`. A second call replaces the first."""
    stream = sys.stderr if stream is None else stream
    as_console = config.format == "console" or (config.format == "auto" and stream.isatty())
    level = logging.getLevelName(config.level.upper())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.UnicodeDecoder(),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_console(stream) if as_console else _JSON),
            ],
        )
    )
    handler.addFilter(_is_not_redundant)
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Not cached, so that a later call also applies to loggers created at import.
        cache_logger_on_first_use=False,
    )


def _is_not_redundant(record: logging.LogRecord) -> bool:
    """Drop py4j's record of a lost JVM: py4j raises the same error."""
    return not (record.name == "root" and record.module == "java_gateway")


def _console(stream: TextIO) -> list[structlog.typing.Processor]:
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            # Rich's traceback shows local variables, which may hold payloads.
            exception_formatter=structlog.dev.plain_traceback,
        )
    ]


def _dumps(event: dict[str, Any], **_: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


_JSON: list[structlog.typing.Processor] = [
    structlog.processors.format_exc_info,
    structlog.processors.JSONRenderer(serializer=_dumps),
]
