"""Bad input against a live receiver: the right refusals, a worker that lives on, neighbours served."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
import zstandard
from google.protobuf.message import DecodeError, Message
from google.rpc.status_pb2 import Status
from hypothesis import HealthCheck, Phase, find, settings
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from frazil.otlp.json import request_to_json
from frazil.otlp.wire import REQUESTS, RESPONSES
from frazil.tables import SIGNALS, Signal
from tests.support.otlp_requests import logs_requests, metrics_requests, trace_requests
from tests.support.otlp_wire import (
    delimited,
    fixed64,
    log_with_attribute,
    log_with_body,
    nested_value,
    varint,
    within,
)
from tests.support.receiver import Receiver, running_receiver

MIB = 1 << 20
PATHS: dict[Signal, str] = {"logs": "/v1/logs", "spans": "/v1/traces", "metrics": "/v1/metrics"}
SERVICES: dict[Signal, str] = {
    "logs": "logs.v1.Logs",
    "spans": "trace.v1.Trace",
    "metrics": "metrics.v1.Metrics",
}
PROTOBUF, JSON = "application/x-protobuf", "application/json"
RSS_BYTES_MAX = 900 * MIB
"""Alone it takes 350 MiB at most; beside other tests a refused request is still there when the next comes."""
SETTINGS: dict[str, Any] = {
    "receive": {
        "http": {"body_timeout_seconds": 1, "header_timeout_seconds": 1},
        "limits": {"request_bytes_max": 16 * MIB, "in_flight_bytes_max": 64 * MIB, "nesting_depth_max": 32},
    }
}
each_signal = pytest.mark.parametrize("signal", SIGNALS)


class Neighbour:
    """Another client, which sends good requests all the while and wants every one of them taken."""

    def __init__(self, receiver: Receiver, name: str) -> None:
        self._receiver, self._name = receiver, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.sent: list[str] = []
        self.refused: list[str] = []

    def _send(self) -> None:
        with httpx.Client(base_url=self._receiver.http, timeout=60) as client:
            while not self.sent or not self._stop.is_set():
                text = f"{self._name} {len(self.sent)}"
                body = within((1, 2, 2, 5, 1), text.encode())
                answer = client.post("/v1/logs", content=body, headers={"content-type": PROTOBUF})
                self.sent.append(text)
                if answer.status_code != 200 or answer.content:
                    self.refused.append(f"{text}: {answer.status_code} {answer.text}")
                self._stop.wait(0.1)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


def peak_bytes(pid: int) -> int:
    """The most memory that the process ever held."""
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """One receiver for all of this; in the end every good request of the neighbour is there once."""
    with running_receiver(tmp_path_factory.mktemp("bad-input"), SETTINGS) as receiver:
        pids = receiver.worker_pids()
        receiver.sent_by_neighbours = []  # type: ignore[attr-defined]
        yield receiver
        assert receiver.worker_pids() == pids
        assert peak_bytes(pids[0]) < RSS_BYTES_MAX
        assert receiver.stop() == 0
        rows = receiver.rows("logs").select(["body", "time_unix_nano"]).to_pylist()
        durable = Counter(row["body"] for row in rows)
        sent = receiver.sent_by_neighbours  # type: ignore[attr-defined]
        assert len(sent) > 10
        assert [text for text in sent if durable[text] != 1] == []
        assert durable["must not be kept"] == 0
        times = {row["body"]: row["time_unix_nano"] for row in rows if str(row["body"]).startswith("json ")}
        assert times in ({}, {"json 0": None, "json 1": 1, f"json {2**63 - 1}": 2**63 - 1})
        log = (receiver.folder / "receiver.log").read_text()
        assert "request failed unexpectedly" not in log, log[-3000:]


@pytest.fixture(autouse=True)
def live(server: Receiver, request: pytest.FixtureRequest) -> Iterator[Receiver]:
    """The receiver, with a neighbour beside; the same worker is alive and ready afterwards."""
    pids = server.worker_pids()
    assert len(pids) == 1
    with Neighbour(server, request.node.name) as neighbour:
        yield server
    assert server.worker_pids() == pids
    assert neighbour.refused == []
    assert neighbour.sent
    assert server.is_ready()
    assert peak_bytes(pids[0]) < RSS_BYTES_MAX
    server.sent_by_neighbours += neighbour.sent  # type: ignore[attr-defined]


@pytest.fixture
def client(server: Receiver) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def channel(server: Receiver) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(server.grpc, options=options) as made:
        yield made


def post(
    client: httpx.Client, signal: Signal, body: bytes, content_type: str = PROTOBUF, **headers: str
) -> httpx.Response:
    given = {"content-type": content_type} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return client.post(PATHS[signal], content=body, headers=given)


def assert_refused(answer: httpx.Response, status: int) -> str:
    """The status, and a google.rpc.Status in the request's encoding, or else JSON; not retryable."""
    assert answer.status_code == status, (answer.status_code, answer.content)
    assert "retry-after" not in answer.headers
    if answer.headers["content-type"] == PROTOBUF:
        message = Status.FromString(answer.content).message
    else:
        assert answer.headers["content-type"] == JSON
        message = json.loads(answer.content)["message"]
    assert message
    return message


def call(channel: grpc.Channel, signal: Signal, body: bytes, **options: Any) -> grpc.StatusCode:
    """The code that the call ends with; OK means that the answer was a response."""
    method = f"/opentelemetry.proto.collector.{SERVICES[signal]}Service/Export"
    try:
        answer = channel.unary_unary(method)(body, timeout=60, **options)
    except grpc.RpcError as error:
        return error.code()  # type: ignore[no-any-return]
    RESPONSES[signal].FromString(answer)
    return grpc.StatusCode.OK


def examples() -> dict[Signal, Message]:
    """A request of each signal with many kinds of fields, the same in every run."""
    quick = settings(
        max_examples=200,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return {
        "logs": find(logs_requests(), lambda r: r.ByteSize() > 300, settings=quick),
        "spans": find(trace_requests(), lambda r: r.ByteSize() > 300, settings=quick),
        "metrics": find(metrics_requests(), lambda r: r.ByteSize() > 300, settings=quick),
    }


GOOD = examples()


def damaged(body: bytes, rng: random.Random) -> bytes:
    """Cut short, with bits flipped, with bytes inserted or removed: one to three of these."""
    out = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out)) if out else 0
        match rng.randrange(4):
            case 0:
                del out[at:]
            case 1 if out:
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                out[at:at] = rng.randbytes(rng.randint(1, 4))
            case _:
                del out[at : at + rng.randint(1, 4)]
    return bytes(out)


def is_protobuf(signal: Signal, body: bytes) -> bool:
    try:
        REQUESTS[signal].FromString(body)
    except DecodeError:
        return False
    return True


def check_damaged(client: httpx.Client, channel: grpc.Channel, signal: Signal, body: bytes) -> None:
    valid = is_protobuf(signal, body)
    answer = post(client, signal, body)
    if valid:
        assert answer.status_code == 200, (body.hex(), answer.content)
    else:
        assert_refused(answer, 400)
    expected = grpc.StatusCode.OK if valid else grpc.StatusCode.INVALID_ARGUMENT
    assert call(channel, signal, body) is expected, body.hex()


@pytest.mark.slow
@each_signal
def test_damaged_protobuf_is_refused_unless_it_is_protobuf_still(
    signal: Signal, client: httpx.Client, channel: grpc.Channel
) -> None:
    rng = random.Random(f"damaged {signal}")
    for _ in range(25):
        check_damaged(client, channel, signal, damaged(GOOD[signal].SerializeToString(), rng))


@pytest.mark.slow
@each_signal
def test_random_bytes_are_refused(signal: Signal, client: httpx.Client, channel: grpc.Channel) -> None:
    rng = random.Random(f"random {signal}")
    for size in (1, 2, 3, 5, 8, 20, 100, 1000, 100_000):
        for _ in range(2):
            check_damaged(client, channel, signal, rng.randbytes(size))


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_signal
def test_much_damaged_protobuf(signal: Signal, client: httpx.Client, channel: grpc.Channel) -> None:
    rng = random.Random(f"much {signal}")
    for _ in range(250):
        check_damaged(client, channel, signal, damaged(GOOD[signal].SerializeToString(), rng))


@each_signal
def test_damaged_json_is_refused_or_taken_and_nothing_else(signal: Signal, client: httpx.Client) -> None:
    rng = random.Random(f"json {signal}")
    body = request_to_json(GOOD[signal])
    assert post(client, signal, body, JSON).status_code == 200
    for _ in range(40):
        answer = post(client, signal, damaged(body, rng), JSON)
        if answer.status_code != 200:
            assert_refused(answer, 400)


@each_signal
@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/grpc", "application/x-protobuf2", "json", "*/*", "\x7f"]
)
def test_a_wrong_content_type_is_refused(signal: Signal, content_type: str, client: httpx.Client) -> None:
    answer = post(client, signal, GOOD[signal].SerializeToString(), content_type)
    if answer.status_code == 400:
        assert content_type == "\x7f"  # no header at all, says HTTP
    else:
        assert_refused(answer, 415)


def test_a_body_of_the_other_content_type_is_refused(client: httpx.Client) -> None:
    good = GOOD["logs"]
    assert_refused(post(client, "logs", request_to_json(good), PROTOBUF), 400)
    assert_refused(post(client, "logs", good.SerializeToString(), JSON), 400)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress", "x", "gzip;q=1", "GZIPPED"])
def test_an_unknown_content_encoding_is_refused(encoding: str, client: httpx.Client) -> None:
    body = gzip.compress(GOOD["logs"].SerializeToString())
    assert_refused(post(client, "logs", body, content_encoding=encoding), 415)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_bodies_that_are_not_what_their_encoding_says_are_refused(
    encoding: str, client: httpx.Client
) -> None:
    plain = b"".join(within((1, 2, 2, 5, 1), b"%d" % n) for n in range(2000))
    whole = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "zstd": zstandard.compress(plain)}
    assert post(client, "logs", whole[encoding], content_encoding=encoding).status_code == 200
    others = [whole[other] for other in whole if other != encoding]
    for bad in (b"", plain, whole[encoding][:-1], whole[encoding][: len(whole[encoding]) // 2], *others):
        assert_refused(post(client, "logs", bad, content_encoding=encoding), 400)
    flipped = bytearray(whole[encoding])
    flipped[len(flipped) // 2] ^= 0x10
    answer = post(client, "logs", bytes(flipped), content_encoding=encoding)
    if encoding != "zstd" or answer.status_code != 200:  # zstd has a checksum only if its writer wants one
        assert_refused(answer, 400)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_bombs_are_refused(encoding: str, client: httpx.Client) -> None:
    bomb = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[encoding](
        bytes(256 * MIB)
    )
    for content_type in (PROTOBUF, JSON):
        for _ in range(3):
            answer = post(client, "logs", bomb, content_type, content_encoding=encoding)
            assert_refused(answer, 413)


def test_a_bomb_over_grpc_is_refused(channel: grpc.Channel) -> None:
    code = call(channel, "logs", bytes(200 * MIB), compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_many_gzip_members_are_refused_or_taken_quickly(client: httpx.Client) -> None:
    begin = time.monotonic()
    answer = post(client, "logs", gzip.compress(b"") * 300_000, content_encoding="gzip")
    assert answer.status_code in (200, 400)
    assert time.monotonic() - begin < 10


def test_too_large_bodies_are_refused_announced_or_not(client: httpx.Client, channel: grpc.Channel) -> None:
    large = within((1, 2, 2, 5, 1), b"x" * (17 * MIB))
    with httpx.Client(
        base_url=client.base_url, timeout=60
    ) as another:  # its connection may be closed after that
        assert_refused(post(another, "logs", large), 413)
    pieces = (large[at : at + MIB] for at in range(0, len(large), MIB))
    assert_refused(client.post("/v1/logs", content=pieces, headers={"content-type": PROTOBUF}), 413)
    assert call(channel, "logs", large) is grpc.StatusCode.RESOURCE_EXHAUSTED


CRASHERS: dict[str, Callable[[], bytes]] = {
    "a length of 2^64 - 1": lambda: b"\x0a" + varint(2**64 - 1) + b"x",
    "a length of 2^63": lambda: b"\x0a" + varint(2**63) + b"x",
    "arrays in a body": lambda: log_with_body(nested_value(40_000)),
    "key-value lists in a body": lambda: log_with_body(nested_value(200_000, kvlist=True)),
    "arrays in an attribute": lambda: log_with_attribute(nested_value(40_000)),
    "arrays in the resource": lambda: within((1, 1, 1, 2), nested_value(40_000)),
    "arrays in the scope": lambda: within((1, 2, 1, 3, 2), nested_value(40_000)),
    "groups": lambda: varint(100 << 3 | 3) * 200_000 + varint(100 << 3 | 4) * 200_000,
    "groups without an end": lambda: b"\x7b" * MIB,
    "groups in a record": lambda: within((1, 2, 2), b"\x7b" * 200_000),
}


@pytest.mark.parametrize("which", CRASHERS)
def test_what_would_crash_a_parser_is_refused(
    which: str, client: httpx.Client, channel: grpc.Channel
) -> None:
    body = CRASHERS[which]()
    assert_refused(post(client, "logs", body), 400)
    assert_refused(post(client, "logs", gzip.compress(body), content_encoding="gzip"), 400)
    assert call(channel, "logs", body) is grpc.StatusCode.INVALID_ARGUMENT


LOG_HEAD, LOG_TAIL = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":', b"}]}]}]}"
DEEP_JSON: dict[str, bytes] = {
    "lists": b"[" * 200_000 + b"]" * 200_000,
    "objects": b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "an unknown field": b'{"unknown":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "without an end": b"[" * 200_000,
    "values": LOG_HEAD + b'{"arrayValue":{"values":[' * 200_000 + b"]}}" * 200_000 + LOG_TAIL,
    "values of 200 levels": LOG_HEAD + b'{"arrayValue":{"values":[' * 200 + b"{}" + b"]}}" * 200 + LOG_TAIL,
}


@pytest.mark.parametrize("body", DEEP_JSON.values(), ids=DEEP_JSON)
def test_200_000_levels_of_json_are_refused(body: bytes, client: httpx.Client) -> None:
    assert_refused(post(client, "logs", body, JSON), 400)


@pytest.mark.slow
def test_few_bytes_that_stand_for_very_many_records_are_refused(
    client: httpx.Client, channel: grpc.Channel
) -> None:
    shared = b"".join(delimited(1, delimited(1, b"k%d" % number)) for number in range(1000))
    empty = delimited(2, b"")
    bodies = {
        "a large resource for many records": delimited(
            1, delimited(1, shared) + delimited(2, empty * 200_000)
        ),
        "three million records": within((1, 2), empty * 3_000_000),
        "three million resources": delimited(1, b"") * 3_000_000,
    }
    for name, body in bodies.items():
        answer = post(client, "logs", gzip.compress(body, 1), content_encoding="gzip")
        assert answer.status_code == 413, (name, answer.status_code)
    assert call(channel, "logs", bodies.popitem()[1]) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_oversize_headers_are_refused(client: httpx.Client, channel: grpc.Channel) -> None:
    for headers in ({"x-large": "x" * 200_000}, {f"x-{n}": "y" * 1000 for n in range(200)}):
        try:
            answer = post(client, "logs", b"", **headers)
        except httpx.TransportError:
            continue  # the connection is closed while the headers are still being sent
        assert 400 <= answer.status_code < 500
    code = call(channel, "logs", b"", metadata=[("x-large", "x" * 500_000)])
    assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    assert call(channel, "logs", b"") is grpc.StatusCode.OK


def connected(server: Receiver, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.http_port), timeout=30)
    made.sendall(data)
    return made


def answer_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes, or the end of a response."""
    out = b""
    with connection:
        try:
            while piece := connection.recv(65536):
                out += piece
                if b"\r\n\r\n" in out:
                    break
        except ConnectionError:
            pass
    return out


HEAD = b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-protobuf\r\n"


def test_slow_bodies_are_given_up_on(server: Receiver) -> None:
    begin = time.monotonic()
    slow = [connected(server, HEAD + b"content-length: 1000\r\n\r\nx") for _ in range(20)]
    slow += [connected(server, HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n") for _ in range(20)]
    for connection in slow:
        answer = answer_of(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begin < 20
    assert server.metric("frazil_receive_requests_total", outcome="slow_body") >= 40


def test_slow_headers_are_given_up_on(server: Receiver) -> None:
    # With no byte, or a P alone, granian waits for more without a bound: it may yet become HTTP/2.
    slow = [connected(server, HEAD[:n]) for n in range(2, 40)]
    for connection in slow:
        answer = answer_of(connection)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")


def test_clients_that_go_in_the_middle_of_a_body_harm_nobody(server: Receiver) -> None:
    for _ in range(50):
        connected(server, HEAD + b"content-length: 1000\r\n\r\nx").close()
    assert server.is_ready()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the beginning of TLS
        b"GET\r\n\r\n",
        b"POST /v1/logs HTTP/9.9\r\n\r\n",
        HEAD + b"content-length: -1\r\n\r\n",
        HEAD + b"content-length: 18446744073709551616\r\n\r\n",
        HEAD + b"content-length: a\r\n\r\n",
        HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_or_closed(data: bytes, server: Receiver) -> None:
    answer = answer_of(connected(server, data))
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer


def test_other_methods_and_paths_are_refused(client: httpx.Client) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        assert_refused(client.request(method, "/v1/logs"), 405)
    for path in ("/v1/profiles", "/v1/logs/", "/V1/LOGS", "/v1", "/%2e%2e/etc/passwd"):
        assert_refused(client.post(path, content=b"", headers={"content-type": PROTOBUF}), 404)


TIMES = (0, 1, 2**63 - 1, 2**63, 2**64 - 1)
TIME_FIELDS: dict[Signal, list[tuple[tuple[int, ...], int]]] = {
    "logs": [((1, 2, 2), 1), ((1, 2, 2), 11)],
    "spans": [((1, 2, 2), 7), ((1, 2, 2), 8), ((1, 2, 2, 11), 1)],
    "metrics": [((1, 2, 2, 5, 1), 2), ((1, 2, 2, 5, 1), 3), ((1, 2, 2, 9, 1), 3), ((1, 2, 2, 5, 1, 5), 2)],
}
IDS = delimited(1, bytes(range(1, 17))) + delimited(2, bytes(range(1, 9)))


@each_signal
@pytest.mark.parametrize("nanos", TIMES)
def test_absurd_times_are_kept_or_rejected_alone(
    signal: Signal, nanos: int, client: httpx.Client, channel: grpc.Channel
) -> None:
    for path, field in TIME_FIELDS[signal]:
        record = within(path[3:], fixed64(field, nanos))
        body = within(path[:3], (IDS if signal == "spans" else b"") + record)
        answer = post(client, signal, body)
        assert answer.status_code == 200, answer.content
        partial = RESPONSES[signal].FromString(answer.content).partial_success  # type: ignore[attr-defined]
        rejected = sum(
            getattr(partial, part.name) for part in partial.DESCRIPTOR.fields if "rejected" in part.name
        )
        assert rejected == (1 if nanos >= 2**63 else 0)
        assert ("beyond signed 64 bits" in partial.error_message) == bool(rejected)
        assert call(channel, signal, body) is grpc.StatusCode.OK


def test_absurd_times_in_json_are_read_exactly(client: httpx.Client) -> None:
    """What became of them in the log is looked at when the receiver has stopped."""
    for nanos in TIMES:
        body = {"body": {"stringValue": f"json {nanos}"}, "timeUnixNano": str(nanos)}
        request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [body]}]}]}
        answer = post(client, "logs", json.dumps(request).encode(), JSON)
        assert answer.status_code == 200
        assert ("partialSuccess" in answer.json()) == (nanos >= 2**63)
    for nanos in ("-1", str(2**64), "1e30", "x", "0x1"):
        body = {"timeUnixNano": nanos}
        request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [body]}]}]}
        assert_refused(post(client, "logs", json.dumps(request).encode(), JSON), 400)


def test_a_refused_request_leaves_no_record_behind(client: httpx.Client) -> None:
    """What is in the log is looked at when the receiver has stopped."""
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add().body.string_value = "must not be kept"
    assert_refused(post(client, "logs", request.SerializeToString() + b"\x0a\x7f"), 400)
    assert_refused(post(client, "logs", request.SerializeToString() + log_with_body(nested_value(33))), 400)
    assert (
        ExportLogsServiceResponse.FromString(post(client, "logs", b"").content) == ExportLogsServiceResponse()
    )
