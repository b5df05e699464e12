"""SQL functions that every query can use, as DuckDB macros."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SqlFunction:
    name: str
    arguments: str
    body: str
    doc: str

    @property
    def sql(self) -> str:
        return f"CREATE MACRO {self.name}({self.arguments}) AS {self.body}"


FUNCTIONS: tuple[SqlFunction, ...] = (
    SqlFunction(
        "search",
        "text, words",
        "coalesce(list_bool_and(list_transform(list_filter(regexp_split_to_array(lower(words), '\\s+'), "
        "lambda w: w <> ''), lambda w: contains(lower(text), w))), trim(words) = '' AND text IS NOT NULL)",
        "Whether all words occur in the text, in any order and case: search(body, 'connection refused')",
    ),
    SqlFunction(
        "attr_int",
        "attributes, key",
        "TRY_CAST(attributes[key] AS BIGINT)",
        "An attribute as an integer, or NULL: attr_int(attributes, 'http.response.status_code')",
    ),
    SqlFunction(
        "attr_double",
        "attributes, key",
        "TRY_CAST(attributes[key] AS DOUBLE)",
        "An attribute as a number, or NULL if it is not a number",
    ),
    SqlFunction(
        "attr_bool",
        "attributes, key",
        "TRY_CAST(attributes[key] AS BOOLEAN)",
        "An attribute as a boolean, or NULL if it is not a boolean",
    ),
    SqlFunction(
        "attr_type",
        "types, key",
        "coalesce(json_extract_string(types, '$.\"' || key || '\"'), 'string')",
        "The type of an attribute as sent: attr_type(attribute_types, 'retries') is int, double, bool, …",
    ),
    SqlFunction(
        "attr_json",
        "attributes, key",
        "TRY_CAST(attributes[key] AS JSON)",
        "An attribute that is a list or a map, as OTLP JSON",
    ),
    SqlFunction(
        "body_json",
        "body, path",
        "json_extract_string(TRY_CAST(body AS JSON), path)",
        "A value from a body that is JSON text, or NULL: body_json(body, '$.user.id')",
    ),
    SqlFunction(
        "severity",
        "number",
        "CASE WHEN number BETWEEN 1 AND 24 THEN "
        "['TRACE','DEBUG','INFO','WARN','ERROR','FATAL'][((number - 1) // 4) + 1] END",
        "The name of a severity: severity(severity_number)",
    ),
)

_NOW = "getvariable('frazil_now')"
_CLOCK = {
    _NOW: ("now", "get_current_timestamp", "current_timestamp", "transaction_timestamp"),
    f"{_NOW}::DATE": ("current_date", "today"),
    f"{_NOW}::TIMESTAMP": ("current_localtimestamp", "localtimestamp"),
    f"{_NOW}::TIMETZ": ("get_current_time", "current_time"),
    f"{_NOW}::TIMESTAMP::TIME": ("current_localtime", "localtime"),
}
CLOCK: tuple[str, ...] = tuple(
    f"CREATE MACRO {name}() AS {body}" for body, names in _CLOCK.items() for name in names
)
"""Replace DuckDB's clock, so that `now()` is the same when a query is planned and when it runs. `age` of one
time, and functions that are named with DuckDB's own catalog, still read the clock.
"""


def set_clock(micros: int) -> str:
    """Return the statement that sets the clock of a connection, in microseconds since 1970."""
    return f"SET VARIABLE frazil_now = make_timestamptz({micros})"
