"""SQL functions that every question can use, as macros of DuckDB."""

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
        "Whether all the words occur in the text, in any order and case: search(body, 'connection refused')",
    ),
    SqlFunction(
        "attr_int",
        "attributes, key",
        "TRY_CAST(attributes[key] AS BIGINT)",
        "An attribute as an integer; NULL if it is none: attr_int(attributes, 'http.response.status_code')",
    ),
    SqlFunction(
        "attr_double",
        "attributes, key",
        "TRY_CAST(attributes[key] AS DOUBLE)",
        "An attribute as a number; NULL if it is none",
    ),
    SqlFunction(
        "attr_bool",
        "attributes, key",
        "TRY_CAST(attributes[key] AS BOOLEAN)",
        "An attribute as TRUE or FALSE; NULL if it is neither",
    ),
    SqlFunction(
        "attr_type",
        "types, key",
        "coalesce(json_extract_string(types, '$.\"' || key || '\"'), 'string')",
        "What an attribute was sent as: attr_type(attribute_types, 'retries') is int, double, bool, …",
    ),
    SqlFunction(
        "attr_json",
        "attributes, key",
        "TRY_CAST(attributes[key] AS JSON)",
        "An attribute that is a list or a map, as the JSON of OTLP",
    ),
    SqlFunction(
        "body_json",
        "body, path",
        "json_extract_string(TRY_CAST(body AS JSON), path)",
        "A part of a body that is JSON text: body_json(body, '$.user.id'); NULL if it is no JSON",
    ),
    SqlFunction(
        "severity",
        "number",
        "CASE WHEN number BETWEEN 1 AND 24 THEN "
        "['TRACE','DEBUG','INFO','WARN','ERROR','FATAL'][((number - 1) // 4) + 1] END",
        "The name of a severity: severity(severity_number)",
    ),
)
