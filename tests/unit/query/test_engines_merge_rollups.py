"""The lines of docs/engines.md that merge rollups of logs and metrics give what the raw rows give, before and
after files were merged.
"""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import polars as pl
import pytest

from tests.support.calls import DAY
from tests.support.integration.documented import block
from tests.support.random_telemetry import RandomLake

PAGE = "docs/engines.md"
SQL = "-- DuckDB, Spark and Trino (with their table names): "
ROUNDS = 4
pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")

RECORDS = """
SELECT service_name, date_trunc('hour', time), count(*), sum(strlen(body)) FROM logs GROUP BY ALL
"""
GAUGES = """
SELECT metric_name, service_name, series_id, date_trunc('minute', time), avg(value_double), min(value_double),
       max(value_double), arg_max(value_double, time_unix_nano)
FROM metrics WHERE metric_type = 'gauge' GROUP BY ALL
"""


@pytest.fixture(scope="module", params=["before merging", "after merging"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RandomLake]:
    """Logs and metrics of several rounds, whose rows often have the same key."""
    with contextlib.closing(RandomLake(tmp_path_factory.mktemp("lake"), seed=3)) as made:
        for _ in range(12 * ROUNDS):
            made.make()
        for _ in range(ROUNDS):
            made.land_some(lambda item: item.signal != "spans" and made.chance.random() < 0.6)
            made.derive("logs")
            made.derive("metrics")
        if request.param == "after merging":
            made.now += 4 * DAY
            for table in ("log_rollups", "metric_rollups"):
                before = partial_rows(made, table)
                made.merge_files(table)
                assert partial_rows(made, table) < before
        yield made


def partial_rows(lake: RandomLake, table: str) -> int:
    return int(lake.table(table).scan().count())


def from_raw(lake: RandomLake, signal: str, sql: str) -> list[list[Any]]:
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register(signal, lake.table(signal).scan().to_arrow())
        found = comparable(engine.execute(sql).fetchall())
    assert len(found) > 5
    return found


def comparable(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    def of_value(value: Any) -> Any:
        return value.astimezone(dt.UTC).isoformat() if isinstance(value, dt.datetime) else value

    return sorted(([of_value(value) for value in row] for row in rows), key=repr)


def by_duckdb(lake: RandomLake, table: str, begins: str) -> list[list[Any]]:
    """The table as DuckDB's iceberg extension attaches it."""
    with duckdb.connect() as engine:
        engine.register("rows", lake.table(table).scan().to_arrow())
        engine.execute("ATTACH ':memory:' AS lake; CREATE SCHEMA lake.otel")
        engine.execute(f"CREATE TABLE lake.otel.{table} AS FROM rows")
        return comparable(engine.execute(block(PAGE, SQL + begins).text).fetchall())


def by_polars(lake: RandomLake, begins: str) -> list[list[Any]]:
    names: dict[str, Any] = {
        "pl": pl,
        "scan": lambda name: pl.scan_iceberg(lake.table(name.removeprefix("otel."))),
    }
    parsed = ast.parse(block(PAGE, begins).text)
    last = parsed.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(parsed, PAGE, "exec"), names)
    return comparable(eval(compile(ast.Expression(last.value), PAGE, "eval"), names).rows())


def test_log_rollups_merge_as_the_page_says(lake: RandomLake) -> None:
    expected = from_raw(lake, "logs", RECORDS)
    assert by_duckdb(lake, "log_rollups", "records") == expected
    assert by_polars(lake, "# polars\n") == expected


def test_gauges_of_one_minute_merge_as_the_page_says(lake: RandomLake) -> None:
    expected = from_raw(lake, "metrics", GAUGES)
    assert by_duckdb(lake, "metric_rollups", "average") == expected
    assert by_polars(lake, "# polars: the same gauges.") == expected
