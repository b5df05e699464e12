"""Merges rows of a derived table that have the same key. Pure Arrow and NumPy, without loops over rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import RESOLUTION, TIME, TIMESTAMP, Column, TableSpec
from frazil.tables.derived.rules import LIST_VALUES_MAX, Merge
from frazil.tables.encoding import CODED
from frazil.tables.ordering import Key, stable_order

Longs = npt.NDArray[np.int64]
Values = npt.NDArray[np.generic]
Mask = npt.NDArray[np.bool_]
_RADIX_MAX = 2**62
_DAY_MICROS = 86_400_000_000


def completed(rows: pa.Table, spec: TableSpec, *, coded: bool = False) -> pa.Table:
    """Returns the rows with all columns of the spec, in its order and types. Missing columns are NULL. `coded`: text that
    repeats is dictionary-encoded.
    """
    schema = pa.schema([(each.name, _type_of(each, coded)) for each in spec.columns])
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        found = rows.column(field.name)
        if found.type != field.type:
            is_encoded = pa.types.is_dictionary(field.type)
            found = found.dictionary_encode() if is_encoded else found.cast(field.type)
        columns.append(found)
    return pa.table(columns, schema=schema)


def _type_of(column: Column, coded: bool) -> pa.DataType:
    return CODED if coded and column.coded and pa.types.is_string(column.type) else column.type


def rolled_up(rows: pa.Table, spec: TableSpec, *, coded: bool = False) -> pa.Table:
    """Returns the merged rows. If the table has resolutions, `rows` are at the time of their source rows, and the
    result has rows of all resolutions: those of a coarser one come from those of the finer one. Pending rows stay as
    they are. `coded`: text that repeats is dictionary-encoded.
    """
    assert spec.derived is not None  # noqa: S101
    if not spec.derived.resolutions:
        return combine(rows, spec, within_day=True, coded=coded)
    parts: list[pa.Table] = []
    if RESOLUTION in rows.column_names:
        has_resolution = pc.is_valid(rows.column(RESOLUTION))
        parts.append(_combined(rows.filter(has_resolution), spec))
        rows = _without_empty_columns(rows.filter(pc.invert(has_resolution)))
    for seconds in sorted(spec.derived.resolutions):
        rows = _combined(at_resolution(rows, seconds), spec)
        parts.append(rows)
    return pa.concat_tables([completed(part, spec, coded=coded) for part in parts])


def _without_empty_columns(rows: pa.Table) -> pa.Table:
    kept = [name for name in rows.column_names if rows.column(name).null_count < rows.num_rows]
    return rows.select(kept) if rows.num_rows else rows


def at_resolution(rows: pa.Table, seconds: int) -> pa.Table:
    """Returns the rows with `time` at the start of its bucket. Buckets of a day start at midnight UTC."""
    micros = rows.column(TIME).cast(pa.int64()).to_numpy()
    step = seconds * 1_000_000
    times = pa.array(micros - micros % step).cast(pa.timestamp("us")).cast(TIMESTAMP)
    resolution = pa.repeat(pa.scalar(seconds, pa.int32()), rows.num_rows)
    made = {TIME: times, RESOLUTION: resolution}
    names = [*(name for name in rows.column_names if name not in made), *made]
    return pa.table([made[name] if name in made else rows.column(name) for name in names], names)


def combine(rows: pa.Table, spec: TableSpec, *, within_day: bool = False, coded: bool = False) -> pa.Table:
    """Returns one row for each key, with all columns of the spec, in no particular order. `within_day`: rows of
    different days stay apart also if `time` is not in the key, so that a day can be derived again alone. `coded`: text
    that repeats is dictionary-encoded.
    """
    return completed(_combined(rows, spec, within_day=within_day), spec, coded=coded)


def _combined(rows: pa.Table, spec: TableSpec, *, within_day: bool = False) -> pa.Table:
    """Returns one row for each key, with those columns of the spec that `rows` has. Text may stay
    dictionary-encoded. Measured: decoding it before metric points are rolled up costs 15 % more CPU.
    """
    columns = [column for column in spec.columns if column.name in rows.column_names]
    arrays = {column.name: _array(rows, column) for column in columns}
    if rows.num_rows:
        keys = [arrays[column.name] for column in columns if _rule(column).rule == "key"]
        if within_day and TIME not in spec.key:
            keys.append(pc.divide(arrays[TIME].cast(pa.int64()), _DAY_MICROS))
        groups = Groups.of(keys, rows.num_rows)
        if groups.count < rows.num_rows or not all(_is_merged(column, arrays) for column in columns):
            merging = _Merging(groups, columns, arrays)
            arrays = {column.name: merging.merged(column) for column in columns}
    return pa.table(list(arrays.values()), list(arrays))


def _rule(column: Column) -> Merge:
    assert column.merge is not None  # noqa: S101
    return column.merge


def _array(rows: pa.Table, column: Column) -> pa.Array:
    found = rows.column(column.name)
    if found.type != column.type and not _is_cheap_to_take(found.type):
        found = found.cast(column.type)
    return whole(found)


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Returns the column as one array; without a copy if it has one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_cheap_to_take(type_: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(type_) or pa.types.is_map(type_))


def _is_merged(column: Column, arrays: dict[str, pa.Array]) -> bool:
    """Returns whether merging would not change the values of rows that have different keys."""
    merge, values = _rule(column), arrays[column.name]
    match merge.rule:
        case "first" | "last":
            by = arrays.get(merge.by)
            return by is not None and not (_present(values) & ~_present(by)).any()
        case "counted":
            return _is_ascending(values)
        case "union":
            return False
    return True


def _is_ascending(lists: pa.Array) -> bool:
    """Returns whether no list is too long, and each is strictly ascending."""
    lengths = pc.list_value_length(lists).drop_null().to_numpy()
    if not len(lengths):
        return True
    values = lists.flatten().to_numpy(zero_copy_only=False)
    is_first = np.zeros(len(values) + 1, np.bool_)
    is_first[np.cumsum(lengths) - lengths] = True
    is_ascending = is_first[1:-1] | (values[1:] > values[:-1])
    return bool(lengths.max() <= LIST_VALUES_MAX) and bool(is_ascending.all())


@dataclass(frozen=True)
class Groups:
    """Rows by key. `order` sorts the rows by group, `starts` has the first place of each group in that order, and
    `of_row` has the group of each row. Groups are numbered in order of their first rows.
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
            if values == 1:
                continue
            if size * values >= _RADIX_MAX:
                groups, size = _dense(groups)
            groups = groups * values + codes
            size *= values
        groups, count = _dense(groups)
        order = stable_order(Key(groups, count))
        lengths = np.bincount(groups, minlength=count)
        return cls(groups, order, np.cumsum(lengths) - lengths)

    @cached_property
    def is_sorted(self) -> bool:
        return bool((self.of_row[1:] >= self.of_row[:-1]).all())

    @cached_property
    def first(self) -> pa.Array:
        """The first row of each group."""
        return pa.array(self.order[self.starts])

    def reduce(self, function: np.ufunc, values: Values) -> Values:
        found: Values = function.reduceat(values if self.is_sorted else values[self.order], self.starts)
        return found

    def any(self, mask: Mask) -> Mask:
        found = np.zeros(self.count, np.bool_)
        found[self.of_row[mask]] = True
        return found


def _dense(groups: Longs) -> tuple[Longs, int]:
    encoded = pa.array(groups).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _codes(column: pa.Array) -> tuple[Longs, int]:
    """Returns a code for each value, and a number larger than all codes. NULL has a code of its own."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    size = len(encoded.dictionary)
    codes = encoded.indices
    if codes.null_count:
        codes, size = codes.fill_null(size), size + 1
    codes = codes.to_numpy().astype(np.int64)
    if pa.types.is_dictionary(column.type):
        codes = _distinct(encoded.dictionary, encoded.indices.null_count > 0)[codes]
    return codes, size


def _distinct(dictionary: pa.Array, with_null: bool) -> Longs:
    """Returns the code of each place of a dictionary, and of the place after it, which stands for NULL. A
    dictionary may have a value several times, and NULL.
    """
    values = pa.concat_arrays([dictionary, pa.nulls(1, dictionary.type)]) if with_null else dictionary
    encoded = values.dictionary_encode(null_encoding="encode")
    found: Longs = encoded.indices.to_numpy().astype(np.int64)
    return found


def _present(values: pa.Array) -> Mask:
    if not pa.types.is_dictionary(values.type) and values.null_count == 0:
        return np.ones(len(values), np.bool_)
    found: Mask = values.is_valid().to_numpy(zero_copy_only=False)
    return found


class _Merging:
    """Merges the columns of rows in groups."""

    def __init__(self, groups: Groups, columns: Sequence[Column], arrays: Mapping[str, pa.Array]) -> None:
        self._groups, self._columns, self._arrays = groups, columns, arrays
        self._counts = {_rule(each).by: each.name for each in columns if _rule(each).rule == "counts"}
        self._lists: dict[str, tuple[pa.Array, pa.Array]] = {}
        self._extremes: dict[Merge, Longs] = {}

    def merged(self, column: Column) -> pa.Array:
        merge, values, groups = _rule(column), self._arrays[column.name], self._groups
        match merge.rule:
            case "key":
                return values.take(groups.first)
            case "any":
                return _any(groups, values)
            case "sum" | "min" | "max":
                return _reduced(groups, values, merge.rule)
            case "first" | "last":
                return self._at_extreme(merge, values)
            case "counted":
                return self._merged_lists(column.name)[0]
            case "counts":
                return self._merged_lists(merge.by)[1]
            case "union":
                return _united(groups, values)

    def _merged_lists(self, counted: str) -> tuple[pa.Array, pa.Array]:
        if counted not in self._lists:
            counts = self._arrays[self._counts[counted]]
            self._lists[counted] = _merged_counts(self._groups, self._arrays[counted], counts)
        return self._lists[counted]

    def _at_extreme(self, merge: Merge, values: pa.Array) -> pa.Array:
        if merge.by not in self._arrays:
            return pa.nulls(self._groups.count, values.type)
        if merge not in self._extremes:
            columns = [self._arrays[each.name] for each in self._columns if each.merge == merge]
            rows = _extreme_rows(self._groups, self._arrays[merge.by], merge.rule == "last", columns)
            self._extremes[merge] = rows
        return _taken(values, self._extremes[merge])


def _any(groups: Groups, values: pa.Array) -> pa.Array:
    """Returns for each group the value of the first row that has one."""
    present = _present(values)
    if present.all():
        return values.take(groups.first)
    places = np.flatnonzero(present)[::-1]
    rows = np.full(groups.count, -1)
    rows[groups.of_row[places]] = (
        places  # of several rows of a group NumPy keeps the last, here the first row
    )
    return _taken(values, rows)


def _taken(values: pa.Array, rows: Longs) -> pa.Array:
    """Returns the values of the rows; NULL for -1."""
    missing = rows < 0
    return values.take(pa.array(rows, mask=missing) if missing.any() else pa.array(rows))


def _reduced(groups: Groups, values: pa.Array, rule: str) -> pa.Array:
    if values.null_count == len(values):
        return pa.nulls(groups.count, values.type)
    numbers, back = _numbers(values)
    function, neutral = _reduction(rule, numbers.dtype)
    nulls = None
    if values.null_count:
        present = _present(values)
        numbers = np.where(present, numbers, neutral)
        nulls = ~groups.any(present)
    with np.errstate(over="ignore", invalid="ignore"):  # infinity - infinity is NaN
        return back(groups.reduce(function, numbers), nulls)


def _reduction(rule: str, dtype: np.dtype[np.generic]) -> tuple[np.ufunc, float | int]:
    """Returns the function that merges two numbers, and the number that stands for NULL."""
    if rule == "sum":
        return np.add, 0
    if dtype.kind == "f":
        return (np.fmin if rule == "min" else np.fmax), np.nan
    return (np.minimum, _largest(dtype)) if rule == "min" else (np.maximum, _smallest(dtype))


def _largest(dtype: np.dtype[np.generic]) -> int:
    return int(np.iinfo(dtype).max)  # type: ignore[type-var]


def _smallest(dtype: np.dtype[np.generic]) -> int:
    return int(np.iinfo(dtype).min)  # type: ignore[type-var]


def _numbers(values: pa.Array) -> tuple[Values, Callable[[Values, Mask | None], pa.Array]]:
    """Returns the values as NumPy numbers, and the way back to the column's type."""
    type_ = values.type
    if pa.types.is_timestamp(type_):
        values = values.cast(pa.int64())
    elif pa.types.is_boolean(type_):
        values = values.cast(pa.int8())
    if values.null_count:
        values = values.fill_null(0)

    def back(found: Values, nulls: Mask | None) -> pa.Array:
        return pa.array(found, mask=nulls).cast(type_)

    return values.to_numpy(), back


def _extreme_rows(groups: Groups, by: pa.Array, is_last: bool, columns: Sequence[pa.Array]) -> Longs:
    """Returns for each group the row in which `by` is smallest or largest; -1 if `by` is NULL in all rows.
    Between several such rows the values of the columns decide, in order.
    """
    present = _present(by)
    numbers, _ = _numbers(by)
    function, neutral = _reduction("max" if is_last else "min", numbers.dtype)
    numbers = np.where(present, numbers, neutral)
    extreme = groups.reduce(function, numbers)
    places = np.flatnonzero(present & (numbers == extreme[groups.of_row]))
    owners = groups.of_row[places]
    rows = np.full(groups.count, -1)
    rows[owners] = places
    is_tied = np.bincount(owners, minlength=groups.count)[owners] > 1
    if is_tied.any():
        places, owners = places[is_tied], owners[is_tied]
        tied = [_ranks(values.take(pa.array(places)), nulls_last=not is_last) for values in columns]
        best_at_end = np.lexsort([*(ranks if is_last else -ranks for ranks in reversed(tied)), owners])
        rows[owners[best_at_end]] = places[best_at_end]  # of several places of a group NumPy keeps the last
    return rows


def _ranks(values: pa.Array, *, nulls_last: bool) -> Longs:
    """Returns the place of each value among the distinct values. Lists are compared element by element."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        values = values.cast(type_.value_type)
    elif pa.types.is_boolean(type_):
        values = values.cast(pa.int8())
    elif pa.types.is_nested(type_):
        values = _comparable(values)
    ranks: Longs = pc.rank(values, tiebreaker="dense").to_numpy().astype(np.int64) + 2  # then NaN, then NULL
    if not nulls_last:
        if pa.types.is_floating(values.type):
            ranks[pc.is_nan(values).fill_null(False).to_numpy(zero_copy_only=False)] = 1
        ranks[~_present(values)] = 0
    return ranks


def _comparable(values: pa.Array) -> pa.Array:
    """Returns bytes that sort as lists, maps and structs do: the ranks of their elements, big-endian."""
    type_ = values.type
    if pa.types.is_map(type_):
        values = values.cast(pa.list_(pa.struct([("key", type_.key_type), ("value", type_.item_type)])))
    if pa.types.is_struct(type_):
        fields, lengths = values.flatten(), np.ones(len(values), np.int64)
    else:
        lengths = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
        elements = values.flatten()
        fields = elements.flatten() if pa.types.is_struct(elements.type) else [elements]
    ranks = [_ranks(field, nulls_last=False) for field in fields]
    data = np.stack(ranks, axis=1).astype(">u4").tobytes()
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))) * 4 * len(ranks)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    found = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
    return pc.if_else(values.is_valid(), found, None) if values.null_count else found


def _merged_counts(groups: Groups, counted: pa.Array, counts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the distinct values of each group, sorted, and the sum of the counts of each value."""
    nulls = ~groups.any(_present(counted))
    owners, values, numbers = _flat(groups, counted, counts)
    ranks, distinct = _distinct_values(values)
    pairs = owners * len(distinct) + ranks
    if (numbers == 1).all():  # numbers alone are sorted much faster than their places
        pairs = np.sort(pairs)
    else:
        order = np.argsort(pairs)
        pairs, numbers = pairs[order], numbers[order]
    is_new = np.ones(len(pairs), np.bool_)
    is_new[1:] = pairs[1:] != pairs[:-1]
    starts = np.flatnonzero(is_new)
    sums = np.add.reduceat(numbers, starts) if len(starts) else numbers
    owners, ranks = np.divmod(pairs[starts], max(1, len(distinct)))
    owners, ranks, sums = _bounded(owners, ranks, sums)
    offsets = np.searchsorted(owners, np.arange(groups.count + 1)).astype(np.int32)
    found = pa.array(distinct[ranks])
    return _lists(offsets, found, counted.type, nulls), _lists(offsets, pa.array(sums), counts.type, nulls)


def _flat(groups: Groups, counted: pa.Array, counts: pa.Array) -> tuple[Longs, pa.Array, Longs]:
    """Returns the group, the value and the count of each element of the lists."""
    lengths = pc.list_value_length(counted).fill_null(0).to_numpy().astype(np.int64)
    other = pc.list_value_length(counts).fill_null(0).to_numpy()
    if (lengths != other).any():
        raise ValueError("a row has lists of values and counts of different lengths")
    return np.repeat(groups.of_row, lengths), counted.flatten(), counts.flatten().to_numpy().astype(np.int64)


def _distinct_values(values: pa.Array) -> tuple[Longs, Values]:
    """Returns the place of each value among the distinct values, which are sorted. Measured: with a
    dictionary 3 times as fast as sorting all values.
    """
    encoded = values.dictionary_encode()
    distinct, places = np.unique(encoded.dictionary.to_numpy(), return_inverse=True)
    return places.astype(np.int64)[encoded.indices.to_numpy()], distinct


def _bounded(owners: Longs, ranks: Longs, sums: Longs) -> tuple[Longs, Longs, Longs]:
    """Adds the counts of the smallest values of too long lists to the next larger value."""
    lengths = np.bincount(owners)
    if not len(lengths) or lengths.max() <= LIST_VALUES_MAX:
        return owners, ranks, sums
    from_end = np.cumsum(lengths)[owners] - np.arange(len(owners))
    kept = from_end <= LIST_VALUES_MAX
    target: Longs = np.cumsum(kept) - kept  # of a dropped element: the place of the first kept one after it
    totals = np.zeros(int(kept.sum()), np.int64)
    np.add.at(totals, target, sums)
    return owners[kept], ranks[kept], totals


def _united(groups: Groups, values: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
    owners = np.repeat(groups.of_row, lengths)
    elements = values.flatten()
    if elements.null_count:
        owners, elements = owners[_present(elements)], elements.drop_null()
    encoded = elements.dictionary_encode()
    sorting = pc.sort_indices(encoded.dictionary).to_numpy().astype(np.int64)
    places = np.empty(len(sorting), np.int64)
    places[sorting] = np.arange(len(sorting))
    pairs = np.sort(owners * len(sorting) + places[encoded.indices.to_numpy()])
    pairs = pairs[np.diff(pairs, prepend=-1) != 0]  # measured: 50 times as fast as np.unique, which hashes
    owners, ranks = np.divmod(pairs, max(1, len(sorting)))
    kept = np.arange(len(owners)) - np.searchsorted(owners, owners) < LIST_VALUES_MAX
    owners, ranks = owners[kept], ranks[kept]
    offsets = np.searchsorted(owners, np.arange(groups.count + 1)).astype(np.int32)
    found = encoded.dictionary.take(pa.array(sorting[ranks]))
    return _lists(offsets, found, values.type, ~groups.any(_present(values)))


def _lists(offsets: npt.NDArray[np.int32], values: pa.Array, type_: pa.DataType, nulls: Mask) -> pa.Array:
    mask = pa.array(nulls) if nulls.any() else None
    return pa.ListArray.from_arrays(pa.array(offsets), values.cast(type_.value_type), type=type_, mask=mask)
