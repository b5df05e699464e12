"""What tests talk to a receiver with: requests on either transport, and what its answers and rows hold."""

from __future__ import annotations

import contextlib
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from frazil.tables import Signal, table_spec
from frazil.wal import open_store
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from tests.support.receiver import Receiver

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
SIGNALS: tuple[Signal, ...] = ("logs", "spans", "metrics")
PATHS: dict[Signal, str] = {"logs": "/v1/logs", "spans": "/v1/traces", "metrics": "/v1/metrics"}
METHODS: dict[Signal, str] = {
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "spans": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
}
RESPONSES: dict[Signal, type[Message]] = {
    "logs": ExportLogsServiceResponse,
    "spans": ExportTraceServiceResponse,
    "metrics": ExportMetricsServiceResponse,
}


def post(
    receiver: Receiver,
    signal: Signal,
    body: bytes | Iterator[bytes],
    content_type: str | None = PROTOBUF,
    *,
    encoding: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """An OTLP/HTTP export; an iterator as the body goes out in chunks, without a content length."""
    given = {"content-type": content_type, "content-encoding": encoding, **(headers or {})}
    return httpx.post(
        receiver.http + PATHS[signal],
        content=body,
        headers={name: value for name, value in given.items() if value is not None},
        timeout=30,
        verify=False,  # plain text: reading the system's authorities would take longer than the request
    )


def status_of(response: httpx.Response) -> Status:
    """The Status of a refusal, which must be in the encoding that the answer says."""
    if response.headers["content-type"] == PROTOBUF:
        return Status.FromString(response.content)
    assert response.headers["content-type"] == JSON
    return json_format.Parse(response.content, Status())


@contextlib.contextmanager
def channel(receiver: Receiver, **options: int) -> Iterator[grpc.Channel]:
    """A connection of its own, with channel arguments such as `keepalive_time_ms=100`."""
    arguments = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    arguments += [(f"grpc.{name}", value) for name, value in options.items()]
    with grpc.insecure_channel(receiver.grpc, options=arguments) as opened:
        yield opened


def export(
    opened: grpc.Channel,
    signal: Signal,
    body: bytes,
    *,
    metadata: Mapping[str, str] | None = None,
    compression: grpc.Compression | None = None,
    timeout: float = 30,
) -> bytes:
    """An OTLP/gRPC export of raw bytes; returns the raw answer."""
    call = opened.unary_unary(METHODS[signal])
    return call(body, metadata=tuple((metadata or {}).items()), compression=compression, timeout=timeout)


def retry_delay_of(error: grpc.RpcError) -> float | None:
    """The seconds that RetryInfo asks for, if the refusal carries one."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
    if details is None:
        return None
    status = Status.FromString(details)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    return info.retry_delay.seconds + info.retry_delay.nanos / 1e9


_read: dict[tuple[Path, Signal], set[SegmentName]] = defaultdict(set)
_rows: dict[tuple[Path, Signal, str | None], list[pa.Table]] = defaultdict(list)


def rows_of(receiver: Receiver, signal: Signal, service: str) -> list[dict[str, Any]]:
    """The durable rows that `service` sent. Segments never change, so that each is read once in a run."""
    reader = WalReader(open_store(receiver.config))
    for segment in reader.pending(signal):
        if segment.name not in _read[receiver.folder, signal]:
            _read[receiver.folder, signal].add(segment.name)
            table = reader.rows(segment.name, table_spec(signal))[1]
            for name in pc.unique(table.column("service_name")).to_pylist():
                of_name = pc.equal(table.column("service_name"), name)
                _rows[receiver.folder, signal, name].append(table.filter(of_name))
    tables = _rows[receiver.folder, signal, service]
    return pa.concat_tables(tables).to_pylist(maps_as_pydicts="strict") if tables else []


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def received(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)
