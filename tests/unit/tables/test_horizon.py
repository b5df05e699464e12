"""The horizon: `time` far from the received time gives way to it, and nothing else moves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables.columns import within_horizon

PAST, AHEAD = 1000, 100
moments = st.integers(0, 5000)


@given(st.lists(st.tuples(moments, moments)))
def test_only_times_outside_the_horizon_become_the_received_time(pairs: list[tuple[int, int]]) -> None:
    time, received = (np.array([pair[side] for pair in pairs], np.int64) for side in range(2))
    found, outside = within_horizon(time, received, past_micros=PAST, ahead_micros=AHEAD)
    expected = [got if at < got - PAST or at > got + AHEAD else at for at, got in pairs]
    assert found.tolist() == expected
    assert outside.tolist() == [at < got - PAST or at > got + AHEAD for at, got in pairs]
    again, outside = within_horizon(found, received, past_micros=PAST, ahead_micros=AHEAD)
    assert again.tolist() == expected
    assert not outside.any()
