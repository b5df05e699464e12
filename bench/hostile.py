"""`python -m bench.hostile`: what one tenant's hostile or very large requests cost another tenant.

A receiver with API keys of two tenants. Tenant b sends ten log records ten times a second and times every
answer, first alone and then beside each attack, which several clients of tenant a repeat. Attacks are sent by
a process of their own. The exit code is 1 if b's p99 is not below 500 ms or a request of b is refused.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.payloads import large_logs_request, logs_request
from bench.table import Bench, Row

P99_MS_MAX = 500
CANARY_SECONDS = 10
"""The time limit of an export in OpenTelemetry's SDKs."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"
EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
STREAMS_RENEWED_SECONDS = 2.5
_MILLION = 1_000_000


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _message(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


def _attribute(field: int, number: int, text: bytes) -> bytes:
    return _message(field, _message(1, b"k%d" % number) + _message(2, _message(1, text)))


def _shared_resource() -> bytes:
    resource = b"".join(_attribute(1, number, b"v" * 680) for number in range(1000))
    return _message(1, _message(1, resource) + _message(2, b"\x12\x00" * _MILLION))


def _many_attributes() -> bytes:
    record = b"".join(_attribute(6, number, b"v") for number in range(_MILLION))
    return _message(1, _message(2, _message(2, record)))


BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "8M empty resources": (PROTOBUF, lambda: b"\x0a\x00" * (8 * _MILLION)),
    "700 KB resource, 1M empty records": (PROTOBUF, _shared_resource),
    "8M empty scopes": (PROTOBUF, lambda: _message(1, b"\x12\x00" * (8 * _MILLION))),
    "1M resources with a record": (PROTOBUF, lambda: _message(1, _message(2, b"\x12\x00")) * _MILLION),
    "JSON, 5M empty resources": (JSON, lambda: b'{"resourceLogs":[' + b"{}," * (5 * _MILLION) + b"{}]}"),
    "1M attributes of one record": (PROTOBUF, _many_attributes),
    "1M empty records (valid)": (PROTOBUF, lambda: _message(1, _message(2, b"\x12\x00" * _MILLION))),
    "60 MB of records (valid)": (PROTOBUF, lambda: large_logs_request(1, 210_000)),
}
STREAMS = "gRPC streams without a message"


def _post(connection: http.client.HTTPConnection, key: str, body: bytes, **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", "/v1/logs", body, {"authorization": f"Bearer {key}", **names})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def attack(name: str, http_port: int, grpc_port: int, key: str, clients: int) -> None:
    """Runs until standard input ends; then prints the number of responses by status."""
    answers: Counter[str] = Counter()
    stop = threading.Event()
    if name == STREAMS:
        client, made = _hold_streams, {"port": grpc_port, "key": key}
    else:
        content, make = BODIES[name]
        client = _repeat
        made = {"port": http_port, "key": key, "content": content, "body": gzip.compress(make(), 6)}
    threads = [
        threading.Thread(target=client, args=(stop, answers), kwargs=made, daemon=True)
        for _ in range(clients)
    ]
    print("ready", flush=True)
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join(30)
    print(", ".join(f"{count} x {answer}" for answer, count in answers.most_common()), flush=True)


def _repeat(
    stop: threading.Event, answers: Counter[str], *, port: int, key: str, content: str, body: bytes
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    while not stop.is_set():
        try:
            status = _post(connection, key, body, content_type=content, content_encoding="gzip")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            answers[type(error).__name__] += 1
        else:
            answers[str(status)] += 1
            if status == 429:
                stop.wait(0.2)


def _hold_streams(stop: threading.Event, answers: Counter[str], *, port: int, key: str) -> None:
    """Connections of 100 streams each: headers with a valid key and no message, again and again."""
    import h2.config
    import h2.connection

    fields = {":method": "POST", ":scheme": "http", ":path": EXPORT, ":authority": "bench"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "authorization": f"Bearer {key}"}
    while not stop.is_set():
        opened = []
        for _ in range(3):
            http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            http2.initiate_connection()
            for number in range(100):
                http2.send_headers(2 * number + 1, list(fields.items()))
            connection = socket.create_connection(("127.0.0.1", port), timeout=10)
            connection.sendall(http2.data_to_send())
            opened.append(connection)
        answers["300 streams"] += 1
        stop.wait(STREAMS_RENEWED_SECONDS)
        for connection in opened:
            connection.close()


@contextmanager
def _attacking(name: str, receiver: Any, key: str, clients: int, told: list[str]) -> Iterator[None]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bench.hostile", "--attack", name, "--key", key),
            *("--clients", str(clients), "--ports", str(receiver.http_port), str(receiver.grpc_port)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    try:
        yield
    finally:
        told.append(process.communicate()[0].strip())


def _http_canary(receiver: Any, key: str) -> Callable[[bytes], str]:
    connection = http.client.HTTPConnection("127.0.0.1", receiver.http_port, timeout=CANARY_SECONDS)

    def send(body: bytes) -> str:
        try:
            status = _post(connection, key, body, content_type=PROTOBUF)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return type(error).__name__
        return "" if status == 200 else str(status)

    return send


def _grpc_canary(receiver: Any, key: str) -> Callable[[bytes], str]:
    import grpc

    channel = grpc.insecure_channel(receiver.grpc, options=[("grpc.use_local_subchannel_pool", 1)])
    export = channel.unary_unary(EXPORT)

    def send(body: bytes) -> str:
        try:
            export(body, timeout=CANARY_SECONDS, metadata=(("authorization", f"Bearer {key}"),))
        except grpc.RpcError as error:
            return str(error.code().name)
        return ""

    return send


def canary(send: Callable[[bytes], str], seconds: float) -> tuple[list[float], Counter[str]]:
    """Latencies of the responses in milliseconds, measured from when a request was due, and refusals."""
    bodies = [logs_request(seed, 10) for seed in range(50)]
    latencies: list[float] = []
    refused: Counter[str] = Counter()
    begin = time.perf_counter()
    number = 0
    while (due := begin + number * 0.1) < begin + seconds:
        now = time.perf_counter()
        if due > now:
            time.sleep(due - now)
        else:
            due = now  # one client: a delay of the last response is not counted twice
        answer = send(bodies[number % len(bodies)])
        if answer:
            refused[answer] += 1
        latencies.append(1000 * (time.perf_counter() - due))
        number = max(number + 1, int((time.perf_counter() - begin) / 0.1))
    return sorted(latencies), refused


@dataclass(frozen=True)
class Found:
    """Latencies of tenant b's acks in milliseconds, sorted: alone, and during an attack."""

    attack: str
    alone: list[float]
    beside: list[float]
    refused: Counter[str]
    """Responses to tenant b other than 200."""
    told: str
    """Responses to the attacking clients."""

    @property
    def met(self) -> bool:
        return p99(self.beside) < P99_MS_MAX and not self.refused


def p99(latencies: list[float]) -> float:
    return latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))]


def quantiles(latencies: list[float]) -> str:
    return f"{statistics.median(latencies):.0f} / {p99(latencies):.0f} / {latencies[-1]:.0f} ms"


def measured(seconds: float, clients: int, only: Sequence[str] = ()) -> Iterator[Found]:
    from tests.support.receiver import running_receiver

    from frazil.keys import new_key

    keys, entries = {}, []
    for tenant in "ab":
        keys[tenant], digest = new_key(tenant)
        entries.append({"name": tenant, "tenant": tenant, "hash": digest, "roles": ["write"]})
    with tempfile.TemporaryDirectory(prefix="frazil-hostile-") as folder:
        for name in [name for name in (*BODIES, STREAMS) if not only or name in only]:
            with running_receiver(Path(folder) / str(hash(name)), {"auth": {"keys": entries}}) as receiver:
                made = _grpc_canary if name == STREAMS else _http_canary
                canary(made(receiver, keys["b"]), 1)
                alone, _ = canary(made(receiver, keys["b"]), min(seconds, 5))
                told: list[str] = []
                with _attacking(name, receiver, keys["a"], clients, told):
                    time.sleep(0.5)
                    beside, refused = canary(made(receiver, keys["b"]), seconds)
            yield Found(name, alone, beside, refused, told[0])


def hostile(bench: Bench) -> None:
    """What another tenant's acks take while each attack runs."""
    for found in measured(5 if bench.quick else 15, clients=4):
        bench.add(
            Row(
                f"ack during: {found.attack}",
                quantiles(found.beside),
                quantiles(found.alone),
                found.told,
                f"p99 < {P99_MS_MAX} ms",
                found.met,
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=15, help="how long each attack lasts")
    parser.add_argument("--clients", type=int, default=4, help="clients of the attacking tenant")
    parser.add_argument("--only", action="append", default=[], choices=(*BODIES, STREAMS))
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        attack(arguments.attack, *arguments.ports, arguments.key, arguments.clients)
        return 0
    met = True
    for found in measured(arguments.seconds, arguments.clients, arguments.only):
        met &= found.met
        print(
            f"{found.attack:36s} p50 / p99 / max {quantiles(found.beside):24s} "
            f"alone {quantiles(found.alone):20s} refused {dict(found.refused) or 0}   {found.told}",
            flush=True,
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
