"""Distinct values are estimated within the error of the sketch, however the rows are cut and merged."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.config.derive import CARDINALITY_TABLE
from frazil.sql.functions import FUNCTIONS
from frazil.tables import table_specs
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.metric_cardinality import (
    REGISTERS,
    estimate,
    register_rows,
    registers_of,
    with_attributes,
)

METRICS = table_specs()["metrics"]
SPEC = with_attributes(table_specs()[CARDINALITY_TABLE], ("user.id", "host.name"))
NOON = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
ERROR_MAX = 3 * 0.023
_NAMES = ("tenant_id", "time", "metric_name", "series_id", "attributes", "resource_attributes")
Row = tuple[Any, ...]


def points(rows: Sequence[Row]) -> pa.Table:
    schema = pa.schema([(name, METRICS.column(name).type) for name in _NAMES])
    return pa.Table.from_pylist([dict(zip(_NAMES, row, strict=True)) for row in rows], schema=schema)


def point(
    user: str | None = "u", host: str | None = None, *, at: dt.datetime = NOON, name: str = "calls"
) -> Row:
    attributes = {} if user is None else {"user.id": user}
    resource = {} if host is None else {"host.name": host}
    return "acme", at, name, hash((user, host, name)), list(attributes.items()), list(resource.items())


def derived(rows: Sequence[Row]) -> pa.Table:
    assert SPEC.derived is not None
    return rolled_up(SPEC.derived.derive(points(rows)), SPEC)


def merged(parts: Sequence[pa.Table]) -> list[tuple[Any, ...]]:
    rows = combine(pa.concat_tables(parts), SPEC).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def counted(rows: pa.Table) -> dict[tuple[Any, ...], int]:
    groups: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for row in rows.to_pylist():
        key = row["resolution"], row["metric_name"], row["attribute"], row["time"].hour
        groups.setdefault(key, []).append((row["register"], row["rank"]))
    return {key: round(estimate(*np.array(pairs, np.int32).T)) for key, pairs in groups.items()}


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        for function in FUNCTIONS:
            opened.execute(function.sql)
        yield opened


@pytest.mark.parametrize("distinct", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("parts", [1, 1000])
def test_the_error_is_that_of_the_sketch_also_after_many_merges(distinct: int, parts: int) -> None:
    registers, ranks = registers_of(pa.array(range(distinct)).cast(pa.string()))
    highest = np.zeros(REGISTERS, np.int32)
    for each in np.array_split(np.random.default_rng(1).permutation(distinct), parts):
        part = np.zeros(REGISTERS, np.int32)
        np.maximum.at(part, registers[each], ranks[each])
        highest = np.maximum(highest, part)
    is_used = highest > 0
    found = estimate(np.flatnonzero(is_used).astype(np.int32), highest[is_used])
    assert found == pytest.approx(distinct, rel=ERROR_MAX)
    assert found == estimate(registers, ranks)


@pytest.mark.parametrize("distinct", [0, 1, 3, 700, 5000, 40_000])
def test_sql_counts_as_python_does(engine: duckdb.DuckDBPyConnection, distinct: int) -> None:
    registers, ranks = registers_of(pa.array(range(distinct), pa.int64()).cast(pa.string()))
    rows = pa.table({"register": registers, "rank": ranks})  # noqa: F841
    (found,) = engine.execute("SELECT merged_cardinality(register, rank) FROM rows").fetchone() or ()
    assert found == pytest.approx(estimate(registers, ranks), rel=1e-12)
    assert found == pytest.approx(distinct, rel=ERROR_MAX)


def test_sql_counts_each_group_apart(engine: duckdb.DuckDBPyConnection) -> None:
    rows = pa.table({"key": [1, 1, 1, 2, 2], "register": [5, 5, 9, 1, 2], "rank": [1, 3, 1, 1, None]})  # noqa: F841
    sql = "SELECT key, round(merged_cardinality(register, rank)) FROM rows GROUP BY key ORDER BY key"
    assert engine.execute(sql).fetchall() == [(1, 2), (2, 1)]


def test_the_values_of_each_metric_attribute_hour_and_day_are_counted() -> None:
    rows = [
        *(point(f"u{number}", "a") for number in range(50)),
        *(point(f"u{number}", "b", at=NOON + HOUR) for number in range(25, 75)),
        point("other", "c", name="errors"),
    ]
    assert counted(derived(rows)) == {
        (3600, "calls", "user.id", 12): pytest.approx(50, rel=ERROR_MAX),
        (3600, "calls", "user.id", 13): pytest.approx(50, rel=ERROR_MAX),
        (86_400, "calls", "user.id", 0): pytest.approx(75, rel=ERROR_MAX),
        (3600, "calls", "host.name", 12): 1,
        (3600, "calls", "host.name", 13): 1,
        (86_400, "calls", "host.name", 0): 2,
        (3600, "errors", "user.id", 12): 1,
        (86_400, "errors", "user.id", 0): 1,
        (3600, "errors", "host.name", 12): 1,
        (86_400, "errors", "host.name", 0): 1,
    }


def test_the_attribute_of_a_point_is_preferred_to_that_of_the_resource() -> None:
    both = ("acme", NOON, "calls", 1, [("host.name", "point")], [("host.name", "resource")])
    resource = ("acme", NOON, "calls", 2, [], [("host.name", "resource")])
    assert merged([derived([both])]) != merged([derived([resource])])
    assert merged([derived([both])]) == merged([derived([point(None, "point")])])


def test_points_without_the_attribute_and_no_points_have_no_rows() -> None:
    assert derived([point(None)]).num_rows == 0
    assert derived([]).num_rows == 0


def test_without_attributes_there_are_no_rows_and_no_maps_are_read() -> None:
    spec = table_specs()[CARDINALITY_TABLE]
    assert spec.derived is not None
    assert spec.derived.columns == ()
    assert with_attributes(spec, ()) is spec
    assert register_rows(points([point()]).select(["tenant_id", "time"])).num_rows == 0


def test_other_tables_are_not_changed_by_the_attributes() -> None:
    assert with_attributes(table_specs()["series"], ("user.id",)) is table_specs()["series"]


values = st.text(max_size=3)
rows_of_points = st.lists(
    st.builds(
        point,
        st.none() | values,
        st.none() | values,
        at=st.sampled_from([NOON, NOON + HOUR, NOON + 24 * HOUR]),
        name=st.sampled_from(["calls", "errors"]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(rows_of_points, st.integers(1, 6), st.integers(0, 2**32))
def test_any_cut_of_the_points_in_any_order_gives_the_same_registers(
    rows: list[Row], cuts: int, seed: int
) -> None:
    chance = random.Random(seed)
    shuffled = chance.sample(rows, len(rows)) + chance.sample(rows, len(rows) // 2)
    parts = [derived(shuffled[number::cuts]) for number in range(cuts)]
    assert merged(parts) == merged([derived(rows)])
