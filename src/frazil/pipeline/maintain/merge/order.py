"""Sort keys of rows from many sorted files, and sorting by these keys."""

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
    """Returns a number for each row of each table. Sorting by these numbers sorts the rows of all tables by
    `sort_by`, NULL first.
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
    """Returns a rank for each value, comparable between all parts."""
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
    """Returns the rank of each row among all rows, for keys that do not fit in one number."""
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
    """Returns where to split the sorted inputs, so that all rows before a cut sort before all rows after it:
    one line per cut, with the row of each input. About `stride_rows` rows are between two cuts.

    Cuts are computed from a sample: sorting all keys at once would need too much memory.
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
        # Equal rows keep the order of the inputs: those of earlier inputs are before the cut.
        found = np.searchsorted(key, sample[chosen], side="left")
        right = np.searchsorted(key, sample[chosen], side="right")
        found = np.where(number < owners[chosen], right, found)
        lines[1:-1, number] = np.where(number == owners[chosen], places[chosen], found)
    return lines


def sorted_by_key(tables: list[pa.Table], key: Longs) -> pa.Table:
    """Returns all rows, stably sorted by `key`. Its dictionaries have only values that occur.

    Empties the list and works column by column, so that inputs are freed before their copy is complete.
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
    if column.null_count == len(column):  # common for attributes that no client sends
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


def memory_bytes(table: pa.Table) -> int:
    """Estimates the memory of the rows, without dictionaries, which slices share."""
    return sum(
        4 * table.num_rows if pa.types.is_dictionary(column.type) else column.nbytes
        for column in table.columns
    )
