"""The rows of a segment with repeated text still as codes, a row group at a time.

Reading them as plain text would hold every repetition, and sorting would move it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.errors import SegmentCorrupt
from frazil.tables.encoding import leaves
from frazil.wal.names import SegmentName
from frazil.wal.segment import Facts, open_segment


def read_row_groups(name: SegmentName, data: bytes, schema: pa.Schema) -> tuple[Facts, Iterator[pa.Table]]:
    """Checks the whole file first. Columns that it does not have are left out; others than `schema`'s are
    dropped.
    """
    facts, file = open_segment(name, data)
    return facts, _row_groups(facts, data, file.metadata, schema)


def _row_groups(facts: Facts, data: bytes, footer: pq.FileMetaData, schema: pa.Schema) -> Iterator[pa.Table]:
    path = facts.name.path
    rows = 0
    try:
        there = {footer.schema.column(number).path for number in range(footer.num_columns)}
        coded = [leaf for leaf, type_ in leaves(schema) if pa.types.is_dictionary(type_) and leaf in there]
        file = pq.ParquetFile(pa.BufferReader(data), metadata=footer, read_dictionary=coded)
        columns = set(file.schema_arrow.names)
        names = [field.name for field in schema if field.name in columns]
        for number in range(file.num_row_groups):
            try:
                table = file.read_row_group(number, columns=names, use_threads=False)
            except pa.ArrowNotImplementedError:  # too many distinct values: the dictionary ends in mid-column
                plain = pq.ParquetFile(pa.BufferReader(data))
                table = plain.read_row_group(number, columns=names, use_threads=False)
            rows += table.num_rows
            yield coded_table(table, schema)
    except MemoryError:
        raise  # which Arrow's own is too, and says nothing of the segment
    except (pa.ArrowException, OSError) as error:
        raise SegmentCorrupt(path, str(error)) from None
    if rows != facts.rows:
        raise SegmentCorrupt(path, f"{rows} rows where its footer says {facts.rows}")


def coded_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The same rows in the types of `schema`, for the columns that the table has."""
    columns, fields = [], []
    for name, column in zip(table.column_names, table.columns, strict=True):
        field = schema.field(name)
        if column.type != field.type:
            try:
                column = pa.chunked_array([_coded(chunk, field.type) for chunk in column.chunks], field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # of another type by an older configuration: as if it were not there
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
