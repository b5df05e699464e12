"""Stopping: no new requests, what is in becomes durable and is answered, and nobody can put the end off."""

from __future__ import annotations

import contextlib
import os
import signal as signals
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import h2.config
import h2.connection
import httpx
import pytest

from frazil.tables import Signal
from tests.components.process import wait_until
from tests.support.integration.clients import METHODS, PATHS, PROTOBUF, channel, connect, export
from tests.support.integration.messages import new_service, request
from tests.support.receiver import Receiver, running_receiver

GRACE_SECONDS = 3
SENT: tuple[tuple[str, Signal], ...] = (
    ("http", "logs"),
    ("http", "spans"),
    ("http", "metrics"),
    ("grpc", "logs"),
    ("grpc", "spans"),
    ("grpc", "metrics"),
)


class Load:
    """Clients that send as fast as they are answered until told to end, and remember what was acked."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self.acked: dict[Signal, list[str]] = {"logs": [], "spans": [], "metrics": []}
        self.failed: dict[Signal, list[str]] = {"logs": [], "spans": [], "metrics": []}
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=sent) for sent in SENT * 2]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, transport: str, signal: Signal) -> None:
        with self._sender(transport, signal) as send:
            while not self._end.is_set():
                service = new_service()
                body = request(signal, service, 3).SerializeToString()
                try:
                    accepted = send(body)
                except (httpx.HTTPError, grpc.RpcError):
                    accepted = False
                (self.acked if accepted else self.failed)[signal].append(service)
                if not accepted:
                    self._end.wait(0.05)

    @contextlib.contextmanager
    def _sender(self, transport: str, signal: Signal) -> Iterator[Any]:
        if transport == "grpc":
            with channel(self._receiver) as opened:
                yield lambda body: export(opened, signal, body, timeout=10) == b""
        else:
            headers = {"content-type": PROTOBUF}
            with httpx.Client(base_url=self._receiver.http, headers=headers, timeout=10) as client:
                yield lambda body: client.post(PATHS[signal], content=body).status_code == 200


def _settings(**receive: Any) -> dict[str, Any]:
    return {"receive": {"shutdown_grace_seconds": GRACE_SECONDS, **receive}}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT to all, as from a terminal"])
def test_under_load_every_acked_request_is_durable_exactly_once(tmp_path: Path, how: str) -> None:
    with running_receiver(tmp_path, _settings(workers=2)) as receiver, Load(receiver) as load:
        assert wait_until(lambda: all(len(acked) > 30 for acked in load.acked.values()), seconds_max=60)
        begin = time.monotonic()
        if how == "SIGTERM":
            receiver.process.send_signal(signals.SIGTERM)
        else:
            for pid in (receiver.process.pid, *receiver.worker_pids()):
                os.kill(pid, signals.SIGINT)
        assert receiver.process.wait(30) == 0
        assert time.monotonic() - begin < GRACE_SECONDS + 3
        # Everybody has noticed: whatever they send now fails.
        seen = {signal: len(failed) for signal, failed in load.failed.items()}
        assert wait_until(
            lambda: all(len(load.failed[signal]) > seen[signal] + 10 for signal in seen), seconds_max=30
        )
    for signal, acked in load.acked.items():
        durable = Counter(receiver.rows(signal).column("service_name").to_pylist())
        assert {service: durable[service] for service in acked} == dict.fromkeys(acked, 3)
        assert {durable[service] for service in load.failed[signal]} <= {0, 3}
    log = (tmp_path / "receiver.log").read_text()
    assert log.count("receiver stopped") == 2
    assert "Traceback" not in log


@pytest.mark.slow
def test_requests_that_wait_for_their_group_are_flushed_and_answered(tmp_path: Path) -> None:
    settings = _settings() | {"wal": {"group_wait_seconds": 60}}
    answers: list[int] = []
    service = new_service()
    body = request("logs", service).SerializeToString()

    def send_http() -> None:
        headers = {"content-type": PROTOBUF}
        answers.append(
            httpx.post(f"{receiver.http}/v1/logs", content=body, headers=headers, timeout=30).status_code
        )

    def send_grpc() -> None:
        with channel(receiver) as opened:
            answers.append(200 if export(opened, "logs", body) == b"" else 0)

    with running_receiver(tmp_path, settings) as receiver:
        threads = [threading.Thread(target=send) for send in (send_http, send_grpc)]
        for thread in threads:
            thread.start()
        assert wait_until(
            lambda: receiver.metric("frazil_receive_in_flight_bytes") == 2 * len(body), seconds_max=10
        )
        begin = time.monotonic()
        assert receiver.stop() == 0
        assert time.monotonic() - begin < GRACE_SECONDS + 3
        for thread in threads:
            thread.join()
    assert answers == [200, 200]
    assert receiver.rows("logs").column("service_name").to_pylist() == [service] * 2


@pytest.mark.slow
def test_clients_that_are_slow_or_idle_do_not_put_the_end_off(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(running_receiver(tmp_path, _settings()))
        stack.enter_context(connect(receiver.http_port))
        stack.enter_context(connect(receiver.http_port)).sendall(b"POST /v1/logs HTTP/1.1\r\nhos")
        head = f"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF}\r\ncontent-length: 99\r\n\r\n"
        stack.enter_context(connect(receiver.http_port)).sendall(head.encode() + b"begun")
        http2 = stack.enter_context(httpx.Client(http1=False, http2=True))
        assert http2.get(f"{receiver.http}/livez").status_code == 200
        _call_without_its_message(stack.enter_context(connect(receiver.grpc_port)))
        assert wait_until(lambda: receiver.metric("frazil_receive_in_flight_bytes") == 99, seconds_max=10)
        begin = time.monotonic()
        assert receiver.stop() == 0
        assert time.monotonic() - begin < GRACE_SECONDS + 3
    log = (tmp_path / "receiver.log").read_text()
    assert "receiver stopped" in log
    assert "Killing" not in log


def _call_without_its_message(connection: Any) -> None:
    http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    http2.initiate_connection()
    fields = {":method": "POST", ":scheme": "http", ":path": METHODS["spans"], ":authority": "test"}
    http2.send_headers(1, list((fields | {"content-type": "application/grpc", "te": "trailers"}).items()))
    http2.send_data(1, struct.pack(">BI", 0, 100) + b"half")
    connection.sendall(http2.data_to_send())
    connection.recv(1000)


def test_a_port_that_is_taken_is_said_plainly_and_ends_at_once(receiver: Receiver, tmp_path: Path) -> None:
    taken = {"receive": {"http": {"listen": f"127.0.0.1:{receiver.http_port}"}}}
    with running_receiver(tmp_path, taken, ready=False) as second:
        assert second.process.wait(30) == 2
    assert f"127.0.0.1:{receiver.http_port}" in (tmp_path / "receiver.log").read_text()
    assert receiver.is_ready()
