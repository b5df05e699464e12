"""What a question can need of each table, rule by rule."""
# ruff: noqa: E501 - a question a line is easier to compare

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from typing import Any

import duckdb
import orjson
import pytest

from frazil.sql.constraint import Constraint
from frazil.sql.functions import CLOCK, set_clock
from frazil.sql.pushdown import packed, unpacked
from frazil.sql.sandbox import serialized
from frazil.sql.statement import Statement
from tests.support.query.needed_rows import compare, connect, micros, pushdown, wanted
from tests.support.query.random_queries import TABLES

SECOND = 1_000_000
DAY = 86_400 * SECOND
NOW = micros(datetime.datetime(2026, 11, 15, 10, 30, tzinfo=datetime.UTC))
TODAY = NOW // DAY * DAY
JAN = micros(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
FEB = micros(datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC))
A = Constraint(values=frozenset({"a"}))
SET = Constraint()


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


def since(lower: int) -> dict[str, Constraint]:
    return {"time": Constraint(lower=lower)}


@pytest.mark.parametrize(
    ("condition", "constraints"),
    [
        ("time >= now() - INTERVAL 1 HOUR", since(NOW - 3600 * SECOND)),
        ("time >= now() - INTERVAL '1 hour'", since(NOW - 3600 * SECOND)),
        ("time >= now() - INTERVAL '1' HOUR", since(NOW - 3600 * SECOND)),
        ("time > current_timestamp - to_hours(2)", since(NOW - 7200 * SECOND)),
        ("now() - INTERVAL 15 MINUTES <= time", since(NOW - 900 * SECOND)),
        ("time >= now() - INTERVAL (90) MINUTE", since(NOW - 5400 * SECOND)),
        ("time > CURRENT_DATE", since(TODAY)),
        ("time > today() - INTERVAL 1 DAY", since(TODAY - DAY)),
        ("time < now()", {"time": Constraint(upper=NOW)}),
        ("time > '2026-01-01'", since(JAN)),
        ("time > TIMESTAMP '2026-01-01 00:00:00-05'", since(JAN)),
        ("time > '2026-01-01 00:00:00-05'", since(JAN + 5 * 3600 * SECOND)),
        ("time BETWEEN '2026-01-01' AND DATE '2026-02-01'", {"time": Constraint(JAN, FEB)}),
        ("time::DATE = '2026-01-01'", {"time": Constraint(JAN, JAN + DAY)}),
        ("time::DATE >= '2026-01-01 12:00'", since(JAN)),
        ("time::DATE <= '2026-01-31'", {"time": Constraint(upper=FEB)}),
        ("service_name = 'a'", {"service_name": A}),
        ("SERVICE_NAME = 'a'", {"service_name": A}),
        ("\"Service_Name\" = 'a'", {"service_name": A}),
        ("logs.service_name = 'a'", {"service_name": A}),
        ("'a' = service_name", {"service_name": A}),
        ("service_name IN ('a', 'b')", {"service_name": Constraint(values=frozenset({"a", "b"}))}),
        (
            "service_name = 'a' OR service_name = 'b'",
            {"service_name": Constraint(values=frozenset({"a", "b"}))},
        ),
        ("service_name = 'a' OR service_name > 'c'", {"service_name": Constraint(lower="a")}),
        ("service_name = 'a' OR severity_number = 1", {}),
        (
            "service_name = 'a' AND severity_number > 8",
            {"service_name": A, "severity_number": Constraint(lower=8)},
        ),
        ("service_name LIKE 'ab%'", {"service_name": Constraint("ab", "ac")}),
        ("service_name LIKE 'a_b%'", {"service_name": Constraint("a", "b")}),
        ("service_name LIKE '%b'", {}),
        ("regexp_matches(service_name, '^ab')", {"service_name": Constraint("ab", "ac")}),
        ("date_trunc('day', time) = '2026-01-01'", {"time": Constraint(JAN, JAN + DAY)}),
        ("time::TIMESTAMP > '2026-01-01'", since(JAN)),
        ("service_name ILIKE 'a%'", {}),
        ("starts_with(service_name, 'ab')", {"service_name": Constraint("ab", "ac")}),
        ("service_name IS NOT NULL", {"service_name": SET}),
        ("service_name IS NULL", {}),
        ("NOT service_name = 'a'", {}),
        ("NOT service_name <> 'a'", {"service_name": A}),
        ("service_name <> 'a'", {}),
        ("service_name IS NOT DISTINCT FROM 'a'", {}),
        ("lower(service_name) = 'a'", {}),
        ("service_name COLLATE NOCASE = 'a'", {}),
        ("service_name = 5", {}),
        ("severity_number = '5'", {"severity_number": Constraint(values=frozenset({5}))}),
        ("coalesce(service_name, 'a') = 'a'", {}),
        ("service_name IN (SELECT name FROM spans)", {}),
        ("CASE WHEN service_name = 'a' THEN true END", {}),
    ],
)
def test_a_condition_on_a_table(
    connection: duckdb.DuckDBPyConnection, condition: str, constraints: dict[str, Constraint]
) -> None:
    assert wanted(f"SELECT * FROM logs WHERE {condition}", now=NOW)["logs"] == [constraints]


def test_parameters_are_constants(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT * FROM logs WHERE service_name = ? AND time >= $2 AND trace_id LIKE ?"
    sql = sql.replace("?", "$1", 1).replace("?", "$3")
    assert wanted(sql, ["a", "2026-01-01", "b%"])["logs"] == [
        {"service_name": A, **since(JAN), "trace_id": Constraint("b", "c")}
    ]


X: Any = {"service_name": A}


@pytest.mark.parametrize(
    ("sql", "logs", "spans"),
    [
        ("FROM events WHERE service_name = 'a'", [{**X, "event_name": SET}], None),
        ("FROM (SELECT * FROM logs) WHERE service_name = 'a'", [X], None),
        ("FROM (SELECT service_name AS s FROM logs) t WHERE t.s = 'a'", [X], None),
        ("FROM (SELECT trace_id AS service_name FROM logs) WHERE service_name = 'a'", [{"trace_id": A}], None),
        ("WITH c AS (FROM logs) FROM c WHERE service_name = 'a'", [X], None),
        ("WITH c AS (FROM logs) FROM c WHERE service_name = 'a' UNION ALL FROM c", [{}], None),
        ("WITH logs AS (SELECT * FROM logs) FROM logs WHERE service_name = 'a'", [X], None),
        ("WITH c(trace_id) AS (SELECT service_name FROM logs) FROM c WHERE trace_id = 'a'", [X], None),
        ("SELECT service_name, count(*) FROM logs WHERE service_name = 'a' GROUP BY ALL", [X], None),
        ("FROM (SELECT service_name, count(*) FROM logs GROUP BY 1) WHERE service_name = 'a'", [X], None),
        ("FROM (SELECT service_name, count(*) FROM logs GROUP BY ROLLUP (service_name)) WHERE service_name = 'a'", [{}], None),
        ("FROM (SELECT *, rank() OVER (ORDER BY time) FROM logs) WHERE service_name = 'a'", [{}], None),
        ("FROM (FROM logs QUALIFY rank() OVER (ORDER BY time) = 1) WHERE service_name = 'a'", [{}], None),
        ("FROM (FROM logs LIMIT 5) WHERE service_name = 'a'", [{}], None),
        ("FROM (SELECT DISTINCT service_name FROM logs) WHERE service_name = 'a'", [X], None),
        ("FROM (SELECT DISTINCT ON (trace_id) * FROM logs ORDER BY time) WHERE service_name = 'a'", [{}], None),
        ("FROM (SELECT * EXCLUDE (time) FROM logs) WHERE service_name = 'a'", [X], None),
        ("FROM (SELECT * REPLACE (trace_id AS service_name) FROM logs) WHERE service_name = 'a'", [{"trace_id": A}], None),
        ("FROM logs TABLESAMPLE 10% WHERE service_name = 'a'", [{}], None),
        ("FROM (FROM logs) TABLESAMPLE 10% WHERE service_name = 'a'", [{}], None),
        ("SELECT * FROM logs WHERE service_name = 'a' USING SAMPLE 5", [{}], None),
        ("FROM logs AS l(service_name) WHERE service_name = 'a'", [{}], None),
        ("SELECT trace_id AS service_name FROM logs WHERE service_name = 'a'", [X], None),
        ("FROM (SELECT service_name FROM logs UNION ALL SELECT name FROM spans) WHERE service_name = 'a'", [X], [{"name": A}]),
        ("FROM (SELECT service_name FROM logs UNION ALL BY NAME SELECT service_name FROM spans) WHERE service_name = 'a'", [X], [X]),
        ("FROM (SELECT service_name FROM logs EXCEPT SELECT name FROM spans) WHERE service_name = 'a'", [X], [{"name": A}]),
        ("FROM logs l JOIN spans s ON l.trace_id = s.trace_id WHERE l.trace_id = 'a'", [{"trace_id": A}], [{"trace_id": A}]),
        ("FROM logs l JOIN spans s USING (trace_id) WHERE trace_id = 'a'", [{"trace_id": A}], [{"trace_id": A}]),
        ("FROM logs l JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [X], [{"name": A}]),
        ("FROM logs l LEFT JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [{}], [{"name": A}]),
        ("FROM logs l RIGHT JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [X], [{}]),
        ("FROM logs l FULL JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [{}], [{}]),
        ("FROM logs l SEMI JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [X], [{"name": A}]),
        ("FROM logs l ANTI JOIN spans s ON l.service_name = 'a' AND s.name = 'a'", [{}], [{"name": A}]),
        ("FROM logs l LEFT JOIN spans s ON true WHERE s.name = 'a'", [{}], [{"name": A}]),
        ("FROM logs l FULL JOIN spans s USING (trace_id) WHERE trace_id = 'a'", [{"trace_id": A}], [{"trace_id": A}]),
        ("FROM logs l NATURAL JOIN spans s WHERE name = 'a' AND service_name = 'a'", [X], [{**X, "name": A}]),
        ("FROM logs l POSITIONAL JOIN spans s WHERE l.service_name = 'a'", [{}], [{}]),
        ("FROM logs l ASOF JOIN spans s ON l.time >= s.time WHERE l.service_name = 'a' AND s.name = 'a'", [X], [{}]),
        ("FROM logs l, LATERAL (FROM spans s WHERE s.trace_id = l.trace_id AND s.name = 'a') x WHERE l.service_name = 'a'", [X], [{"name": A}]),
        ("FROM logs a JOIN logs b ON a.trace_id = b.trace_id WHERE a.service_name = 'a'", [X, {}], None),
        ("FROM logs WHERE service_name = 'a' AND EXISTS (FROM spans WHERE name = 'a')", [X], [{"name": A}]),
        ("SELECT (SELECT max(time) FROM spans WHERE name = 'a') FROM logs", [{}], [{"name": A}]),
        ("FROM logs ORDER BY time LIMIT (SELECT count(*) FROM spans WHERE name = 'a')", [{}], [{"name": A}]),
        ("SUMMARIZE SELECT * FROM logs WHERE service_name = 'a'", [X], None),
        ("FROM (PIVOT logs ON severity_number IN (1) USING count(*)) WHERE service_name = 'a'", [X], None),
        (
            "WITH RECURSIVE c AS (SELECT trace_id FROM spans WHERE name = 'a' UNION SELECT s.trace_id FROM spans s, c) "
            "FROM c WHERE trace_id = 'b'",
            None,
            [{"name": A}, {}],
        ),
    ],
)  # fmt: skip
def test_conditions_go_through_what_does_not_depend_on_other_rows(
    connection: duckdb.DuckDBPyConnection, sql: str, logs: Any, spans: Any
) -> None:
    found = wanted(sql)
    for name, uses in (("logs", logs), ("spans", spans)):
        assert sorted(map(repr, found.get(name, []))) == sorted(map(repr, uses or []))


TRICKY = (
    # Names that are columns, not the clock.
    "FROM logs, (SELECT TIMESTAMPTZ '2020-01-01' AS now) p WHERE time > now",
    "FROM logs, (SELECT TIMESTAMPTZ '2020-01-01' AS current_date) p WHERE time > current_date",
    "FROM logs, (SELECT current_date UNION ALL SELECT DATE '2020-01-01') p WHERE time > current_date",
    "FROM logs, (VALUES (DATE '2020-01-01')) p(current_date) WHERE time > p.current_date",
    # Columns that swap names.
    "WITH c(trace_id, service_name) AS (SELECT service_name, trace_id FROM logs) FROM c WHERE trace_id = 'a'",
    "FROM (SELECT service_name, trace_id FROM logs) c(trace_id, service_name) WHERE trace_id = 'a'",
    "FROM (SELECT service_name AS trace_id, trace_id AS service_name FROM logs) WHERE trace_id = 'a'",
    "FROM (SELECT service_name, trace_id AS service_name FROM logs UNION ALL SELECT trace_id, name FROM spans) WHERE service_name = 'a'",
    "FROM (SELECT service_name AS t, trace_id AS t, event_name AS t_1 FROM logs) WHERE t_1 = 'a'",
    "FROM (SELECT #2, trace_id AS service_name FROM logs) WHERE service_name = 'a'",
    'FROM (SELECT trace_id AS "É", service_name AS "é" FROM logs) WHERE "é" = \'a\'',
    # Of a star over several, the first one's column is meant.
    "FROM (SELECT * FROM (SELECT * FROM spans) s, logs l) WHERE service_name = 'a'",
    "FROM (SELECT * FROM (SELECT * EXCLUDE (kind) FROM spans) s, logs l) WHERE service_name = 'a'",
    "FROM (SELECT * FROM range(1) r(severity_number), logs l) WHERE severity_number = 0",
    # A merged column is meant before any other of its name.
    "SELECT x.* FROM spans x, logs a JOIN logs b USING (service_name) WHERE service_name = 'a'",
    "FROM (logs a RIGHT JOIN spans b USING (trace_id)) WHERE trace_id = 'a'",
    "SELECT trace_id FROM (SELECT * EXCLUDE (name) FROM spans) s LEFT JOIN logs l USING (trace_id) WHERE trace_id = 'a'",
    # The right side of these is not seen outside.
    "FROM (VALUES (1), (2)) v(kind) WHERE EXISTS (FROM logs l ANTI JOIN spans o USING (trace_id) WHERE kind = 1)",
    "FROM (VALUES (1), (2)) s(kind) WHERE EXISTS (SELECT 1 FROM logs l ANTI JOIN spans s USING (trace_id) WHERE s.kind = 1)",
    "FROM (VALUES (1), (2)) v(kind) WHERE EXISTS (FROM (FROM logs ANTI JOIN spans USING (trace_id)) WHERE kind = 1)",
    # An integer that has a text's name is compared as an integer.
    "SELECT l.* FROM (SELECT kind AS service_name FROM spans) s "
    "JOIN (SELECT '05' AS service_name UNION ALL SELECT '5') l ON s.service_name = l.service_name",
    "SELECT l.* FROM (SELECT kind AS service_name FROM spans) s JOIN logs l "
    "ON s.service_name = TRY_CAST(l.service_name AS INTEGER) WHERE s.service_name = '5'",
    "FROM (SELECT kind AS service_name FROM (SELECT severity_number AS kind FROM logs) WHERE kind >= 1) "
    "WHERE service_name = '5'",
    "FROM (SELECT kind AS k FROM spans UNION ALL SELECT severity_number FROM logs) WHERE k = '05'",
    # Used twice, in places that are easily overlooked.
    "WITH c AS (FROM logs) SELECT (SELECT count(*) FROM c) FROM c WHERE service_name = 'a'",
    "WITH c AS (FROM logs) FROM c WHERE service_name = 'a' ORDER BY (SELECT count(*) FROM c) LIMIT (SELECT count(*) FROM c)",
    "WITH c AS (FROM logs), d AS (FROM c WHERE service_name = 'a') SELECT (SELECT count(*) FROM c), * FROM d",
    "WITH c AS (FROM logs) FROM c, (PIVOT c ON severity_number IN (1, 5) USING count(*) GROUP BY trace_id) p "
    "WHERE c.service_name = 'a'",
    "WITH c AS (FROM logs) FROM c, range((SELECT count(*) FROM c)) WHERE c.service_name = 'a'",
    # Constants that DuckDB rounds or reads otherwise.
    "FROM logs WHERE time >= (today() - INTERVAL 1 DAY + INTERVAL '5 hours 59 minutes 59.7 seconds')::TIMESTAMP_S::TIMESTAMPTZ",
    "FROM logs WHERE time >= today() - to_days(CAST(0.7 AS INTEGER))",
    "FROM logs WHERE severity_number IN (5, 0.5)",
    "FROM logs WHERE service_name BETWEEN '05' AND 'a' OR service_name ^@ 'a'",
    # Outer joins of outer joins.
    "FROM logs a LEFT JOIN (spans b LEFT JOIN logs c ON b.kind = 1) ON c.service_name = 'a' AND a.trace_id = b.trace_id",
    "FROM logs a RIGHT JOIN spans b ON a.service_name = 'a' LEFT JOIN logs c ON b.name = 'a' AND c.service_name = 'a'",
    "FROM logs a FULL JOIN spans b ON a.trace_id = b.trace_id WHERE a.service_name = 'a' OR b.name = 'a'",
    "FROM (logs a ANTI JOIN spans b USING (trace_id)) JOIN spans c USING (trace_id) WHERE trace_id = 'a'",
)  # fmt: skip


@pytest.mark.parametrize("sql", TRICKY)
def test_no_row_that_matters_is_lost_by_a_tricky_question(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    for seed in range(12):
        compare(connection, random.Random(seed), sql)


def test_integers_beside_a_double_are_compared_as_doubles(connection: duckdb.DuckDBPyConnection) -> None:
    big = 2**53 + 1
    for condition in (f"= {big}::DOUBLE", f"BETWEEN {big} AND 1e18", f"IN ({big}, 1e18)"):
        sql = f"SELECT {2**53}::BIGINT AS duration_nano WHERE duration_nano {condition}"
        assert connection.execute(sql).fetchall(), "DuckDB finds them equal"
        (use,) = wanted(f"FROM spans WHERE duration_nano {condition}")["spans"]
        constraint = use["duration_nano"]
        assert constraint.values is None
        assert isinstance(constraint.lower, float)
        assert constraint.lower <= 2**53


def test_a_prefix_keeps_the_texts_that_go_on_with_the_last_character(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    (use,) = wanted("FROM logs WHERE service_name LIKE 'a%'")["logs"]
    upper = use["service_name"].upper
    assert isinstance(upper, str)
    assert upper >= "a\U0010ffff\U0010ffff"


@pytest.mark.parametrize(
    "sql",
    [
        "FROM logs WHERE " + " OR ".join(f"(service_name = 'a' AND {n} = {n})" for n in range(300)),
        "FROM logs WHERE time > now()" + " + INTERVAL 1 HOUR" * 400,
        "FROM logs" + "".join(f", spans s{n}" for n in range(400)),
        "FROM " + "(FROM " * 100 + "logs" + ")" * 100,
        " UNION ALL ".join(["SELECT service_name FROM logs"] * 400),
        "WITH " + ", ".join(f"c{n + 1} AS (FROM c{n} a JOIN c{n} b USING (time))" for n in range(6)).replace("c0 ", "logs ")
        + " FROM c6",
    ],
    ids=["alternatives", "sums", "joins", "nesting", "union", "doubling"],
)  # fmt: skip
def test_large_questions_are_read_in_time(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert wanted(sql)["logs"]


@pytest.mark.parametrize(
    ("expression", "type_"),
    [
        *(
            (name, "TIMESTAMP WITH TIME ZONE")
            for name in ("now()", "current_timestamp", "transaction_timestamp()")
        ),
        *((name, "DATE") for name in ("today()", "current_date", "CURRENT_DATE")),
        *((name, "TIMESTAMP") for name in ("localtimestamp", "current_localtimestamp()")),
        ("current_time", "TIME WITH TIME ZONE"),
        ("localtime", "TIME"),
    ],
)
def test_the_clock_of_a_query_is_when_it_was_planned(expression: str, type_: str) -> None:
    connection = pushdown().connection
    connection.execute(set_clock(NOW))
    (found,) = connection.execute(
        f"SELECT typeof({expression}), {expression}::VARCHAR FROM (SELECT 1)"
    ).fetchall()
    whole = "2026-11-15 10:30:00+00"
    parts = {
        "DATE": whole[:10],
        "TIMESTAMP": whole[:-3],
        "TIME": whole[11:-3],
        "TIME WITH TIME ZONE": whole[11:],
    }
    assert found == (type_, parts.get(type_, whole))


def test_no_other_function_of_duckdb_changes_between_plan_and_run() -> None:
    """A new version of DuckDB may add some. `age` of one time says nothing of itself: a query with it is known."""
    found = duckdb.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability = 'CONSISTENT_WITHIN_QUERY'"
    ).fetchall()
    replaced = {statement.split()[2].removesuffix("()") for statement in CLOCK}
    same_in_both = {"current_database", "current_schema", "current_schemas", "in_search_path"}
    refused = {"txid_current"}
    assert {name for (name,) in found} <= replaced | same_in_both | refused


def test_ages_are_of_the_query_too() -> None:
    assert wanted("FROM logs WHERE time > ago(INTERVAL 1 DAY)", now=NOW)["logs"] == [since(NOW - DAY)]


@pytest.mark.parametrize(
    "sql",
    [
        "FROM logs WHERE time > now() - age(TIMESTAMP '2026-01-01')",
        "FROM logs WHERE time > system.main.now()",
    ],
)
def test_a_query_that_reads_duckdbs_own_clock_is_known(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert Statement(serialized(connection, sql), "otel", TABLES).reads_own_clock


def test_a_query_on_the_clock_of_its_plan_is_not_taken_for_one(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "FROM logs WHERE time > now() - INTERVAL 1 DAY AND current_date > '2026-01-01'"
    assert not Statement(serialized(connection, sql), "otel", TABLES).reads_own_clock


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("FROM logs WHERE service_name = ? AND trace_id <> '?' -- ?", ["a"]),
        ("FROM logs WHERE /* $1 */ service_name = $1 AND trace_id <> $$?$$", ["a"]),
        ("FROM logs WHERE $2 = service_name AND severity_number-$1 < 5", [-1, "a"]),
        ("SELECT 'é', * FROM logs WHERE service_name IN ($1)", ["a"]),
        ("FROM logs WHERE service_name = $1 AND trace_id IN (SELECT unnest($2))", ["a", ["x", None]]),
        ("FROM logs WHERE service_name = $1.s", [{"s": "a"}]),
        (
            "FROM logs WHERE service_name = $1 AND severity_number = severity_number + $2 LIMIT $3",
            ["a", 0.5, 3],
        ),
    ],
)
def test_parameters_are_found_wherever_they_stand(sql: str, params: list[Any]) -> None:
    (use,) = wanted(sql, params)["logs"]
    assert use["service_name"] == A


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("FROM logs WHERE service_name = $2", ["a"]),
        ("FROM logs WHERE service_name = $name", ["a"]),
        ("FROM logs WHERE service_name = ", ["a"]),
        ("FROM logs WHERE service_name = 'a' AND", []),
        ("FROM logs WHERE service_name = 'a' AND nothing = 1", []),
        ("", []),
    ],
)
def test_what_cannot_be_planned_needs_all_rows(sql: str, params: list[Any]) -> None:
    assert wanted(sql, params) == {}


def test_constraints_survive_the_way_from_the_worker() -> None:
    uses = {
        "logs": [
            {},
            {"a": Constraint(), "b": Constraint(values=frozenset()), "c": Constraint(1, 2.5)},
            {"d": Constraint("é", None, frozenset({"x", "y"})), "e": Constraint(values=frozenset({True}))},
        ]
    }
    assert unpacked(orjson.loads(orjson.dumps(packed(uses)))) == uses
