"""Merging in plain Python, row by row: what `combine` must agree with."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from frazil.tables.columns import Column, TableSpec
from frazil.tables.derived.rules import LIST_VALUES_MAX, Merge

Row = dict[str, Any]


def merged(rows: Iterable[Row], spec: TableSpec) -> list[Row]:
    """Returns one row for each key, as the rules of `frazil.tables.derived.rules` say."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in spec.key), []).append(row)
    return [
        {column.name: _value(group, column, spec) for column in spec.columns} for group in groups.values()
    ]


def rolled(rows: Iterable[Row], spec: TableSpec) -> list[Row]:
    """Returns the merged rows of all resolutions, each made of the rows themselves."""
    assert spec.derived is not None
    found = []
    for seconds in spec.derived.resolutions:
        found += merged(
            [row | {"time": floor(row["time"], seconds), "resolution": seconds} for row in rows], spec
        )
    return found


def floor(time: datetime.datetime, seconds: int) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    step = datetime.timedelta(seconds=seconds)
    return epoch + (time - epoch) // step * step


def _value(group: Sequence[Row], column: Column, spec: TableSpec) -> Any:
    assert column.merge is not None
    merge, values = column.merge, [row.get(column.name) for row in group]
    present = [value for value in values if value is not None]
    match merge.rule:
        case "key":
            return values[0]
        case "any":
            return present[0] if present else None
        case "sum":
            return sum(present) if present else None
        case "min" | "max":
            numbers = [value for value in present if value == value] or present
            return (min if merge.rule == "min" else max)(numbers) if numbers else None
        case "first" | "last":
            row = _extreme(group, merge, spec)
            return row.get(column.name) if row else None
        case "counted":
            (counts,) = [each for each in spec.columns if each.merge == Merge("counts", by=column.name)]
            return _counts(group, column.name, counts.name)[0]
        case "counts":
            return _counts(group, merge.by, column.name)[1]
        case "union":
            distinct = sorted({item for value in present for item in value if item is not None})
            return distinct[:LIST_VALUES_MAX] if present else None


def _extreme(group: Sequence[Row], merge: Merge, spec: TableSpec) -> Row | None:
    usable = [row for row in group if row.get(merge.by) is not None]
    if not usable:
        return None
    is_last = merge.rule == "last"
    best = (max if is_last else min)(row[merge.by] for row in usable)
    names = [column.name for column in spec.columns if column.merge == merge]
    tied = [row for row in usable if row[merge.by] == best]
    return (max if is_last else min)(tied, key=lambda row: [_order(row.get(name), is_last) for name in names])


def _order(value: Any, is_last: bool) -> tuple[int, Any]:
    """Returns what sorts as the rules say: NULL is preferred least, then NaN; lists element by element."""
    missing = 2 if value is None else 1 if isinstance(value, float) and math.isnan(value) else 0
    if missing:
        return (-missing if is_last else missing, ())
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return (0, [_order(item, is_last=True) for item in value])
    return (0, value)


def _counts(
    group: Sequence[Row], counted: str, counts: str
) -> tuple[list[Any], list[int]] | tuple[None, None]:
    if all(row.get(counted) is None for row in group):
        return None, None
    totals: Counter[Any] = Counter()
    for row in group:
        for value, count in zip(row.get(counted) or [], row.get(counts) or [], strict=True):
            totals[value] += count
    values = sorted(totals)
    dropped, kept = values[:-LIST_VALUES_MAX], values[-LIST_VALUES_MAX:]
    numbers = [totals[value] for value in kept]
    if dropped:
        numbers[0] += sum(totals[value] for value in dropped)
    return kept, numbers


def same(a: Any, b: Any) -> bool:
    """Compares values: NaN equals NaN, and floats may differ as the order of a sum decides."""
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return type(a) is type(b) and bool(a == b)


def check_same(found: pa.Table | list[Row], expected: pa.Table | list[Row], spec: TableSpec) -> None:
    """Fails with the first difference. The order of the rows does not matter."""
    left, right = (_by_key(rows, spec) for rows in (found, expected))
    assert left.keys() == right.keys()
    for key, row in right.items():
        for name, value in row.items():
            assert same(left[key][name], value), f"{name} of {key}: {left[key][name]!r}, expected {value!r}"


def _by_key(rows: pa.Table | list[Row], spec: TableSpec) -> dict[tuple[Any, ...], Row]:
    listed = rows if isinstance(rows, list) else rows.to_pylist()
    found = {tuple(row[name] for name in spec.key): row for row in listed}
    assert len(found) == len(listed), "a key occurs twice"
    return found
