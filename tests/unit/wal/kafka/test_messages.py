"""What a message says: whose it is, when it came, what it holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config.wal import KafkaConfig
from frazil.errors import RequestInvalid
from frazil.otlp.wire import REQUESTS
from frazil.tables import Signal
from frazil.wal.kafka.messages import (
    RECEIVED_HEADER,
    body_of,
    key_and_headers,
    received_unix_nano,
    tenant_of,
    value_of,
)
from tests.support.integration.messages import request

SIGNALS: tuple[Signal, ...] = ("logs", "spans", "metrics")
UNIX_NANO = 1_790_000_000_123_456_789
tenants = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True).filter(lambda name: name not in (".", ".."))


def config(**tenant: Any) -> KafkaConfig:
    return KafkaConfig.model_validate({"brokers": ["a:1"], "tenant": tenant})


@given(tenants, st.integers(1, 2**63 - 1), st.sampled_from([{}, {"header": "x-scope"}, {"source": "key"}]))
def test_what_a_message_is_addressed_with_is_read_back(
    tenant: str, unix_nano: int, settings: dict[str, str]
) -> None:
    key, headers = key_and_headers(tenant, unix_nano, config(**settings))
    assert tenant_of(headers, key, config(**settings), "default") == tenant
    assert received_unix_nano(headers, 5) == unix_nano


def test_a_fixed_tenant_is_neither_written_nor_read() -> None:
    key, headers = key_and_headers("shop", UNIX_NANO, config(source="fixed"))
    assert key is None
    assert [name for name, _ in headers] == [RECEIVED_HEADER]
    assert tenant_of([("frazil-tenant", b"shop")], b"shop", config(source="fixed"), "default") == "default"


@pytest.mark.parametrize("name", [b"", None, b".", b"..", b"a/b", b"a\n", b"\xff", b"x" * 65, "Ü".encode()])
@pytest.mark.parametrize("source", ["header", "key"])
def test_what_cannot_name_a_tenant_is_the_default_tenant(name: bytes | None, source: str) -> None:
    headers = [("frazil-tenant", name)]
    assert tenant_of(headers, name, config(source=source), "default") == "default"


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=80))), st.none() | st.binary())
def test_no_headers_and_no_key_can_make_reading_fail(
    headers: list[tuple[str, bytes | None]], key: bytes | None
) -> None:
    for source in ("header", "key", "fixed"):
        assert tenant_of(headers, key, config(source=source), "default")
    assert received_unix_nano(headers, 7) >= 0


def test_without_headers_a_message_has_the_default_tenant_and_kafkas_time() -> None:
    assert tenant_of(None, None, config(), "default") == "default"
    assert received_unix_nano(None, 1_790_000_000_123) == 1_790_000_000_123_000_000


def test_of_a_repeated_header_the_last_counts() -> None:
    headers = [("frazil-tenant", b"first"), ("other", b"x"), ("frazil-tenant", b"last")]
    assert tenant_of(headers, None, config(), "default") == "last"


@pytest.mark.parametrize(
    "value", [None, b"", b"0", b"-5", b"+5", b"1.5", b"0x10", b" 7", b"1e18", b"9" * 19, b"9" * 5000, b"\xb2"]
)
def test_a_received_header_that_is_no_time_is_passed_over(value: bytes | None) -> None:
    assert received_unix_nano([(RECEIVED_HEADER, value)], 1_234) == 1_234_000_000


@pytest.mark.parametrize(("timestamp_ms", "unix_nano"), [(-1, 0), (2**62, 2**63 - 1)])
def test_a_time_of_kafka_that_a_row_cannot_hold_is_bounded(timestamp_ms: int, unix_nano: int) -> None:
    assert received_unix_nano((), timestamp_ms) == unix_nano


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
def test_a_request_is_read_back_in_either_encoding(signal: Signal, encoding: Any) -> None:
    sent = request(signal, "shop", 3)
    value = value_of(sent.SerializeToString(), encoding, signal)
    assert (value[:1] == b"{") == (encoding == "otlp_json")
    assert REQUESTS[signal].FromString(body_of(value, encoding, signal)) == sent


def test_protobuf_is_not_touched() -> None:
    assert body_of(b"anything", "otlp_proto", "logs") == b"anything"
    assert value_of(b"anything", "otlp_proto", "logs") == b"anything"


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"resourceLogs": 7}', b"\x0a\x7f", None])
def test_what_is_no_request_is_refused(value: bytes | None) -> None:
    with pytest.raises(RequestInvalid):
        body_of(value, "otlp_json", "logs")


def test_a_tombstone_is_refused_in_protobuf_too() -> None:
    with pytest.raises(RequestInvalid, match="no value"):
        body_of(None, "otlp_proto", "logs")
