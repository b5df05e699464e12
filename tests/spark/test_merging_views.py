"""The merging view of every derived table gives the same rows in Spark as in DuckDB, before and after its
files were merged and its pending rows settled."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from frazil.sql.merging import Dialect, merging_select
from frazil.tables import SIGNALS, TableSpec, table_specs
from frazil.tables.specs import derived_specs
from tests.support.calls import DAY, HOUR, MICROS
from tests.support.integration.documented import block
from tests.support.random_telemetry import RandomLake

NOW: Mapping[Dialect, tuple[str, str]] = {
    "duckdb": ("now()", "make_timestamptz({})"),
    "spark": ("current_timestamp()", "timestamp_micros({})"),
}
MICROS_OF: Mapping[Dialect, str] = {"duckdb": "epoch_us({})", "spark": "unix_micros({})"}
NAMES = [spec.name for spec in derived_specs()]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RandomLake]:
    """With rows of many landings, which were derived in as many rounds."""
    with contextlib.closing(RandomLake(tmp_path_factory.mktemp("lake"), 3)) as made:
        for _ in range(10):
            made.make()
            made.land_some(lambda _: made.chance.random() < 0.4)
            for signal in SIGNALS:
                made.derive(signal)
            made.wait(made.chance.choice([30, 400, 2 * HOUR]))
        made.finish()
        made.now += 302
        yield made


def view(spec: TableSpec, dialect: Dialect, now: float) -> str:
    """The view at a time, with times in microseconds."""
    written, made = NOW[dialect]
    select = merging_select(spec, dialect, "stored").replace(written, made.format(round(now * MICROS)))
    names = [
        f"{MICROS_OF[dialect].format(column.name)} AS {column.name}"
        if pa.types.is_timestamp(column.type)
        else column.name
        for column in spec.sql_columns
    ]
    return f"SELECT {', '.join(names)} FROM ({select}) AS merged"


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((name, plain(each)) for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        is_map = len(value) > 0 and isinstance(value[0], tuple)  # as Arrow has it
        return plain(dict(value)) if is_map else [plain(each) for each in value]
    return value


def comparable(spec: TableSpec, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sorted by key. A list may have a value several times: the counts of equal ones are added."""
    pairs = {
        each.merge.by: each.name for each in spec.sql_columns if each.merge and each.merge.rule == "counts"
    }
    made = []
    for row in rows:
        found = {name: plain(value) for name, value in row.items() if name not in {*pairs, *pairs.values()}}
        for values, counts in pairs.items():
            known: Counter[Any] = Counter()
            for value, count in zip(row[values] or (), row[counts] or (), strict=True):
                known[value] += count
            found[values] = None if row[values] is None else known
        made.append(found)
    return sorted(
        made, key=lambda row: [(row[name] is not None, row[name]) for name in spec.key if name in row]
    )


def test_every_derived_table_gives_the_rows_of_duckdb(
    lake: RandomLake, spark: SparkSession, tmp_path: Path
) -> None:
    before = {}
    for is_merged in (False, True):
        now = lake.now
        if is_merged:
            lake.now += 4 * DAY
            for name in NAMES:
                lake.merge_files(name)
        for name in NAMES:
            spec, folder = table_specs()[name], tmp_path / f"{name}-{is_merged}"
            paths = [
                task.file.file_path.removeprefix("file://") for task in lake.table(name).scan().plan_files()
            ]
            frame = spark.read.option("mergeSchema", "true").parquet(*paths)
            frame.createOrReplaceTempView("stored")
            of_spark = comparable(
                spec, [row.asDict(recursive=True) for row in spark.sql(view(spec, "spark", now)).collect()]
            )
            spark.catalog.dropTempView("stored")
            with duckdb.connect() as engine:
                engine.execute(f"SET TimeZone = 'UTC'; SET temp_directory = '{folder}'")
                engine.execute(f"CREATE VIEW stored AS FROM read_parquet({paths}, union_by_name = true)")
                found = engine.execute(view(spec, "duckdb", now)).to_arrow_table().to_pylist()
            of_duckdb = comparable(spec, found)
            assert len(of_spark) == len(of_duckdb), (name, is_merged)
            for one, other in zip(of_spark, of_duckdb, strict=True):
                assert one == other, (name, is_merged, {*map(str, one.items())} ^ {*map(str, other.items())})
            assert len(of_spark) > 3, name
            if not is_merged:
                before[name] = of_spark
            else:
                assert of_spark == before[name], f"{name}: merging and settling change nothing"


@pytest.mark.parametrize(("name", "begins"), [("log_rollups", "records"), ("metric_rollups", "average")])
def test_the_group_by_of_the_page_gives_the_rows_of_duckdb(
    lake: RandomLake, spark: SparkSession, name: str, begins: str
) -> None:
    printed = block("docs/engines.md", f"-- DuckDB, Spark and Trino (with their table names): {begins}").text
    sql = printed.replace(f"lake.otel.{name}", "stored").strip().removesuffix(";")
    assert "stored" in sql
    paths = [task.file.file_path.removeprefix("file://") for task in lake.table(name).scan().plan_files()]
    spark.read.option("mergeSchema", "true").parquet(*paths).createOrReplaceTempView("stored")
    rows = spark.sql(sql.replace("time, ", "unix_micros(time) AS at, ", 1)).collect()
    spark.catalog.dropTempView("stored")
    with duckdb.connect() as engine:
        engine.execute(f"CREATE VIEW stored AS FROM read_parquet({paths}, union_by_name = true)")
        found = engine.execute(sql.replace("time, ", "epoch_us(time) AS at, ", 1)).fetchall()
    assert sorted(map(repr, map(tuple, rows))) == sorted(map(repr, found))
    assert len(found) > 3
