"""The order of rows by several keys is that of `np.lexsort`, for all sizes of keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables.ordering import Key, order_of, stable_order

_SPREADS = (0, 1, 5, 2**16, 2**40, 2**62)


@given(
    st.integers(0, 2**32), st.integers(1, 300), st.lists(st.sampled_from(_SPREADS), min_size=1, max_size=6)
)
def test_rows_are_in_the_order_of_the_keys_and_stay_in_order_where_all_keys_are_equal(
    seed: int, rows: int, spreads: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-spread, spread + 1, rows).astype(np.int64) for spread in spreads]
    order = order_of([Key.of(values) for values in columns])
    assert order.tolist() == np.lexsort(columns[::-1]).tolist()


def test_a_key_of_extreme_numbers_keeps_their_order() -> None:
    values = np.array([2**63 - 1, -(2**63), 0, -1], np.int64)
    assert order_of([Key.of(values)]).tolist() == [1, 3, 2, 0]


def test_no_rows_have_an_empty_order() -> None:
    assert stable_order(Key.of(np.zeros(0, np.int64))).tolist() == []
