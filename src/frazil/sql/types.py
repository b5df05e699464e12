"""DuckDB's forms of types, names and constants."""

from __future__ import annotations

import pyarrow as pa


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
