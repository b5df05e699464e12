"""The merging view gives the rows that `combine` gives."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frazil.sql.merging import Dialect, merged_columns, merging_select, with_needed_columns
from frazil.sql.types import duckdb_type
from frazil.tables import TableSpec, table_specs
from frazil.tables.derived.combine import combine
from frazil.tables.derived.rules import LIST_VALUES_MAX
from frazil.tables.specs import derived_specs
from tests.support.derived_tables import EVERY_RULE, partial_rows, table_of

PAIRS = {"counts": "codes", "buckets": "bounds"}
each_spec = pytest.mark.parametrize("spec", [*derived_specs(), EVERY_RULE], ids=lambda spec: spec.name)


@cache
def _engine() -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(config={"threads": 2})
    engine.execute("SET TimeZone='UTC'")
    return engine


def merged(rows: pa.Table, columns: frozenset[str] | None = None) -> list[dict[str, Any]]:
    engine = _engine()
    engine.register("stored", rows)
    found = engine.execute(merging_select(EVERY_RULE, "duckdb", "stored", columns)).to_arrow_table()
    engine.unregister("stored")
    return [_comparable(row) for row in found.to_pylist()]


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """With the counts added up by value, and NaN equal to itself."""
    found = dict(row)
    for counts, values in PAIRS.items():
        if counts in row and row[values] is not None:
            totals = Counter[Any]()
            for value, count in zip(row[values], row[counts], strict=True):
                totals[value] += count
            found[values], found[counts] = sorted(totals), [totals[value] for value in sorted(totals)]
    return {name: "NaN" if value != value else value for name, value in found.items()}


def _in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


@given(rows=st.lists(partial_rows(), max_size=12))
def test_the_view_gives_what_combining_gives(rows: list[dict[str, Any]]) -> None:
    stored = table_of(rows)
    expected = [_comparable(row) for row in combine(stored, EVERY_RULE).to_pylist()]
    assert _in_order(merged(stored)) == _in_order(expected)


@given(rows=st.lists(partial_rows(), max_size=12))
def test_the_view_of_rows_that_were_combined_before_is_the_same(rows: list[dict[str, Any]]) -> None:
    stored = table_of(rows)
    half = len(rows) // 2
    again = pa.concat_tables(
        [combine(stored.slice(0, half), EVERY_RULE), combine(stored.slice(half), EVERY_RULE)]
    )
    assert _in_order(merged(again)) == _in_order(merged(stored))


@given(
    rows=st.lists(partial_rows(), max_size=6),
    names=st.sets(st.sampled_from(EVERY_RULE.arrow_schema.names), max_size=3),
)
@example(rows=[], names={"codes"})
def test_some_columns_of_the_view_are_as_in_all_of_it(rows: list[dict[str, Any]], names: set[str]) -> None:
    stored = table_of(rows)
    needed = with_needed_columns(EVERY_RULE, names)
    assert needed >= names | {*EVERY_RULE.key}
    found = merged(stored.select(sorted(needed)), needed)
    expected = [{name: row[name] for name in row if name in needed} for row in merged(stored)]
    assert _in_order(found) == _in_order(expected)


@each_spec
def test_the_columns_of_the_view_have_the_types_of_the_table(spec: TableSpec) -> None:
    with duckdb.connect() as engine:
        columns = ", ".join(f'"{column.name}" {duckdb_type(column.type)}' for column in spec.columns)
        engine.execute(f"CREATE TABLE stored ({columns})")
        found = engine.execute(f"DESCRIBE {merging_select(spec, 'duckdb', 'stored')}").fetchall()
        names = [column.name for column in spec.sql_columns]
        expected = engine.execute(f"DESCRIBE SELECT {', '.join(names)} FROM stored").fetchall()
    assert [row[:2] for row in found] == [row[:2] for row in expected]


def test_a_sum_beyond_64_bits_is_null_and_leaves_other_rows_readable() -> None:
    row = {"tenant_id": "acme", "time": 0, "calls": 2**62}
    stored = pa.Table.from_pylist([row, row, {**row, "time": 1}], schema=EVERY_RULE.arrow_schema)
    assert sorted(str(each["calls"]) for each in merged(stored)) == [str(2**62), "None"]


def test_a_union_is_as_bounded_as_that_of_combined_rows() -> None:
    row = {"tenant_id": "acme", "time": 0, "names": [f"{n:05d}" for n in range(LIST_VALUES_MAX)]}
    other = {**row, "names": ["x", "00000a"]}
    stored = pa.Table.from_pylist([row, other], schema=EVERY_RULE.arrow_schema)
    [found], [expected] = merged(stored), combine(stored, EVERY_RULE).to_pylist()
    assert len(found["names"]) == LIST_VALUES_MAX
    assert found["names"] == expected["names"]


@each_spec
@pytest.mark.parametrize("dialect", ["duckdb", "spark", "trino"])
def test_every_column_of_every_derived_table_merges_in_every_dialect(
    spec: TableSpec, dialect: Dialect
) -> None:
    assert merged_columns(spec, dialect).keys() == {column.name for column in spec.columns} - {*spec.key}
    quote = "`" if dialect == "spark" else '"'
    text = merging_select(spec, dialect, "stored")
    key = [column.name for column in spec.sql_columns if column.name in spec.key]
    assert text.endswith("GROUP BY " + ", ".join(f"{quote}{name}{quote}" for name in key))
    assert all(f"{quote}{column.name}{quote}" in text for column in spec.sql_columns)


def test_a_table_of_records_is_not_merged() -> None:
    assert merged_columns(table_specs()["logs"], "duckdb") == {}
