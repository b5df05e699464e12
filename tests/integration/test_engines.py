"""The lines of docs/engines.md, run by the engines themselves, give what the API gives."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from pyiceberg.exceptions import ForbiddenError

from frazil.pipeline.jars import EVERY, download_missing, jar_path
from tests.support.integration.api import running_api
from tests.support.integration.documented import Block, Stack, block, land_all
from tests.support.integration.known_faults import KnownFaults
from tests.support.otlp_requests import any_values

PAGE = "docs/engines.md"
CARTS = 3
NESTED_VALUES = 80
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin"),
]


def nested_values() -> list[AnyValue]:
    """Arrays and key-value lists of every shape, the same in each run."""
    found: list[AnyValue] = []

    @settings(
        max_examples=NESTED_VALUES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(any_values())
    def collect(value: AnyValue) -> None:
        nested = AnyValue()
        nested.array_value.values.append(value)
        found.append(value if value.WhichOneof("value") in ("array_value", "kvlist_value") else nested)

    collect()
    return found


def cart(number: int) -> AnyValue:
    item = AnyValue()
    item.kvlist_value.values.add(key="id").value.string_value = f'i-{number} "]}}}}"'
    found = AnyValue()
    found.kvlist_value.values.add(key="items").value.array_value.values.append(item)
    return found


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Spans of carts with a log record each, and log records with nested attributes; all landed."""
    with running_api(tmp_path_factory.mktemp("engines")) as (api, receiver):
        sent = KnownFaults()
        for number in range(CARTS):
            span = sent.span("cart", f"cart-{number}", "root", name=f"checkout {number}", status=number % 3)
            span.attributes.add(key="cart.id").value.string_value = f"c-{number}"
            span.attributes.add(key="cart.size").value.int_value = 2 + number
            span.attributes.append(KeyValue(key="cart", value=cart(number)))
            sent.log("cart", f"sold {number}", age_seconds=60, trace=span.trace_id).span_id = span.span_id
        sent.span("stock", "no-cart", "root", kind=3)
        for value in nested_values():
            record = sent.log("nested", "nested", age_seconds=60)
            record.attributes.append(KeyValue(key="nested", value=value))
        sent.send(receiver)
        land_all(receiver.config)
        yield Stack(api, receiver)


def here(text: str, stack: Stack) -> str:
    """With the address of this stack, which takes any key."""
    return text.replace("http://frazil.example.com:4380", stack.api.url).replace("fz_…", "fz_any")


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))


SOLD = [(f"sold {number}", f"checkout {number}") for number in range(CARTS)]


def run_python(text: str, names: dict[str, Any]) -> list[Any]:
    """Run a block in this process. Returns the values of the expressions among its lines."""
    values = []
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Expr):
            values.append(eval(compile(ast.Expression(statement.value), PAGE, "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), PAGE, "exec"), names)
    return values


@pytest.fixture
def catalog(stack: Stack) -> Iterator[dict[str, Any]]:
    """The names of the first block for PyIceberg, which other blocks use."""
    names: dict[str, Any] = {}
    [found] = run_python(here(block(PAGE, "from pyiceberg.catalog").text, stack), names)
    assert found.num_rows == CARTS
    with contextlib.closing(names["catalog"]):
        yield names


def test_pyiceberg_filters_on_an_attribute_and_joins(catalog: dict[str, Any]) -> None:
    filtered, joined = (
        value
        for value in run_python(block(PAGE, "import pyarrow.compute").text, catalog)
        if value is not None
    )
    assert filtered["name"].to_pylist() == ["checkout 1"]
    assert sorted(rows(joined.select(["body", "name"]))) == SOLD


def test_polars_filters_on_an_attribute_and_joins(catalog: dict[str, Any]) -> None:
    named, typed, joined = run_python(block(PAGE, "import polars").text, catalog)
    assert named["name"].to_list() == ["checkout 1"]
    assert sorted(typed["name"].to_list()) == ["checkout 1", "checkout 2"]
    assert sorted(joined.rows()) == SOLD


@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_pyiceberg_and_polars_are_told_that_tables_are_read_only(catalog: dict[str, Any]) -> None:
    table = catalog["catalog"].load_table("otel.logs")
    frame = pl.scan_iceberg(table, storage_options=table.config).collect()
    with pytest.raises(OSError, match=r"ACCESS_DENIED.*the files are read-only"):
        table.append(table.scan().to_arrow())
    with pytest.raises(OSError, match=r"ACCESS_DENIED.*the files are read-only"):
        frame.write_iceberg(table, mode="append")
    with pytest.raises(ForbiddenError, match="ForbiddenException: read-only; frazil pipeline writes"):
        catalog["catalog"].drop_table("otel.logs")


def extensions() -> Iterator[Path]:
    for name in ("httpfs", "avro", "iceberg"):
        module = importlib.import_module(f"duckdb_extension_{name}")
        yield next(Path(str(module.__file__)).parent.rglob("*.duckdb_extension"))


@pytest.fixture
def duckdb_lake(stack: Stack) -> Iterator[duckdb.DuckDBPyConnection]:
    """As the page attaches it. INSTALL needs a network."""
    text = here(block(PAGE, "INSTALL iceberg").text, stack)
    loading = "INSTALL iceberg; LOAD iceberg;"
    assert loading in text
    with duckdb.connect() as engine:
        for file in extensions():
            engine.load_extension(str(file))
        found = engine.execute(text.replace(loading, "")).fetchall()
        counted = stack.api.rows("SELECT service_name, count(*) FROM logs GROUP BY ALL")
        assert sorted(found) == sorted(map(tuple, counted))
        yield engine


def statements(each: Block) -> list[str]:
    return [statement for part in each.text.split(";\n") if (statement := part.strip())]


def test_duckdb_filters_on_an_attribute_and_joins(duckdb_lake: duckdb.DuckDBPyConnection) -> None:
    named, typed, joined = (
        duckdb_lake.execute(sql).fetchall() for sql in statements(block(PAGE, "-- DuckDB: an attribute"))
    )
    assert [row[-1] for row in named] == ["checkout 1"]
    assert typed == [(1 + CARTS,)]
    assert sorted(joined) == SOLD


@pytest.mark.parametrize(
    ("write", "message"),
    [
        ("DELETE FROM lake.otel.logs WHERE body = 'x'", "is set to 'read-only; frazil pipeline writes'"),
        ("INSERT INTO lake.otel.logs FROM lake.otel.logs", "a sorted iceberg table is not supported"),
        ("UPDATE lake.otel.logs SET body = 'x'", "a sorted iceberg table is not supported"),
        ("ALTER TABLE lake.otel.logs ADD COLUMN x INT", "Forbidden_403.*read-only; frazil pipeline writes"),
        ("CREATE TABLE lake.otel.x (a INT)", "Forbidden_403.*read-only; frazil pipeline writes"),
        ("DROP TABLE lake.otel.logs", "Forbidden_403.*read-only; frazil pipeline writes"),
    ],
)
def test_duckdb_is_told_that_tables_are_read_only(
    duckdb_lake: duckdb.DuckDBPyConnection, write: str, message: str
) -> None:
    with pytest.raises(duckdb.Error, match=message):
        duckdb_lake.execute(write)


def test_duckdb_loads_the_extensions_of_pypi_and_frazils_functions() -> None:
    names: dict[str, Any] = {}
    values = run_python(block(PAGE, "import importlib").text, names)
    with contextlib.closing(names["engine"]):
        assert values[-1] == [("server", "[]")]


# As `pyspark` with the page's settings, in a process of its own: the session of the other tests has Iceberg's
# SQL extensions, with which Spark cannot create functions.
_SPARK = """
import json, sys
from pyspark.sql import SparkSession
given = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]")
for key, value in given["settings"].items():
    builder = builder.config(key, value)
session = builder.getOrCreate()
found = []
for statement in given["statements"]:
    try:
        rows = session.sql(statement).collect()
        found.append([[None if value is None else str(value) for value in row] for row in rows])
    except Exception as error:
        found.append(str(error).partition("\\n\\tat ")[0])
print("\\n" + json.dumps(found))
session.stop()
"""


def run_spark(stack: Stack, *asked: str) -> list[Any]:
    """The rows of each statement, as text, or the message of its error."""
    starting, _ = block(PAGE, "pyspark").commands
    named = re.findall(r"--packages (\S+)", starting)[0].split(",")
    packages = [package for package in EVERY if package.coordinate in named]
    assert len(packages) == len(named)
    download_missing(packages, {})
    given = {
        **dict(re.findall(r"--conf (\S+?)=(\S+)", here(starting, stack))),
        "spark.driver.extraClassPath": os.pathsep.join(str(jar_path(package)) for package in packages),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
    }
    done = subprocess.run(
        [sys.executable, "-c", _SPARK],
        input=json.dumps({"settings": given, "statements": asked}),
        cwd=stack.receiver.folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_spark_runs_the_lines_of_the_page(stack: Stack) -> None:
    _, asking = block(PAGE, "pyspark").commands
    counting = re.fullmatch(r'spark\.sql\("(.*)"\)\.show\(\)', asking)
    assert counting is not None
    functions = statements(block(PAGE, "CREATE TEMPORARY FUNCTION kind_name"))
    counted, named, typed, joined, *_, using, converted, numbers, removed, inserted, dropped = run_spark(
        stack,
        counting[1],
        *statements(block(PAGE, "-- Spark: an attribute")),
        *functions,
        "SELECT plain_json(attributes['nested']) FROM frazil.otel.logs WHERE service_name = 'nested'",
        "SELECT n, kind_name(n), status_name(n), severity_name(n) FROM (SELECT explode(sequence(-9, 30)) n)",
        "DELETE FROM frazil.otel.logs WHERE body = 'x'",
        "INSERT INTO frazil.otel.logs SELECT * FROM frazil.otel.logs",
        "DROP TABLE frazil.otel.logs",
    )
    assert len(functions) == 5
    api = stack.api.rows
    assert dict(counted) == {
        name: str(n) for name, n in api("SELECT service_name, count(*) FROM logs GROUP BY ALL")
    }
    assert [row[-1] for row in named] == ["checkout 1"]
    assert typed == [[str(1 + CARTS)]]
    assert sorted(map(tuple, joined)) == SOLD
    path = "attr_json(attributes, 'cart.items[0].id') ->> '$'"
    expected = (
        f"SELECT kind_name(kind), status_name(status_code), {path} FROM spans WHERE service_name = 'cart'"
    )
    assert sorted(using) == sorted(api(expected))
    nested = api("SELECT plain_json(attributes['nested'])::VARCHAR FROM logs WHERE service_name = 'nested'")
    assert len(nested) == NESTED_VALUES
    assert sorted(converted) == sorted(nested)
    names = "SELECT n::VARCHAR, kind_name(n), status_name(n), severity_name(n) FROM range(-9, 31) AS r(n)"
    assert sorted(numbers) == sorted(api(names))
    assert "Unknown row-level operation mode: read-only; frazil pipeline writes" in removed
    assert "Invalid distribution mode: read-only; frazil pipeline writes" in inserted
    assert "Forbidden: read-only; frazil pipeline writes" in dropped


def test_spark_and_trino_have_the_same_function_for_nested_values() -> None:
    """Trino is not among the tests' components, Spark is. Spark's raw strings are Trino's strings."""

    def body(text: str, end: str) -> str:
        begin = "RETURN\n  array_join("
        return text[text.index(begin) : text.index(end)].replace("r'", "'")

    spark = block(PAGE, "CREATE TEMPORARY FUNCTION kind_name").text
    assert body(spark, ";\nSELECT") == body(block(PAGE, "WITH\nFUNCTION").text, "\nSELECT")
