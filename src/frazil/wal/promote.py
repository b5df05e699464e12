"""Promoted columns of segments that were written before the configuration promoted them, or by a version that
filled them from other attributes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables import Promoted
from frazil.wal.rowgroups import coded_table

_SOURCES = {"resource": "resource_attributes", "record": "attributes"}
_TYPES = {"resource": "resource_attribute_types", "record": "attribute_types"}
# As at the receiver: see Attributes.promoted. Text takes values of any type.
FITTING = {"int": ("int",), "double": ("int", "double"), "bool": ("bool",)}


def fill_columns(
    table: pa.Table, schema: pa.Schema, promoted: Mapping[str, Promoted], unfilled: Collection[str] = ()
) -> pa.Table:
    """Adds the columns of `schema` that the table does not have: from its maps, or NULL. By column name,
    `promoted` says which attributes it is a copy of. Columns in `unfilled` are replaced.
    """
    table = table.drop_columns([name for name in table.column_names if name in unfilled])
    missing = set(schema.names) - set(table.column_names)
    for field in [schema.field(name) for name in schema.names if name in missing]:
        plain = pa.nulls(table.num_rows, field.type)
        if field.name in promoted:
            plain = _from_map(table, promoted[field.name])
        column = coded_table(pa.table({field.name: plain}), pa.schema([field])).column(0)
        table = table.append_column(field, column)
    return table


def _from_map(table: pa.Table, promoted: Promoted) -> pa.Array:
    """For each row, the first of the attributes that has a value of the column's type."""
    maps = _plain(table[_SOURCES[promoted.source]].combine_chunks())
    found = {name: pc.map_lookup(maps, name, "first") for name in promoted.attributes}
    if promoted.type != "string":
        types = table[_TYPES[promoted.source]].combine_chunks()
        if not pa.types.is_dictionary(types.type):
            types = types.dictionary_encode()
        kinds = [json.loads(text) if text else {} for text in types.dictionary.to_pylist()] + [{}]
        codes = types.indices.fill_null(len(kinds) - 1)
        for name, values in found.items():
            fits = pa.array([kind.get(name) in FITTING[promoted.type] for kind in kinds]).take(codes)
            found[name] = pc.if_else(fits, values, pa.scalar(None, pa.string()))
    return pc.coalesce(*found.values()).cast(promoted.arrow_type)


def _plain(maps: pa.MapArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(maps.offsets, maps.keys.cast(pa.string()), maps.items.cast(pa.string()))
