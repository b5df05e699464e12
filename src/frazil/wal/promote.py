"""Promoted columns of segments that were written before the configuration promoted them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables import Promoted
from frazil.wal.rowgroups import coded_table

_SOURCES = {"resource": "resource_attributes", "record": "attributes"}
_TYPES = {"resource": "resource_attribute_types", "record": "attribute_types"}
# As at the receiver: see Attributes.promoted. Text takes values of any type.
FITTING = {"int": ("int",), "double": ("int", "double"), "bool": ("bool",)}


def fill_columns(table: pa.Table, schema: pa.Schema, promoted: Mapping[str, Promoted]) -> pa.Table:
    """Adds the columns of `schema` that the table does not have: from its maps, or NULL. By column name,
    `promoted` says which attribute it is a copy of.
    """
    missing = set(schema.names) - set(table.column_names)
    for field in [schema.field(name) for name in schema.names if name in missing]:
        plain = pa.nulls(table.num_rows, field.type)
        if field.name in promoted:
            plain = _from_map(table, promoted[field.name])
        column = coded_table(pa.table({field.name: plain}), pa.schema([field])).column(0)
        table = table.append_column(field, column)
    return table


def _from_map(table: pa.Table, promoted: Promoted) -> pa.Array:
    """The attribute's values, where they are of the column's type."""
    maps = table[_SOURCES[promoted.source]].combine_chunks()
    values = pc.map_lookup(_plain(maps), promoted.attribute, "first")
    if promoted.type == "string":
        return values
    types = table[_TYPES[promoted.source]].combine_chunks()
    if not pa.types.is_dictionary(types.type):
        types = types.dictionary_encode()
    fits = pa.array(
        [
            bool(text) and json.loads(text).get(promoted.attribute) in FITTING[promoted.type]
            for text in types.dictionary.to_pylist()
        ]
        + [False]
    )
    codes = types.indices.fill_null(len(types.dictionary))
    values = pc.if_else(fits.take(codes), values, pa.scalar(None, pa.string()))
    return values.cast(promoted.arrow_type)


def _plain(maps: pa.MapArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(maps.offsets, maps.keys.cast(pa.string()), maps.items.cast(pa.string()))
