"""Quantiles in SQL are those of the sketch in Python, and those of Prometheus for histograms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frazil.sql.functions import FUNCTIONS
from frazil.sql.pushdown import Pushdown
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from frazil.tables.derived.sketch import estimate, quantile, sketch_codes

Lists = tuple[Sequence[Any], Sequence[int]]
RELATIVE = 1e-12
SUBNORMAL = 1e-300
"""Smaller numbers have fewer digits."""

numbers = st.floats(allow_nan=False)
shares = st.floats(0, 1) | st.sampled_from([0.0, 0.5, 0.99, 1.0])


def sketches(codes: st.SearchStrategy[int]) -> st.SearchStrategy[Lists]:
    return st.lists(st.tuples(codes, st.integers(0, 10**6)), max_size=30).map(
        lambda pairs: ([code for code, _ in pairs], [count for _, count in pairs])
    )


any_code = numbers.map(lambda number: int(sketch_codes(np.array([number]))[0][0]))


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        for function in FUNCTIONS:
            opened.execute(function.sql)
        yield opened


def of_row(engine: duckdb.DuckDBPyConnection, name: str, type_: str, lists: Lists, share: float) -> Any:
    sql = f"SELECT {name}(?::{type_}[], ?::BIGINT[], ?)"
    found = engine.execute(sql, [*lists, share]).fetchone()
    assert found is not None
    return found[0]


def of_rows(
    engine: duckdb.DuckDBPyConnection, name: str, type_: str, rows: Sequence[Lists | None], share: float
) -> Any:
    first, second = ([None if row is None else list(row[at]) for row in rows] or [None] for at in (0, 1))
    sql = f"SELECT {name}(a, b, ?) FROM (SELECT unnest(?::{type_}[][]) AS a, unnest(?::BIGINT[][]) AS b) "
    found = engine.execute(sql, [share, first, second]).fetchone()
    assert found is not None
    return found[0]


def near(expected: float | None) -> Any:
    return None if expected is None else pytest.approx(expected, rel=RELATIVE, abs=SUBNORMAL)


@given(lists=sketches(any_code), share=shares)
@example(lists=([75_488], [1]), share=0.5)
@example(lists=([40_000, 40_000, 39_000], [1, 2, 1]), share=0.5)
def test_a_quantile_of_a_sketch_is_that_of_python(
    engine: duckdb.DuckDBPyConnection, lists: Lists, share: float
) -> None:
    codes, counts = lists
    found = of_row(engine, "sketch_quantile", "INTEGER", lists, share)
    assert found == near(quantile(list(codes), list(counts), share))


@given(rows=st.lists(sketches(any_code) | st.none(), max_size=5), share=shares)
def test_a_quantile_of_merged_sketches_is_that_of_all_their_codes(
    engine: duckdb.DuckDBPyConnection, rows: list[Lists | None], share: float
) -> None:
    codes = [code for row in rows if row is not None for code in row[0]]
    counts = [count for row in rows if row is not None for count in row[1]]
    found = of_rows(engine, "merged_quantile", "INTEGER", rows, share)
    assert found == near(quantile(codes, counts, share))


@pytest.mark.parametrize("kind", ["uniform", "lognormal", "bimodal", "constant"])
def test_a_thousand_merged_sketches_are_within_one_percent(
    engine: duckdb.DuckDBPyConnection, kind: str
) -> None:
    random = np.random.default_rng(7)
    values = {
        "uniform": random.uniform(1, 1000, 100_000),
        "lognormal": random.lognormal(10, 2, 100_000),
        "bimodal": np.concatenate((random.normal(-50, 5, 50_000), random.normal(9000, 100, 50_000))),
        "constant": np.full(100_000, 42.0),
    }[kind]
    codes, _ = sketch_codes(values)
    parts = [np.unique(part, return_counts=True) for part in np.split(random.permutation(codes), 1000)]
    rows = [(codes.tolist(), counts.tolist()) for codes, counts in parts]
    ordered = np.sort(values)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        found = of_rows(engine, "merged_quantile", "INTEGER", rows, share)
        exact = ordered[max(1, math.ceil(share * len(ordered))) - 1]
        assert abs(found - exact) <= 0.0101 * abs(exact), (kind, share)


def test_a_share_beyond_its_range_gives_an_extreme_and_no_share_gives_null(
    engine: duckdb.DuckDBPyConnection,
) -> None:
    lists = ([40_000, 40_100], [1, 1])
    assert of_row(engine, "sketch_quantile", "INTEGER", lists, 2.0) == near(estimate(40_100))
    assert of_row(engine, "sketch_quantile", "INTEGER", lists, -1.0) == near(estimate(40_000))
    assert engine.execute("SELECT sketch_quantile([1], [1], NULL)").fetchone() == (None,)
    assert engine.execute("SELECT histogram_quantile([1.0], [1], NULL)").fetchone() == (None,)


def prometheus(bounds: list[float], counts: list[int], share: float) -> float | None:
    """The quantile as Prometheus computes it, with empty buckets passed over."""
    by_bound: dict[float, int] = {}
    for bound, count in zip(bounds, counts, strict=True):
        by_bound[bound] = by_bound.get(bound, 0) + count
    rank, before, lower = share * sum(counts), 0, None
    for bound, count in sorted(by_bound.items()):
        if count and before + count >= rank:
            if math.isinf(bound):
                return lower
            if lower is None and bound <= 0:
                return bound
            start = lower or 0.0
            return start + (bound - start) * ((rank - before) / count)
        before, lower = before + count, bound
    return None


BOUNDS = [-10.0, -1.0, 0.0, 0.005, 0.1, 1.0, 2.5, 100.0, math.inf]


@given(lists=sketches(st.integers(0, len(BOUNDS) - 1)), share=shares)
@example(lists=([4, 5, 8], [10, 80, 10]), share=0.95)
@example(lists=([8], [10]), share=0.5)
@example(lists=([5, 4, 5, 8], [1, 2, 3, 0]), share=0.75)
def test_a_quantile_of_a_histogram_is_that_of_prometheus(
    engine: duckdb.DuckDBPyConnection, lists: Lists, share: float
) -> None:
    bounds = [BOUNDS[at] for at in lists[0]]
    expected = prometheus(bounds, list(lists[1]), share)
    found = of_row(engine, "histogram_quantile", "DOUBLE", (bounds, lists[1]), share)
    merged = of_rows(engine, "merged_histogram_quantile", "DOUBLE", [(bounds, lists[1]), None], share)
    assert found == merged
    assert found == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))


def test_the_highest_bound_stands_for_all_values_above_it(engine: duckdb.DuckDBPyConnection) -> None:
    assert of_row(engine, "histogram_quantile", "DOUBLE", ([1, 5, math.inf], [0, 0, 7]), 0.5) == 5
    assert of_row(engine, "histogram_quantile", "DOUBLE", ([math.inf], [7]), 0.5) is None


def test_quantiles_work_in_the_sandbox_with_parameters_and_keep_the_conditions(tmp_path: Path) -> None:
    settings = Settings(1, 1 << 28, 1 << 28, str(tmp_path), "otel")
    columns = [("service", "VARCHAR", 1), ("codes", "INTEGER[]", 2), ("counts", "BIGINT[]", 3)]
    table = TableSource("sketches", columns, (), ())
    sql = (
        "SELECT service, merged_quantile(codes, counts, $1), merged_histogram_quantile(codes, counts, 0.5), "
        "max(sketch_quantile(codes, counts, 0.5)), max(histogram_quantile(codes, counts, 0.9)) "
        "FROM sketches WHERE service = 'cart' GROUP BY ALL"
    )
    planning = Sandbox(settings)
    [use] = Pushdown(planning, [table]).uses(sql, [0.5])["sketches"]
    assert use["service"].values == {"cart"}
    running = Sandbox(settings)
    running.fill([table])
    assert running.connection.execute(sql, [0.5]).fetchall() == []
    found = running.connection.execute("SELECT sketch_quantile([40000], [1::BIGINT], $1)", [0.5]).fetchone()
    assert found == near((estimate(40_000),))
    planning.close()
    running.close()
