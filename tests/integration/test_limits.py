"""Bounds on memory, sizes and time: what is over them is refused with a reason, and nobody else notices."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import h2.config
import h2.connection
import h2.errors
import httpx
import pytest
from google.rpc.code_pb2 import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED

from frazil.tables import Signal
from tests.components.process import wait_until
from tests.integration.conftest import REQUEST_BYTES_MAX
from tests.support.integration.clients import (
    JSON,
    METHODS,
    PROTOBUF,
    channel,
    connect,
    export,
    post,
    received,
    retry_delay_of,
    rows_of,
    status_of,
)
from tests.support.integration.messages import logs, new_service, request
from tests.support.receiver import Receiver, running_receiver

KIB = 1 << 10


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """Little memory, little patience, and requests that wait a second for company."""
    settings = {
        "receive": {
            "http": {
                "header_timeout_seconds": 0.5,
                "body_timeout_seconds": 2,
                "header_bytes_max": 8 * KIB,
                "logs_path": "/custom/logs",
            },
            "grpc": {"keepalive_min_interval_seconds": 0.2},
            "limits": {
                "request_bytes_max": 200 * KIB,
                "in_flight_bytes_max": 300 * KIB,
                "requests_in_flight_max": 20,
                "admission_wait_seconds": 0.2,
            },
        },
        "wal": {"group_wait_seconds": 1},
    }
    with running_receiver(tmp_path_factory.mktemp("tight"), settings) as running:
        yield running


def _padded(size: int, service: str = "padded") -> bytes:
    message = logs(service)
    message.resource_logs[0].scope_logs[0].log_records[0].body.string_value = "x" * size
    return message.SerializeToString()


def _head(length: int, path: str = "/v1/traces") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


@contextlib.contextmanager
def _memory_taken(tight: Receiver, size: int) -> Iterator[socket.socket]:
    """A client that has announced `size` bytes and does not send them."""
    with connect(tight.http_port) as slow:
        slow.sendall(_head(size))
        assert wait_until(lambda: tight.metric("frazil_receive_in_flight_bytes") >= size, seconds_max=10)
        yield slow


# Sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_an_announced_size_over_the_limit_gets_413(receiver: Receiver, content_type: str) -> None:
    response = post(receiver, "logs", bytes(REQUEST_BYTES_MAX + 1), content_type)
    assert (response.status_code, response.headers["content-type"]) == (413, content_type)
    assert status_of(response).code == RESOURCE_EXHAUSTED
    assert not status_of(response).details
    assert "retry-after" not in response.headers


def test_a_chunked_body_over_the_limit_gets_413(receiver: Receiver) -> None:
    chunks = (bytes(KIB << 6) for _ in range((REQUEST_BYTES_MAX >> 16) + 1))
    response = post(receiver, "logs", chunks)
    assert response.status_code == 413
    assert "retry-after" not in response.headers


def test_an_endless_chunked_body_is_cut_off(receiver: Receiver) -> None:
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {JSON}\r\ntransfer-encoding: chunked\r\n\r\n"
    with connect(receiver.http_port) as connection:
        connection.sendall(head.encode())
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            connection.sendall(chunk * 1_000)
    assert receiver.is_ready()


def test_a_chunked_body_within_the_limit_is_kept(receiver: Receiver) -> None:
    body = request("logs", service := new_service(), 900).SerializeToString()
    chunks = (body[at : at + 1000] for at in range(0, len(body), 1000))
    assert post(receiver, "logs", chunks).status_code == 200
    assert len(rows_of(receiver, "logs", service)) == 900


def test_a_message_over_the_limit_exhausts_resources_over_grpc(receiver: Receiver) -> None:
    with channel(receiver) as opened:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with pytest.raises(grpc.RpcError) as refused:
                export(opened, "logs", _padded(REQUEST_BYTES_MAX), compression=compression)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert retry_delay_of(refused.value) is None
        assert export(opened, "logs", b"") == b""


@pytest.mark.parametrize("signal", ["logs", "spans", "metrics"])
def test_too_many_records_are_too_large_on_both_transports(receiver: Receiver, signal: Signal) -> None:
    body = request(signal, service := new_service(), 1_001).SerializeToString()
    response = post(receiver, signal, body)
    assert response.status_code == 413
    assert "1000" in status_of(response).message
    with channel(receiver) as opened, pytest.raises(grpc.RpcError) as refused:
        export(opened, signal, body)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert retry_delay_of(refused.value) is None
    assert rows_of(receiver, signal, service) == []


@pytest.mark.parametrize(
    ("levels", "status", "code"),
    [
        (20_000, 400, grpc.StatusCode.INVALID_ARGUMENT),
        (200_000, 413, grpc.StatusCode.RESOURCE_EXHAUSTED),  # more nested values than a record may have
    ],
)
def test_thousands_of_levels_of_nesting_are_refused(
    receiver: Receiver, levels: int, status: int, code: grpc.StatusCode
) -> None:
    """array_value.values, one in the other: each level is the next one behind two tags and lengths."""
    layers, size = [], 0
    for _ in range(levels):
        for tag in (b"\x0a", b"\x2a"):  # ArrayValue.values, AnyValue.array_value
            head = tag + _varint(size)
            layers.append(head)
            size += len(head)
    value = b"".join(reversed(layers))
    for tag in (b"\x2a", b"\x12", b"\x12", b"\x0a"):  # body, log_records, scope_logs, resource_logs
        value = tag + _varint(len(value)) + value
    assert post(receiver, "logs", value).status_code == status
    with channel(receiver) as opened, pytest.raises(grpc.RpcError) as refused:
        export(opened, "logs", value)
    assert refused.value.code() is code
    assert receiver.is_ready()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


@pytest.mark.parametrize(
    "fields",
    [b"x-a: " + b"a" * 100_000 + b"\r\n", b"".join(b"x-%d: a\r\n" % index for index in range(5_000))],
    ids=["one large", "many small"],
)
def test_headers_over_the_limit_get_431(tight: Receiver, fields: bytes) -> None:
    with connect(tight.http_port) as connection:
        with contextlib.suppress(OSError):  # it may be refused before all is sent
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n" + fields + b"\r\n")
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""
    assert tight.is_ready()


def test_metadata_over_the_limit_is_refused_over_grpc(tight: Receiver) -> None:
    with channel(tight, max_metadata_size=1 << 20, absolute_max_metadata_size=1 << 20) as opened:
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, "spans", b"", metadata={"x-a": "a" * 100_000})
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert export(opened, "spans", b"") == b""


def test_paths_can_be_configured(tight: Receiver) -> None:
    headers = {"content-type": PROTOBUF}
    body = logs(service := new_service()).SerializeToString()
    assert httpx.post(f"{tight.http}/custom/logs", content=body, headers=headers).status_code == 200
    assert httpx.post(f"{tight.http}/v1/logs", content=body, headers=headers).status_code == 404
    assert len(rows_of(tight, "logs", service)) == 1


# Memory -------------------------------------------------------------------------------------------


def test_a_request_that_finds_no_memory_gets_429_and_a_delay(tight: Receiver) -> None:
    with _memory_taken(tight, 190 * KIB):
        response = post(tight, "spans", bytes(150 * KIB))
        assert response.status_code == 429
        assert response.headers["retry-after"] == str(int(response.headers["retry-after"]))
        assert int(response.headers["retry-after"]) >= 1
        status = status_of(response)
        assert status.code == RESOURCE_EXHAUSTED
        assert status.details[0].type_url.endswith("google.rpc.RetryInfo")
    with channel(tight) as opened, _memory_taken(tight, 190 * KIB):
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, "spans", bytes(150 * KIB))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (retry_delay_of(refused.value) or 0) >= 1
        small = request("spans", new_service()).SerializeToString()
        assert post(tight, "spans", small).status_code == 200
    assert tight.metric("frazil_receive_requests_total", outcome="memory", transport="http") >= 1
    assert tight.metric("frazil_receive_requests_total", outcome="memory", transport="grpc") >= 1


def test_memory_comes_back_when_the_slow_client_has_gone(tight: Receiver) -> None:
    with _memory_taken(tight, 190 * KIB):
        pass
    message = request("spans", new_service())
    message.resource_spans[0].scope_spans[0].spans[0].name = "x" * (150 * KIB)
    body = message.SerializeToString()
    assert wait_until(lambda: post(tight, "spans", body).status_code == 200, seconds_max=10)


def test_bytes_of_a_call_that_its_client_gave_up_count_until_they_are_durable(tmp_path: Path) -> None:
    """Else clients with short deadlines could fill the memory of a receiver whose store is slow."""
    limits = {"request_bytes_max": 200 * KIB, "in_flight_bytes_max": 300 * KIB, "admission_wait_seconds": 0.2}
    slow = {"receive": {"limits": limits}, "wal": {"group_wait_seconds": 60}}
    bodies = [_padded(140 * KIB, new_service()) for _ in range(3)]
    with running_receiver(tmp_path, slow) as receiver, channel(receiver) as opened:
        for body in bodies[:2]:
            with pytest.raises(grpc.RpcError) as gave_up:
                export(opened, "logs", body, timeout=0.5)
            assert gave_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, "logs", bodies[2], timeout=5)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert receiver.metric("frazil_receive_in_flight_bytes") == len(bodies[0]) + len(bodies[1])
        receiver.kill()  # its end would wait for the group


def test_more_requests_at_once_than_allowed_get_429(tight: Receiver) -> None:
    bodies = [request("metrics", new_service()).SerializeToString() for _ in range(60)]
    with ThreadPoolExecutor(60) as pool:
        answers = list(pool.map(lambda body: post(tight, "metrics", body), bodies))
    codes = [answer.status_code for answer in answers]
    assert codes.count(200) >= 20
    assert set(codes) <= {200, 429}
    assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
    names = set(tight.rows("metrics").column("service_name").to_pylist())
    for answer, body in zip(answers, bodies, strict=True):
        sent = request("metrics", "").FromString(body).resource_metrics[0].resource.attributes[0].value
        assert (sent.string_value in names) == (answer.status_code == 200)


# Requests that share a segment --------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["spans", "metrics"])
def test_a_malformed_request_does_not_touch_those_it_shares_a_group_with(
    tight: Receiver, signal: Signal
) -> None:
    services = [new_service() for _ in range(8)]
    good = [request(signal, service, 2).SerializeToString() for service in services]
    spoilt = [b"\xff\xff\xff", good[0][:-1], b"\x0a\x02\x12\x01"]
    bodies = [body for group in zip(good, spoilt * 3, strict=False) for body in group]
    with ThreadPoolExecutor(len(bodies)) as pool, channel(tight) as opened:

        def send(index: int) -> int:
            if index % 4 < 2:
                return post(tight, signal, bodies[index]).status_code
            try:
                return 200 if export(opened, signal, bodies[index]) == b"" else 0
            except grpc.RpcError as error:
                return 400 if error.code() is grpc.StatusCode.INVALID_ARGUMENT else 0

        codes = list(pool.map(send, range(len(bodies))))
    assert codes == [200, 400] * 8
    segments = tight.rows(signal).column("service_name").to_pylist()
    assert [segments.count(service) for service in services] == [2] * 8


# Time ---------------------------------------------------------------------------------------------


def test_headers_that_come_too_slowly_end_their_connection(tight: Receiver) -> None:
    with connect(tight.http_port) as connection:
        connection.sendall(b"POST /v1/traces HTTP/1.1\r\nx-a: ")
        ended = threading.Event()
        dribble = threading.Thread(target=_dribble, args=(connection, ended))
        dribble.start()
        try:
            assert received(connection) == b""
        finally:
            ended.set()
            dribble.join()
    assert tight.is_ready()


def _dribble(connection: socket.socket, ended: threading.Event) -> None:
    while not ended.wait(0.05):
        with contextlib.suppress(OSError):
            connection.sendall(b"a")


def test_a_body_that_stalls_gets_408_and_gives_its_memory_back(tight: Receiver) -> None:
    with _memory_taken(tight, 190 * KIB) as slow:
        slow.sendall(b"{")
        begin = time.monotonic()
        head, _, body = received(slow).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - begin < 5  # for the two seconds that it may stall, not for ever longer
    answer = httpx.Response(408, headers={"content-type": JSON}, content=body)
    assert status_of(answer).code == DEADLINE_EXCEEDED
    assert wait_until(lambda: tight.metric("frazil_receive_in_flight_bytes") == 0, seconds_max=10)


def test_a_body_that_breaks_off_keeps_nothing(tight: Receiver) -> None:
    body = request("spans", service := new_service()).SerializeToString()
    head = _head(len(body) + 5).replace(JSON.encode(), PROTOBUF.encode())
    counted = tight.metric("frazil_receive_requests_total", outcome="disconnected")
    with connect(tight.http_port) as connection:
        connection.sendall(head + body)
        connection.shutdown(socket.SHUT_WR)
        received(connection)
    assert wait_until(
        lambda: tight.metric("frazil_receive_requests_total", outcome="disconnected") > counted,
        seconds_max=10,
    )
    assert rows_of(tight, "spans", service) == []


def test_idle_and_slow_http_clients_do_not_lock_others_out(tight: Receiver) -> None:
    """More of them than requests may be in flight: connections are not requests."""
    with contextlib.ExitStack() as stack:
        for index in range(300):
            connection = stack.enter_context(connect(tight.http_port))
            if index % 3 == 1:
                connection.sendall(b"POST /v1/traces HT")
            elif index % 3 == 2:
                connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        body = request("spans", service := new_service()).SerializeToString()
        assert post(tight, "spans", body).status_code == 200
        with channel(tight) as opened:
            assert export(opened, "spans", body) == b""
        assert tight.is_ready()
    assert len(rows_of(tight, "spans", service)) == 2


def test_pings_at_the_configured_interval_are_tolerated(tight: Receiver) -> None:
    """Calls that last as long as their group waits, with a ping every 0.2 s, the least allowed here."""
    pings = {
        "keepalive_time_ms": 200,
        "keepalive_timeout_ms": 5_000,
        "keepalive_permit_without_calls": 1,
        "http2.max_pings_without_data": 0,
    }
    with channel(tight, **pings) as opened:
        states: list[grpc.ChannelConnectivity] = []
        opened.subscribe(states.append)
        for _ in range(3):
            assert export(opened, "spans", request("spans", new_service()).SerializeToString()) == b""
        opened.unsubscribe(states.append)
    assert grpc.ChannelConnectivity.READY in states
    assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states
    assert states.count(grpc.ChannelConnectivity.READY) == 1


def test_slow_grpc_clients_do_not_lock_others_out(receiver: Receiver) -> None:
    """Calls whose message never comes, or stops half-way, or is malformed, before and beside a good one."""
    with contextlib.ExitStack() as stack:
        for message in (b"", struct.pack(">BI", 0, 1000) + bytes(10), struct.pack(">BI", 1, 3) + b"abc") * 4:
            _stalled_call(stack.enter_context(connect(receiver.grpc_port)), message)
        body = request("spans", service := new_service()).SerializeToString()
        with channel(receiver) as opened:
            assert export(opened, "spans", body) == b""
    assert len(rows_of(receiver, "spans", service)) == 1


def test_clients_that_announce_large_bodies_and_send_nothing_do_not_lock_others_out(
    receiver: Receiver,
) -> None:
    """Announced bodies take the whole budget; while others wait, they must come or go."""
    budget = receiver.config.receive.limits.in_flight_bytes_max
    with contextlib.ExitStack() as stack:
        for _ in range(budget // REQUEST_BYTES_MAX):
            connection = stack.enter_context(connect(receiver.http_port))
            connection.sendall(
                b"POST /v1/logs HTTP/1.1\r\nhost: test\r\ncontent-type: application/x-protobuf\r\n"
                b"content-length: %d\r\n\r\n" % REQUEST_BYTES_MAX
            )
        assert wait_until(lambda: receiver.metric("frazil_receive_in_flight_bytes") >= budget, seconds_max=10)
        body = request("spans", service := new_service()).SerializeToString()
        assert post(receiver, "spans", body).status_code == 200
    assert len(rows_of(receiver, "spans", service)) == 1


def _stalled_call(connection: socket.socket, message: bytes) -> None:
    http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    http2.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": METHODS["spans"], ":authority": "test"}
    fields |= {"content-type": "application/grpc", "te": "trailers", "grpc-encoding": "gzip"}
    http2.send_headers(1, list(fields.items()))
    if message:
        http2.send_data(1, message)
    connection.sendall(http2.data_to_send())
    connection.recv(1000)  # its settings: the connection is up


def test_pings_far_more_often_than_allowed_end_the_connection(receiver: Receiver) -> None:
    http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    with connect(receiver.grpc_port) as connection:
        http2.initiate_connection()
        connection.sendall(http2.data_to_send())
        codes = []
        while not codes:
            http2.ping(bytes(8))
            connection.sendall(http2.data_to_send())
            data = connection.recv(65_536)
            assert data, "closed without saying why"
            codes = [
                event.error_code for event in http2.receive_data(data) if hasattr(event, "last_stream_id")
            ]
    assert codes == [h2.errors.ErrorCodes.ENHANCE_YOUR_CALM]
    assert receiver.is_ready()


@pytest.mark.slow
def test_3_000_idle_connections_do_not_lock_others_out(receiver: Receiver) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3_000):
            stack.enter_context(connect(receiver.http_port))
        body = request("spans", service := new_service()).SerializeToString()
        assert post(receiver, "spans", body).status_code == 200
    assert len(rows_of(receiver, "spans", service)) == 1
