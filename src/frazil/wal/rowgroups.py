"""Reads a segment's row groups with repeated text dictionary-encoded, and fills in promoted columns.

Decoded text would hold every repetition in memory, and sorting would move it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import SegmentCorrupt
from frazil.tables import Promoted
from frazil.tables.encoding import leaves
from frazil.tables.promoted import ACCEPTED_KINDS
from frazil.wal.names import SegmentName
from frazil.wal.segment import Facts, open_segment

_SOURCES = {"resource": "resource_attributes", "record": "attributes"}
_TYPES = {"resource": "resource_attribute_types", "record": "attribute_types"}


def read_row_groups(name: SegmentName, data: bytes, schema: pa.Schema) -> tuple[Facts, Iterator[pa.Table]]:
    """Verifies the whole file first. Reads the columns of `schema` that the file has."""
    facts, file = open_segment(name, data)
    return facts, _row_groups(facts, data, file.metadata, schema)


def _row_groups(facts: Facts, data: bytes, footer: pq.FileMetaData, schema: pa.Schema) -> Iterator[pa.Table]:
    path = facts.name.path
    rows = 0
    try:
        present = {footer.schema.column(number).path for number in range(footer.num_columns)}
        coded = [leaf for leaf, type_ in leaves(schema) if pa.types.is_dictionary(type_) and leaf in present]
        file = pq.ParquetFile(pa.BufferReader(data), metadata=footer, read_dictionary=coded)
        columns = set(file.schema_arrow.names)
        names = [field.name for field in schema if field.name in columns]
        for number in range(file.num_row_groups):
            try:
                table = file.read_row_group(number, columns=names, use_threads=False)
            except pa.ArrowNotImplementedError:  # too many distinct values: not all pages are encoded
                plain = pq.ParquetFile(pa.BufferReader(data))
                table = plain.read_row_group(number, columns=names, use_threads=False)
            rows += table.num_rows
            yield coded_table(table, schema)
    except MemoryError:
        raise  # ArrowMemoryError is one too, and does not mean that the segment is corrupt
    except (pa.ArrowException, OSError) as error:
        raise SegmentCorrupt(path, str(error)) from None
    if rows != facts.rows:
        raise SegmentCorrupt(path, f"{rows} rows, but the footer says {facts.rows}")


def coded_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Converts the table's columns to the types of `schema`."""
    columns, fields = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        field = schema.field(name)
        if column.type != field.type:
            try:
                column = pa.chunked_array([_coded(chunk, field.type) for chunk in column.chunks], field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # written with another type by an older configuration: treated as missing
        columns.append(column)
        fields.append(field)
    return pa.table(columns, schema=pa.schema(fields))


def _coded(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pa.types.is_dictionary(type_) and not pa.types.is_dictionary(array.type):
        return array.cast(type_.value_type).dictionary_encode()
    if pa.types.is_map(type_) and pa.types.is_map(array.type):
        return pa.MapArray.from_arrays(
            array.offsets,
            _coded(array.keys, type_.key_type),
            _coded(array.items, type_.item_type),
            type_,
            mask=array.is_null() if array.null_count else None,
        )
    return array.cast(type_)


def fill_columns(
    table: pa.Table, schema: pa.Schema, promoted: Mapping[str, Promoted], unfilled: Collection[str] = ()
) -> pa.Table:
    """Adds the columns of `schema` that the table lacks: copies of attributes for promoted columns, else
    NULL.

    Needed for segments written before a column was promoted, or by a version that filled the column from
    other attributes. `promoted` is by column name. Columns in `unfilled` are replaced.
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
    """Returns for each row the first of the attributes that has a value of the column's type."""
    maps = _plain(table[_SOURCES[promoted.source]].combine_chunks())
    found = {name: pc.map_lookup(maps, name, "first") for name in promoted.attributes}
    if promoted.type != "string":
        types = table[_TYPES[promoted.source]].combine_chunks()
        if not pa.types.is_dictionary(types.type):
            types = types.dictionary_encode()
        kinds = [json.loads(text) if text else {} for text in types.dictionary.to_pylist()] + [{}]
        codes = types.indices.fill_null(len(kinds) - 1)
        for name, values in found.items():
            fits = pa.array([kind.get(name) in ACCEPTED_KINDS[promoted.type] for kind in kinds]).take(codes)
            found[name] = pc.if_else(fits, values, pa.scalar(None, pa.string()))
    return pc.coalesce(*found.values()).cast(promoted.arrow_type)


def _plain(maps: pa.MapArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(maps.offsets, maps.keys.cast(pa.string()), maps.items.cast(pa.string()))
