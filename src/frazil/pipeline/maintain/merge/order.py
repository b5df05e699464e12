"""The order of rows from many files, each of them in order already, and rows put in that order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.pipeline.partition_sort import compact_dictionaries

Longs = npt.NDArray[np.int64]

_SAMPLES_PER_STRIDE = 64
_KEY_MAX = 2**63 - 1


def row_keys(tables: Sequence[pa.Table], sort_by: Sequence[str]) -> list[Longs]:
    """For each table a number for each of its rows: rows of all tables are in order of `sort_by`, NULL first,
    if these are.
    """
    columns = [_ranks([table[name] for table in tables]) for name in sort_by]
    lowest = [min((int(part.min()) for part in parts if len(part)), default=0) for parts in columns]
    sizes = [
        max((int(part.max()) for part in parts if len(part)), default=0) - low + 1
        for parts, low in zip(columns, lowest, strict=True)
    ]
    product = 1
    for size in sizes:
        product *= size
    if product > _KEY_MAX:
        return _dense(columns)
    keys = []
    for parts in zip(*columns, strict=True):
        key = np.zeros(len(parts[0]), np.int64)
        for part, low, size in zip(parts, lowest, sizes, strict=True):
            key *= size
            key += part
            key -= low
        keys.append(key)
    return keys


def _ranks(parts: Sequence[pa.ChunkedArray]) -> list[Longs]:
    """Numbers in the order of the values, the same for all parts."""
    type_ = parts[0].type
    if pa.types.is_timestamp(type_) or pa.types.is_integer(type_):
        return [_numbers(part) for part in parts]
    coded = [_one(part) for part in parts]
    values = pa.chunked_array([part.dictionary for part in coded]).unique()
    values = values.take(pc.sort_indices(values))
    ranks = []
    for part in coded:
        places = np.empty(len(part.dictionary) + 1, np.int64)
        places[:-1] = pc.index_in(part.dictionary, values).to_numpy(zero_copy_only=False)
        places[-1] = -1
        indices = part.indices.fill_null(-1) if part.indices.null_count else part.indices
        ranks.append(places[indices.to_numpy()])
    return ranks


def _numbers(part: pa.ChunkedArray) -> Longs:
    whole = part.cast(pa.int64())
    if whole.null_count:
        whole = whole.fill_null(-(2**62))
    numbers: Longs = whole.to_numpy()
    return numbers


def _one(part: pa.ChunkedArray) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(part.type):
        part = part.dictionary_encode()
    whole = part.unify_dictionaries().combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def _dense(columns: Sequence[Sequence[Longs]]) -> list[Longs]:
    """Where the numbers are too large to be one: their places in the order of all."""
    lengths = [len(part) for part in columns[0]]
    whole = [np.concatenate(parts) for parts in columns]
    order = np.lexsort(whole[::-1])
    step = np.zeros(len(order), bool)
    for column in whole:
        ordered = column[order]
        step[1:] |= ordered[1:] != ordered[:-1]
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(step)
    return np.split(places, np.cumsum(lengths)[:-1])


def is_sorted(key: Longs) -> bool:
    return bool((key[1:] >= key[:-1]).all())


def cuts(keys: Sequence[Longs], stride_rows: int) -> npt.NDArray[np.int64]:
    """Where to cut the inputs, each of them sorted, so that what is between two cuts of all inputs comes
    after all that is before: one line a cut, with the row of each input. Strides have about `stride_rows`
    rows.

    Cuts are found from a sample: sorting all rows at once would hold them all.
    """
    step = max(1, stride_rows // _SAMPLES_PER_STRIDE)
    owners = np.concatenate([np.full(-(-len(key) // step), number) for number, key in enumerate(keys)])
    places = np.concatenate([np.arange(0, len(key), step) for key in keys])
    weights = np.concatenate([np.minimum(step, len(key) - np.arange(0, len(key), step)) for key in keys])
    sample = np.concatenate([key[::step] for key in keys])
    order = np.lexsort((places, owners, sample))
    before = np.cumsum(weights[order]) - weights[order]
    strides = before // max(1, stride_rows)
    chosen = order[np.flatnonzero(strides[1:] != strides[:-1]) + 1]
    lines = np.empty((len(chosen) + 2, len(keys)), np.int64)
    lines[0] = 0
    lines[-1] = [len(key) for key in keys]
    for number, key in enumerate(keys):
        # Equal rows are in the order of the inputs: those of earlier ones come before the cut.
        found = np.searchsorted(key, sample[chosen], side="left")
        right = np.searchsorted(key, sample[chosen], side="right")
        found = np.where(number < owners[chosen], right, found)
        lines[1:-1, number] = np.where(number == owners[chosen], places[chosen], found)
    return lines


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
    if column.null_count == len(column):  # common: attributes that no client sends
        return pa.nulls(len(column), column.type)
    table = pa.table({"": column}).unify_dictionaries().combine_chunks()
    if places is not None and not _is_constant(table.column(0)):
        table = table.take(places)
    return compact_dictionaries(table).column(0)


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
