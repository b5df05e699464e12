"""Ids: bytes on the wire, hex in tables, with what is wrong about them told apart."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from frazil.otlp.ids import Ids, hex_ids

ids = st.one_of(st.just(b""), st.just(bytes(8)), st.binary(min_size=8, max_size=8), st.binary(max_size=12))


def of(values: list[bytes], **options: bool) -> Ids:
    return hex_ids(pa.array(values, pa.binary()), 8, **options)


@given(st.lists(ids, max_size=12), st.booleans())
def test_every_id_is_hex_absent_zero_or_of_a_wrong_length(values: list[bytes], keep_zero: bool) -> None:
    found = of(values, keep_zero=keep_zero)
    found.text.validate(full=True)
    none = [False] * len(values)
    wrong = none if found.wrong_length is None else list(found.wrong_length)
    absent = none if found.absent is None else list(found.absent)
    zero = none if found.zero is None else list(found.zero)
    for position, (value, text) in enumerate(zip(values, found.text.to_pylist(), strict=True)):
        assert absent[position] == (value == b"")
        assert wrong[position] == (len(value) not in (0, 8))
        assert zero[position] == (value == bytes(8))
        kept = len(value) == 8 and (keep_zero or any(value))
        assert text == (value.hex() if kept else None)


def test_hex_digits_are_lower_case_and_in_the_order_of_the_bytes() -> None:
    assert of([bytes.fromhex("0123456789ABCDEF")]).text.to_pylist() == ["0123456789abcdef"]


@given(st.lists(ids, min_size=1, max_size=8), st.integers(0, 8))
def test_a_slice_of_a_column_gives_the_ids_of_the_slice(values: list[bytes], start: int) -> None:
    part = hex_ids(pa.array(values, pa.binary()).slice(start), 8)
    assert part.text.to_pylist() == of(values).text.to_pylist()[start:]


def test_a_masks_absence_means_that_no_row_is_so() -> None:
    found = of([b"12345678"] * 3)
    assert (found.wrong_length, found.absent, found.zero) == (None, None, None)
