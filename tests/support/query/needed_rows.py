"""DuckDB's answers over whole tables and over the rows of them that a question is said to need."""

from __future__ import annotations

import collections
import datetime
import functools
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import duckdb

from frazil.sql.constraint import Constraint, Constraints
from frazil.sql.functions import CLOCK, set_clock
from frazil.sql.pushdown import Pushdown
from frazil.sql.sandbox import Sandbox, Settings, TableSource
from tests.support.query.random_queries import COPIES, SQL_TYPES, TABLES, Columns, copy_of, random_rows

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FOLDER = tempfile.TemporaryDirectory(prefix="frazil-test-")
KINDS: Any = {copy_of(name, n): columns for name, columns in TABLES.items() for n in range(COPIES)}


def micros(moment: datetime.datetime) -> int:
    return (moment - _EPOCH) // datetime.timedelta(microseconds=1)


def start_of_today() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def connect() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": "1"})
    connection.execute("SET TimeZone='UTC'")
    connection.execute(";".join(CLOCK))
    connection.execute("CREATE SCHEMA needed")
    for schema in ("main", "needed"):
        for name, columns in KINDS.items():
            declared = ", ".join(f"{column} {SQL_TYPES[type_]}" for column, type_ in columns.items())
            connection.execute(f"CREATE TABLE {schema}.{name} ({declared})")
        events = f"SELECT * FROM {schema}.logs WHERE event_name IS NOT NULL"
        connection.execute(f"CREATE VIEW {schema}.events AS {events}")
    return connection


@functools.cache
def pushdown() -> Pushdown:
    sandbox = Sandbox(Settings(1, 1 << 28, 1 << 28, _FOLDER.name, "otel"))
    tables = [
        TableSource(
            name,
            [(column, SQL_TYPES[type_], number) for number, (column, type_) in enumerate(columns.items())],
            (),
            (),
            views={"events": "event_name"} if name == "logs" else {},
        )
        for name, columns in KINDS.items()
    ]
    return Pushdown(sandbox, tables)


def wanted(
    sql: str, params: Sequence[Any] = (), now: int | None = None
) -> dict[str, list[dict[str, Constraint]]]:
    return pushdown().uses(sql, params, time.time_ns() // 1000 if now is None else now)


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
    connection.execute("BEGIN")
    connection.execute(set_clock(now))
    try:
        expected = _answer(connection, "main", tables, sql, params)
        uses = wanted(sql, params, now)
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
