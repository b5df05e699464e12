"""Requests are counted before they are decoded: exactly, at a bounded cost, and whatever the bytes are."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from frazil.otlp.framing import Malformed
from frazil.otlp.shape import COUNTED_AT_ONCE, Shape, ShapeLimits, count_elements, shape_of
from frazil.otlp.wire import REQUESTS
from tests.support.otlp_wire import delimited, number, within
from tests.unit.otlp.test_split import FORMS, SIGNAL_REQUESTS

UNLIMITED = ShapeLimits(1 << 40, 1 << 40)
WALK = -1
PARSE = 1 << 40
both = pytest.mark.parametrize("parsed_bytes_max", [WALK, PARSE])
patient = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


def real_shape(request: Any) -> Shape:
    """Counted in the parsed request."""
    resources = getattr(request, request.DESCRIPTOR.fields[0].name)
    scopes = [scope for resource in resources for scope in children(resource)]
    return Shape(len(resources) + len(scopes), sum(len(children(scope)) for scope in scopes))


def children(message: Any) -> Any:
    return getattr(message, message.DESCRIPTOR.fields_by_number[2].name)


@both
@patient
@given(SIGNAL_REQUESTS, st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_the_count_is_that_of_the_parsed_request(
    parsed_bytes_max: int, case: Any, form: str, seed: int
) -> None:
    signal, request = case
    body = FORMS[form](request, seed)
    expected = real_shape(REQUESTS[signal].FromString(body))
    found = shape_of(body, UNLIMITED, parsed_bytes_max)
    if found is None:  # groups, as protobuf 2 had them
        assert (form, parsed_bytes_max) == ("unknown fields", WALK)
        return
    assert (found.groups, found.records) == (expected.groups, expected.records)


@patient
@given(SIGNAL_REQUESTS, st.sampled_from(sorted(FORMS)), st.integers(0, 2**32))
def test_parser_and_walk_count_the_same_repeated_bytes(case: Any, form: str, seed: int) -> None:
    body = FORMS[form](case[1], seed)
    walked = shape_of(body, UNLIMITED, WALK)
    assert walked == shape_of(body, UNLIMITED, PARSE) or (walked is None and form == "unknown fields")


@both
def test_what_records_share_counts_for_each_of_them(parsed_bytes_max: int) -> None:
    scope = delimited(1, b"s" * 7) + b"\x12\x00" * 3
    resource = delimited(1, b"r" * 100) + delimited(2, scope) + within((2,), b"\x12\x00")
    body = delimited(1, resource) + within((1, 2), b"\x12\x00" * 5)
    assert shape_of(body, UNLIMITED, parsed_bytes_max) == Shape(5, 9, 4 * 100 + 3 * 7)


@both
@patient
@given(st.binary(max_size=80))
@example(b"\x0a\x80")
@example(b"\x0a\x05\x12\x7f")
@example(b"\x0b\x0c")
@example(b"\x0a\x02\x12\x00" + b"\x92\x00\x00")
def test_any_bytes_are_counted_or_malformed(parsed_bytes_max: int, body: bytes) -> None:
    shape_of(body, UNLIMITED, parsed_bytes_max)
    for signal in REQUESTS:
        try:
            list(count_elements(signal, body))
        except Malformed:
            continue


@both
def test_tags_and_lengths_in_more_bytes_than_needed_count_too(parsed_bytes_max: int) -> None:
    scope = b"\x92\x00\x00" * 5 + b"\x12\x80\x00" * 3
    assert shape_of(within((1, 2), scope), UNLIMITED, parsed_bytes_max) == Shape(2, 8)


@both
@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x00" * 100_000,
        within((1,), b"\x12\x00" * 100_000),
        within((1, 2), b"") * 100_000,
    ],
    ids=["resources", "scopes", "resources with a scope"],
)
def test_counting_stops_above_the_limit_of_groups(body: bytes, parsed_bytes_max: int) -> None:
    shape = shape_of(body, ShapeLimits(1_000, 1_000), parsed_bytes_max)
    assert shape is not None
    assert shape.groups > 1_000


@both
def test_counting_stops_above_the_limit_of_records(parsed_bytes_max: int) -> None:
    body = within((1, 2), b"\x12\x00" * 100_000)
    assert shape_of(body, ShapeLimits(10, 100_000), parsed_bytes_max) == Shape(2, 100_000)
    shape = shape_of(body, ShapeLimits(10, 1_000), parsed_bytes_max)
    assert shape is not None
    assert shape.records > 1_000


def test_a_walk_ends_at_what_is_wrong_behind_the_limit() -> None:
    """A body whose end is malformed is refused for its beginning; it is not walked to its end."""
    shape = shape_of(b"\x0a\x00" * 100_000 + b"\xff", ShapeLimits(1_000, 1_000), WALK)
    assert shape is not None
    assert shape.groups > 1_000


def test_very_many_unknown_fields_are_too_many_groups() -> None:
    for body in (number(99, 1) * 200_000, within((1, 2), number(99, 1) * 200_000)):
        shape = shape_of(body, ShapeLimits(1_000, 1_000), WALK)
        assert shape is not None
        assert shape.groups > 1_000


def test_elements_are_counted_at_any_depth_and_in_packed_lists() -> None:
    array = within((5, 5), delimited(1, number(3, 1)) * 50)
    assert [*count_elements("logs", within((1, 2, 2), array))][-1] == 3 + 2 + 50 * 2
    buckets = within((1, 2, 2, 10, 1, 8), delimited(2, b"\x01" * 300))
    assert [*count_elements("metrics", buckets)][-1] == 7 + 300
    attributes = within((1, 2, 2), delimited(6, b"") * 100_000)
    steps = list(count_elements("logs", attributes))
    assert steps[-1] == 3 + 100_000
    assert all(after - before <= COUNTED_AT_ONCE for before, after in pairwise([0, *steps]))


def test_text_is_not_looked_into() -> None:
    assert [*count_elements("logs", within((1, 2, 2, 5, 1), b"\x0a\x00" * 1_000_000))][-1] == 5
