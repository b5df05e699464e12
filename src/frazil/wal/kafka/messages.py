"""The format of Kafka messages: tenant, receive time and value. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from google.protobuf.message import DecodeError

from frazil.config.values import tenant_id
from frazil.config.wal import KafkaConfig
from frazil.errors import RequestInvalid
from frazil.otlp.json import VALUE_DEPTH_MAX, request_from_json, request_to_json
from frazil.otlp.wire import REQUESTS
from frazil.tables import Signal

Encoding = Literal["otlp_proto", "otlp_json"]
Headers = Iterable[tuple[str, bytes | None]] | None

RECEIVED_HEADER = "frazil-received-unix-nano"
"""Kafka's own timestamp has milliseconds; rows have nanoseconds."""
_NANOS_PER_MS = 1_000_000
_UNIX_NANO_MAX = 2**63 - 1
_DIGITS_MAX = len(str(_UNIX_NANO_MAX))


def key_and_headers(
    tenant: str, received_unix_nano: int, config: KafkaConfig
) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    """Returns a message's key and headers, which `tenant_of` and `received_unix_nano` read back."""
    headers = [(RECEIVED_HEADER, str(received_unix_nano).encode())]
    if config.tenant.source == "header":
        headers.append((config.tenant.header, tenant.encode()))
    return (tenant.encode() if config.tenant.source == "key" else None), headers


def tenant_of(headers: Headers, key: bytes | None, config: KafkaConfig, default: str) -> str:
    """Returns the tenant from the configured key or header, or `default` if that is not a valid tenant id.

    If a header is repeated, the last one counts, as in Kafka's own clients.
    """
    named: bytes | None = None
    if config.tenant.source == "key":
        named = key
    elif config.tenant.source == "header":
        named = _last(headers, config.tenant.header)
    try:
        return tenant_id((named or b"").decode())
    except ValueError:  # an invalid tenant id, or not UTF-8
        return default


def received_unix_nano(headers: Headers, timestamp_ms: int) -> int:
    """Returns the receive time: frazil's header if it is valid, else Kafka's timestamp."""
    exact = _last(headers, RECEIVED_HEADER) or b""
    if len(exact) <= _DIGITS_MAX and exact.isdigit() and 0 < int(exact) <= _UNIX_NANO_MAX:
        return int(exact)
    return min(max(timestamp_ms, 0) * _NANOS_PER_MS, _UNIX_NANO_MAX)


def body_of(
    value: bytes | None, encoding: Encoding, signal: Signal, *, depth_max: int = VALUE_DEPTH_MAX
) -> bytes:
    """Returns the OTLP request in protobuf, unchecked. Raises RequestInvalid if the message has none."""
    if value is None:
        raise RequestInvalid("the message has no value (a Kafka tombstone)")
    if encoding == "otlp_json":
        return request_from_json(signal, value, depth_max=depth_max)
    return value


def value_of(body: bytes, encoding: Encoding, signal: Signal) -> bytes:
    """Returns a message's value for an OTLP request in protobuf; `body_of` reads it back."""
    if encoding == "otlp_proto":
        return body
    try:
        return request_to_json(REQUESTS[signal].FromString(body))
    except DecodeError as error:  # nested too deeply for protobuf's parser, though not for frazil's
        raise RequestInvalid(f"the request cannot be written as JSON: {error}") from None


def _last(headers: Headers, name: str) -> bytes | None:
    value = None
    for key, given in headers or ():
        if key == name:
            value = given
    return value
