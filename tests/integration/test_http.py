"""OTLP over HTTP: content types, answers, refusals."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from google.rpc.code_pb2 import INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED

from frazil.otlp.json import request_to_json
from frazil.tables import Signal
from tests.support.integration.clients import (
    JSON,
    PATHS,
    PROTOBUF,
    RESPONSES,
    SIGNALS,
    connect,
    post,
    received,
    rows_of,
    status_of,
)
from tests.support.integration.messages import new_service, request
from tests.support.receiver import Receiver

UNDECODABLE = b"\xff\xff\xff\xff"


def _body(message: Any, content_type: str) -> bytes:
    is_json = content_type.lower().startswith(JSON)
    return request_to_json(message) if is_json else message.SerializeToString()


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(
    ("content_type", "answered"),
    [
        (PROTOBUF, PROTOBUF),
        (JSON, JSON),
        ("Application/X-Protobuf", PROTOBUF),
        ("APPLICATION/JSON; charset=utf-8", JSON),
        ("application/x-protobuf ; a=b;c", PROTOBUF),
    ],
)
def test_success_is_an_empty_answer_in_the_requests_type(
    receiver: Receiver, signal: Signal, content_type: str, answered: str
) -> None:
    service = new_service()
    response = post(receiver, signal, _body(request(signal, service, 3), content_type), content_type)
    assert (response.status_code, response.headers["content-type"]) == (200, answered)
    assert response.content == (b"{}" if answered == JSON else b"")
    assert not RESPONSES[signal].FromString(b"").HasField("partial_success")
    assert len(rows_of(receiver, signal, service)) == 3


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(("content_type", "body"), [(PROTOBUF, b""), (JSON, b"{}")])
def test_an_empty_request_succeeds(
    receiver: Receiver, signal: Signal, content_type: str, body: bytes
) -> None:
    response = post(receiver, signal, body, content_type)
    assert (response.status_code, response.content) == (200, body)


@pytest.mark.parametrize("signal", SIGNALS)
def test_empty_envelopes_succeed(receiver: Receiver, signal: Signal) -> None:
    response = post(receiver, signal, request(signal, new_service(), 0).SerializeToString())
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (PROTOBUF, UNDECODABLE),
        (PROTOBUF, b"{}"),
        (JSON, b""),
        (JSON, b"{"),
        (JSON, b"[]"),
        (JSON, UNDECODABLE),
        (JSON, b'{"resourceLogs":3,"resourceSpans":3,"resourceMetrics":3}'),
    ],
)
def test_an_undecodable_request_gets_400_with_a_status(
    receiver: Receiver, signal: Signal, content_type: str, body: bytes
) -> None:
    response = post(receiver, signal, body, content_type)
    assert (response.status_code, response.headers["content-type"]) == (400, content_type)
    status = status_of(response)
    assert status.code == INVALID_ARGUMENT
    assert status.message
    assert "retry-after" not in response.headers


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("path", ["/", "/v1/log", "/v1/logs/", "/v1development/profiles", "/v1/profiles"])
def test_other_paths_get_404_with_a_status(receiver: Receiver, path: str, content_type: str) -> None:
    response = httpx.post(
        receiver.http + path, content=b"x" * 100_000, headers={"content-type": content_type}
    )
    assert (response.status_code, response.headers["content-type"]) == (404, content_type)
    assert status_of(response).code == NOT_FOUND


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_other_methods_get_405_with_a_status(receiver: Receiver, method: str, content_type: str) -> None:
    response = httpx.request(method, receiver.http + "/v1/logs", headers={"content-type": content_type})
    assert (response.status_code, response.headers["content-type"]) == (405, content_type)
    assert response.headers["allow"] == "POST, OPTIONS"
    assert status_of(response).code == UNIMPLEMENTED


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/octet-stream", "application/jsonx", None]
)
def test_other_content_types_get_415_with_a_status(receiver: Receiver, content_type: str | None) -> None:
    response = post(receiver, "logs", b"{}", content_type)
    assert (response.status_code, response.headers["content-type"]) == (415, JSON)
    assert status_of(response).code == INVALID_ARGUMENT
    assert PROTOBUF in status_of(response).message


def test_a_query_string_does_not_matter(receiver: Receiver) -> None:
    response = httpx.post(f"{receiver.http}/v1/logs?a=b", content=b"", headers={"content-type": PROTOBUF})
    assert response.status_code == 200


def test_one_connection_serves_many_requests_good_and_bad(receiver: Receiver) -> None:
    service = new_service()
    with httpx.Client(base_url=receiver.http, headers={"content-type": PROTOBUF}) as client:
        codes = [
            client.post("/v1/logs", content=body).status_code
            for body in (request("logs", service).SerializeToString(), UNDECODABLE) * 5
        ]
    assert codes == [200, 400] * 5
    assert len(rows_of(receiver, "logs", service)) == 5


def test_http2_without_tls(receiver: Receiver) -> None:
    service = new_service()
    with httpx.Client(http1=False, http2=True) as client:
        response = client.post(
            f"{receiver.http}/v1/traces",
            content=request("spans", service).SerializeToString(),
            headers={"content-type": PROTOBUF},
        )
    assert (response.http_version, response.status_code) == ("HTTP/2", 200)
    assert len(rows_of(receiver, "spans", service)) == 1


def test_a_client_that_expects_100_continue_is_told_to_go_on(receiver: Receiver) -> None:
    body = request("logs", service := new_service()).SerializeToString()
    head = (
        f"POST {PATHS['logs']} HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF}\r\n"
        f"content-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    )
    with connect(receiver.http_port) as connection:
        connection.sendall(head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert received(connection).startswith(b"HTTP/1.1 200 ")
    assert len(rows_of(receiver, "logs", service)) == 1


@pytest.mark.parametrize(
    "head",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/logs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n\r\nzz\r\n",
    ],
    ids=["no request", "negative length", "two lengths", "bad chunk"],
)
def test_malformed_http_ends_that_connection_alone(receiver: Receiver, head: bytes) -> None:
    with connect(receiver.http_port) as connection:
        connection.sendall(head)
        answer = received(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert receiver.is_ready()
