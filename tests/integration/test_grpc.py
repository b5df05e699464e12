"""OTLP over gRPC: the three methods, their answers and refusals."""

from __future__ import annotations

import grpc
import pytest

from frazil.tables import Signal
from tests.support.integration.clients import METHODS, SIGNALS, channel, export, retry_delay_of, rows_of
from tests.support.integration.messages import new_service, request
from tests.support.receiver import Receiver


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_success_is_an_empty_answer(
    receiver: Receiver, signal: Signal, compression: grpc.Compression
) -> None:
    body = request(signal, service := new_service(), 300).SerializeToString()
    with channel(receiver) as opened:
        assert export(opened, signal, body, compression=compression) == b""
    assert len(rows_of(receiver, signal, service)) == 300


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_empty_request_succeeds(receiver: Receiver, signal: Signal) -> None:
    with channel(receiver) as opened:
        assert export(opened, signal, b"") == b""
        assert export(opened, signal, request(signal, new_service(), 0).SerializeToString()) == b""


@pytest.mark.parametrize("signal", SIGNALS)
def test_an_undecodable_request_is_an_invalid_argument(receiver: Receiver, signal: Signal) -> None:
    with channel(receiver) as opened:
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, signal, b"\xff\xff\xff\xff")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details()
        assert retry_delay_of(refused.value) is None
        assert export(opened, signal, b"") == b""


@pytest.mark.parametrize(
    "method",
    [
        "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
        "/opentelemetry.proto.collector.logs.v1.LogsService/Import",
    ],
)
def test_other_methods_are_unimplemented(receiver: Receiver, method: str) -> None:
    with channel(receiver) as opened, pytest.raises(grpc.RpcError) as refused:
        opened.unary_unary(method)(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_many_calls_share_one_connection(receiver: Receiver) -> None:
    services = [new_service() for _ in range(50)]
    with channel(receiver) as opened:
        call = opened.unary_unary(METHODS["spans"])
        calls = [call.future(request("spans", service).SerializeToString()) for service in services]
        assert [answer.result(timeout=30) for answer in calls] == [b""] * 50
    names = receiver.rows("spans").column("service_name").to_pylist()
    assert all(names.count(service) == 1 for service in services)
