"""Merges rows of a derived table that have the same key. Pure Arrow and NumPy, without loops over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import RESOLUTION, TIME, TIMESTAMP, Column, TableSpec
from frazil.tables.derived.rules import LIST_VALUES_MAX

Longs = npt.NDArray[np.int64]
Values = npt.NDArray[np.generic]
Mask = npt.NDArray[np.bool_]
_RADIX_MAX = 2**62


def completed(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Returns the rows with all columns of the spec, in its order and types. Missing columns are NULL."""
    columns = []
    for column in spec.columns:
        if column.name in rows.column_names:
            found = rows.column(column.name)
            columns.append(found if found.type == column.type else found.cast(column.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, column.type)]))
    return pa.table(columns, schema=pa.schema([(each.name, each.type) for each in spec.columns]))


def rolled_up(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Returns the merged rows. If the table has resolutions, `rows` are at the time of their source rows, and the
    result has rows of all resolutions: those of a coarser one come from those of the finer one.
    """
    assert spec.derived is not None  # noqa: S101
    if not spec.derived.resolutions:
        return combine(rows, spec)
    parts: list[pa.Table] = []
    for seconds in sorted(spec.derived.resolutions):
        rows = combine(at_resolution(rows, seconds), spec)
        parts.append(rows)
    return pa.concat_tables(parts)


def at_resolution(rows: pa.Table, seconds: int) -> pa.Table:
    """Returns the rows with `time` at the start of its bucket. Buckets of a day start at midnight UTC."""
    micros = rows.column(TIME).cast(pa.int64()).to_numpy()
    step = seconds * 1_000_000
    times = pa.array(micros - micros % step).cast(pa.timestamp("us")).cast(TIMESTAMP)
    resolution = pa.repeat(pa.scalar(seconds, pa.int32()), rows.num_rows)
    made = {TIME: times, RESOLUTION: resolution}
    names = [*(name for name in rows.column_names if name not in made), *made]
    return pa.table([made[name] if name in made else rows.column(name) for name in names], names)


def combine(rows: pa.Table, spec: TableSpec) -> pa.Table:
    """Returns one row for each key, with all columns of the spec, in no particular order."""
    rows = completed(rows, spec).combine_chunks()
    if rows.num_rows == 0:
        return rows
    groups = Groups.of([_array(rows, name) for name in spec.key], rows.num_rows)
    if groups.count == rows.num_rows and not any(_has_lists(column) for column in spec.columns):
        return rows
    lists = {
        column.merge.by: _merged_counts(groups, _array(rows, column.merge.by), _array(rows, column.name))
        for column in spec.columns
        if column.merge is not None and column.merge.rule == "counts"
    }
    arrays = [_merged(groups, rows, column, lists) for column in spec.columns]
    return pa.table(arrays, schema=rows.schema)


def _has_lists(column: Column) -> bool:
    return column.merge is not None and column.merge.rule in ("counts", "union")


@dataclass(frozen=True)
class Groups:
    """Rows by key. `order` sorts the rows by group, `starts` has the first place of each group in that order, and
    `of_row` has the group of each row.
    """

    of_row: Longs
    order: Longs
    starts: Longs

    @property
    def count(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, columns: Sequence[pa.Array], rows: int) -> Groups:
        groups = np.zeros(rows, np.int64)
        size = 1
        for column in columns:
            codes, values = _codes(column)
            if size * values >= _RADIX_MAX:
                groups, size = _dense(groups)
            groups = groups * values + codes
            size *= values
        groups, count = _dense(groups)
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(count))
        return cls(groups, order, starts)

    @property
    def first(self) -> Longs:
        """The first row of each group."""
        found: Longs = self.order[self.starts]
        return found

    def reduce(self, function: np.ufunc, values: Values) -> Values:
        found: Values = function.reduceat(values[self.order], self.starts)
        return found

    def any(self, mask: Mask) -> Mask:
        return self.reduce(np.logical_or, mask).astype(np.bool_)


def _dense(groups: Longs) -> tuple[Longs, int]:
    encoded = pa.array(groups).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _codes(column: pa.Array) -> tuple[Longs, int]:
    """Returns a code for each value, and the number of codes. NULL has a code of its own."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    size = len(encoded.dictionary)
    indices = encoded.indices.fill_null(size) if encoded.indices.null_count else encoded.indices
    return indices.to_numpy().astype(np.int64), size + 1


def _array(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _merged(
    groups: Groups, rows: pa.Table, column: Column, lists: Mapping[str, tuple[pa.Array, pa.Array]]
) -> pa.Array:
    assert column.merge is not None  # noqa: S101
    values, rule = _array(rows, column.name), column.merge.rule
    match rule:
        case "key":
            return values.take(pa.array(groups.first))
        case "any":
            return _chosen(groups, values, _present(values))
        case "sum" | "min" | "max":
            return _reduced(groups, values, rule)
        case "first" | "last":
            return _at_extreme(groups, values, _array(rows, column.merge.by), rule)
        case "counted":
            return lists[column.name][0]
        case "counts":
            return lists[column.merge.by][1]
        case "union":
            return _united(groups, values)


def _present(values: pa.Array) -> Mask:
    found: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return found


def _chosen(groups: Groups, values: pa.Array, mask: Mask) -> pa.Array:
    """Returns for each group the value of its first row in the mask, or NULL."""
    places = np.where(mask, np.arange(len(mask)), len(mask))
    found = groups.reduce(np.minimum, places)
    return values.take(pa.array(found, mask=found == len(mask)))


def _reduced(groups: Groups, values: pa.Array, rule: str) -> pa.Array:
    present = _present(values)
    numbers, back = _numbers(values)
    function, neutral = {
        "sum": (np.add, 0),
        "min": (np.fmin if numbers.dtype.kind == "f" else np.minimum, _limit(numbers, np.inf)),
        "max": (np.fmax if numbers.dtype.kind == "f" else np.maximum, _limit(numbers, -np.inf)),
    }[rule]
    if not present.all():
        numbers = np.where(present, numbers, neutral)
        return back(groups.reduce(function, numbers), ~groups.any(present))
    return back(groups.reduce(function, numbers), None)


def _limit(numbers: Values, infinity: float) -> float | int:
    if numbers.dtype.kind == "f":
        return infinity
    limits = np.iinfo(numbers.dtype)  # type: ignore[type-var]
    return int(limits.max if infinity > 0 else limits.min)


def _numbers(values: pa.Array) -> tuple[Values, Callable[[Values, Mask | None], pa.Array]]:
    """Returns the values as NumPy numbers, and the way back to the column's type."""
    type_ = values.type
    if pa.types.is_timestamp(type_):
        values = values.cast(pa.int64())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(type_) else 0)
    numbers = values.to_numpy(zero_copy_only=False)

    def back(found: Values, nulls: Mask | None) -> pa.Array:
        array = pa.array(found, mask=nulls)
        if pa.types.is_timestamp(type_):
            return array.cast(pa.int64()).cast(pa.timestamp("us")).cast(type_)
        return array.cast(type_)

    return numbers, back


def _at_extreme(groups: Groups, values: pa.Array, by: pa.Array, rule: str) -> pa.Array:
    """Returns the value of the row in which `by` is smallest or largest, of the rows in which both have a value."""
    usable = _present(values) & _present(by)
    times, _ = _numbers(by)
    is_first = rule == "first"
    function, limit = (np.minimum, np.inf) if is_first else (np.maximum, -np.inf)
    times = np.where(usable, times, _limit(times, limit))
    extreme = groups.reduce(function, times)
    tied = usable & (times == extreme[groups.of_row])
    if pa.types.is_nested(values.type) or int(tied.sum()) == int(groups.any(usable).sum()):
        return _chosen(groups, values, tied)
    ranks = pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    best = groups.reduce(function, np.where(tied, ranks, _limit(ranks, limit)))
    return _chosen(groups, values, tied & (ranks == best[groups.of_row]))


def _merged_counts(groups: Groups, counted: pa.Array, counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the distinct values of each group, sorted, and the sum of the counts of each value."""
    owners, values, numbers = _flat(groups, counted, counts)
    if pa.types.is_floating(values.type):
        ranks, distinct = _float_ranks(values)
    else:
        ranks, distinct = values.to_numpy().astype(np.int64), None
    order = np.lexsort((ranks, owners))
    owners, ranks, numbers = owners[order], ranks[order], numbers[order]
    is_new = np.ones(len(order), np.bool_)
    is_new[1:] = (owners[1:] != owners[:-1]) | (ranks[1:] != ranks[:-1])
    starts = np.flatnonzero(is_new)
    sums = np.add.reduceat(numbers, starts) if len(starts) else numbers
    owners, ranks = owners[starts], ranks[starts]
    owners, ranks, sums = _bounded(owners, ranks, sums)
    offsets = np.searchsorted(owners, np.arange(groups.count + 1)).astype(np.int32)
    found = pa.array(ranks if distinct is None else distinct[ranks]).cast(counted.type.value_type)
    nulls = ~groups.any(_present(counted))
    return _lists(offsets, found, counted.type, nulls), _lists(offsets, pa.array(sums), counts.type, nulls)


def _flat(groups: Groups, counted: pa.Array, counts: pa.Array) -> tuple[Longs, pa.Array, Longs]:
    """Returns the group, the value and the count of each element of the lists."""
    lengths = pc.list_value_length(counted).fill_null(0).to_numpy().astype(np.int64)
    other = pc.list_value_length(counts).fill_null(0).to_numpy()
    if (lengths != other).any():
        raise ValueError("a row has lists of values and counts of different lengths")
    return np.repeat(groups.of_row, lengths), counted.flatten(), counts.flatten().to_numpy().astype(np.int64)


def _float_ranks(values: pa.Array) -> tuple[Longs, Values]:
    distinct, ranks = np.unique(values.to_numpy(), return_inverse=True)
    return ranks.astype(np.int64), distinct


def _bounded(owners: Longs, ranks: Longs, sums: Longs) -> tuple[Longs, Longs, Longs]:
    """Adds the counts of the smallest values of too long lists to the next larger value."""
    lengths = np.bincount(owners) if len(owners) else np.zeros(0, np.int64)
    if not len(lengths) or lengths.max() <= LIST_VALUES_MAX:
        return owners, ranks, sums
    from_end = np.cumsum(lengths)[owners] - np.arange(len(owners))
    kept = from_end <= LIST_VALUES_MAX
    group_of_kept: Longs = (
        np.cumsum(kept) - kept
    )  # of a dropped element: the place of the first kept one after it
    totals = np.zeros(int(kept.sum()), np.int64)
    np.add.at(totals, group_of_kept, sums)
    return owners[kept], ranks[kept], totals


def _united(groups: Groups, values: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    owners = np.repeat(groups.of_row, lengths)
    encoded = values.flatten().dictionary_encode()
    places = np.empty(max(1, len(encoded.dictionary)), np.int64)
    sorting = pc.sort_indices(encoded.dictionary).to_numpy()
    places[sorting] = np.arange(len(sorting))
    ranks = places[encoded.indices.to_numpy()] if len(encoded) else np.zeros(0, np.int64)
    pairs = np.unique(owners * (len(sorting) + 1) + ranks)
    owners, ranks = pairs // (len(sorting) + 1), pairs % (len(sorting) + 1)
    first = np.searchsorted(owners, owners)
    kept = np.arange(len(owners)) - first < LIST_VALUES_MAX
    owners, ranks = owners[kept], ranks[kept]
    offsets = np.searchsorted(owners, np.arange(groups.count + 1)).astype(np.int32)
    found = encoded.dictionary.take(pa.array(sorting[ranks] if len(ranks) else ranks))
    return _lists(offsets, found, values.type, ~groups.any(_present(values)))


def _lists(offsets: npt.NDArray[np.int32], values: pa.Array, type_: pa.DataType, nulls: Mask) -> pa.Array:
    mask = pa.array(nulls) if nulls.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=type_, mask=mask)
