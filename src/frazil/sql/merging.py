"""SQL that merges the partial rows of a derived table, as `frazil.tables.derived.combine` does in memory.

The lists of a sketch or histogram are concatenated, not added up by value: functions that read them accept
repeated values, and most queries do not read them at all. Both lists of a pair come from one list of structs,
so they are in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import pyarrow as pa

from frazil.sql.types import quoted
from frazil.tables.columns import RESOLUTION, Column, TableSpec
from frazil.tables.derived.rules import LIST_VALUES_MAX, PENDING_RESOLUTIONS, Dialect, Merge

__all__ = [
    "Dialect",
    "merged_columns",
    "merging_select",
    "select_merged",
    "with_completed",
    "with_needed_columns",
]
_INDENT = "  "


def merging_select(
    spec: TableSpec, dialect: Dialect, source: str, columns: Collection[str] | None = None
) -> str:
    """Returns a SELECT with one row for each key of a derived table. `source` is the FROM clause with its
    partial rows. `columns` are the columns to select, which must include the key; None: all that SQL has.
    """
    names = [column.name for column in spec.sql_columns if columns is None or column.name in columns]
    pending = spec.derived.pending if spec.derived is not None else None
    if pending is not None:
        source = f"({with_completed(names, source, pending.complete(dialect, source), _quote(dialect))})"
    return select_merged(names, merged_columns(spec, dialect), source, _quote(dialect))


def with_completed(
    names: Sequence[str], source: str, completed: str, quote: Callable[[str], str] = quoted
) -> str:
    """Returns a SELECT of these columns of the partial rows that are not pending, and of the rows in
    `completed`, a SELECT of those that follow from pending ones.
    """
    columns, pending = ", ".join(map(quote, names)), ", ".join(map(str, PENDING_RESOLUTIONS))
    return (
        f"SELECT {columns} FROM {source} WHERE {RESOLUTION} NOT IN ({pending})\n"  # noqa: S608
        f"UNION ALL\nSELECT {columns} FROM ({completed}) AS completed"
    )


def select_merged(
    names: Sequence[str], merged: Mapping[str, str], source: str, quote: Callable[[str], str] = quoted
) -> str:
    """Returns a SELECT of these columns: those in `merged` by their expression; the others are the key."""
    items = [f"{merged[name]} AS {quote(name)}" if name in merged else quote(name) for name in names]
    key = ", ".join(quote(name) for name in names if name not in merged)
    return f"SELECT {f',{chr(10)}{_INDENT}'.join(items)}\nFROM {source}\nGROUP BY {key}"


def merged_columns(spec: TableSpec, dialect: Dialect) -> dict[str, str]:
    """Returns the expression of each column of a derived table that is not part of its key."""
    return {
        column.name: _expression(column, spec, dialect)
        for column in spec.columns
        if column.merge is not None and column.merge.rule != "key"
    }


def with_needed_columns(spec: TableSpec, names: Collection[str]) -> frozenset[str]:
    """Returns the columns of a derived table that are needed to merge these columns: without a column of the
    key, rows of different keys would merge.
    """
    needed = {*names, *spec.key}
    for column in spec.columns:
        merge = column.merge
        if merge is None or column.name not in names:
            continue
        if merge.by:
            needed.add(merge.by)
        if merge.rule == "counted":
            needed.add(_counts_of(column, spec))
        if merge.rule in ("first", "last"):
            group = [each for each in spec.columns if each.merge == merge]
            needed.update(each.name for each in _until(column, group))
    return frozenset(needed)


def _expression(column: Column, spec: TableSpec, dialect: Dialect) -> str:
    merge, quote = _merge_of(column), _quote(dialect)
    name = quote(column.name)
    match merge.rule:
        case "sum":
            return _sum(name, column.type, dialect)
        case "min" | "max" as rule:
            return _extreme(rule, name, column.type, dialect)
        case "any":
            return f"any_value({name}, true)" if dialect == "spark" else f"any_value({name})"
        case "first" | "last":
            return _at_extreme(column, spec, dialect)
        case "counted":
            return _pair(name, quote(_counts_of(column, spec)), 1, dialect)
        case "counts":
            return _pair(quote(merge.by), name, 2, dialect)
        case "union":
            return _union(name, dialect)
        case "key":
            return name


def _merge_of(column: Column) -> Merge:
    assert column.merge is not None  # noqa: S101
    return column.merge


def _quote(dialect: Dialect) -> Callable[[str], str]:
    return _backticked if dialect == "spark" else quoted


def _backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _counts_of(counted: Column, spec: TableSpec) -> str:
    found = (each for each in spec.columns if each.merge is not None and each.merge.rule == "counts")
    for column in found:
        if column.merge is not None and column.merge.by == counted.name:
            return column.name
    raise ValueError(f"table {spec.name} has no column with the counts of {counted.name}")


def _sum(name: str, type_: pa.DataType, dialect: Dialect) -> str:
    if dialect != "duckdb" or not pa.types.is_integer(type_):
        return f"sum({name})"
    # NULL on overflow: one impossible value must not make all rows unreadable.
    integer = "BIGINT" if pa.types.is_int64(type_) else "INTEGER"
    return f"TRY_CAST(sum({name}) AS {integer})"


def _extreme(rule: str, name: str, type_: pa.DataType, dialect: Dialect) -> str:
    """NaN counts only if there is no other number. To SQL it is the largest number."""
    found = f"{rule}({name})"
    if not pa.types.is_floating(type_) or (rule == "min" and dialect != "trino"):
        return found
    is_nan = "is_nan" if dialect == "trino" else "isnan"
    return f"coalesce({found} FILTER (WHERE NOT {is_nan}({name})), {found})"


def _at_extreme(column: Column, spec: TableSpec, dialect: Dialect) -> str:
    """Returns the value in the row in which the column `by` is smallest or largest. Columns of one rule and
    `by` take their values from the same row. Of several such rows, DuckDB takes the same as `combine`: that
    with the best values of these columns, as far as this one. The other dialects take any.
    """
    merge = _merge_of(column)
    group = [each for each in spec.columns if each.merge == merge]
    quote, is_last = _quote(dialect), merge.rule == "last"
    by = quote(merge.by)
    if dialect == "duckdb":
        fields = [f"'by': {by}"]
        for number, each in enumerate(_until(column, group)):
            name = quote(each.name)
            fields.append(f"'has{number}': {name} IS {'NOT ' * is_last}NULL")
            if pa.types.is_floating(each.type):
                fields.append(f"'is{number}': {'NOT ' * is_last}isnan({name})")
            fields.append(f"'value{number}': {name}")
        row = f"{'max' if is_last else 'min'}({{{', '.join(fields)}}}) FILTER (WHERE {by} IS NOT NULL)"
        return f"({row}).value{group.index(column)}"
    function = "max_by" if is_last else "min_by"
    names = ", ".join(quote(each.name) for each in group)
    if dialect == "spark":
        return f"{function}(struct({names}), {by}).{quote(column.name)}"
    return f"{function}(ROW({names}), {by})[{group.index(column) + 1}]"


def _until(column: Column, group: Sequence[Column]) -> Sequence[Column]:
    """Returns the columns that decide which row is taken: the column, and those declared before it."""
    return group[: group.index(column) + 1]


def _pair(values: str, counts: str, part: int, dialect: Dialect) -> str:
    """Returns one of the two lists. NULL if no row has lists."""
    has_lists = f"FILTER (WHERE {values} IS NOT NULL)"
    if dialect == "duckdb":
        pairs = f"list({{'1': {values}, '2': {counts}}}) {has_lists}"
        return f'flatten(list_transform({pairs}, lambda pair: pair."{part}"))'
    if dialect == "spark":
        pairs = f"collect_list(named_struct('v1', {values}, 'v2', {counts})) {has_lists}"
        return f"CASE WHEN count({values}) > 0 THEN flatten(transform({pairs}, pair -> pair.v{part})) END"
    pairs = f"array_agg(ROW({values}, {counts})) {has_lists}"
    return f"flatten(transform({pairs}, pair -> pair[{part}]))"


def _union(name: str, dialect: Dialect) -> str:
    has_list = f"FILTER (WHERE {name} IS NOT NULL)"
    if dialect == "duckdb":
        united = f"list_sort(list_distinct(flatten(list({name}) {has_list})))"
        return f"{united}[1:{LIST_VALUES_MAX}]"
    collect = "collect_list" if dialect == "spark" else "array_agg"
    united = f"slice(array_sort(array_distinct(flatten({collect}({name}) {has_list}))), 1, {LIST_VALUES_MAX})"
    return f"CASE WHEN count({name}) > 0 THEN {united} END" if dialect == "spark" else united
