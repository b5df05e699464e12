"""Leaving records out of a request's bytes gives what encoding its valid rows anew would give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.errors import RequestInvalid
from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.metrics import TYPES
from frazil.otlp.wire import REQUESTS, check_parsable
from frazil.tables import SIGNALS, Signal
from frazil.wal.kafka.drop_records import drop_records
from tests.support.otlp_canonical import canonical_logs, canonical_metrics, canonical_spans
from tests.support.otlp_requests import (
    logs_requests,
    metrics_requests,
    permuted_wire,
    split_wire,
    trace_requests,
    with_unknown_fields,
)
from tests.support.otlp_wire import delimited, fixed64, nested_value, within

CANONICAL = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}
CASES = st.one_of(
    st.tuples(st.just("logs"), logs_requests()),
    st.tuples(st.just("spans"), trace_requests()),
    st.tuples(st.just("metrics"), metrics_requests()),
)
DECODERS: dict[Any, Decoder] = {name: Decoder(name) for name in SIGNALS}
BEYOND = 2**63
GOOD, BAD = delimited(2, fixed64(1, 7)), delimited(2, fixed64(1, BEYOND))
"""Log records in their scope."""


def plain(request: Message, seed: int) -> bytes:
    return request.SerializeToString()


FORMS: list[Callable[[Any, int], bytes]] = [plain, with_unknown_fields, permuted_wire, split_wire]


def records(signal: Signal, request: Any) -> list[Any]:
    """In the order of decoded rows."""
    scopes = [
        scope
        for resource in getattr(request, f"resource_{signal}")
        for scope in getattr(resource, f"scope_{signal}")
    ]
    if signal != "metrics":
        name = {"logs": "log_records", "spans": "spans"}[signal]
        return [record for scope in scopes for record in getattr(scope, name)]
    metrics = [metric for scope in scopes for metric in scope.metrics]
    return [
        point
        for name in TYPES
        for metric in metrics
        if metric.WhichOneof("data") == name
        for point in getattr(metric, name).data_points
    ]


def spoil(signal: Signal, request: Any, pick: Callable[[int], bool]) -> list[int]:
    """Makes the picked records invalid; says which they are."""
    spoilt = []
    for index, record in enumerate(records(signal, request)):
        if pick(index):
            setattr(record, "start_time_unix_nano" if signal == "spans" else "time_unix_nano", BEYOND)
            spoilt.append(index)
    return spoilt


def thinned(signal: Signal, body: bytes) -> bytes:
    decoded = DECODERS[signal].decode([body], ["t"], [7])
    return drop_records(signal, body, int(decoded.seen[0]), decoded.rejected_records[0])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES, st.randoms(use_true_random=False), st.sampled_from(FORMS), st.integers(0, 2**32))
def test_what_is_left_equals_the_valid_rows_encoded_anew(
    case: tuple[Signal, Any], choice: Any, form: Callable[[Any, int], bytes], seed: int
) -> None:
    signal, drawn = case
    request = type(drawn).FromString(drawn.SerializeToString())  # what was drawn is not ours to change
    spoilt = spoil(signal, request, lambda _: choice.random() < 0.5)
    body = form(request, seed)
    decoded = DECODERS[signal].decode([b"", body], ["t", "t"], [7, 7])
    assert {owner: list(found) for owner, found in decoded.rejected_records.items()} == (
        {1: spoilt} if spoilt else {}
    )
    left_out = decoded.rejected_records.get(1, np.array([], dtype=np.int64))
    left = REQUESTS[signal].FromString(drop_records(signal, body, int(decoded.seen[1]), left_out))
    anew = encode(decoded.table, DECODERS[signal].spec)
    assert CANONICAL[signal](left) == CANONICAL[signal](anew)


def test_of_a_metric_with_two_types_of_points_the_last_counts_as_it_does_in_decoding() -> None:
    def points(kind: int, *times: int) -> bytes:
        return delimited(kind, b"".join(delimited(1, fixed64(3, time)) for time in times))

    summary, gauge = 11, 5
    metric = points(gauge, 1, BEYOND) + points(summary, 2) + points(gauge, 3, BEYOND, 4) + points(gauge, 5)
    left = REQUESTS["metrics"].FromString(thinned("metrics", within((1, 2, 2), metric)))
    assert [point.time_unix_nano for point in records("metrics", left)] == [3, 4, 5]


def test_records_that_stay_are_the_same_bytes_in_the_same_order() -> None:
    odd = delimited(2, fixed64(1, 9) + delimited(2047, b"unknown") + fixed64(1, 8))
    assert thinned("logs", within((1, 2), GOOD + BAD + odd + BAD)) == within((1, 2), GOOD + odd)


def test_what_has_no_records_left_takes_its_resource_along() -> None:
    heavy = delimited(3, b"k" * 1000)
    emptied = delimited(1, heavy + delimited(2, heavy + BAD))
    left = thinned("logs", emptied + within((1, 2), GOOD))
    assert left == delimited(1, b"") + within((1, 2), GOOD)


def test_values_nested_more_deeply_than_the_stock_parser_goes_are_no_matter() -> None:
    deep = delimited(2, delimited(5, nested_value(49)))
    body = within((1, 2), deep + BAD)
    with pytest.raises(RequestInvalid):
        check_parsable("logs", body)
    decoder = Decoder("logs", depth_max=64)
    decoded = decoder.decode([body], ["t"], [7])
    assert drop_records("logs", body, 2, decoded.rejected_records[0]) == within((1, 2), deep)


@pytest.mark.parametrize(
    "body",
    [
        within((1, 2), GOOD + BAD + bytes([15 << 3 | 3]) * 150 + bytes([15 << 3 | 4]) * 150),
        within((1, 2), GOOD + BAD + GOOD),
    ],
    ids=["groups too deep", "another number of records than were decoded"],
)
def test_a_request_whose_records_cannot_be_told_apart_is_refused(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        drop_records("logs", body, 2, np.array([1]))
