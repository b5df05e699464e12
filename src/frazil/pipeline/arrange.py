"""Rows cut by partition and put in the table's order. Pure Arrow and NumPy; nothing loops over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import TIMESTAMP, TableSpec
from frazil.tables.horizon import Longs, within_horizon

DAY_MICROS = 86_400_000_000
_DAY_BITS = 32
_PIECE_ROWS = 65_536


@dataclass(frozen=True)
class Horizon:
    """How far `time` may be from the received time, and how many partitions rows may be cut into."""

    past_micros: int
    ahead_micros: int
    partitions_max: int


@dataclass(frozen=True)
class Part:
    """The rows of one partition, in order. A table without partitions has neither tenant nor day."""

    tenant: str | None
    day: int | None
    rows: pa.Table


@dataclass(frozen=True)
class Arranged:
    parts: list[Part]
    clamped: int
    """Rows whose `time` was set to the received time."""


def arrange(tables: list[pa.Table], spec: TableSpec, horizon: Horizon) -> Arranged:
    """All rows together, by tenant and day, each part in the order of `spec.sort_by`.

    Takes the tables out of the list, so that they are not held beside their copy.
    """
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    tables.clear()
    if table.num_rows == 0:
        return Arranged([], 0)
    tenants = codes(table["tenant_id"].chunk(0))
    time, clamped = _within(table, tenants, horizon)
    if clamped:
        at = table.column_names.index("time")
        table = table.set_column(
            at, table.schema.field(at), pa.array(time).cast(pa.timestamp("us")).cast(TIMESTAMP)
        )
    pairs, pair_of_row = np.unique(_pairs(tenants, time), return_inverse=True)
    keys = [time if name == "time" else _ranks(table[name].chunk(0)) for name in reversed(spec.sort_by)]
    order = np.lexsort((*keys, pair_of_row))
    if len(order) > 1 and (order[1:] < order[:-1]).any():
        table = table.take(pa.array(order))
    names = table["tenant_id"].chunk(0).dictionary
    bounds = [*np.searchsorted(pair_of_row[order], np.arange(len(pairs))), table.num_rows]
    parts = []
    for number, pair in enumerate(pairs):
        rows = table.slice(bounds[number], bounds[number + 1] - bounds[number])
        tenant = names[int(pair >> _DAY_BITS)].as_py()
        day = int(pair & ((1 << _DAY_BITS) - 1)) - (1 << (_DAY_BITS - 1))
        parts.append(Part(tenant, day, rows if len(pairs) == 1 else compact(rows)))
    return Arranged(parts, clamped)


def _within(table: pa.Table, tenants: Longs, horizon: Horizon) -> tuple[Longs, int]:
    """`time` in microseconds, set to the received time where it is outside the horizon, or one of too many
    days. Measured from the received time, so that landing the same rows again gives the same result.
    """
    time, received = micros(table["time"]), micros(table["received_time"])
    time, outside = within_horizon(
        time, received, past_micros=horizon.past_micros, ahead_micros=horizon.ahead_micros
    )
    pairs, pair_of_row, counts = np.unique(_pairs(tenants, time), return_inverse=True, return_counts=True)
    if len(pairs) > horizon.partitions_max:
        rare = np.ones(len(pairs), bool)
        rare[np.argsort(-counts, kind="stable")[: horizon.partitions_max]] = False
        moved = rare[pair_of_row] & (time // DAY_MICROS != received // DAY_MICROS)
        time = np.where(moved, received, time)
        outside = outside | moved
    return time, int(outside.sum())


def _pairs(tenants: Longs, time: Longs) -> Longs:
    """Tenant and day as one number, in the order of both."""
    return (tenants << _DAY_BITS) | (time // DAY_MICROS + (1 << (_DAY_BITS - 1)))


def micros(column: pa.ChunkedArray) -> Longs:
    found: Longs = column.chunk(0).cast(pa.int64()).to_numpy()
    return found


def codes(array: pa.DictionaryArray) -> Longs:
    """Indices into the dictionary; -1 for NULL."""
    indices = array.indices
    if indices.null_count:
        indices = indices.fill_null(-1)
    found: Longs = indices.to_numpy().astype(np.int64)
    return found


def _ranks(array: pa.Array) -> Longs:
    """For each value its place in the order of values; NULL first."""
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    places = np.empty(len(array.dictionary) + 1, np.int64)
    places[pc.sort_indices(array.dictionary).to_numpy()] = np.arange(len(array.dictionary))
    places[-1] = -1
    ranks: Longs = places[codes(array)]
    return ranks


def compact(table: pa.Table) -> pa.Table:
    """Dictionaries with just the values that occur: a file would otherwise carry those of its neighbours."""
    columns = [
        pa.chunked_array([_compact(chunk) for chunk in column.chunks], column.type)
        for column in table.columns
    ]
    return pa.table(columns, schema=table.schema)


def _compact(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
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


def _used(array: pa.DictionaryArray) -> npt.NDArray[np.bool_]:
    """Which values of the dictionary occur. A piece at a time: NumPy makes wide numbers of those it finds
    places by, and maps have many.
    """
    count = len(array.dictionary)
    used = np.zeros(count + 1, bool)
    indices = array.indices.fill_null(count) if array.null_count else array.indices
    places = indices.to_numpy()
    for first in range(0, len(places), _PIECE_ROWS):
        used[places[first : first + _PIECE_ROWS]] = True
    return used[:-1]
