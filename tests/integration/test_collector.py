"""The OpenTelemetry Collector and telemetrygen as clients: nothing is missing and nothing comes twice."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from frazil.tables import Signal
from tests.components.otelcol import running_collector
from tests.components.process import free_port, wait_until
from tests.support.integration.clients import METHODS, RESPONSES, rows_of
from tests.support.integration.messages import new_service, request
from tests.support.receiver import Receiver

pytestmark = pytest.mark.go

EXPORTERS: dict[str, dict[str, Any]] = {
    "http protobuf": {"type": "otlphttp"},
    "http protobuf gzip": {"type": "otlphttp", "compression": "gzip"},
    "http protobuf zstd": {"type": "otlphttp", "compression": "zstd"},
    "http protobuf deflate": {"type": "otlphttp", "compression": "deflate"},
    "http json": {"type": "otlphttp", "encoding": "json"},
    "http json zstd": {"type": "otlphttp", "encoding": "json", "compression": "zstd"},
    "grpc": {"type": "otlp"},
    "grpc gzip": {"type": "otlp", "compression": "gzip"},
}


def _collector(receiver: Receiver, exporter: dict[str, Any], port: int) -> dict[str, Any]:
    """otlp in on `port`, the exporter out, without a batch processor: a request in is a request out."""
    chosen = {"compression": "none", "tls": {"insecure": True}} | exporter
    kind = chosen.pop("type")
    chosen["endpoint"] = receiver.grpc if kind == "otlp" else receiver.http
    chosen["sending_queue"] = {"enabled": False}
    pipeline = {"receivers": ["otlp"], "exporters": [kind]}
    return {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {kind: chosen},
        "service": {"pipelines": dict.fromkeys(("logs", "traces", "metrics"), pipeline)},
    }


@pytest.mark.parametrize("exporter", EXPORTERS.values(), ids=EXPORTERS)
def test_the_collector_delivers_every_signal(
    receiver: Receiver, otel_collector: Path, tmp_path: Path, exporter: dict[str, Any]
) -> None:
    services: dict[Signal, str] = {"logs": new_service(), "spans": new_service(), "metrics": new_service()}
    sent = {signal: request(signal, service, 25) for signal, service in services.items()}
    port = free_port()
    with (
        running_collector(tmp_path, config=_collector(receiver, exporter, port)),
        grpc.insecure_channel(f"127.0.0.1:{port}") as opened,
    ):
        for signal, message in sent.items():
            # Without a queue the Collector answers when frazil has answered.
            answer = opened.unary_unary(METHODS[signal])(message.SerializeToString(), timeout=30)
            assert not RESPONSES[signal].FromString(answer).partial_success.ListFields()
    for signal, service in services.items():
        rows = rows_of(receiver, signal, service)
        column = {"logs": "body", "spans": "name", "metrics": "metric_name"}[signal]
        assert sorted(row[column] for row in rows) == sorted(f"record {index}" for index in range(25))
    spans = sent["spans"].resource_spans[0].scope_spans[0].spans
    kept = {row["span_id"]: row["trace_id"] for row in rows_of(receiver, "spans", services["spans"])}
    assert kept == {span.span_id.hex(): span.trace_id.hex() for span in spans}


@pytest.mark.parametrize("over", ["http", "grpc"])
@pytest.mark.parametrize(
    ("kind", "signal", "rows_each"), [("logs", "logs", 1), ("traces", "spans", 2), ("metrics", "metrics", 1)]
)
def test_telemetrygen_is_counted_exactly(
    receiver: Receiver, telemetrygen: Path, kind: str, signal: Signal, rows_each: int, over: str
) -> None:
    service = new_service()
    command = [telemetrygen, kind, f"--{kind}", "50", "--workers", "2", "--rate", "0", "--otlp-insecure"]
    command += ["--service", service]
    if over == "http":
        command += ["--otlp-http", "--otlp-endpoint", f"127.0.0.1:{receiver.http_port}"]
    else:
        command += ["--otlp-endpoint", receiver.grpc]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr[-2000:]
    expected = 2 * 50 * rows_each  # a trace of telemetrygen is a parent and a child
    assert wait_until(lambda: len(rows_of(receiver, signal, service)) >= expected, seconds_max=20)
    rows = rows_of(receiver, signal, service)
    assert len(rows) == expected
    if signal == "spans":
        ids = {row["span_id"] for row in rows}
        assert len(ids) == expected
        children = [row for row in rows if row["parent_span_id"] is not None]
        assert len(children) == 100
        assert all(row["parent_span_id"] in ids for row in children)
