"""DuckDB's answers over whole tables and over the rows of them that a question is said to need."""

from __future__ import annotations

import collections
import datetime
import json
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import duckdb

from frazil.sql.constants import Constants, Constraint, Constraints
from frazil.sql.constraints import row_constraints
from tests.support.query.random_queries import COPIES, SQL_TYPES, TABLES, Columns, copy_of, random_rows

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
KINDS: Any = {copy_of(name, n): columns for name, columns in TABLES.items() for n in range(COPIES)}


def micros(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def start_of_today() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone='UTC'")
    connection.execute("CREATE SCHEMA needed")
    for schema in ("main", "needed"):
        for name, columns in KINDS.items():
            declared = ", ".join(f"{column} {SQL_TYPES[type_]}" for column, type_ in columns.items())
            connection.execute(f"CREATE TABLE {schema}.{name} ({declared})")
        events = f"SELECT * FROM {schema}.logs WHERE event_name IS NOT NULL"
        connection.execute(f"CREATE VIEW {schema}.events AS {events}")
    return connection


def tree(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    found = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert found is not None
    return json.loads(found[0])


def wanted(
    connection: duckdb.DuckDBPyConnection, sql: str, params: Sequence[Any] = (), now: int | None = None
) -> dict[str, list[dict[str, Constraint]]]:
    parsed = tree(connection, sql)
    assert not parsed["error"], parsed
    now = time.time_ns() // 1000 if now is None else now
    return row_constraints(parsed["statements"][0]["node"], KINDS, Constants.of(now, params))


def meets(row: Sequence[Any], columns: Columns, constraints: Constraints) -> bool:
    by_name = dict(zip(columns, row, strict=True))
    for name, constraint in constraints.items():
        value = by_name[name]
        if value is None:
            return False
        if isinstance(value, datetime.datetime):
            value = micros(value)
        if constraint.lower is not None and value < constraint.lower:
            return False
        if constraint.upper is not None and value > constraint.upper:
            return False
        if constraint.values is not None and value not in constraint.values:
            return False
    return True


def compare(
    connection: duckdb.DuckDBPyConnection, rng: random.Random, sql: str, params: Sequence[Any] = ()
) -> Literal["whole", "less"]:
    """Fails if an answer needs a row that was not wanted. duckdb.Error if there is no answer at all."""
    today = start_of_today()
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for table, columns in TABLES.items():
        rows = random_rows(rng, columns, today)
        copies = [copy_of(table, number) for number in range(COPIES)]
        tables |= {copy: rows for copy in copies if copy in sql.lower() or copy == table}
    now = time.time_ns() // 1000
    connection.execute("BEGIN")  # the clock stands still in it
    try:
        expected = _answer(connection, "main", tables, sql, params)
        uses = wanted(connection, sql, params, now)
        needed = {
            name: [row for row in rows if any(meets(row, KINDS[name], use) for use in uses.get(name, [{}]))]
            for name, rows in tables.items()
        }
        got = _answer(connection, "needed", needed, sql, params)
    finally:
        connection.execute("ROLLBACK")
    assert got == expected, f"{sql}\n{params}\n{uses}\n{tables}"
    return "whole" if needed == tables else "less"


def _answer(
    connection: duckdb.DuckDBPyConnection,
    schema: str,
    tables: Mapping[str, list[tuple[Any, ...]]],
    sql: str,
    params: Sequence[Any],
) -> collections.Counter[str]:
    connection.execute(f"SET search_path='{schema}'")
    for name, rows in tables.items():
        if rows:
            marks = ", ".join("?" for _ in rows[0])
            values = ", ".join(f"({marks})" for _ in rows)
            flat = [each for row in rows for each in row]
            connection.execute(f"INSERT INTO {schema}.{name} VALUES {values}", flat)
    return collections.Counter(map(repr, connection.execute(sql, list(params) or None).fetchall()))
