"""What may be asked, and what is refused wherever it hides."""
# ruff: noqa: E501 - a question a line is easier to compare

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from frazil.errors import QueryInvalid, QueryRefused
from frazil.sql.functions import FUNCTIONS
from frazil.sql.sandbox import serialized as tree
from frazil.sql.statement import Statement, characters
from tests.support.query.needed_rows import connect

TABLES = ("logs", "spans", "metrics")
HARMLESS_TABLE_FUNCTIONS = {
    "range",
    "generate_series",
    "unnest",
    "json_each",
    "json_tree",
    "repeat",
    "repeat_row",
}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


def asked(connection: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    return Statement(tree(connection, sql), "otel", TABLES, sql)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT 1", set()),
        ("FROM logs", {"logs"}),
        ("TABLE logs", {"logs"}),
        ("VALUES (1)", set()),
        ('SELECT * FROM otel."LOGS"', {"logs"}),
        ("FROM main.spans", {"spans"}),
        ("FROM events", {"logs"}),
        ("DESCRIBE logs", {"logs"}),
        ("SHOW logs", {"logs"}),
        ("SUMMARIZE FROM spans", {"spans"}),
        ("SHOW TABLES", set()),
        ("FROM information_schema.columns, logs", {"logs"}),
        ("WITH c AS (FROM logs) FROM c, C", {"logs"}),
        ("WITH logs AS (FROM logs) FROM logs", {"logs"}),
        ("WITH logs AS (SELECT 1) FROM logs", set()),
        ("WITH logs AS (SELECT 1) FROM main.logs", {"logs"}),
        ("WITH RECURSIVE c AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM c WHERE n < 3) FROM c", set()),
        ("WITH c AS (SELECT 1) SELECT (SELECT count(*) FROM c), (SELECT max(time) FROM spans)", {"spans"}),
        ("FROM logs, range(3), unnest([1]), LATERAL (SELECT 1)", {"logs"}),
        ("FROM (PIVOT logs ON severity_number IN (1) USING count(*))", {"logs"}),
        ("SELECT search(body, 'x'), attributes['a'] FROM logs", {"logs"}),
        ("FROM logs l ASOF JOIN spans s ON l.time >= s.time", {"logs", "spans"}),
    ],
)
def test_what_may_be_asked_names_its_tables(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: set[str]
) -> None:
    assert asked(connection, sql).tables == tables


@pytest.mark.parametrize("sql", ["SHOW TABLES", "FROM information_schema.columns"])
def test_lists_of_tables_and_columns_need_no_rows(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    found = asked(connection, sql)
    assert (found.tables, found.listed) == (set(), set(TABLES))


def table_functions(connection: duckdb.DuckDBPyConnection) -> list[str]:
    sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('table', 'table_macro', 'pragma')"
    return [name for (name,) in connection.execute(sql).fetchall()]


def test_no_function_of_duckdb_can_be_a_table_but_the_harmless(connection: duckdb.DuckDBPyConnection) -> None:
    names = set(table_functions(connection))
    assert len(names) > 80
    for name in names - HARMLESS_TABLE_FUNCTIONS:
        for called in (f'"{name}"', f'main."{name}"', f'system.main."{name}"', f'"{name.upper()}"'):
            with pytest.raises(QueryRefused):
                asked(connection, f"FROM {called}('x')")
    for name in HARMLESS_TABLE_FUNCTIONS:
        asked(connection, f"FROM {name}(1)")
        with pytest.raises(QueryRefused):
            asked(connection, f"FROM main.{name}(1)")


HIDDEN = "read_text('/etc/passwd')"


@pytest.mark.parametrize(
    "sql",
    [
        f"WITH c AS (FROM {HIDDEN}) SELECT 1",
        f"WITH RECURSIVE c AS (SELECT 1 UNION ALL (SELECT 1 FROM {HIDDEN}, c)) FROM c",
        f"SELECT (SELECT content FROM {HIDDEN})",
        f"SELECT 1 WHERE EXISTS (FROM {HIDDEN})",
        f"SELECT 1 WHERE 1 IN (SELECT 1 FROM {HIDDEN})",
        f"FROM logs, LATERAL (FROM {HIDDEN})",
        f"FROM logs JOIN spans ON (SELECT true FROM {HIDDEN})",
        f"SELECT 1 ORDER BY (SELECT content FROM {HIDDEN})",
        f"SELECT 1 LIMIT (SELECT 1 FROM {HIDDEN})",
        f"SELECT 1 GROUP BY (SELECT 1 FROM {HIDDEN})",
        f"SELECT count(*) HAVING (SELECT true FROM {HIDDEN})",
        f"SELECT count(*) FILTER (EXISTS (FROM {HIDDEN}))",
        f"SELECT rank() OVER (ORDER BY (SELECT 1 FROM {HIDDEN}))",
        f"FROM logs QUALIFY (SELECT true FROM {HIDDEN})",
        f"SELECT list_transform([1], lambda x: (SELECT 1 FROM {HIDDEN}))",
        f"FROM range((SELECT 1 FROM {HIDDEN}))",
        f"FROM unnest([(SELECT 1 FROM {HIDDEN})])",
        f"VALUES ((SELECT 1 FROM {HIDDEN}))",
        f"SELECT 1 UNION ALL SELECT 1 FROM {HIDDEN}",
        f"SELECT COLUMNS(*) FROM (FROM {HIDDEN})",
        f"SELECT * REPLACE ((SELECT 1 FROM {HIDDEN}) AS time) FROM logs",
        f"SELECT CASE WHEN true THEN (SELECT 1 FROM {HIDDEN}) END",
        f"FROM (PIVOT {HIDDEN} ON content IN ('a') USING count(*))",
        f"FROM (UNPIVOT {HIDDEN} ON content INTO NAME a VALUE b)",
        f"DESCRIBE FROM {HIDDEN}",
        f"SUMMARIZE FROM {HIDDEN}",
        "SELECT search((SELECT getenv('HOME')), 'x')",
        "SELECT ('HOME').getenv()",
        "SELECT main.getenv('HOME')",
        "SELECT \"GETENV\"('HOME')",
        "SELECT list_transform([1], lambda x: getenv('HOME'))",
        "SELECT sum(sleep_ms(1000)) OVER ()",
        "SELECT 1 ORDER BY sleep_ms(1000)",
        "FROM range(sleep_ms(1000))",
        "SELECT pg_sleep(5)",
        "SELECT current_setting('temp_directory')",
        "SELECT getvariable('x')",
        "SELECT pg_get_viewdef(1)",
        "SELECT nextval('x')",
        "SELECT write_log('x')",
        "SELECT current_query()",
        "SELECT stats(time) FROM logs",
        "SELECT json_serialize_plan('SELECT 1')",
    ],
)
def test_what_reads_something_else_is_refused_wherever_it_hides(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    with pytest.raises(QueryRefused):
        asked(connection, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO logs VALUES (1)", "UPDATE logs SET time = now()", "DELETE FROM logs", "TRUNCATE logs",
        "CREATE TABLE t (a INT)", "CREATE VIEW v AS SELECT 1", "CREATE MACRO m() AS 1", "DROP TABLE logs",
        "ALTER TABLE logs ADD COLUMN a INT", "COPY logs TO 'x.csv'", "COPY logs FROM 'x.csv'", "ATTACH 'x.db'",
        "DETACH x", "USE x", "SET threads = 1", "RESET threads", "PRAGMA version", "CALL range(3)", "INSTALL httpfs",
        "LOAD httpfs", "EXPLAIN SELECT 1", "EXPLAIN ANALYZE SELECT 1", "BEGIN", "COMMIT", "ROLLBACK", "CHECKPOINT",
        "VACUUM", "ANALYZE", "EXPORT DATABASE 'x'", "IMPORT DATABASE 'x'", "PREPARE p AS SELECT 1", "EXECUTE p",
        "DEALLOCATE p", "CREATE SECRET s (TYPE s3)", "DROP SECRET s", "COMMENT ON TABLE logs IS 'x'",
        "SET VARIABLE x = 1", "MERGE INTO logs USING spans ON true WHEN MATCHED THEN DELETE",
        "PIVOT logs ON service_name USING count(*)", "CREATE TYPE e AS ENUM ('a')", "CREATE SEQUENCE s",
        "WITH c AS (SELECT 1) INSERT INTO logs FROM c", "UPDATE EXTENSIONS",
    ],
)  # fmt: skip
def test_only_select_is_a_question(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    with pytest.raises(QueryRefused, match="only SELECT"):
        asked(connection, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "", ";", "-- nothing", "SELECT 1; SELECT 2", "SELEC 1", "SELECT * FROM log", "FROM 'x.csv'", "FROM 'x.parquet'",
        'FROM "/etc/passwd"', "FROM 's3://bucket/x.parquet'", "FROM system.main.logs", "FROM memory.main.logs",
        "FROM other.logs", "FROM duckdb_settings", "FROM sqlite_master", "FROM pg_catalog.pg_class",
        "FROM information_schema.views", "FROM system.information_schema.tables", "FROM temp.logs", "FROM __tail_logs",
        "FROM logs AT (VERSION => 1)", "SHOW databases", "SHOW ALL TABLES", "DESCRIBE", "SHOW TABLES FROM system",
        "SHOW variables", "DESCRIBE 'x.csv'", "SUMMARIZE 'x.csv'",
        # A WITH clause is known where it is, and nowhere else.
        "FROM duckdb_settings, (WITH duckdb_settings AS (SELECT 1) FROM duckdb_settings)",
        'SELECT (WITH "x.csv" AS (SELECT 1) SELECT 1), * FROM "x.csv"',
        "WITH a AS (FROM duckdb_settings), duckdb_settings AS (SELECT 1) FROM a",
        "WITH duckdb_settings AS (FROM duckdb_settings) FROM duckdb_settings",
        "WITH duckdb_settings AS (SELECT 1) FROM main.duckdb_settings",
        'WITH "duc\u212adb_settings" AS (SELECT 1) FROM duckdb_settings',
        "WITH RECURSIVE c AS (SELECT 1 FROM c UNION ALL SELECT 1) FROM c",
    ],
)  # fmt: skip
def test_what_is_no_table_is_not_found(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    with pytest.raises(QueryInvalid):
        asked(connection, sql)


def test_a_table_that_is_nearly_named_is_suggested(connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryInvalid, match="did you mean logs"):
        asked(connection, "FROM log")


@pytest.mark.parametrize(
    ("sql", "at"),
    [
        ("SELECT 'é', 1 FROM nope", "nope"),
        ("SELECT '😀', getenv('x')", "getenv"),
        ("SELECT 'é' FROM read_text('x')", "read_text"),
        ("SELECT 'é' FRO logs WHERE", "logs"),
        ("SELECT 1 FROM nope", "nope"),
    ],
)
def test_errors_say_at_which_character(connection: duckdb.DuckDBPyConnection, sql: str, at: str) -> None:
    with pytest.raises((QueryInvalid, QueryRefused)) as error:
        asked(connection, sql)
    assert error.value.position == sql.index(at)


def test_a_position_within_a_character_is_that_character_s() -> None:
    assert [characters("é1", at) for at in (0, 1, 2, 3, None)] == [0, 0, 1, 2, None]


CONSTANT_HERE = {"current_schema", "current_schemas", "current_database", "in_search_path", "error"}
"""Nobody can change what they depend on."""


def test_every_function_that_may_change_is_known_as_such(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability IN ('VOLATILE', 'CONSISTENT_WITHIN_QUERY')"
    names = {name for (name,) in connection.execute(sql).fetchall()}
    assert {"now", "random", "uuid"} <= names
    for name in names - CONSTANT_HERE:
        try:
            assert asked(connection, f"SELECT {name}()").is_nondeterministic, name
        except QueryRefused:
            continue


def test_a_function_that_reads_a_table_is_known_to_read_it(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT max(rate) AS most FROM metric_steps('a', INTERVAL 1 HOUR, {}, {})"
    known = [*TABLES, "metric_rollups"]
    fixed, moving = (
        Statement(tree(connection, each), "otel", known, each)
        for each in (sql.format("'2026-01-01'", "'2026-01-02'"), sql.format("now()", "now()"))
    )
    assert (fixed.tables, fixed.names, fixed.scans) == ({"metric_rollups"}, {"metric_rollups"}, 1)
    assert fixed.columns is not None
    assert fixed.columns >= {"most", "last_value", "start_time_unix_nano"}
    assert (fixed.is_nondeterministic, moving.is_nondeterministic) == (False, True)
    for refused in ("other.metric_steps('a', 1, 2, 3)", "memory.main.metric_steps('a', 1, 2, 3)"):
        with pytest.raises(QueryRefused):
            asked(connection, f"SELECT * FROM {refused}")
    with pytest.raises(QueryRefused, match="metric_steps cannot be used as a table"):
        asked(connection, sql.format("1", "2"))  # where its table is not known


def test_macros_that_use_what_changes_or_is_refused_are_known_as_such(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sql = "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
    own = [(function.name, function.body) for function in FUNCTIONS]
    for name, body in [*connection.execute(sql).fetchall(), *own]:
        if name in CONSTANT_HERE:
            continue
        if "frazil_now" in body:  # the clock of a query
            assert asked(connection, f'SELECT "{name}"()').is_nondeterministic, name
            continue
        try:
            inner = asked(connection, f"SELECT {body}")
        except (QueryInvalid, QueryRefused):
            harmless = {"format_type"}  # lists types alone
            if name not in harmless:
                with pytest.raises(QueryRefused):
                    asked(connection, f'SELECT "{name}"(1)')
            continue
        if inner.is_nondeterministic:
            assert asked(connection, f'SELECT "{name}"(1)').is_nondeterministic, name


@pytest.mark.parametrize(
    ("sql", "is_nondeterministic"),
    [
        ("FROM logs WHERE time > TIMESTAMP '2026-01-01'", False),
        ("FROM logs WHERE time > now()", True),
        ("FROM logs WHERE time > NOW() - INTERVAL 1 DAY", True),
        ("SELECT CURRENT_DATE", True),
        ("SELECT current_timestamp", True),
        ("SELECT localtime, localtimestamp", True),
        ("SELECT ago(INTERVAL 1 DAY)", True),
        ("FROM logs ORDER BY random()", True),
        ("FROM logs TABLESAMPLE 10%", True),
        ("FROM logs USING SAMPLE 5", True),
        ("FROM (FROM logs) TABLESAMPLE 5 ROWS", True),
        ("WITH c AS (SELECT uuid()) FROM c", True),
        ("FROM range((SELECT epoch(now())::BIGINT))", True),
    ],
)
def test_what_is_asked_again_may_be_answered_otherwise(
    connection: duckdb.DuckDBPyConnection, sql: str, is_nondeterministic: bool
) -> None:
    assert asked(connection, sql).is_nondeterministic == is_nondeterministic


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT Body FROM logs WHERE l.Time > now()", {"body", "time"}),
        ("SELECT count(*) FROM logs", set()),
        ("SELECT count(*) FROM logs a JOIN spans b USING (trace_id)", {"trace_id"}),
        ("SELECT x.n FROM (SELECT service_name AS n FROM logs ORDER BY severity_number) x", {"service_name"}),
        ("SELECT count(*) FROM events", {"event_name"}),
        ("SELECT list_transform([1], lambda time: time + 1) FROM logs", {"time"}),
        ("SELECT a.attributes['body'] FROM logs a", {"attributes"}),
    ],
)
def test_columns_that_are_not_named_need_not_be_known(
    connection: duckdb.DuckDBPyConnection, sql: str, named: set[str]
) -> None:
    columns = asked(connection, sql).columns
    assert columns is not None
    assert named <= columns


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM logs",
        "FROM logs",
        "SELECT l.* FROM logs l",
        "SELECT COLUMNS('time.*') FROM logs",
        "SELECT logs FROM logs",
        "SELECT x FROM logs x",
        "SELECT count(X) FROM logs AS x",
        "SELECT y FROM (SELECT body FROM logs) y",
        "SELECT count(*) FROM logs NATURAL JOIN spans",
        "DESCRIBE logs",
        "SUMMARIZE logs",
        "SHOW TABLES",
        "SELECT column_name FROM information_schema.columns",
        "SELECT body FROM logs UNION SELECT name FROM (FROM spans)",
        "SELECT #1, body FROM logs",
        "SELECT a, 'body' FROM logs AS l(a)",
        "SELECT b FROM logs AS l(a, b)",
    ],
)
def test_whoever_may_mean_any_column_gets_all(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert asked(connection, sql).columns is None
