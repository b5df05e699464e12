"""The lines of docs/engines.md that merge partial rows give what frazil's own queries give."""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from frazil.tables import table_specs
from frazil.tables.derived.combine import combine, rolled_up
from tests.support.integration.documented import Block, block
from tests.support.known_lake import KnownLake
from tests.support.query.derived_rows import append_partial_rows
from tests.support.query.small_lake import serving

PAGE = "docs/engines.md"
SPEC = table_specs()["span_metrics"]
NOON = dt.datetime(2026, 11, 10, 12, tzinfo=dt.UTC)
TABLE = "lake.otel.span_metrics"
pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")


def some_spans(seed: int) -> pa.Table:
    chosen = random.Random(seed)
    rows = [
        {
            "tenant_id": "acme",
            "time": NOON + dt.timedelta(minutes=chosen.randrange(180)),
            "service_name": chosen.choice(["cart", "web", None]),
            "name": chosen.choice(["buy", "look"]),
            "kind": 2,
            "parent_span_id": None,
            "status_code": chosen.choice([0, 0, 0, 2]),
            "duration_nano": chosen.choice([0, None, int(chosen.lognormvariate(15, 2))]),
        }
        for _ in range(300)
    ]
    spec = table_specs()["spans"]
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, spec.column(name).type) for name in rows[0]]))


@pytest.fixture(scope="module", params=["before merging", "after merging"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KnownLake]:
    """Span metrics of three rounds."""
    derived = SPEC.derived
    assert derived is not None
    rounds = [rolled_up(derived.derive(some_spans(seed)), SPEC) for seed in range(3)]
    merged = combine(pa.concat_tables(rounds), SPEC)
    assert merged.num_rows < sum(rows.num_rows for rows in rounds)
    with contextlib.closing(KnownLake(tmp_path_factory.mktemp("lake"))) as made:
        for rows in [merged] if request.param == "after merging" else rounds:
            append_partial_rows(made.config, made.catalog, SPEC, rows)
        yield made


def comparable(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    def of_value(value: Any) -> Any:
        if isinstance(value, dt.datetime):
            return value.astimezone(dt.UTC).isoformat()
        return float(f"{value:.9g}") if isinstance(value, int | float) else value

    return sorted(([of_value(value) for value in row] for row in rows), key=repr)


@pytest.fixture(scope="module")
def expected(lake: KnownLake) -> list[list[Any]]:
    """Service, hour, calls, errors, sum and 99th percentile of the durations, as `frazil query` gives."""
    sql = (
        "SELECT service_name, time, sum(calls), sum(errors), sum(duration_nano_sum), "
        "merged_quantile(duration_codes, duration_counts, 0.99) "
        "FROM span_metrics WHERE resolution = 3600 GROUP BY ALL"
    )
    with serving(lake.config) as service:
        rows = service.execute(sql).rows
    parsed = [[service, dt.datetime.fromisoformat(time), *numbers] for service, time, *numbers in rows]
    assert len(parsed) == 9
    return parsed


def test_the_expected_numbers_are_those_of_the_spans(expected: list[list[Any]]) -> None:
    spans = pa.concat_tables([some_spans(seed) for seed in range(3)]).to_pylist()
    for service, time, calls, errors, total, p99 in expected:
        of_it = [s for s in spans if s["service_name"] == service and s["time"].replace(minute=0) == time]
        durations = sorted(s["duration_nano"] for s in of_it if s["duration_nano"] is not None)
        assert (calls, errors, total) == (
            len(of_it),
            sum(s["status_code"] == 2 for s in of_it),
            sum(durations),
        )
        assert p99 == pytest.approx(durations[math.ceil(0.99 * len(durations)) - 1], rel=0.01)


def engine_of(lake: KnownLake) -> duckdb.DuckDBPyConnection:
    """The rows as `lake.otel.span_metrics`, as DuckDB's iceberg extension attaches them."""
    engine = duckdb.connect()
    engine.register("rows", lake.table("span_metrics").scan().to_arrow())
    engine.execute(f"ATTACH ':memory:' AS lake; CREATE SCHEMA lake.otel; CREATE TABLE {TABLE} AS FROM rows")
    return engine


def test_duckdb_merges_rows_as_the_page_says(lake: KnownLake, expected: list[list[Any]]) -> None:
    with engine_of(lake) as engine:
        found = engine.execute(block(PAGE, "-- DuckDB: calls, errors").text).fetchall()
    with_mean = [[*row[:4], row[4] / row[2], row[5]] for row in expected]
    assert comparable(found) == comparable(with_mean)


def test_pyiceberg_and_polars_merge_rows_as_the_page_says(lake: KnownLake, expected: list[list[Any]]) -> None:
    names: dict[str, Any] = {"scan": lambda name: pl.scan_iceberg(lake.table(name.removeprefix("otel.")))}
    parsed = ast.parse(block(PAGE, "import math").text)
    last = parsed.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(parsed, PAGE, "exec"), names)
    found = eval(compile(ast.Expression(last.value), PAGE, "eval"), names)
    assert comparable(found.rows()) == comparable(expected)


def test_the_printed_select_gives_the_rows_of_frazil(lake: KnownLake, capsys: Any) -> None:
    printing = block(PAGE, "from frazil.sql.merging").text
    exec(compile(printing, PAGE, "exec"), {})
    assert "FROM frazil.otel.span_metrics\nGROUP BY `tenant_id`" in capsys.readouterr().out
    exec(
        compile(printing.replace('"spark"', '"duckdb"').replace("frazil.otel", "lake.otel"), PAGE, "exec"), {}
    )
    names = ", ".join(SPEC.key)
    asked = f"SELECT {names}, calls, duration_nano_min, list_sum(duration_counts)"
    with engine_of(lake) as engine:
        found = engine.execute(f"{asked} FROM ({capsys.readouterr().out})").fetchall()
    with serving(lake.config) as service:
        rows = service.execute(f"{asked} FROM span_metrics").rows
    time = SPEC.key.index("time")
    for row in rows:
        row[time] = dt.datetime.fromisoformat(row[time])
    assert comparable(found) == comparable(rows)


def test_spark_and_trino_differ_from_duckdb_only_in_how_lists_become_rows() -> None:
    """Trino is not among the tests' components."""

    def without_expansion(each: Block) -> str:
        begin, end = each.text.index("), codes AS (\n"), each.text.index("\n), sums AS (")
        text = each.text[:begin] + each.text[end:]
        return text[text.index("\n") :].replace("frazil.otel", "lake.otel")

    pages = [
        block(PAGE, begins) for begins in ("-- DuckDB: calls", "-- Spark: the same.", "-- Trino: the same.")
    ]
    assert len({without_expansion(each) for each in pages}) == 1


def test_the_comment_of_a_derived_table_says_that_rows_are_partial(lake: KnownLake) -> None:
    assert lake.table("span_metrics").properties["comment"] == (
        f"{SPEC.doc} Rows are partial: merge rows of one key with GROUP BY."
    )
