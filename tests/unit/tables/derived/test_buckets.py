"""Buckets of histograms: one form of both kinds, and equal bounds that are equal bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables.derived.buckets import bucket_lists, power_bounds
from frazil.tables.specs import table_spec

SCHEMA = pa.schema([(column.name, column.type) for column in table_spec("metrics").columns])


def buckets(**values: Any) -> tuple[list[float] | None, list[int] | None]:
    """Returns bounds and counts of one histogram; of an exponential one, if it has a scale."""
    points = pa.Table.from_pylist([values], schema=SCHEMA)
    is_exponential = np.array(["scale" in values])
    bounds, counts = bucket_lists(points, ~is_exponential, is_exponential)
    return bounds.to_pylist()[0], counts.to_pylist()[0]


def bounds_of(index: list[int], scale: int) -> np.ndarray:
    return power_bounds(np.array(index, np.int64), np.full(len(index), scale, np.int64))


@given(st.integers(-10, 20), st.integers(0, 10), st.lists(st.integers(-3000, 3000), min_size=1))
def test_equal_bounds_of_two_scales_are_equal_bits(scale: int, lower_by: int, index: list[int]) -> None:
    lower = scale - lower_by
    fine = bounds_of([each << lower_by for each in index], scale)
    assert fine.tobytes() == bounds_of(index, lower).tobytes()


@given(st.integers(-10, 20), st.integers(-(2**31), 2**31))
def test_bounds_are_powers_of_the_base(scale: int, index: int) -> None:
    exponent = index * 2.0**-scale
    (found,) = bounds_of([index], scale)
    if -1022 <= exponent < 1024:
        assert found == pytest.approx(2**exponent, rel=1e-14, abs=0)
    else:
        assert found == math.inf if exponent > 0 else found <= 2**-1022


def test_all_bounds_of_a_scale_ascend_and_include_those_of_every_lower_scale() -> None:
    for scale in range(-4, 14):
        steps = np.arange(-(2 ** max(1, scale)), 2 ** max(1, scale) + 1)
        bounds = power_bounds(steps, np.full(len(steps), scale))
        assert (np.diff(bounds) > 0).all()
        assert power_bounds(
            steps[steps % 2 == 0] // 2, np.full((len(steps) + 1) // 2, scale - 1)
        ).tolist() == (bounds[steps % 2 == 0].tolist())


def test_bounds_beyond_the_largest_scale_are_rounded_up_to_it() -> None:
    assert bounds_of([1], 25).tolist() == bounds_of([1], 20).tolist()
    assert bounds_of([2**11 + 1], 31).tolist() == bounds_of([2], 20).tolist()
    assert bounds_of([-1, 0], 25).tolist() == [1.0, 1.0]


def test_extreme_indices_and_scales_are_infinite_or_zero() -> None:
    assert bounds_of([2**31, -(2**31)], -(2**31)).tolist() == [math.inf, 0.0]
    assert bounds_of([2**31], 2**31 - 1).tolist() == [pytest.approx(1.0, rel=1e-6)]


def test_an_explicit_histogram_has_one_bound_more_infinity() -> None:
    found = buckets(explicit_bounds=[1.0, 2.5], bucket_counts=[3, 0, 4])
    assert found == ([1.0, 2.5, math.inf], [3, 0, 4])
    assert buckets(explicit_bounds=[], bucket_counts=[3]) == ([math.inf], [3])


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"explicit_bounds": [], "bucket_counts": []},
        {"explicit_bounds": [1.0], "bucket_counts": [1]},
        {"explicit_bounds": [1.0], "bucket_counts": [1, 2, 3]},
        {"explicit_bounds": [1.0], "bucket_counts": []},
    ],
)
def test_a_histogram_without_matching_buckets_has_none(values: dict[str, Any]) -> None:
    assert buckets(**values) == (None, None)


def test_positive_buckets_have_their_upper_bounds_and_runs_their_lower_edge() -> None:
    found = buckets(scale=0, positive_offset=-1, positive_bucket_counts=[5, 0, 0, 7, 1])
    assert found == ([0.5, 1.0, 4.0, 8.0, 16.0], [0, 5, 0, 7, 1])


def test_negative_buckets_are_mirrored() -> None:
    found = buckets(scale=0, negative_offset=-1, negative_bucket_counts=[5, 0, 0, 7, 1])
    # 5 in [-1, -0.5), 7 in [-8, -4), 1 in [-16, -8)
    assert found == ([-16.0, -8.0, -4.0, -1.0, -0.5], [0, 1, 7, 0, 5])


def test_the_zero_bucket_is_between_the_others_and_has_the_width_of_its_threshold() -> None:
    sides = {"positive_bucket_counts": [1], "negative_bucket_counts": [2], "scale": 0}
    found = buckets(**sides, positive_offset=1, negative_offset=1, zero_count=3, zero_threshold=0.25)
    assert found == ([-4.0, -2.0, -0.25, 0.25, 2.0, 4.0], [0, 2, 0, 3, 0, 1])
    assert buckets(scale=3, zero_count=3) == ([0.0], [3])
    assert buckets(scale=3, zero_count=0, zero_threshold=0.5) == ([], [])


def test_equal_bounds_of_a_point_are_one_bucket() -> None:
    found = buckets(scale=0, positive_offset=0, positive_bucket_counts=[4], zero_count=3, zero_threshold=1.0)
    assert found == ([-1.0, 1.0, 2.0], [0, 3, 4])


def test_a_zero_threshold_that_overlaps_other_buckets_leaves_bounds_ascending() -> None:
    found = buckets(
        scale=0, positive_offset=0, positive_bucket_counts=[4, 5], zero_count=3, zero_threshold=3.0
    )
    assert found == ([-3.0, 1.0, 2.0, 3.0, 4.0], [0, 0, 4, 3, 5])


@given(
    st.integers(-4, 20),
    st.integers(-50, 50),
    st.lists(st.integers(0, 3), max_size=20),
    st.lists(st.integers(0, 3), max_size=20),
    st.integers(0, 3),
)
def test_no_measurement_of_an_exponential_histogram_is_lost(
    scale: int, offset: int, positive: list[int], negative: list[int], zeros: int
) -> None:
    bounds, counts = buckets(
        scale=scale,
        positive_offset=offset,
        positive_bucket_counts=positive,
        negative_offset=offset,
        negative_bucket_counts=negative,
        zero_count=zeros,
    )
    assert bounds is not None
    assert counts is not None
    assert sum(counts) == sum(positive) + sum(negative) + zeros
    assert bounds == sorted(set(bounds))
    assert sum(count for bound, count in zip(bounds, counts, strict=True) if bound < 0) == sum(negative)


def test_rows_of_both_kinds_and_of_others_keep_their_places() -> None:
    points = pa.Table.from_pylist(
        [
            {"scale": 0, "positive_bucket_counts": [1]},
            {},
            {"explicit_bounds": [1.0], "bucket_counts": [1, 2]},
            {"scale": 0},
            {"explicit_bounds": [], "bucket_counts": []},
            {"scale": 0, "zero_count": 2},
        ],
        schema=SCHEMA,
    )
    exponential = np.array([True, False, False, True, False, True])
    explicit = np.array([False, False, True, False, True, False])
    bounds, counts = bucket_lists(points, explicit, exponential)
    assert bounds.to_pylist() == [[1.0, 2.0], None, [1.0, math.inf], [], None, [0.0]]
    assert counts.to_pylist() == [[0, 1], None, [1, 2], [], None, [2]]
