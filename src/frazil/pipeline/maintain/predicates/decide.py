"""Decides a condition for whole files from their statistics, without reading them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from frazil.lake.live_files import only_value
from frazil.pipeline.maintain.predicates.parse import DUCKDB_ERRORS, NAMESPACE, Predicate
from frazil.sql.sandbox import Sandbox, Settings
from frazil.sql.types import duckdb_type, quoted
from frazil.tables import TableSpec

_MEMORY_BYTES = 256 << 20

_Values = tuple[int, ...]


def all_match(predicate: Predicate, spec: TableSpec, files: Sequence[DataFile], schema: Schema) -> list[bool]:
    """Returns for each file whether its statistics show that all of its rows match: each column of the
    condition is an integer, and has the same value in all rows. The condition depends on one row only, so it
    is evaluated once for these values. If that fails, the files must be searched.
    """
    known = [_values(predicate, spec, file, schema) for file in files]
    matching = _matching(predicate, spec, {values for values in known if values is not None})
    return [values in matching for values in known]


def _values(predicate: Predicate, spec: TableSpec, file: DataFile, schema: Schema) -> _Values | None:
    ids = {field.name: field.field_id for field in schema.fields}
    promoted = {item.column for item in spec.promoted}  # the attribute map may have other values
    found = [
        only_value(file, ids.get(name))
        for name in predicate.columns
        if pa.types.is_integer(spec.column(name).type) and name not in promoted
    ]
    values = tuple(value for value in found if value is not None)
    return values if predicate.columns and len(values) == len(predicate.columns) else None


def _matching(predicate: Predicate, spec: TableSpec, candidates: Iterable[_Values]) -> set[_Values]:
    candidates = list(candidates)
    if not candidates:
        return set()
    with tempfile.TemporaryDirectory(prefix="frazil-predicate-") as folder:
        sandbox = Sandbox(Settings(1, _MEMORY_BYTES, _MEMORY_BYTES, folder, NAMESPACE))
        try:
            return {values for values in candidates if _is_true(sandbox, predicate, spec, values)}
        finally:
            sandbox.close()


def _is_true(sandbox: Sandbox, predicate: Predicate, spec: TableSpec, values: _Values) -> bool:
    row = ", ".join(
        f"{value}::{duckdb_type(spec.column(name).type)} AS {quoted(name)}"
        for name, value in zip(predicate.columns, values, strict=True)
    )
    table = quoted(spec.name)
    sql = f"WITH {table} AS (SELECT {row}) SELECT 1 FROM {table} WHERE {predicate.where}"  # noqa: S608
    try:
        return bool(sandbox.connection.execute(sql).fetchall())
    except DUCKDB_ERRORS:
        return False
