"""Compressed requests: every encoding, broken ones, and those that unpack to far more than is allowed."""

from __future__ import annotations

import gzip
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import psutil
import pytest
import zstandard
from google.rpc.code_pb2 import INVALID_ARGUMENT, RESOURCE_EXHAUSTED

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
    rows_of,
    status_of,
)
from tests.support.integration.messages import logs, new_service
from tests.support.receiver import Receiver, running_receiver

MIB = 1 << 20
ZEROS = 16 * MIB
PEAK_GROWTH_BYTES_MAX = 150 * MIB


def _raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def _zstd_stream(data: bytes) -> bytes:
    """As writers do that do not know the size beforehand."""
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _raw_deflate),
    "zstd": ("zstd", _zstd),
    "zstd of unknown size": ("zstd", _zstd_stream),
}
each_encoding = pytest.mark.parametrize(("encoding", "compress"), COMPRESSORS.values(), ids=COMPRESSORS)


@each_encoding
@pytest.mark.parametrize("count", [1, 900])
def test_every_encoding_is_understood(
    receiver: Receiver, encoding: str, compress: Callable[[bytes], bytes], count: int
) -> None:
    body = compress(logs(service := new_service(), count).SerializeToString())
    response = post(receiver, "logs", body, encoding=encoding.upper())
    assert (response.status_code, response.content) == (200, b"")
    assert len(rows_of(receiver, "logs", service)) == count


@each_encoding
def test_json_may_be_compressed_too(
    receiver: Receiver, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    response = post(receiver, "logs", compress(b"{}"), JSON, encoding=encoding)
    assert (response.status_code, response.content) == (200, b"{}")


@each_encoding
def test_nothing_compressed_is_an_empty_request(
    receiver: Receiver, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    assert post(receiver, "logs", compress(b""), encoding=encoding).status_code == 200


def test_identity_is_no_encoding(receiver: Receiver) -> None:
    body = logs(service := new_service()).SerializeToString()
    assert post(receiver, "logs", body, encoding="identity").status_code == 200
    assert len(rows_of(receiver, "logs", service)) == 1


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("zstd", _zstd)])
def test_several_members_are_one_body(
    receiver: Receiver, encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    services = [new_service(), new_service()]
    body = b"".join(compress(logs(service).SerializeToString()) for service in services)
    assert post(receiver, "logs", body, encoding=encoding).status_code == 200
    assert [len(rows_of(receiver, "logs", service)) for service in services] == [1, 1]


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("body", [b"", b"\0", b"not compressed at all", b"\xff" * 100_000])
def test_malformed_compression_gets_400(
    receiver: Receiver, encoding: str, body: bytes, content_type: str
) -> None:
    response = post(receiver, "logs", body, content_type, encoding=encoding)
    assert (response.status_code, response.headers["content-type"]) == (400, content_type)
    assert status_of(response).code == INVALID_ARGUMENT
    assert encoding in status_of(response).message


@each_encoding
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, -1])
def test_a_truncated_body_gets_400_and_keeps_nothing(
    receiver: Receiver, encoding: str, compress: Callable[[bytes], bytes], kept: float
) -> None:
    body = compress(logs(service := new_service(), 900).SerializeToString())
    cut = body[: int(len(body) * kept)] if kept > 0 else body[:-1]
    assert post(receiver, "logs", cut, encoding=encoding).status_code == 400
    assert rows_of(receiver, "logs", service) == []


def test_zstd_cut_between_two_blocks_is_truncated_though_all_that_came_is_a_valid_request(
    receiver: Receiver,
) -> None:
    service = new_service()
    compressor = zstandard.ZstdCompressor().compressobj()
    first = compressor.compress(logs(service).SerializeToString())
    first += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    rest = compressor.compress(logs(service).SerializeToString()) + compressor.flush()
    assert post(receiver, "logs", first, encoding="zstd").status_code == 400
    assert rows_of(receiver, "logs", service) == []
    assert post(receiver, "logs", first + rest, encoding="zstd").status_code == 200
    assert len(rows_of(receiver, "logs", service)) == 2


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "compress", "x"])
def test_other_encodings_get_415(receiver: Receiver, encoding: str) -> None:
    response = post(receiver, "logs", b"", encoding=encoding)
    assert response.status_code == 415
    assert "gzip" in status_of(response).message


def test_a_million_empty_gzip_members_are_refused_soon(receiver: Receiver) -> None:
    """Seven megabytes: each member must not cost a copy of all that follow it."""
    response = post(receiver, "logs", gzip.compress(b"") * 350_000, encoding="gzip")
    assert response.status_code == 400


# Bombs --------------------------------------------------------------------------------------------


def _deflate_bomb(plain_bytes: int, wbits: int = 31) -> bytes:
    """Zeros, packed once and repeated. The check sum at its end is wrong, but nobody should get that far."""
    compressor = zlib.compressobj(9, wbits=wbits)
    head = compressor.compress(bytes(ZEROS)) + compressor.flush(zlib.Z_FULL_FLUSH)
    piece = compressor.compress(bytes(ZEROS)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return head + piece * (plain_bytes // ZEROS - 1) + compressor.flush()


def _zstd_bomb(plain_bytes: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(ZEROS)) * (plain_bytes // ZEROS)


@contextmanager
def bounded_memory(receiver: Receiver) -> Iterator[None]:
    """Fails if a worker grows by more than PEAK_GROWTH_BYTES_MAX meanwhile."""
    workers = [psutil.Process(pid) for pid in receiver.worker_pids()]
    before, peak = sum(worker.memory_info().rss for worker in workers), 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.005):
            peak = max(peak, sum(worker.memory_info().rss for worker in workers))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert peak - before < PEAK_GROWTH_BYTES_MAX


BOMBS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "gzip": ("gzip", _deflate_bomb),
    "zlib": ("deflate", lambda size: _deflate_bomb(size, 15)),
    "raw deflate": ("deflate", lambda size: _deflate_bomb(size, -15)),
    "zstd": ("zstd", _zstd_bomb),
}


@pytest.mark.parametrize(("encoding", "bomb"), BOMBS.values(), ids=BOMBS)
def test_a_decompression_bomb_is_refused_while_it_unpacks(
    receiver: Receiver, encoding: str, bomb: Callable[[int], bytes]
) -> None:
    body = bomb(4096 * MIB)
    assert len(body) < REQUEST_BYTES_MAX
    _refused_in_bounded_memory(receiver, encoding, body)


def _refused_in_bounded_memory(receiver: Receiver, encoding: str, body: bytes) -> None:
    with bounded_memory(receiver):
        response = post(receiver, "logs", body, encoding=encoding)
    assert response.status_code == 413
    assert status_of(response).code == RESOURCE_EXHAUSTED
    assert not status_of(response).details
    assert "retry-after" not in response.headers
    assert receiver.is_ready()


def test_a_zstd_window_beyond_reason_is_refused(receiver: Receiver) -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = compressor.compress(bytes(MIB)) + compressor.flush()
    with bounded_memory(receiver):
        assert post(receiver, "logs", body, encoding="zstd").status_code == 400


def test_a_gzip_bomb_over_grpc_is_refused_while_it_unpacks(receiver: Receiver) -> None:
    body = _deflate_bomb(4096 * MIB)
    assert len(body) < REQUEST_BYTES_MAX
    _refused_over_grpc_in_bounded_memory(receiver, body)


def _refused_over_grpc_in_bounded_memory(receiver: Receiver, body: bytes) -> None:
    with bounded_memory(receiver):
        trailers = _raw_grpc(receiver, struct.pack(">BI", 1, len(body)) + body, encoding="gzip")
    assert trailers[b"grpc-status"] == str(RESOURCE_EXHAUSTED).encode()
    assert b"grpc-status-details-bin" not in trailers
    with channel(receiver) as opened:
        assert export(opened, "logs", b"") == b""


@pytest.mark.slow
def test_bombs_of_10_gib_are_refused_with_the_default_limits(tmp_path: Path) -> None:
    with running_receiver(tmp_path) as receiver:
        for encoding, bomb in BOMBS.values():
            _refused_in_bounded_memory(receiver, encoding, bomb(10 * 1024 * MIB))
        _refused_over_grpc_in_bounded_memory(receiver, _deflate_bomb(10 * 1024 * MIB))


@pytest.mark.parametrize("payload", [b"not gzip at all", gzip.compress(b"\0" * 100, mtime=0)[:-9]])
def test_malformed_gzip_over_grpc_fails_that_call_alone(receiver: Receiver, payload: bytes) -> None:
    trailers = _raw_grpc(receiver, struct.pack(">BI", 1, len(payload)) + payload, encoding="gzip")
    assert trailers[b"grpc-status"] != b"0"
    with channel(receiver) as opened:
        assert export(opened, "logs", b"") == b""


def test_an_unknown_encoding_over_grpc_is_refused(receiver: Receiver) -> None:
    trailers = _raw_grpc(receiver, struct.pack(">BI", 1, 3) + b"abc", encoding="snappy")
    # gRPC's core answers this itself, and not with the UNIMPLEMENTED of its own specification.
    assert trailers[b"grpc-status"] in (b"12", b"13")


def _raw_grpc(receiver: Receiver, framed: bytes, *, encoding: str) -> dict[bytes, bytes]:
    """Sends one framed message and returns the headers and trailers of the answer."""
    http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
    answer: dict[bytes, bytes] = {}
    with connect(receiver.grpc_port) as connection:
        http2.initiate_connection()
        http2.send_headers(
            1,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", METHODS["logs"]),
                (":authority", "test"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
                ("grpc-encoding", encoding),
            ],
        )
        connection.sendall(http2.data_to_send())
        while b"grpc-status" not in answer:
            while framed and (room := min(http2.local_flow_control_window(1), http2.max_outbound_frame_size)):
                piece, framed = framed[:room], framed[room:]
                http2.send_data(1, piece, end_stream=not framed)
                connection.sendall(http2.data_to_send())
            data = connection.recv(65_536)
            assert data, "closed without an answer"
            for event in http2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    answer.update(event.headers or ())
                if isinstance(event, h2.events.StreamReset | h2.events.StreamEnded):
                    framed = b""
            connection.sendall(http2.data_to_send())
    return answer


def test_memory_is_given_back_after_refusals(receiver: Receiver) -> None:
    body = _deflate_bomb(64 * MIB)
    for _ in range(5):
        assert post(receiver, "logs", body, encoding="gzip").status_code == 413
    assert wait_until(lambda: receiver.metric("frazil_receive_in_flight_bytes") == 0, seconds_max=10)
