"""Splits rows by partition and sorts them. Pure Arrow and NumPy, without loops over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import RECEIVED, TENANT, TIME, TIMESTAMP, Longs, TableSpec, within_horizon
from frazil.tables.ordering import Key, order_of

DAY_MICROS = 86_400_000_000
_DAY_BITS = 32
_PIECE_ROWS = 65_536


@dataclass(frozen=True)
class Horizon:
    """The largest distance of `time` from the received time."""

    past_micros: int
    ahead_micros: int


@dataclass(frozen=True)
class Part:
    """The sorted rows of one partition. `tenant` and `day` are None if the table is not partitioned by them;
    `tenant` is also None for rows without a tenant.
    """

    tenant: str | None
    day: int | None
    rows: pa.Table


@dataclass(frozen=True)
class PartitionedRows:
    parts: Sequence[Part]
    clamped: int
    """Rows whose `time` was set to the received time."""


def partition_and_sort(
    tables: list[pa.Table], spec: TableSpec, horizon: Horizon | None = None
) -> PartitionedRows:
    """Splits the rows of all tables by the spec's partitions, and sorts each part by `spec.sort_by`. With a
    horizon, sets a `time` outside of it to the received time, which the tables must have.

    Empties the list, so that the inputs are freed before their copy is complete.
    """
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    tables.clear()
    if table.num_rows == 0:
        return PartitionedRows([], 0)
    time, clamped = micros(table[TIME]), 0
    if horizon is not None:
        time, outside = within_horizon(
            time,
            micros(table[RECEIVED]),
            past_micros=horizon.past_micros,
            ahead_micros=horizon.ahead_micros,
        )
        clamped = int(outside.sum())
    if clamped:
        at = table.column_names.index(TIME)
        table = table.set_column(
            at, table.schema.field(at), pa.array(time).cast(pa.timestamp("us")).cast(TIMESTAMP)
        )
    tenants = _coded(table[TENANT].chunk(0))
    pairs, pair_of_row = np.unique(_pairs(codes(tenants), time, spec), return_inverse=True)
    keys = [Key.of(time) if name == TIME else _ranks(table[name].chunk(0)) for name in spec.sort_by]
    order = order_of([Key(pair_of_row, len(pairs)), *keys])
    if len(order) > 1 and (order[1:] < order[:-1]).any():
        table = table.take(pa.array(order))
    bounds = [*np.searchsorted(pair_of_row[order], np.arange(len(pairs))), table.num_rows]
    return PartitionedRows(_Parts(table, pairs, bounds, spec, tenants.dictionary), clamped)


class _Parts(Sequence[Part]):
    """The parts of a sorted table, created on access: memory does not grow with the number of parts."""

    def __init__(
        self, table: pa.Table, pairs: Longs, bounds: Sequence[int], spec: TableSpec, tenants: pa.StringArray
    ) -> None:
        self._table = table
        self._pairs = pairs
        self._bounds = bounds
        self._spec = spec
        self._tenants = tenants

    def __len__(self) -> int:
        return len(self._pairs)

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | Sequence[Part]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        first, end = self._bounds[number], self._bounds[number + 1]
        rows = self._table.slice(first, end - first)
        pair, depth = int(self._pairs[number]), len(self._spec.partition_by)
        code = (pair >> _DAY_BITS) if depth > 0 else -1
        tenant = None if code < 0 else self._tenants[code].as_py()
        day = (pair & ((1 << _DAY_BITS) - 1)) - (1 << (_DAY_BITS - 1)) if depth > 1 else None
        return Part(tenant, day, rows if len(self) == 1 else compact_dictionaries(rows))


def _pairs(tenants: Longs, time: Longs, spec: TableSpec) -> Longs:
    """Returns the partition of each row as one number, ordered by tenant and day."""
    depth = len(spec.partition_by)
    days = time // DAY_MICROS + (1 << (_DAY_BITS - 1)) if depth > 1 else np.zeros_like(time)
    return (tenants << _DAY_BITS) | days if depth > 0 else days


def _coded(array: pa.Array) -> pa.DictionaryArray:
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def micros(column: pa.ChunkedArray) -> Longs:
    found: Longs = column.chunk(0).cast(pa.int64()).to_numpy()
    return found


def codes(array: pa.DictionaryArray) -> Longs:
    """Returns the indices into the dictionary; -1 for NULL."""
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    found: Longs = indices.to_numpy().astype(np.int64)
    return found


def _ranks(array: pa.Array) -> Key:
    """Returns the rank of each value in sort order; NULL first."""
    array = _coded(array)
    count = len(array.dictionary) + 1
    places = np.empty(count, np.int64)
    places[pc.sort_indices(array.dictionary).to_numpy()] = np.arange(1, count)
    places[-1] = 0
    return Key(places[codes(array)], count)


def compact_dictionaries(table: pa.Table) -> pa.Table:
    """Removes unused values from the dictionaries. Otherwise a file would contain values of other files."""
    columns = [
        pa.chunked_array([_compact(chunk) for chunk in column.chunks], column.type)
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)


def _compact(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        if len(array) < len(array.dictionary):
            return _compact_few(array)
        used = _used(array)
        if used.all():
            return array
        places = pa.array((np.cumsum(used) - 1).astype(np.int32))
        values = array.dictionary.take(pa.array(np.flatnonzero(used)))
        return pa.DictionaryArray.from_arrays(places.take(array.indices), values)
    if pa.types.is_map(array.type):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return pa.MapArray.from_arrays(
            pc.subtract(array.offsets, first),
            _compact(array.keys.slice(first, last - first)),
            _compact(array.items.slice(first, last - first)),
            array.type,
            mask=array.is_null() if array.null_count else None,
        )
    return array


def _compact_few(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Compacts like `_compact`, at a cost by rows instead of values: thousands of parts may share one
    dictionary.
    """
    found, places = np.unique(codes(array), return_inverse=True)
    if array.null_count:
        found, places = found[1:], places - 1  # NULL is -1, which comes first
    indices = pa.array(places.astype(np.int32), mask=places < 0 if array.null_count else None)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(pa.array(found)))


def _used(array: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    """Returns which values of the dictionary occur. Works in slices: NumPy widens the indices, and maps have
    many of them.
    """
    count = len(array.dictionary)
    used = np.zeros(count + 1, bool)
    indices = array.indices.fill_null(count) if array.null_count else array.indices
    places = indices.to_numpy()
    for first in range(0, len(places), _PIECE_ROWS):
        used[places[first : first + _PIECE_ROWS]] = True
    return used[:-1]
