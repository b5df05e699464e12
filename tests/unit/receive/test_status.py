"""From errors to the wire: what is retryable, and in whose encoding it is said."""

from __future__ import annotations

import json

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from frazil import errors
from frazil.errors import (
    ClockSkewed,
    ConfigError,
    Forbidden,
    FrazilError,
    Overloaded,
    RequestInvalid,
    RequestTooLarge,
    SegmentCorrupt,
    StoreUnavailable,
    Transient,
    Unauthenticated,
)
from frazil.receive import status as statuses
from frazil.receive.status import JSON, PROTOBUF, Refusal, refusal

RETRYABLE_HTTP = {429, 502, 503, 504}
CASES: list[tuple[Exception, int, grpc.StatusCode, str]] = [
    (Overloaded("full", bound="memory"), 429, grpc.StatusCode.RESOURCE_EXHAUSTED, "memory"),
    (Overloaded("fast", bound="rate"), 429, grpc.StatusCode.RESOURCE_EXHAUSTED, "rate"),
    (StoreUnavailable("down"), 503, grpc.StatusCode.UNAVAILABLE, "store"),
    (ClockSkewed("a day behind"), 503, grpc.StatusCode.UNAVAILABLE, "clock"),
    (RequestTooLarge("big", bytes_max=1), 413, grpc.StatusCode.RESOURCE_EXHAUSTED, "too_large"),
    (RequestInvalid("bad"), 400, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (Unauthenticated("who"), 401, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    (Forbidden("no"), 403, grpc.StatusCode.PERMISSION_DENIED, "forbidden"),
    (ValueError("a defect"), 503, grpc.StatusCode.UNAVAILABLE, "internal"),
    (SegmentCorrupt("p", "r"), 503, grpc.StatusCode.UNAVAILABLE, "internal"),
    (ConfigError("c"), 503, grpc.StatusCode.UNAVAILABLE, "internal"),
]


@pytest.mark.parametrize(("error", "http", "code", "reason"), CASES)
def test_each_error_has_its_status_on_both_transports(
    error: Exception, http: int, code: grpc.StatusCode, reason: str
) -> None:
    found = refusal(error)
    assert (found.http, found.grpc, found.reason) == (http, code, reason)


@pytest.mark.parametrize("error", [case[0] for case in CASES])
def test_a_delay_is_given_if_and_only_if_trying_again_may_help(error: Exception) -> None:
    found = refusal(error)
    assert (found.retry_after_seconds is not None) == (found.http in RETRYABLE_HTTP)
    assert found.http != 500
    if isinstance(error, Transient):
        assert found.http in RETRYABLE_HTTP


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, 1), (0.001, 1), (1.0, 1), (1.01, 2), (59.5, 60), (-3.0, 1)]
)
def test_the_delay_is_rounded_up_and_never_zero(seconds: float, said: int) -> None:
    found = refusal(StoreUnavailable("down", retry_after_seconds=seconds))
    assert found.retry_after_seconds == said
    info = RetryInfo()
    assert found.status.details[0].Unpack(info)
    assert info.retry_delay.seconds == said


@pytest.mark.parametrize("error", [case[0] for case in CASES])
def test_the_body_is_a_status_in_the_requests_encoding(error: Exception) -> None:
    found = refusal(error)
    binary = Status.FromString(found.body(PROTOBUF))
    text = json.loads(found.body(JSON))
    assert binary.code == text["code"] == found.grpc.value[0]
    assert binary.message == text["message"] == found.message
    assert bool(binary.details) == (found.retry_after_seconds is not None)


def test_a_defects_words_are_not_told() -> None:
    assert "secret" not in refusal(RuntimeError("secret path")).message


def test_messages_with_any_text_survive_both_encodings() -> None:
    found = refusal(RequestInvalid('line\nfeed "quoted" \U0001f468 \x00'))
    assert json.loads(found.body(JSON))["message"] == found.message
    assert Status.FromString(found.body(PROTOBUF)).message == found.message


def test_ready_made_refusals_are_permanent() -> None:
    ready = [value for value in vars(statuses).values() if isinstance(value, Refusal)]
    assert {404, 405, 408, 415} <= {item.http for item in ready}
    assert all(400 <= item.http < 500 and item.http != 429 for item in ready)
    assert all(item.retry_after_seconds is None for item in ready)


def test_every_error_is_transient_or_permanent_and_none_breaks_the_map() -> None:
    classes = [
        item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, FrazilError)
    ]
    for item in classes:
        if item is not FrazilError:
            assert issubclass(item, errors.Transient) != issubclass(item, errors.Permanent), item
