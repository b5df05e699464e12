"""Large requests cut into smaller ones: the same records, in bounded parts, at a bounded cost."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from frazil.errors import FrazilError
from frazil.otlp.decode import Decoder
from frazil.otlp.encode import encode
from frazil.otlp.framing import RECORD_BYTES
from frazil.otlp.split import split
from frazil.otlp.wire import REQUESTS
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
from tests.support.otlp_wire import delimited, fixed64, number, within

CANONICAL: dict[str, Any] = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}
SIGNAL_REQUESTS = st.one_of(
    st.tuples(st.just("logs"), logs_requests()),
    st.tuples(st.just("spans"), trace_requests()),
    st.tuples(st.just("metrics"), metrics_requests()),
)
FORMS = {
    "plain": lambda request, seed: request.SerializeToString(),
    "unknown fields": with_unknown_fields,
    "permuted": permuted_wire,
    "split": split_wire,
}
DECODERS: dict[Any, Decoder] = {name: Decoder(name) for name in CANONICAL}
patient = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def records_of(signal: Signal, bodies: list[bytes]) -> list[Any]:
    return sorted(
        (r for body in bodies for r in CANONICAL[signal](REQUESTS[signal].FromString(body))), key=repr
    )


def rows_of(signal: Signal, bodies: list[bytes]) -> list[Any]:
    decoder = DECODERS[signal]
    rows = decoder.decode(bodies, ["t"] * len(bodies), [1] * len(bodies)).table
    return CANONICAL[signal](encode(rows, decoder.spec))


@patient
@given(SIGNAL_REQUESTS, st.sampled_from(sorted(FORMS)), st.integers(0, 2**32), st.integers(0, 400))
def test_the_parts_hold_the_same_records(case: Any, form: str, seed: int, bytes_max: int) -> None:
    signal, request = case
    body = FORMS[form](request, seed)
    parts = list(split(signal, body, bytes_max))
    assert records_of(signal, parts) == records_of(signal, [body])


@settings(parent=patient, max_examples=40)
@given(SIGNAL_REQUESTS, st.sampled_from(sorted(FORMS)), st.integers(0, 2**32), st.integers(0, 400))
def test_the_parts_decode_to_the_same_rows(case: Any, form: str, seed: int, bytes_max: int) -> None:
    signal, request = case
    body = FORMS[form](request, seed)
    assert rows_of(signal, list(split(signal, body, bytes_max))) == rows_of(signal, [body])


def outcome(signal: Signal, bodies: list[bytes]) -> Any:
    try:
        return rows_of(signal, bodies)
    except FrazilError:
        return "refused"


@patient
@given(SIGNAL_REQUESTS, st.integers(0, 60), st.data())
def test_damaged_bodies_are_refused_or_mean_the_same_cut_or_whole(
    case: Any, bytes_max: int, data: st.DataObject
) -> None:
    signal, request = case
    body = bytearray(request.SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] ^= 1 << data.draw(st.integers(0, 7))
    del body[data.draw(st.integers(0, len(body))) :]
    damaged = bytes(body)
    assert outcome(signal, list(split(signal, damaged, bytes_max))) == outcome(signal, [damaged])


@patient
@given(st.binary(max_size=80), st.integers(0, 40))
@example(b"\x0a\x80", 0)
@example(b"\x0a\x05\x12\x7f", 1)
@example(b"\x0b\x0c", 0)
def test_any_bytes_come_back_whole_or_in_parts_and_nothing_is_raised(body: bytes, bytes_max: int) -> None:
    parts = list(split("logs", body, bytes_max))
    try:
        expected = records_of("logs", [body])
    except DecodeError:
        return
    assert records_of("logs", parts) == expected


def test_malformed_framing_comes_back_whole() -> None:
    good = within((1, 2), delimited(2, b"\x1a\x01x") * 50)
    for bad in (
        good + b"\x0a\x7f",
        good + b"\xff",
        good[:-1],
        good + b"\x0b",
        delimited(1, b"\x12\x7f") * 20,
    ):
        assert list(split("logs", bad, 40)) == [bad]


def test_small_bodies_come_back_as_they_are() -> None:
    body = within((1, 2), delimited(2, b"x") * 10)
    (part,) = split("logs", body, len(body) + 11 * RECORD_BYTES)
    assert part is body


def test_parts_are_about_as_large_as_asked() -> None:
    record = delimited(2, within((5, 1), b"x" * 90))
    scope = delimited(2, delimited(1, delimited(1, b"scope")) + record * 300)
    body = delimited(1, delimited(1, within((1, 1), b"resource")) + scope * 3) * 3
    parts = list(split("logs", body, 5_000))
    assert max(len(part) for part in parts) <= 5_100
    assert len(parts) >= len(body) // 5_000
    assert sum(len(part) for part in parts) < 1.3 * len(body)


def test_a_record_larger_than_a_part_is_a_part_of_its_own() -> None:
    large, small = delimited(2, within((5, 1), b"x" * 5_000)), delimited(2, within((5, 1), b"x" * 10))
    parts = list(split("logs", within((1, 2), small * 3 + large + small * 3), 1_000))
    assert sorted(len(part) > 4_000 for part in parts) == [False, False, True]


@pytest.mark.parametrize("place", ["unknown", "resource", "scope"])
def test_what_all_records_share_is_not_multiplied(place: str) -> None:
    """A megabyte that a hundred parts would each repeat: the body stays in one piece rather."""
    huge = within((1, 2, 1), b"x" * 100_000)
    records = delimited(2, within((5, 1), b"y" * 50)) * 20_000
    body = {
        "unknown": delimited(99, b"x" * 100_000) + within((1, 2), records),
        "resource": delimited(1, delimited(1, huge) + delimited(2, records)),
        "scope": within((1, 2), delimited(1, huge) + records),
    }[place]
    for bytes_max in (50_000, 110_000, 150_000, 250_000, 1_000_000):
        assert sum(len(part) for part in split("logs", body, bytes_max)) < 3 * len(body)


def test_empty_records_count_too() -> None:
    """A million empty records are two megabytes, and take hundreds once decoded."""
    body = within((1, 2), delimited(2, b"") * 100_000)
    parts = list(split("logs", body, 100_000))
    assert max(part.count(b"\x12\x00") for part in parts) < 10_000


def test_a_small_body_of_many_empty_records_is_cut_too() -> None:
    body = within((1, 2), delimited(2, b"") * 100_000)
    parts = list(split("logs", body, 2 * len(body)))
    assert max(part.count(b"\x12\x00") for part in parts) <= 2 * len(body) // RECORD_BYTES


POINTS = b"".join(delimited(1, fixed64(3, n) + fixed64(6, n)) for n in range(1, 301))


@pytest.mark.parametrize("kind", [5, 7, 9, 10, 11])
def test_a_metric_of_many_points_is_cut_between_them(kind: int) -> None:
    metric = delimited(1, b"latency") + delimited(kind, POINTS + number(2, 2)) + delimited(3, b"ms")
    body = within((1, 2, 2), metric)
    parts = list(split("metrics", body, 1_000))
    assert len(parts) > 5
    assert max(map(len, parts)) < 1_100
    assert rows_of("metrics", parts) == rows_of("metrics", [body])


def test_a_metric_of_two_kinds_is_not_cut() -> None:
    """The last kind counts, and a second message of the same kind may change what the first one says."""
    for second in (delimited(5, POINTS), delimited(7, POINTS + number(2, 1))):
        body = within((1, 2, 2), delimited(7, POINTS + number(2, 2)) + second)
        assert len(list(split("metrics", body, 1_000))) == 1
