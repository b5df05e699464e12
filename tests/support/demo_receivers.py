"""Real OTLP receivers for tests, gRPC and HTTP, on a free port of 127.0.0.1. They keep what they are sent."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

_TRACES = (trace_service_pb2.ExportTraceServiceRequest, trace_service_pb2.ExportTraceServiceResponse)
_LOGS = (logs_service_pb2.ExportLogsServiceRequest, logs_service_pb2.ExportLogsServiceResponse)
_METRICS = (metrics_service_pb2.ExportMetricsServiceRequest, metrics_service_pb2.ExportMetricsServiceResponse)


def plain(attributes: Any) -> dict[str, Any]:
    return {item.key: value_of(item.value) for item in attributes}


def value_of(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return plain(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


@dataclass
class Received:
    """The requests, in order, and views of what they hold; the views are for when nothing more will come."""

    endpoint: str = ""
    requests: list[tuple[str, Any, dict[str, str]]] = field(default_factory=list)
    refusals_left: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, signal: str, request: Any, headers: dict[str, str]) -> bool:
        with self.lock:
            if self.refusals_left:
                self.refusals_left -= 1
                return False
            self.requests.append((signal, request, headers))
            return True

    def of(self, signal: str) -> list[Any]:
        return [request for name, request, _ in self.requests if name == signal]

    @cached_property
    def spans(self) -> list[tuple[dict[str, Any], Any, Any]]:
        """(resource attributes, scope, span)"""
        return [
            (plain(resource.resource.attributes), scope.scope, span)
            for request in self.of("traces")
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @cached_property
    def logs(self) -> list[tuple[dict[str, Any], Any, Any]]:
        return [
            (plain(resource.resource.attributes), scope.scope, record)
            for request in self.of("logs")
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    @cached_property
    def metrics(self) -> list[tuple[dict[str, Any], Any]]:
        return [
            (plain(resource.resource.attributes), metric)
            for request in self.of("metrics")
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    @cached_property
    def points(self) -> list[tuple[str, Any, Any]]:
        """(type of data, metric, point)"""
        return [
            (kind, metric, point)
            for _, metric in self.metrics
            for kind in [metric.WhichOneof("data")]
            for point in getattr(metric, kind).data_points
        ]


@contextmanager
def grpc_receiver(tls: tuple[Path, Path] | None = None) -> Iterator[Received]:
    received = Received()

    def answer(signal: str, response: Any) -> Any:
        def export(request: Any, context: grpc.ServicerContext) -> Any:
            if not received.take(signal, request, dict(context.invocation_metadata())):
                context.abort(grpc.StatusCode.UNAVAILABLE, "try again")
            return response()

        return export

    server = grpc.server(ThreadPoolExecutor(4))
    for signal, adder, (_, response) in (
        ("traces", trace_service_pb2_grpc.add_TraceServiceServicer_to_server, _TRACES),
        ("logs", logs_service_pb2_grpc.add_LogsServiceServicer_to_server, _LOGS),
        ("metrics", metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server, _METRICS),
    ):
        adder(type("Servicer", (), {"Export": staticmethod(answer(signal, response))})(), server)
    if tls:
        key, certificate = (file.read_bytes() for file in tls)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    received.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()


@contextmanager
def http_receiver(tls: tuple[Path, Path] | None = None) -> Iterator[Received]:
    received = Received()
    kinds = {"/v1/traces": _TRACES, "/v1/logs": _LOGS, "/v1/metrics": _METRICS}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request, response = kinds[self.path]
            headers = {name.lower(): value for name, value in self.headers.items()}
            taken = received.take(self.path.rsplit("/", 1)[1], request.FromString(body), headers)
            answer = response().SerializeToString() if taken else b""
            self.send_response(200 if taken else 503)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certfile=tls[1], keyfile=tls[0])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    received.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
