"""The SDK's OTLP exporters: their arguments, and capture of their error messages."""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from frazil import __version__
from frazil.config import Config, TelemetryConfig
from frazil.telemetry.batch_exporter import Export, Kind
from frazil.telemetry.spans import SELF_HEADER

_TIMEOUT_SECONDS = 5.0
"""Timeout of one batch, including the exporter's retries."""
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([\w ]+)")


@dataclass(frozen=True)
class ExporterSettings:
    """Connection settings shared by the exporters of all signals."""

    endpoint: str
    headers: Mapping[str, str]
    timeout_seconds: float
    ca_file: Path | None = None
    gzip: bool = True

    def http_arguments(self, path: str, session: Any) -> dict[str, Any]:
        """Return the arguments of an HTTP exporter. `session` is a `requests.Session`."""
        from opentelemetry.exporter.otlp.proto.http import Compression

        session.trust_env = not self._is_loopback
        return {
            "endpoint": self.endpoint + path,
            "certificate_file": None if self.ca_file is None else str(self.ca_file),
            "headers": dict(self.headers),
            "timeout": self.timeout_seconds,
            "compression": Compression.Gzip if self.gzip else Compression.NoCompression,
            "session": session,
        }

    def grpc_arguments(self) -> dict[str, Any]:
        """Return the arguments of a gRPC exporter."""
        import grpc

        insecure = self.endpoint.lower().startswith("http:")
        ca_certificate = None if self.ca_file is None else self.ca_file.read_bytes()
        return {
            "endpoint": self.endpoint,
            "insecure": insecure,
            "credentials": None if insecure else grpc.ssl_channel_credentials(ca_certificate),
            "headers": tuple(self.headers.items()),
            "timeout": self.timeout_seconds,
            "compression": grpc.Compression.Gzip if self.gzip else grpc.Compression.NoCompression,
            "channel_options": (("grpc.enable_http_proxy", 0),) if self._is_loopback else None,
        }

    @property
    def _is_loopback(self) -> bool:
        """True for this machine, where a proxy from the environment must not be used."""
        host = urlsplit(self.endpoint).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True)
class Exporters:
    exports: dict[Kind, Export]
    abort: Callable[[], None]
    endpoint: str


def make_exporters(config: Config) -> Exporters:
    """Create the exporters. Raises ValueError if the receiver's port is not known."""
    settings = config.telemetry
    endpoint = settings.endpoint
    if endpoint is None:
        endpoint = config.receive.url("grpc" if settings.protocol == "grpc" else "http")
        if urlsplit(endpoint).port == 0:
            raise ValueError(
                "the receiver listens on port 0 (any free port): set a port or telemetry.endpoint"
            )
    if settings.ca_file is not None:
        settings.ca_file.read_bytes()  # the exporters do not report an unreadable file
    target = ExporterSettings(endpoint.rstrip("/"), _headers(settings), _TIMEOUT_SECONDS, settings.ca_file)
    spans, logs = (_over_grpc if settings.protocol == "grpc" else _over_http)(config, target)

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
    if settings.protocol != "grpc":
        headers["user-agent"] = f"frazil/{__version__}"
    return headers | {SELF_HEADER: "1"}


def _over_http(config: Config, target: ExporterSettings) -> tuple[Any, Any]:
    import requests
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    http = config.receive.http
    own_receiver = config.telemetry.endpoint is None
    traces_path, logs_path = (
        (http.traces_path, http.logs_path) if own_receiver else ("/v1/traces", "/v1/logs")
    )
    return (
        OTLPSpanExporter(**target.http_arguments(traces_path, requests.Session())),
        OTLPLogExporter(**target.http_arguments(logs_path, requests.Session())),
    )


def _over_grpc(_: Config, target: ExporterSettings) -> tuple[Any, Any]:
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(**target.grpc_arguments()), OTLPLogExporter(**target.grpc_arguments())


class ExporterErrors(logging.Handler):
    """Captures the SDK's log messages, one per retry, and keeps them off the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger("opentelemetry")
        self._propagate = self._logger.propagate
        self._last = ""

    def attach(self) -> None:
        self._logger.addHandler(self)
        self._logger.propagate = False

    def detach(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagate

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        # Messages about giving up do not contain the cause; the messages about retries do.
        if "due to timeout" not in message and "hutdown" not in message:
            short = _SYSTEM_ERROR.search(message)
            self._last = message if short is None else short[1]

    def reason(self) -> str:
        return self._last or "no response"
