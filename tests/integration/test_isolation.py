"""One tenant's hostile or very large requests: refused with a reason, while other tenants are served."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
import h2.config
import h2.connection
import pytest
from google.rpc.code_pb2 import RESOURCE_EXHAUSTED

from frazil.keys import new_key
from tests.support.integration.clients import (
    JSON,
    METHODS,
    PROTOBUF,
    channel,
    connect,
    export,
    post,
    retry_delay_of,
    rows_of,
    status_of,
)
from tests.support.integration.messages import new_service, request
from tests.support.otlp_wire import delimited, within
from tests.support.receiver import Receiver, running_receiver

RESOURCES_MAX, RECORDS_MAX, OBJECTS_MAX = 1_000, 100_000, 5_000
MILLION = 1_000_000


@dataclass(frozen=True)
class Shared:
    receiver: Receiver
    keys: dict[str, str]

    def bearer(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[tenant]}"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A receiver of two tenants and a third one with a limited rate."""
    keys, entries = {}, []
    for tenant in ("a", "b", "limited"):
        keys[tenant], digest = new_key(tenant)
        entries.append({"name": tenant, "tenant": tenant, "hash": digest, "roles": ["write"]})
    settings = {
        "auth": {"keys": entries},
        "receive": {
            "limits": {
                "resources_per_request_max": RESOURCES_MAX,
                "records_per_request_max": RECORDS_MAX,
                "json_objects_max": OBJECTS_MAX,
            }
        },
        "tenants": {
            "rate_limits": {"by_tenant": {"limited": {"bytes_per_second": "1MiB", "burst_bytes": "1MiB"}}}
        },
    }
    with running_receiver(tmp_path_factory.mktemp("shared"), settings) as running:
        yield Shared(running, keys)


HOSTILE = {
    "resources": (b"\x0a\x00" * (8 * MILLION), "resources_per_request_max"),
    "scopes": (within((1,), b"\x12\x00" * (8 * MILLION)), "resources_per_request_max"),
    "resources with a record": (within((1, 2, 2), b"") * MILLION, "resources_per_request_max"),
    "few too many resources": (
        within((1, 2, 2), b"") * (RESOURCES_MAX // 2 + 1),
        "resources_per_request_max",
    ),
    "records": (within((1, 2), b"\x12\x00" * MILLION), "records_per_request_max"),
    "records in 16 MB": (within((1, 2), b"\x12\x00" * (8 * MILLION)), "records_per_request_max"),
    "attributes": (within((1, 2, 2), delimited(6, b"") * MILLION), "attributes"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_more_than_allowed_is_refused_and_another_tenant_is_served_meanwhile(
    shared: Shared, name: str
) -> None:
    body, reason = HOSTILE[name]
    packed = gzip.compress(body)

    def attack() -> tuple[int, str]:
        headers = {**shared.bearer("a"), "content-encoding": "gzip"}
        answer = post(shared.receiver, "logs", packed, PROTOBUF, headers=headers)
        assert "retry-after" not in answer.headers
        return answer.status_code, status_of(answer).message

    with ThreadPoolExecutor(4) as pool:
        attacks = [pool.submit(attack) for _ in range(4)]
        services = [new_service() for _ in range(3)]
        for service in services:
            good = request("logs", service).SerializeToString()
            assert (
                post(shared.receiver, "logs", good, PROTOBUF, headers=shared.bearer("b")).status_code == 200
            )
        for status, message in (attack.result() for attack in attacks):
            assert status == 413
            assert reason in message
    for service in services:
        assert len(rows_of(shared.receiver, "logs", service)) == 1


def test_as_many_resources_as_allowed_are_accepted(shared: Shared) -> None:
    body = within((1, 2, 2), b"") * (RESOURCES_MAX // 2)
    assert post(shared.receiver, "logs", body, PROTOBUF, headers=shared.bearer("a")).status_code == 200


def test_too_many_resources_over_grpc_are_refused_without_a_time_to_retry(shared: Shared) -> None:
    with channel(shared.receiver) as opened, pytest.raises(grpc.RpcError) as caught:
        export(opened, "logs", b"\x0a\x00" * 100_000, metadata=shared.bearer("a"))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "receive.limits.resources_per_request_max" in caught.value.details()
    assert retry_delay_of(caught.value) is None


def test_json_with_too_many_objects_is_refused_before_it_is_parsed(shared: Shared) -> None:
    body = b'{"resourceLogs":[' + b"{}," * (5 * MILLION)  # not even JSON
    answer = post(shared.receiver, "logs", body, JSON, headers=shared.bearer("a"))
    assert answer.status_code == 413
    assert status_of(answer).code == RESOURCE_EXHAUSTED
    assert "receive.limits.json_objects_max" in status_of(answer).message


@pytest.mark.parametrize("content_type", [PROTOBUF, JSON])
def test_a_refused_request_is_charged_to_the_rate_of_its_tenant(shared: Shared, content_type: str) -> None:
    body = {PROTOBUF: b"\x0a\x00" * MILLION, JSON: b"[" * MILLION * 2}[content_type]
    headers = {**shared.bearer("limited"), "content-encoding": "gzip"}
    answers = [
        post(shared.receiver, "logs", gzip.compress(body), content_type, headers=headers) for _ in range(2)
    ]
    assert answers[1].status_code == 429
    assert answers[0].status_code in (413, 429)  # 429 while the other parameter's request is still charged


def test_grpc_streams_without_a_message_do_not_delay_another_tenants_calls(shared: Shared) -> None:
    """Three connections with as many streams as one may have: headers with a valid key, and no message."""
    fields = {":method": "POST", ":scheme": "http", ":path": METHODS["logs"], ":authority": "test"}
    fields |= {"content-type": "application/grpc", "te": "trailers", **shared.bearer("a")}
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            http2.initiate_connection()
            for number in range(100):
                http2.send_headers(2 * number + 1, list(fields.items()))
            connection = stack.enter_context(connect(shared.receiver.grpc_port))
            connection.sendall(http2.data_to_send())
            connection.recv(1000)  # its settings: the connection is up
        services = [new_service() for _ in range(10)]
        with channel(shared.receiver) as opened:
            for service in services:
                body = request("logs", service).SerializeToString()
                assert export(opened, "logs", body, metadata=shared.bearer("b")) == b""
    assert [len(rows_of(shared.receiver, "logs", service)) for service in services] == [1] * 10
