"""An OTLP endpoint on loopback that keeps what it is sent: the exporters are the real ones."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Endpoint:
    url: str = ""
    status: int = 200
    """What HTTP requests are answered with."""
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    logs: list[LogRecord] = field(default_factory=list)

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.headers.append(headers)
        if "trace" in path.lower():
            for found in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(facts(found.resource.attributes))
                self.spans += [span for scope in found.scope_spans for span in scope.spans]
        else:
            for one in ExportLogsServiceRequest.FromString(body).resource_logs:
                self.resources.append(facts(one.resource.attributes))
                self.logs += [record for scope in one.scope_logs for record in scope.log_records]

    def span(self, name: str) -> Span:
        (found,) = (span for span in self.spans if span.name == name)
        return found


def facts(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


@contextmanager
def http_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if endpoint.status == 200:
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.take(self.path, gzip.decompress(body), headers)
            self.send_response(endpoint.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            headers = dict(call.invocation_metadata)

            def export(body: bytes, context: Any) -> bytes:
                endpoint.take(call.method, body, headers)
                return b""

            return grpc.unary_unary_rpc_method_handler(export)

    server = grpc.server(ThreadPoolExecutor(2), handlers=(Handler(),))
    endpoint.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield endpoint
    finally:
        server.stop(None).wait()
