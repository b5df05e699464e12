"""API keys: who may write, whose data it is, and how fast each tenant may send. No secret is logged."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.code_pb2 import PERMISSION_DENIED, RESOURCE_EXHAUSTED, UNAUTHENTICATED

from frazil.keys import new_key
from frazil.otlp.json import request_to_json
from tests.components.process import wait_until
from tests.support.integration.clients import (
    JSON,
    SIGNALS,
    channel,
    export,
    post,
    retry_delay_of,
    rows_of,
    status_of,
)
from tests.support.integration.messages import logs, new_service, request
from tests.support.receiver import Receiver, running_receiver

SECRET = "s3cr3t-payload"


@dataclass(frozen=True)
class Keyed:
    receiver: Receiver
    keys: dict[str, str]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Keys named after their tenants; `reader` may not write; `slow` and `rare` are limited."""
    keys, entries = {}, []
    for name in ("one", "two", "reader", "slow", "slow-grpc", "rare", "rare-grpc"):
        keys[name], digest = new_key(name)
        roles = ["read", "admin"] if name == "reader" else ["write"]
        entries.append({"name": f"key-{name}", "tenant": name, "hash": digest, "roles": roles})
    bytes_limit = {"bytes_per_second": 1_000, "burst_bytes": 100}
    requests_limit = {"bytes_per_second": "1GiB", "requests_per_second": 0.5}
    limits = {
        "slow": bytes_limit,
        "slow-grpc": bytes_limit,
        "rare": requests_limit,
        "rare-grpc": requests_limit,
    }
    settings: dict[str, Any] = {
        "auth": {"keys": entries},
        "log": {"level": "debug"},
        "tenants": {"rate_limits": {"by_tenant": limits}},
        "wal": {"group_wait_seconds": 0.01},
    }
    with running_receiver(tmp_path_factory.mktemp("keyed"), settings) as running:
        yield Keyed(running, keys)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_tenant_comes_from_the_key_alone(keyed: Keyed, signal: Any) -> None:
    service = new_service()
    body = request(signal, service).SerializeToString()
    claimed = {"x-tenant-id": "two", "x-scope-orgid": "two", "tenant": "two"}
    for headers in (
        {"authorization": f"bearer {keyed.keys['one']}"},
        {"x-api-key": keyed.keys["one"]},
        {"x-api-key": keyed.keys["one"], "authorization": "Basic dXNlcjpwYXNz"},
    ):
        assert post(keyed.receiver, signal, body, headers=headers | claimed).status_code == 200
        with channel(keyed.receiver) as opened:
            assert export(opened, signal, body, metadata=headers | claimed) == b""
    rows = rows_of(keyed.receiver, signal, service)
    assert [row["tenant_id"] for row in rows] == ["one"] * 6


def test_requests_of_two_tenants_at_once_stay_apart(keyed: Keyed) -> None:
    services = {tenant: new_service() for tenant in ("one", "two")}
    with channel(keyed.receiver) as opened:
        call = opened.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
        answers = [
            call.future(logs(services[tenant], 5).SerializeToString(), metadata=tuple(_bearer(key).items()))
            for _ in range(10)
            for tenant, key in keyed.keys.items()
            if tenant in services
        ]
        assert {answer.result(timeout=30) for answer in answers} == {b""}
    for tenant, service in services.items():
        rows = rows_of(keyed.receiver, "logs", service)
        assert [row["tenant_id"] for row in rows] == [tenant] * 50


WRONG = {
    "none": {},
    "wrong bearer": {"authorization": "Bearer fz_" + "a" * 43},
    "empty bearer": {"authorization": "Bearer"},
    "no scheme": {"authorization": "fz_abc"},
    "basic": {"authorization": "Basic dXNlcjpwYXNz"},
    "wrong key": {"x-api-key": "fz_wrong"},
    "too long": {"x-api-key": "a" * 5_000},
}


@pytest.mark.parametrize("headers", WRONG.values(), ids=WRONG)
def test_without_a_valid_key_nothing_gets_in(keyed: Keyed, headers: dict[str, str]) -> None:
    message = logs(service := new_service())
    for body, content_type in (
        (message.SerializeToString(), "application/x-protobuf"),
        (request_to_json(message), JSON),
    ):
        response = post(keyed.receiver, "logs", body, content_type, headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (401, content_type)
        assert response.headers["www-authenticate"].startswith("Bearer")
        assert status_of(response).code == UNAUTHENTICATED
    with channel(keyed.receiver) as opened, pytest.raises(grpc.RpcError) as refused:
        export(opened, "logs", message.SerializeToString(), metadata=headers)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert rows_of(keyed.receiver, "logs", service) == []


def test_a_valid_bearer_is_not_replaced_by_another_key(keyed: Keyed) -> None:
    body = logs(service := new_service()).SerializeToString()
    both = {"authorization": f"Bearer {keyed.keys['one']}", "x-api-key": keyed.keys["two"]}
    assert post(keyed.receiver, "logs", body, headers=both).status_code == 200
    wrong = {"authorization": "Bearer wrong", "x-api-key": keyed.keys["two"]}
    assert post(keyed.receiver, "logs", body, headers=wrong).status_code == 401
    assert [row["tenant_id"] for row in rows_of(keyed.receiver, "logs", service)] == ["one"]


def test_the_hash_of_a_key_is_not_a_key(keyed: Keyed) -> None:
    digest = keyed.receiver.config.auth.keys[0].hash
    for token in (digest, digest.removeprefix("sha256:")):
        assert post(keyed.receiver, "logs", b"", headers=_bearer(token)).status_code == 401


def test_a_key_that_may_not_write_is_forbidden_to(keyed: Keyed) -> None:
    headers, body = _bearer(keyed.keys["reader"]), logs(service := new_service()).SerializeToString()
    response = post(keyed.receiver, "logs", body, headers=headers)
    assert response.status_code == 403
    assert status_of(response).code == PERMISSION_DENIED
    with channel(keyed.receiver) as opened, pytest.raises(grpc.RpcError) as refused:
        export(opened, "logs", body, metadata=headers)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert rows_of(keyed.receiver, "logs", service) == []


@pytest.mark.parametrize("tenant", ["slow", "rare"])
def test_a_tenant_over_its_rate_is_told_when_to_come_back_and_others_are_not_touched(
    keyed: Keyed, tenant: str
) -> None:
    body = logs(service := new_service(), 30).SerializeToString()
    headers, other = _bearer(keyed.keys[tenant]), _bearer(keyed.keys["one"])
    responses = [post(keyed.receiver, "logs", body, headers=headers) for _ in range(4)]
    codes = [response.status_code for response in responses]
    # A rate may be overdrawn once, by whatever size; then it must be earned again.
    assert codes in ([200, 429, 429, 429], [200, 200, 429, 429])
    response = responses[-1]
    assert re.fullmatch("[1-9][0-9]*", response.headers["retry-after"])
    assert status_of(response).code == RESOURCE_EXHAUSTED
    assert post(keyed.receiver, "logs", body, headers=other).status_code == 200
    assert len(rows_of(keyed.receiver, "logs", service)) == 30 * (codes.count(200) + 1)
    assert wait_until(
        lambda: post(keyed.receiver, "logs", b"", headers=headers).status_code == 200, seconds_max=20
    )


@pytest.mark.parametrize("tenant", ["slow-grpc", "rare-grpc"])
def test_rates_hold_over_grpc_too(keyed: Keyed, tenant: str) -> None:
    body = logs(service := new_service(), 30).SerializeToString()
    headers, other = _bearer(keyed.keys[tenant]), _bearer(keyed.keys["one"])
    with channel(keyed.receiver) as opened:
        assert export(opened, "logs", body, metadata=headers) == b""
        with contextlib.suppress(grpc.RpcError):  # it may be overdrawn once
            export(opened, "logs", body, metadata=headers)
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, "logs", body, metadata=headers)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        delay = retry_delay_of(refused.value)
        assert delay is not None
        assert delay >= 1
        assert delay == int(delay)
        assert export(opened, "logs", body, metadata=other) == b""
    assert len(rows_of(keyed.receiver, "logs", service)) in (60, 90)


def test_health_and_metrics_need_no_key_and_tell_no_secret(keyed: Keyed) -> None:
    for path in ("/healthz", "/readyz", "/livez", "/metrics", "/status"):
        response = httpx.get(keyed.receiver.http + path)
        assert response.status_code == 200
        assert not any(key in response.text for key in keyed.keys.values())


def test_neither_keys_nor_payloads_get_into_the_log(keyed: Keyed) -> None:
    message = logs(SECRET)
    message.resource_logs[0].scope_logs[0].log_records[0].body.string_value = SECRET
    good, spoilt = message.SerializeToString(), SECRET.encode() + message.SerializeToString()
    valid, wrong = _bearer(keyed.keys["one"]), _bearer(f"fz_{SECRET}")
    for headers in (valid, wrong):
        for body in (good, spoilt):
            post(keyed.receiver, "logs", body, headers=headers)
            post(keyed.receiver, "logs", body, JSON, headers=headers)
            post(keyed.receiver, "logs", body, encoding="gzip", headers=headers)
            with channel(keyed.receiver) as opened:
                call = opened.unary_unary("/opentelemetry.proto.collector.logs.v1.LogsService/Export")
                call.future(body, metadata=tuple(headers.items())).exception(timeout=30)
    assert post(keyed.receiver, "logs", request_to_json(message), JSON, headers=valid).status_code == 200
    text = (keyed.receiver.folder / "receiver.log").read_text()
    assert "store probed" in text
    assert SECRET not in text
    assert not any(key in text for key in keyed.keys.values())
