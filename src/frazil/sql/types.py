"""DuckDB's forms of types, names and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from frazil.sql.constants import Kind


def duckdb_type(type_: pa.DataType) -> str:
    if pa.types.is_map(type_):
        return f"MAP({duckdb_type(type_.key_type)}, {duckdb_type(type_.item_type)})"
    if pa.types.is_list(type_):
        return f"{duckdb_type(type_.value_type)}[]"
    if pa.types.is_struct(type_):
        return (
            "STRUCT(" + ", ".join(f"{quoted(field.name)} {duckdb_type(field.type)}" for field in type_) + ")"
        )
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP WITH TIME ZONE"
    return {
        pa.string(): "VARCHAR",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
        pa.binary(): "BLOB",
    }[type_]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: object) -> str:
    """Return a string constant."""
    return "'" + str(value).replace("'", "''") + "'"


def kind_of(type_: pa.DataType) -> Kind | None:
    """Return the kind of a column for constraints; None for types without usable bounds."""
    checks: Sequence[tuple[Callable[[pa.DataType], bool], Kind]] = (
        (pa.types.is_timestamp, "time"),
        (pa.types.is_string, "text"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_floating, "real"),
        (pa.types.is_boolean, "flag"),
    )
    return next((kind for check, kind in checks if check(type_)), None)
