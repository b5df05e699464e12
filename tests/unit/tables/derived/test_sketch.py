"""The sketch: quantiles within 1 %, however many sketches they were merged from."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables.columns import TIMESTAMP, Column, TableSpec
from frazil.tables.derived.combine import combine
from frazil.tables.derived.rules import KEY, LIST_VALUES_MAX, Derived, Merge
from frazil.tables.derived.sketch import INFINITE, estimate, quantile, sketch_codes, sketch_of

SPEC = TableSpec(
    "sketches",
    "Sketches.",
    (
        Column("tenant_id", pa.string(), "test", "Test", required=True, merge=KEY),
        Column("time", TIMESTAMP, "test", "Test", required=True, merge=KEY),
        Column("codes", pa.list_(pa.int32()), "test", "Test", merge=Merge("counted")),
        Column("counts", pa.list_(pa.int64()), "test", "Test", merge=Merge("counts", by="codes")),
    ),
    sort_by=("time",),
    derived=Derived("metrics", (), lambda rows: rows),
)
Sketch = tuple[list[int], list[int]]
SHARES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)
RANDOM = np.random.default_rng(7)
DATA = {
    "uniform": RANDOM.uniform(0.001, 1000, 20_000),
    "log-normal": RANDOM.lognormal(0, 5, 20_000),
    "bimodal": np.concatenate((RANDOM.normal(10, 1, 10_000), RANDOM.normal(5000, 20, 10_000))),
    "constant": np.full(20_000, 42.0),
    "negative": -RANDOM.lognormal(3, 2, 20_000),
    "on both sides of zero": RANDOM.normal(0, 10, 20_000).round(1),
}


def rows(values: np.ndarray) -> pa.Table:
    codes, counts = sketch_of(pa.array(values))
    size = len(values)
    tenants, times = pa.array(["t"] * size), pa.array([0] * size).cast(TIMESTAMP)
    return pa.table([tenants, times, codes, counts], ["tenant_id", "time", "codes", "counts"])


def sketch(table: pa.Table) -> Sketch:
    (row,) = combine(table, SPEC).to_pylist()
    return row["codes"], row["counts"]


def check_quantiles(found: Sketch, values: np.ndarray, shares: tuple[float, ...] = SHARES) -> None:
    ordered = np.sort(values)
    assert sum(found[1]) == len(values)
    for share in shares:
        exact = ordered[max(1, math.ceil(share * len(values))) - 1]
        # The logarithm is rounded, so a number at the edge of a bucket may be in the next one.
        assert quantile(*found, share) == pytest.approx(exact, rel=0.01 + 1e-9, abs=0), share


@pytest.mark.parametrize("name", DATA)
def test_quantiles_are_within_1_percent_after_one_merge_and_after_a_thousand(name: str) -> None:
    values = DATA[name]
    once = sketch(rows(values))
    check_quantiles(once, values)
    merged = combine(rows(values[::1000]), SPEC)
    for start in range(1, 1000):
        merged = combine(pa.concat_tables([merged, combine(rows(values[start::1000]), SPEC)]), SPEC)
    assert sketch(merged) == once


finite = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(finite)
def test_the_estimate_of_any_number_is_within_1_percent(value: float) -> None:
    (code,), (counted,) = sketch_codes(np.array([value]))
    assert counted
    assert estimate(int(code)) == pytest.approx(value, rel=0.01 + 1e-9, abs=0)


@given(st.lists(st.floats(allow_nan=False), min_size=2))
def test_codes_sort_as_their_numbers_do(values: list[float]) -> None:
    codes, _ = sketch_codes(np.sort(values))
    assert (np.diff(codes) >= 0).all()


def test_the_largest_the_smallest_and_infinite_numbers_have_codes() -> None:
    largest, smallest = np.finfo(np.float64).max, 5e-324
    codes, counted = sketch_codes(
        np.array([-np.inf, -largest, -smallest, -0.0, 0.0, smallest, largest, np.inf])
    )
    assert counted.all()
    assert [codes[0], codes[3], codes[4], codes[-1]] == [-INFINITE, 0, 0, INFINITE]
    assert (np.diff(np.delete(codes, 3)) > 0).all()
    assert (codes == -codes[::-1]).all()
    assert estimate(int(codes[-2])) == pytest.approx(largest, rel=0.01)
    assert [estimate(INFINITE), estimate(-INFINITE), estimate(0)] == [math.inf, -math.inf, 0.0]


def test_nan_and_null_are_not_counted() -> None:
    codes, counts = sketch_of(pa.chunked_array([[1.0, None], [float("nan"), math.inf]]))
    assert codes.to_pylist() == [[40_000], None, None, [INFINITE]]
    assert counts.to_pylist() == [[1], None, None, [1]]
    only_nan = sketch_of(pa.array([float("nan")]))
    assert [each.to_pylist() for each in only_nan] == [[None], [None]]


def test_integers_have_the_codes_of_doubles() -> None:
    assert sketch_of(pa.array([3, None]))[0].to_pylist() == sketch_of(pa.array([3.0, None]))[0].to_pylist()


def test_high_quantiles_stay_right_in_more_buckets_than_a_list_has() -> None:
    values = 10 ** RANDOM.uniform(-60, 60, 60_000)
    assert len(np.unique(sketch_codes(values)[0])) > LIST_VALUES_MAX
    found = sketch(pa.concat_tables([combine(rows(values[::2]), SPEC), combine(rows(values[1::2]), SPEC)]))
    assert len(found[0]) == LIST_VALUES_MAX
    check_quantiles(found, values, shares=(0.75, 0.9, 0.99, 0.999, 1.0))
    assert found == sketch(rows(values))


def test_no_numbers_have_no_quantile() -> None:
    assert quantile([], [], 0.5) is None
    assert quantile([40_000], [0], 0.5) is None
