"""The SDK's OTLP exporters, marked as frazil's own, and what they complain about."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from frazil import __version__
from frazil.config import Config, TelemetryConfig
from frazil.telemetry.outbox import Export, Kind
from frazil.telemetry.spans import SELF_HEADER

_TIMEOUT_SECONDS = 5.0
"""For one batch, with the exporter's own retries."""
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([\w ]+)")


@dataclass(frozen=True)
class Exporters:
    exports: dict[Kind, Export]
    abort: Callable[[], None]
    endpoint: str


def make_exporters(config: Config) -> Exporters:
    """ValueError if it is not known where to."""
    settings = config.telemetry
    make = _over_grpc if settings.protocol == "grpc" else _over_http
    endpoint = settings.endpoint
    if endpoint is None:
        endpoint = config.receive.url("grpc" if settings.protocol == "grpc" else "http")
        if urlsplit(endpoint).port == 0:
            raise ValueError("the receiver takes any free port; give it one, or set telemetry.endpoint")
    if settings.ca_file is not None:
        settings.ca_file.read_bytes()  # the exporters would say much, or nothing, and go on without
    spans, logs = make(config, endpoint.rstrip("/"))

    def abort() -> None:
        spans.shutdown()
        logs.shutdown()

    return Exporters(
        {
            "spans": lambda batch: spans.export(batch) is SpanExportResult.SUCCESS,
            "logs": lambda batch: logs.export(batch) is LogRecordExportResult.SUCCESS,
        },
        abort,
        endpoint,
    )


def _headers(settings: TelemetryConfig) -> dict[str, str]:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    if settings.api_key is not None:
        headers["authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
    return headers | {SELF_HEADER: "1"}


def _over_http(config: Config, endpoint: str) -> tuple[Any, Any]:
    import requests
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    settings, http = config.telemetry, config.receive.http
    into_itself = settings.endpoint is None
    paths = (http.traces_path, http.logs_path) if into_itself else ("/v1/traces", "/v1/logs")

    def arguments(path: str) -> dict[str, Any]:
        session = requests.Session()
        session.trust_env = not _is_loopback(endpoint)
        return {
            "endpoint": endpoint + path,
            "certificate_file": None if settings.ca_file is None else str(settings.ca_file),
            "headers": _headers(settings) | {"user-agent": f"frazil/{__version__}"},
            "timeout": _TIMEOUT_SECONDS,
            "compression": Compression.Gzip,
            "session": session,
        }

    return OTLPSpanExporter(**arguments(paths[0])), OTLPLogExporter(**arguments(paths[1]))


def _over_grpc(config: Config, endpoint: str) -> tuple[Any, Any]:
    import grpc
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    settings = config.telemetry
    is_plain = endpoint.startswith("http:")
    authority = None if settings.ca_file is None else settings.ca_file.read_bytes()
    arguments: dict[str, Any] = {
        "endpoint": endpoint,
        "insecure": is_plain,
        "credentials": None if is_plain else grpc.ssl_channel_credentials(authority),
        "headers": tuple(_headers(settings).items()),
        "timeout": _TIMEOUT_SECONDS,
        "compression": grpc.Compression.Gzip,
        "channel_options": (("grpc.enable_http_proxy", 0),) if _is_loopback(endpoint) else None,
    }
    return OTLPSpanExporter(**arguments), OTLPLogExporter(**arguments)


def _is_loopback(endpoint: str) -> bool:
    """A proxy of the environment must not see what is meant for this machine."""
    host = urlsplit(endpoint).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Complaints(logging.Handler):
    """Hears what the SDK and its exporters log, a line for each retry, and keeps it off the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger("opentelemetry")
        self._propagate = self._logger.propagate
        self._last = ""

    def listen(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def leave(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagate

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # That it gave up explains nothing; why it tried again does.
        if "due to timeout" not in message and "hutdown" not in message:
            short = _SYSTEM_ERROR.search(message)
            self._last = message if short is None else short[1]

    def reason(self) -> str:
        return self._last or "no answer"
