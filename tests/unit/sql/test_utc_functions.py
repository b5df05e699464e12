"""The fast functions of time: the same results, types, names and errors as DuckDB's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.sql import utc_functions
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from frazil.sql.utc_functions import macros_for

NAMES = tuple(utc_functions._MACROS)
UNITS = (
    *(
        "microsecond",
        "microseconds",
        "us",
        "millisecond",
        "ms",
        "second",
        "s",
        "minute",
        "m",
        "hour",
        "HOURS",
    ),
    *("day", "Days", "week", "weeks", "month", "mon", "quarter", "year", "years", "decade"),
    *("century", "millennium", "isoyear", "era"),
)
PARTS = (
    *UNITS,
    *("dow", "isodow", "doy", "weekday", "yearday", "dayofweek", "dayofyear", "weekofyear", "yearweek"),
    *("epoch", "timezone", "timezone_hour", "timezone_minute", "julian", "quarters", "decades"),
)
EDGES = (
    *("infinity", "-infinity", "1970-01-01", "1969-12-31 23:59:59.999999", "2000-01-03", "2000-01-02 12:00"),
    *(
        "0044-03-15 (BC) 12:00",
        "0001-01-01",
        "2026-12-28",
        "2027-01-03 23:59:59.999999",
        "2554-07-21 23:34:33",
    ),
    *("9999-12-31 23:59:59.999999", "200000-01-01", "2024-02-29 12:34:56.789123"),
)
WIDTHS = (
    *(
        "1 microsecond",
        "7 milliseconds",
        "1 second",
        "90 seconds",
        "5 minutes",
        "7 minutes",
        "1 hour",
        "1 day",
    ),
    *(
        "3 days",
        "7 days",
        "10 days",
        "1 day 1 hour",
        "1 month",
        "5 months",
        "1 year",
        "10 years",
        "1 month 1 day",
    ),
    *("0 seconds", "-1 hour", "-1 month"),
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    made = duckdb.connect()
    made.execute("SET TimeZone='UTC'")
    for name in NAMES:
        (statement,) = macros_for(f"SELECT {name}(time)")
        made.execute(statement)
    yield made
    made.close()


def outcome(connection: duckdb.DuckDBPyConnection, expression: str, params: Any = None) -> Any:
    """The value as text and its type, or the kind of the error."""
    try:
        return connection.execute(
            f"SELECT ({expression})::VARCHAR, typeof({expression})", params or []
        ).fetchone()
    except duckdb.Error as error:
        return type(error)


def assert_same(connection: duckdb.DuckDBPyConnection, call: str, params: Any = None) -> None:
    assert outcome(connection, call, params) == outcome(connection, f"system.main.{call}", params), call


@pytest.mark.parametrize("time", EDGES)
def test_edges_of_time_have_the_results_of_duckdb(connection: duckdb.DuckDBPyConnection, time: str) -> None:
    literal = f"TIMESTAMPTZ '{time}'"
    for unit in UNITS:
        assert_same(connection, f"date_trunc('{unit}', {literal})")
    for part in PARTS:
        assert_same(connection, f"date_part('{part}', {literal})")
    for width in WIDTHS:
        assert_same(connection, f"time_bucket(INTERVAL '{width}', {literal})")
    for name in NAMES:
        if not name.startswith(("date_", "datet", "datep", "time_")):
            assert_same(connection, f"{name}({literal})")


@settings(max_examples=50, deadline=None)
@given(
    times=st.lists(st.integers(-(2**55), 2**60) | st.integers(0, 2**54), min_size=1, max_size=20),
    unit=st.sampled_from(UNITS),
    part=st.sampled_from(PARTS),
    width=st.integers(1, 10**13),
    months=st.integers(1, 50),
)
def test_random_times_have_the_results_of_duckdb(
    connection: duckdb.DuckDBPyConnection, times: list[int], unit: str, part: str, width: int, months: int
) -> None:
    calls = (
        f"date_trunc('{unit}', time)",
        f"date_part('{part}', time)",
        f"time_bucket(to_microseconds({width}), time)",
        f"time_bucket(to_months({months}), time)",
        *(f"{name}(time)" for name in NAMES if not name.startswith(("date_", "datet", "datep", "time_"))),
    )
    rows = "SELECT make_timestamptz(unnest($1::BIGINT[])) AS time"
    for call in calls:
        try:
            own = connection.execute(f"SELECT system.main.{call} FROM ({rows})", [times]).fetchall()
        except duckdb.Error as error:
            with pytest.raises(type(error)):
                connection.execute(f"SELECT {call} FROM ({rows})", [times]).fetchall()
        else:
            assert connection.execute(f"SELECT {call} FROM ({rows})", [times]).fetchall() == own, call


@pytest.mark.parametrize(
    "value",
    [
        *("DATE '2026-01-02'", "TIMESTAMP '2026-01-02 10:11:12'", "INTERVAL '3 hours 5 minutes'"),
        *("TIME '10:11:12'", "TIMETZ '10:11:12+00:00'", "TIMESTAMP_NS '2026-01-02 10:11:12'", "'text'"),
        *("TIMESTAMP_S '2026-01-02 10:11:12'", "TIMESTAMP_MS '2026-01-02 10:11:12'", "NULL", "42"),
        *("NULL::TIMESTAMPTZ", "'2026-01-02 10:11'::VARCHAR", "current_date"),
    ],
)
def test_other_types_have_the_results_and_errors_of_duckdb(
    connection: duckdb.DuckDBPyConnection, value: str
) -> None:
    for call in (
        *(f"date_trunc('hour', {value})", f"datetrunc('day', {value})", f"date_part('hour', {value})"),
        *(f"time_bucket(INTERVAL '1 day', {value})", f"hour({value})", f"year({value})"),
        *(f"date_part(['year', 'hour'], {value})", f"time_bucket('1 hour', {value})"),
    ):
        assert_same(connection, call)


@pytest.mark.parametrize(
    "call",
    [
        "time_bucket(INTERVAL '1 hour', TIMESTAMPTZ '2026-01-02 10:11', INTERVAL '20 minutes')",
        "time_bucket(INTERVAL '1 hour', TIMESTAMPTZ '2026-01-02 10:11', TIMESTAMPTZ '2026-01-01 00:30')",
        "time_bucket(INTERVAL '1 day', TIMESTAMPTZ '2026-01-02 10:11', 'Europe/Zurich')",
        "time_bucket(INTERVAL '1 day', DATE '2026-01-02', DATE '2026-01-01')",
        "time_bucket(NULL, TIMESTAMPTZ '2026-01-02 10:11')",
        "time_bucket('bogus', TIMESTAMPTZ '2026-01-02 10:11')",
        "date_trunc('bogus', TIMESTAMPTZ '2026-01-02 10:11')",
        "date_trunc(NULL, TIMESTAMPTZ '2026-01-02 10:11')",
        "date_part('bogus', TIMESTAMPTZ '2026-01-02 10:11')",
        "date_part(['year', 'month', 'epoch'], TIMESTAMPTZ '2026-01-02 10:11')",
        "date_trunc('hour')",
        "date_trunc('hour', TIMESTAMPTZ '2026-01-02 10:11', 3)",
    ],
)
def test_other_arguments_have_the_results_and_errors_of_duckdb(
    connection: duckdb.DuckDBPyConnection, call: str
) -> None:
    assert_same(connection, call)


@pytest.mark.parametrize(
    "value", [dt.datetime(2026, 1, 2, 10, 11, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 10, 11), "text", None]
)
def test_parameters_have_the_results_and_errors_of_duckdb(
    connection: duckdb.DuckDBPyConnection, value: Any
) -> None:
    assert_same(connection, "date_trunc('hour', $1)", [value])
    assert_same(connection, "date_part('hour', $1)", [value])
    assert_same(connection, "time_bucket(INTERVAL '1 hour', $1)", [value])


def test_columns_have_the_names_that_duckdb_gives(connection: duckdb.DuckDBPyConnection) -> None:
    plain = duckdb.connect()
    plain.execute("SET TimeZone='UTC'")
    sql = (
        "SELECT date_trunc('hour', time), time_bucket(INTERVAL '1 hour', time), hour(time), "
        "extract(hour FROM time), date_part('dow', time) FROM (SELECT TIMESTAMPTZ '2026-01-02 10:11' AS time)"
    )
    names, own = ([column[0] for column in each.execute(sql).description] for each in (connection, plain))
    plain.close()
    assert names == own


def test_only_functions_that_the_query_calls_are_replaced() -> None:
    assert macros_for("SELECT count(*) FROM logs WHERE time > now() - INTERVAL 1 hour") == []
    (one,) = macros_for("SELECT Date_Trunc ('hour', time) FROM logs")
    assert one.startswith("CREATE MACRO date_trunc(")
    (one,) = macros_for("SELECT EXTRACT(hour FROM time) FROM logs")
    assert one.startswith("CREATE MACRO date_part(")


@pytest.mark.parametrize(
    ("condition", "times"),
    [
        ("date_trunc('hour', time) = TIMESTAMPTZ '2026-01-02 10:00'", (1, 2)),
        ("date_trunc('hour', time) < TIMESTAMPTZ '2026-01-02 10:00'", (None, 2)),
        ("hour(time) = 3", (None, None)),
    ],
)
def test_files_are_read_within_the_range_of_time_that_was_planned(
    tmp_path: Path, condition: str, times: tuple[int | None, int | None]
) -> None:
    file = tmp_path / "logs.parquet"
    duckdb.execute(
        f"COPY (SELECT TIMESTAMPTZ '2026-01-02 10:11' AS time) TO '{file}' (FIELD_IDS {{time: 1}})"
    )
    sandbox = Sandbox(Settings(1, 256 << 20, 64 << 20, str(tmp_path), "otel"))
    table = TableSource("logs", [("time", "TIMESTAMP WITH TIME ZONE", 1)], [str(file)], [], times=times)
    sql = f"SELECT count(*) FROM logs WHERE {condition}"
    sandbox.fill([table], 0, sql)
    plan = str(sandbox.connection.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall())
    sandbox.close()
    for bound, text in zip(times, ("time>=", "time<="), strict=True):
        assert (text in plan) == (bound is not None), plan
