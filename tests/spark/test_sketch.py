"""A sketch that was merged from a thousand parts is the same in Spark SQL, DuckDB SQL and Python."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from frazil.sql.merging import Dialect, merging_select
from frazil.tables.derived.combine import combine
from frazil.tables.derived.sketch import quantile
from tests.unit.tables.derived.test_sketch import DATA, SPEC, rows

PARTS = 1000


def parts_of(values: np.ndarray) -> pa.Table:
    """Partial rows of one key, as a thousand rounds of derivation leave them."""
    return pa.concat_tables([combine(rows(values[start::PARTS]), SPEC) for start in range(PARTS)])


def in_sql(dialect: Dialect) -> str:
    return merging_select(SPEC, dialect, "parts", ["tenant_id", "time", "codes", "counts"])


def added_up(codes: list[int], counts: list[int]) -> Counter[int]:
    """A view of an engine may have a code several times: its counts are added."""
    found: Counter[int] = Counter()
    for code, count in zip(codes, counts, strict=True):
        found[code] += count
    return found


@pytest.mark.parametrize("name", ["uniform", "log-normal", "bimodal", "constant"])
def test_spark_duckdb_and_python_merge_a_thousand_sketches_alike(spark: SparkSession, name: str) -> None:
    values = DATA[name]
    parts = parts_of(values)
    assert parts.num_rows == PARTS
    (in_python,) = combine(parts, SPEC).to_pylist()
    expected = added_up(in_python["codes"], in_python["counts"])

    plain = [(row["tenant_id"], row["codes"], row["counts"]) for row in parts.to_pylist()]
    frame = spark.createDataFrame(plain, "tenant_id string, codes array<int>, counts array<bigint>")
    frame.selectExpr("*", "timestamp_seconds(0) AS time").createOrReplaceTempView("parts")
    (of_spark,) = spark.sql(in_sql("spark")).collect()
    spark.catalog.dropTempView("parts")
    with duckdb.connect() as engine:
        engine.register("parts", parts)
        (of_duckdb,) = engine.execute(in_sql("duckdb")).to_arrow_table().to_pylist()

    found: dict[str, Any] = {"Spark": of_spark, "DuckDB": of_duckdb}
    assert {engine: added_up(row["codes"], row["counts"]) for engine, row in found.items()} == {
        "Spark": expected,
        "DuckDB": expected,
    }
    ordered = np.sort(values)
    for share in (0.01, 0.5, 0.99):
        exact = ordered[max(1, math.ceil(share * len(values))) - 1]
        for row in found.values():
            assert quantile([*row["codes"]], [*row["counts"]], share) == pytest.approx(exact, rel=0.01 + 1e-9)
