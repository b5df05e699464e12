"""OTLP over gRPC: the three unary Export methods, on raw bytes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from frazil import telemetry
from frazil.config import TlsConfig, split_listen
from frazil.errors import FrazilError
from frazil.receive.admission_interceptor import AdmissionInterceptor, admitting
from frazil.receive.intake import Intake, response
from frazil.receive.status import PROTOBUF, Refusal, refusal
from frazil.tables import Signal
from frazil.tls import is_usable, stamps

METHODS: dict[str, Signal] = {
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
    "opentelemetry.proto.collector.trace.v1.TraceService": "spans",
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
}

_STREAMS_MAX = 100
"""Concurrent calls per connection; clients queue further calls themselves."""

log = structlog.get_logger("frazil.receive")


class GrpcServer:
    """The gRPC listener of one worker."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._config = intake.config.receive.grpc
        self._server: Any = None

    async def start(self) -> None:
        limits = self._intake.config.receive.limits
        ping = int(self._config.keepalive_min_interval_seconds * 1000)
        server = grpc.aio.server(
            interceptors=(AdmissionInterceptor(self._intake, METHODS, self._abort),),
            options=[
                ("grpc.max_receive_message_length", limits.request_bytes_max),
                ("grpc.max_concurrent_streams", _STREAMS_MAX),
                ("grpc.max_metadata_size", self._intake.config.receive.http.header_bytes_max),
                ("grpc.so_reuseport", 1),
                # allow pings 10 % more often than configured, with or without calls
                ("grpc.http2.min_ping_interval_without_data_ms", int(ping * 0.9)),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        for service, signal in METHODS.items():
            method = grpc.unary_unary_rpc_method_handler(self._exporter(signal))
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {"Export": method}),)
            )
        tls = self._intake.config.receive.tls
        if tls is None:
            port = server.add_insecure_port(self._config.listen)
        else:
            port = server.add_secure_port(self._config.listen, _credentials(tls))
        if port != split_listen(self._config.listen)[1]:
            raise OSError(f"cannot listen on {self._config.listen} (receive.grpc.listen)")
        await server.start()
        self._server = server

    async def stop(self, grace_seconds: float) -> None:
        """Refuses new calls and gives running calls `grace_seconds` to end. Needs no start."""
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(grace_seconds)

    def _exporter(self, signal: Signal) -> Any:
        async def serve(body: bytes, context: Any) -> bytes:
            metadata = _metadata(context)
            with telemetry.server_span("receive", metadata, signal=signal, transport="grpc"):
                try:
                    return await self._export_shielded(signal, body, metadata)
                except Exception as error:
                    if not isinstance(error, FrazilError):
                        log.exception("request failed unexpectedly", signal=signal, transport="grpc")
                    refused = refusal(error)
                    telemetry.refuse(refused.reason)
            await self._abort(context, signal, refused)
            raise AssertionError("abort raises")

        return serve

    async def _export_shielded(self, signal: Signal, body: bytes, metadata: dict[str, Any]) -> bytes:
        # After a client cancels, its bytes stay in the journal's queue: count them until they are durable.
        export = asyncio.ensure_future(self._export(signal, body, metadata))
        try:
            return await asyncio.shield(export)
        except asyncio.CancelledError:
            export.add_done_callback(_retrieve_error)
            raise

    async def _abort(self, context: Any, signal: Signal, refused: Refusal) -> None:
        self._intake.metrics.refused(signal, "grpc", refused.reason)
        if refused.retry_after_seconds is not None:
            details = refused.status.SerializeToString()
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        await context.abort(refused.grpc, refused.message)

    async def _export(self, signal: Signal, body: bytes, metadata: dict[str, Any]) -> bytes:
        intake, arrived = self._intake, time.perf_counter()
        with admitting():
            tenant = intake.tenant(metadata.get("authorization"), metadata.get("x-api-key"))
            intake.check_durable()
            ticket = await intake.admission.enter(len(body), tenant)
        with ticket:
            intake.metrics.in_flight(intake.admission.bytes)
            receipt = await intake.accept(signal, body, tenant, "grpc", arrived)
        return response(signal, receipt, PROTOBUF)


def _metadata(context: Any) -> dict[str, Any]:
    return dict(context.invocation_metadata() or ())


def _retrieve_error(export: asyncio.Future[bytes]) -> None:
    """Retrieves the exception, so that asyncio does not log it as never retrieved."""
    if not export.cancelled():
        export.exception()


def _credentials(tls: TlsConfig) -> Any:
    """Returns credentials that are reloaded for new connections when the files change."""
    read = _CertificateFiles(tls)
    return grpc.dynamic_ssl_server_credentials(
        read.configuration(), read.changed, require_client_authentication=tls.client_ca_file is not None
    )


class _CertificateFiles:
    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._seen = stamps(tls)

    def configuration(self) -> Any:
        client_ca = self._tls.client_ca_file
        return grpc.ssl_server_certificate_configuration(
            [(self._tls.key_file.read_bytes(), self._tls.cert_file.read_bytes())],
            root_certificates=None if client_ca is None else Path(client_ca).read_bytes(),
        )

    def changed(self) -> Any:
        """Returns the new configuration, or None to keep the current one, also while files are incomplete."""
        try:
            now = stamps(self._tls)
            if now is None or now == self._seen or not is_usable(self._tls):
                return None
            configuration = self.configuration()
        except OSError:
            return None
        self._seen = now
        return configuration
