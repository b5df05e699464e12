"""Decoding of hostile requests: broken text, truncation, false lengths and deep nesting."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoder
from frazil.tables import SIGNALS, Signal
from tests.support.otlp_decoding import GOOD, RECEIVED, decode, rows
from tests.support.otlp_wire import (
    delimited,
    log_with_attribute,
    log_with_body,
    nested_value,
    number,
    prefixes,
    varint,
    within,
)

each_signal = pytest.mark.parametrize("signal", SIGNALS)


BAD_UTF8 = delimited(1, b"ok\xff")
SURROGATE = delimited(1, b"\xed\xa0\x80")


@pytest.mark.parametrize("text_field", [BAD_UTF8, SURROGATE, delimited(1, b"\xc0\x80")])
@pytest.mark.parametrize(
    "path",
    [
        (1, 2, 2, 5),  # a record's body
        (1, 2, 2, 6),  # a record's attribute key
        (1, 2, 2, 6, 2),  # and value
        (1, 2, 1),  # the scope's name
        (1, 1, 1),  # the resource's attribute key
        (1, 1, 1, 2),  # and value
        (1, 1, 3),  # an entity reference's schema
        (1, 2, 2, 5, 5, 1),  # in an array
        (1, 2, 2, 5, 6, 1),  # a key in a key-value list
        (1, 2, 2, 5, 6, 1, 2),  # and its value
        (1, 2, 2, 5, 5, 1, 5, 1),  # in an array in an array
    ],
)
def test_text_that_is_not_utf8_refuses_the_request(path: tuple[int, ...], text_field: bytes) -> None:
    with pytest.raises(RequestInvalid):
        decode("logs", within(path, text_field))


@pytest.mark.parametrize(
    ("signal", "body"),
    [
        ("logs", within((1, 2, 2), delimited(3, b"\xff"))),
        ("logs", within((1, 2, 2), delimited(12, b"\xff"))),
        ("logs", within((1,), delimited(3, b"\xff"))),
        ("logs", within((1, 2), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2), delimited(5, b"\xff"))),
        ("spans", within((1, 2, 2), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2, 11), delimited(2, b"\xff"))),
        ("spans", within((1, 2, 2, 13), delimited(3, b"\xff"))),
        ("spans", within((1, 2, 2, 15), delimited(2, b"\xff"))),
        ("metrics", within((1, 2, 2), delimited(1, b"\xff"))),
        ("metrics", within((1, 2, 2), delimited(3, b"\xff"))),
    ],
)
def test_text_of_records_that_is_not_utf8_refuses_the_request(signal: Signal, body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        decode(signal, body)


@each_signal
def test_a_truncated_request_is_refused_or_is_a_shorter_request(signal: Signal) -> None:
    request = {
        "logs": ExportLogsServiceRequest,
        "spans": ExportTraceServiceRequest,
        "metrics": ExportMetricsServiceRequest,
    }[signal]
    decoder = Decoder(signal)
    for part in prefixes(GOOD[signal]):
        if part:
            with pytest.raises(RequestInvalid):
                decoder.decode([part], ["t"], [RECEIVED])
            with pytest.raises(Exception, match="pars"):
                request.FromString(part)


@each_signal
@pytest.mark.parametrize("size", [2**31 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 10, 2**64 - 1])
@pytest.mark.parametrize("path", [(), (1,), (1, 2), (1, 2, 2)])
def test_a_length_beyond_all_bounds_refuses_the_request_and_no_later_one(
    signal: Signal, size: int, path: tuple[int, ...]
) -> None:
    """Some make ptars panic, which is no Exception: a lane that met one would never answer again."""
    for field in (1, 2, 3):
        with pytest.raises(RequestInvalid):
            decode(signal, within(path, varint(field << 3 | 2) + varint(size) + b"x"))
    assert len(rows(signal, GOOD[signal])) == 2


# Nesting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kvlist", [False, True])
@pytest.mark.parametrize("place", [log_with_body, log_with_attribute])
def test_nesting_is_bounded_exactly(place: Any, kvlist: bool) -> None:
    value = nested_value(8, kvlist=kvlist)
    assert len(rows("logs", place(value), depth_max=8)) == 1
    with pytest.raises(RequestInvalid, match="deeper than 7"):
        decode("logs", place(value), depth_max=7)


@pytest.mark.parametrize("kvlist", [False, True])
@pytest.mark.parametrize(
    "path",
    [(1, 2, 2, 5), (1, 2, 2, 6, 2), (1, 1, 1, 2), (1, 2, 1, 3, 2)],
    ids=["body", "attribute", "resource", "scope"],
)
def test_200_000_levels_are_refused_and_the_process_lives(path: tuple[int, ...], kvlist: bool) -> None:
    with pytest.raises(RequestInvalid):
        decode("logs", within(path, nested_value(200_000, kvlist=kvlist)), depth_max=90)


def test_200_000_levels_beside_a_value_that_is_there_twice_are_refused() -> None:
    twice = log_with_body(delimited(1, b"a") + number(3, 5))
    with pytest.raises(RequestInvalid):
        decode("logs", log_with_body(nested_value(200_000)), twice)


def test_200_000_nested_groups_are_refused_and_the_process_lives() -> None:
    groups = varint(100 << 3 | 3) * 200_000 + varint(100 << 3 | 4) * 200_000
    with pytest.raises(RequestInvalid):
        decode("logs", groups)


# Amplification ------------------------------------------------------------------------------------


def test_many_records_that_share_a_large_resource_are_refused_before_memory_is_taken() -> None:
    resource = b"".join(within((1,), delimited(1, b"k%d" % number_)) for number_ in range(1000))
    body = delimited(1, delimited(1, resource) + delimited(2, delimited(2, b"") * 200_000))
    with pytest.raises(RequestTooLarge):
        decode("logs", body)
    resource = delimited(1, delimited(1, b"k") + within((2, 1), b"x" * 200_000))
    with pytest.raises(RequestTooLarge):
        decode("logs", delimited(1, delimited(1, resource) + delimited(2, delimited(2, b"") * 20_000)))
