"""SQL functions that every query can use, as DuckDB macros."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.sql import metric_steps
from frazil.sql.plain_json import ATTR_JSON, PLAIN_JSON
from frazil.sql.quantiles import (
    HISTOGRAM_QUANTILE,
    MERGED_CARDINALITY,
    MERGED_HISTOGRAM_QUANTILE,
    MERGED_QUANTILE,
    SKETCH_QUANTILE,
)


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
        "plain_json",
        "text",
        PLAIN_JSON,
        "A stored array, map or JSON text as plain JSON, or NULL: plain_json(body)",
    ),
    SqlFunction(
        "attr_json",
        "attributes, key",
        ATTR_JSON,
        "An array or map, or a value inside it, as JSON: attr_json(attributes, 'cart.items[0].id')",
    ),
    SqlFunction(
        "body_json",
        "body, path",
        "json_extract_string(plain_json(body), path)",
        "A value from a body that is a map or JSON text, or NULL: body_json(body, '$.user.id')",
    ),
    SqlFunction(
        "severity",
        "number",
        "CASE WHEN number BETWEEN 1 AND 24 THEN "
        "['TRACE','DEBUG','INFO','WARN','ERROR','FATAL'][((number - 1) // 4) + 1] END",
        "The name of a severity: severity(severity_number)",
    ),
    SqlFunction(
        "severity_name",
        "number",
        "CASE WHEN number BETWEEN 1 AND 24 THEN severity(number) || "
        "['','2','3','4'][((number - 1) % 4) + 1] END",
        "The name of a severity with its step: severity_name(severity_number) is INFO, INFO2, …, or NULL",
    ),
    SqlFunction(
        "kind_name",
        "kind",
        "CASE WHEN kind BETWEEN 0 AND 5 THEN "
        "['unspecified','internal','server','client','producer','consumer'][kind + 1] END",
        "The name of a span kind: kind_name(kind) is server, client, …",
    ),
    SqlFunction(
        "status_name",
        "status_code",
        "CASE WHEN status_code BETWEEN 0 AND 2 THEN ['unset','ok','error'][status_code + 1] END",
        "The name of a span status: status_name(status_code) is unset, ok or error",
    ),
    SqlFunction(
        "sketch_quantile",
        "codes, counts, share",
        SKETCH_QUANTILE,
        "A quantile of one sketch, within 1 %: sketch_quantile(duration_codes, duration_counts, 0.99)",
    ),
    SqlFunction(
        "merged_quantile",
        "codes, counts, share",
        MERGED_QUANTILE,
        "Aggregate: a quantile of the sketches of all rows together, within 1 %",
    ),
    SqlFunction(
        "histogram_quantile",
        "bounds, counts, share",
        HISTOGRAM_QUANTILE,
        "A quantile of one histogram, interpolated in a bucket. Bounds are upper ones, the last is infinity",
    ),
    SqlFunction(
        "merged_histogram_quantile",
        "bounds, counts, share",
        MERGED_HISTOGRAM_QUANTILE,
        "Aggregate: a quantile of the histograms of all rows together",
    ),
    SqlFunction(
        "merged_cardinality",
        "registers, ranks",
        MERGED_CARDINALITY,
        "Aggregate: the number of distinct values in all rows, ±2.3 %: merged_cardinality(register, rank)",
    ),
)


@dataclass(frozen=True)
class TableFunction(SqlFunction):
    """A table function that reads a table. It exists where the table does."""

    table: str
    columns: frozenset[str]
    """The columns of the table that it reads."""

    @property
    def sql(self) -> str:
        return f"CREATE MACRO {self.name}({self.arguments}) AS TABLE {self.body}"


TABLE_FUNCTIONS: tuple[TableFunction, ...] = (
    TableFunction(
        metric_steps.NAME,
        metric_steps.ARGUMENTS,
        metric_steps.SQL,
        "Table: a metric by series, in steps from begin_time to end_time, read from rollups: "
        "FROM metric_steps('cpu.time', INTERVAL 1 HOUR, now() - INTERVAL 7 DAY, now())",
        metric_steps.SOURCE,
        frozenset(metric_steps.COLUMNS),
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
