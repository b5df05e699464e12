from __future__ import annotations

import duckdb
import pytest

from frazil.dashboard.sql.text import EXAMPLES
from frazil.sql.functions import FUNCTIONS
from frazil.tables import SIGNALS, table_spec


@pytest.fixture(scope="module")
def tables() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    for signal in SIGNALS:
        connection.register(signal, table_spec(signal).arrow_schema.empty_table())
    for function in FUNCTIONS:
        connection.execute(function.sql)
    return connection


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_can_be_asked(tables: duckdb.DuckDBPyConnection, name: str) -> None:
    assert tables.execute(EXAMPLES[name]).fetchall() == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_says_when(name: str) -> None:
    assert "time > now() - INTERVAL" in EXAMPLES[name]
