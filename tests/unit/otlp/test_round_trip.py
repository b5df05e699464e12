"""OTLP in equals OTLP out, for everything that the specification allows."""

from __future__ import annotations

import io
from typing import Any

import pyarrow.parquet as pq
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.otlp.decode import Decoder, conform
from frazil.otlp.encode import encode
from frazil.otlp.json import request_from_json, request_to_json
from frazil.tables import Signal
from tests.support.otlp_canonical import canonical_logs, canonical_metrics, canonical_spans
from tests.support.otlp_requests import (
    logs_requests,
    metrics_requests,
    permuted_wire,
    split_wire,
    trace_requests,
    with_unknown_fields,
)

CANONICAL = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}
REQUESTS = st.one_of(
    st.tuples(st.just("logs"), logs_requests()),
    st.tuples(st.just("spans"), trace_requests()),
    st.tuples(st.just("metrics"), metrics_requests()),
)
RECEIVED = 1_790_000_000_123_456_789
DECODERS: dict[Any, Decoder] = {name: Decoder(name) for name in ("logs", "spans", "metrics")}


def decoded(signal: Signal, *bodies: bytes) -> Any:
    return DECODERS[signal].decode(bodies, ["t"] * len(bodies), [RECEIVED] * len(bodies))


def assert_comes_back(signal: Signal, request: Message, *bodies: bytes) -> None:
    result = decoded(signal, *bodies)
    assert result.rejected.sum() == 0, result.reasons
    back = encode(result.table, DECODERS[signal].spec)
    assert CANONICAL[signal](back) == CANONICAL[signal](request)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS)
def test_a_request_comes_back_equal(case: tuple[Signal, Message]) -> None:
    signal, request = case
    assert_comes_back(signal, request, request.SerializeToString())


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS, st.integers(0, 2**32))
def test_unknown_fields_and_unusual_but_valid_wire_forms_change_nothing(
    case: tuple[Signal, Message], seed: int
) -> None:
    signal, request = case
    for form in (with_unknown_fields, permuted_wire, split_wire):
        assert_comes_back(signal, request, form(request, seed))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS)
def test_a_request_in_json_comes_back_equal(case: tuple[Signal, Message]) -> None:
    signal, request = case
    assert_comes_back(signal, request, request_from_json(signal, request_to_json(request), depth_max=32))


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(logs_requests(), min_size=2, max_size=4))
def test_requests_decoded_together_equal_requests_decoded_alone(requests: list[Message]) -> None:
    together = decoded("logs", *(request.SerializeToString() for request in requests))
    alone = [decoded("logs", request.SerializeToString()) for request in requests]
    assert list(together.seen) == [int(one.seen[0]) for one in alone]
    spec = DECODERS["logs"].spec
    rows = [row for one in alone for row in conform(one.table, spec).to_pylist()]
    assert repr(conform(together.table, spec).to_pylist()) == repr(rows)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(REQUESTS)
def test_rows_survive_parquet(case: tuple[Signal, Message]) -> None:
    signal, request = case
    spec = DECODERS[signal].spec
    table = decoded(signal, request.SerializeToString()).table
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False)
    back = encode(pq.read_table(sink), spec)
    assert CANONICAL[signal](back) == CANONICAL[signal](request)


@pytest.mark.parametrize("signal", ["logs", "spans", "metrics"])
def test_an_empty_request_gives_no_rows_in_the_full_schema(signal: Signal) -> None:
    result = decoded(signal, b"")
    assert conform(result.table, DECODERS[signal].spec).num_rows == 0
    assert list(result.seen) == [0]
