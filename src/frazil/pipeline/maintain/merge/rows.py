"""Rows from many tables put together, in order, for one row group."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.pipeline.arrange import compact
from frazil.pipeline.maintain.merge.order import Longs


def in_order(tables: list[pa.Table], key: Longs) -> pa.Table:
    """All rows in the order of `key`, equal ones as they come. Dictionaries hold just what occurs.

    Empties the list, and goes column by column, so that rows are not held beside their copy.
    """
    schema = tables[0].schema
    columns = [[table.column(number) for table in tables] for number in range(len(schema))]
    tables.clear()
    order = np.argsort(key, kind="stable")
    places = None
    if len(order) > 1 and (order[1:] < order[:-1]).any():
        places = pa.array(order)
    made = []
    for number, field in enumerate(schema):
        parts, columns[number] = columns[number], []
        column = pa.chunked_array([chunk for part in parts for chunk in part.chunks], field.type)
        del parts
        made.append(_column(column, places))
    return pa.table(made, schema=schema)


def _column(column: pa.ChunkedArray, places: pa.Array | None) -> pa.ChunkedArray | pa.Array:
    if column.null_count == len(column):  # many are: attributes that nobody sends
        return pa.nulls(len(column), column.type)
    table = pa.table({"": column}).unify_dictionaries().combine_chunks()
    if places is not None and not _is_constant(table.column(0)):
        table = table.take(places)
    return compact(table).column(0)


def _is_constant(column: pa.ChunkedArray) -> bool:
    return (
        pa.types.is_dictionary(column.type)
        and column.null_count == 0
        and column.num_chunks == 1
        and len(column.chunk(0).dictionary) == 1
    )


def weight(table: pa.Table) -> int:
    """About the memory that rows take. Dictionaries are not counted: slices share them."""
    return sum(
        4 * table.num_rows if pa.types.is_dictionary(column.type) else column.nbytes
        for column in table.columns
    )
