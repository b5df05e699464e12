"""A client that sends prepared OTLP requests and times every response. Runs as a process of its own.

`python -m bench.load` reads a JSON Load from standard input, makes its payloads, says `ready`, waits for a
line, sends, and prints the outcome as JSON.
"""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.payloads import MAKERS, large_logs_request

PATHS = {"logs": "/v1/logs", "spans": "/v1/traces", "metrics": "/v1/metrics"}
SERVICES = {
    "logs": "opentelemetry.proto.collector.logs.v1.LogsService",
    "spans": "opentelemetry.proto.collector.trace.v1.TraceService",
    "metrics": "opentelemetry.proto.collector.metrics.v1.MetricsService",
}


@dataclass(frozen=True)
class Load:
    """`rate` is requests per second on a fixed schedule; None sends as fast as responses arrive."""

    http_port: int
    grpc_port: int
    signal: str = "logs"
    transport: str = "http"
    encoding: str = "identity"
    content: str = "protobuf"
    requests: int = 100
    records: int = 1000
    clients: int = 8
    rate: float | None = None
    first_seed: int = 0


@dataclass
class Outcome:
    latencies_seconds: list[float] = field(default_factory=list)
    retried: int = 0
    failed: int = 0
    bytes: int = 0
    wall_seconds: float = 0.0
    client_cpu_seconds: float = 0.0


def _payloads(load: Load) -> list[bytes]:
    seeds = range(load.first_seed, load.first_seed + load.requests)
    make = large_logs_request if load.records > 10_000 else MAKERS[load.signal]
    bodies = [make(seed, load.records) for seed in seeds]
    if load.content == "json":
        from frazil.otlp.json import request_to_json
        from frazil.otlp.wire import REQUESTS

        bodies = [request_to_json(REQUESTS[load.signal].FromString(body)) for body in bodies]  # type: ignore[index]
    if load.encoding == "gzip" and load.transport == "http":
        bodies = [gzip.compress(body, compresslevel=6) for body in bodies]
    return bodies


def _http_sender(load: Load) -> Callable[[bytes], bool]:
    """Sends one request; False if the server asked to retry later."""
    connection = http.client.HTTPConnection("127.0.0.1", load.http_port, timeout=120)
    headers = {"content-type": "application/json" if load.content == "json" else "application/x-protobuf"}
    if load.encoding != "identity":
        headers["content-encoding"] = load.encoding

    def send(body: bytes) -> bool:
        try:
            connection.request("POST", PATHS[load.signal], body, headers)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return False
        if answer.status in (429, 503):
            return False
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text!r}")
        return True

    return send


def _grpc_sender(load: Load) -> Callable[[bytes], bool]:
    import grpc

    compression = grpc.Compression.Gzip if load.encoding == "gzip" else grpc.Compression.NoCompression
    channel = grpc.insecure_channel(
        f"127.0.0.1:{load.grpc_port}",
        options=[("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)],
        compression=compression,
    )
    export = channel.unary_unary(f"/{SERVICES[load.signal]}/Export")

    def send(body: bytes) -> bool:
        try:
            export(body, timeout=120)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
                return False
            raise
        return True

    return send


def run(load: Load, bodies: list[bytes]) -> Outcome:
    outcome = Outcome(bytes=sum(map(len, bodies)))
    lock = threading.Lock()
    numbers = iter(range(len(bodies)))
    start = time.perf_counter() + 0.05

    def client() -> None:
        send = _http_sender(load) if load.transport == "http" else _grpc_sender(load)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            due = time.perf_counter() if load.rate is None else start + number / load.rate
            if (pause := due - time.perf_counter()) > 0:
                time.sleep(pause)
            while not send(bodies[number]):
                with lock:
                    outcome.retried += 1
                time.sleep(0.5)
            with lock:
                outcome.latencies_seconds.append(time.perf_counter() - due)

    threads = [threading.Thread(target=client) for _ in range(load.clients)]
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.wall_seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    outcome.client_cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    outcome.failed = len(bodies) - len(outcome.latencies_seconds)
    return outcome


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    load = Load(**settings)
    bodies = _payloads(load)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(run(load, bodies))), flush=True)


if __name__ == "__main__":
    main()
