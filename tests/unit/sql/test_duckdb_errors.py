"""What a user reads when DuckDB does not find a column."""

from __future__ import annotations

import duckdb
import pytest

from frazil.sql.duckdb_errors import describe_error
from frazil.tables import table_specs


@pytest.mark.parametrize(
    ("table", "word", "expected"),
    [
        ("metrics", "name", "metric_name or service_name"),
        ("metrics", "Metric", "metric_name"),
        ("logs", "message", "body"),
        ("logs", "level", "severity_text or severity_number"),
        ("spans", "duration", "duration_nano"),
        ("spans", "operation", "name"),
        ("logs", "servce_name", "service_name"),
    ],
)
def test_names_of_other_systems_are_understood(table: str, word: str, expected: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET errors_as_json=true")
    columns = [column.name for column in table_specs()[table].sql_columns]
    sql = f"SELECT {word} FROM (SELECT 1 AS time)"
    with pytest.raises(duckdb.BinderException) as error:
        connection.execute(sql)
    message = describe_error(error.value, (), sql, columns)["message"]
    assert message.startswith(f"there is no column {word}; did you mean {expected}")
