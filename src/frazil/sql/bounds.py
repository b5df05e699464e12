"""Matches a constraint on one column against the column bounds of files. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.sql.constraint import Constraint, Value

Flags = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
Kind = Literal["integer", "double", "boolean", "text"]
Interval = tuple[Any, Any]

_LONG = np.iinfo(np.int64)
# Longer lists of text are reduced to their smallest and largest value: a value costs a pass over all files.
_TEXTS_MAX = 64
_WIDTHS: Mapping[Kind, str] = {"integer": "<i8", "double": "<f8", "boolean": "u1"}
_NARROW: Mapping[Kind, str] = {"integer": "<i4", "double": "<f4"}


@dataclass(frozen=True)
class Column:
    """Statistics of one column, by file. Numeric bounds that are not known are the widest possible."""

    lower: Any
    upper: Any
    null_only: Flags
    nan_free: Flags

    def part(self, of: slice) -> Column:
        return Column(self.lower[of], self.upper[of], self.null_only[of], self.nan_free[of])


def numbers(bounds: pa.BinaryArray, kind: Kind, unknown: float) -> Numbers:
    """Decode Iceberg's bounds. Files written before a column's type was widened have the narrow form."""
    width = np.dtype(_WIDTHS[kind])
    target = np.dtype(np.float64 if kind == "double" else np.int64)
    found = np.full(len(bounds), unknown, target)
    lengths = pc.fill_null(pc.binary_length(bounds), 0).to_numpy(zero_copy_only=False)
    for form in (width, np.dtype(_NARROW.get(kind, _WIDTHS[kind]))):
        of_form = lengths == form.itemsize
        if of_form.any():
            data = b"".join(bounds.filter(pa.array(of_form)).to_pylist())
            found[of_form] = np.frombuffer(data, form)
    if kind == "double":
        found[np.isnan(found)] = unknown
    return found


def may_match(column: Column, kind: Kind, constraint: Constraint) -> Flags:
    if kind == "text":
        keep = _texts_may_match(column, constraint)
    else:
        keep = _numbers_may_match(column, kind, constraint)
        if kind == "double" and _takes_nan(constraint):
            keep |= ~column.nan_free
    return keep & ~column.null_only


def _numbers_may_match(column: Column, kind: Kind, constraint: Constraint) -> Flags:
    keep = np.ones(len(column.lower), np.bool_)
    if constraint.lower is not None and (interval := _interval(constraint.lower, kind)) is not None:
        keep &= column.upper >= interval[0]
    if constraint.upper is not None and (interval := _interval(constraint.upper, kind)) is not None:
        keep &= column.lower <= interval[1]
    if constraint.values is not None and (intervals := _intervals(constraint.values, kind)) is not None:
        # Both ends are sorted: count the intervals that begin in time, less those that end too early.
        begins = np.searchsorted(intervals[0], column.upper, side="right")
        ended = np.searchsorted(intervals[1], column.lower, side="left")
        keep &= begins > ended
    return keep


def _intervals(values: Iterable[Value], kind: Kind) -> tuple[Numbers, Numbers] | None:
    intervals = [_interval(value, kind) for value in values if not _is_nan(value)]
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    target = np.float64 if kind == "double" else np.int64
    return (
        np.sort(np.array([low for low, _ in known], target)),
        np.sort(np.array([high for _, high in known], target)),
    )


def _interval(value: Value, kind: Kind) -> Interval | None:
    """Return the interval of values that may compare as equal: engines round differently. None: no bounds."""
    if isinstance(value, str) or isinstance(value, bool) != (kind == "boolean"):
        return None
    if kind == "double":
        return _double_interval(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        low = math.floor(math.nextafter(value, -math.inf))
        high = math.ceil(math.nextafter(value, math.inf))
    else:
        low = high = int(value)
    return max(_LONG.min, min(low, _LONG.max)), max(_LONG.min, min(high, _LONG.max))


def _double_interval(value: float) -> Interval | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    if math.isnan(number):
        return None
    return math.nextafter(number, -math.inf), math.nextafter(number, math.inf)


def _is_nan(value: Value | None) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _takes_nan(constraint: Constraint) -> bool:
    """Return whether NaN meets the constraint. Bounds do not include NaN, and DuckDB sorts it after all
    numbers.
    """
    if constraint.values is not None and not any(_is_nan(value) for value in constraint.values):
        return False
    return constraint.upper is None or _is_nan(constraint.upper)


def _texts_may_match(column: Column, constraint: Constraint) -> Flags:
    keep = np.ones(len(column.lower), np.bool_)
    if (lower := _text(constraint.lower)) is not None:
        keep &= _at_least(column.upper, lower)
    if (upper := _text(constraint.upper)) is not None:
        keep &= _at_most(column.lower, upper)
    if constraint.values is not None:
        texts = [_text(value) for value in constraint.values]
        known = sorted(text for text in texts if text is not None)
        if len(known) == len(texts):
            keep &= _any_within(column, known)
    return keep


def _any_within(column: Column, texts: Sequence[bytes]) -> Flags:
    if len(texts) > _TEXTS_MAX:
        return _at_least(column.upper, texts[0]) & _at_most(column.lower, texts[-1])
    found = np.zeros(len(column.lower), np.bool_)
    for text in texts:
        found |= _at_least(column.upper, text) & _at_most(column.lower, text)
    return found


def _text(value: Value | None) -> bytes | None:
    """Return a value as UTF-8, which has the order in which DuckDB compares text."""
    if not isinstance(value, str):
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:
        return None


def _at_least(bounds: pa.BinaryArray, text: bytes) -> Flags:
    return _true_or_null(pc.greater_equal(bounds, pa.scalar(text, pa.binary())))


def _at_most(bounds: pa.BinaryArray, text: bytes) -> Flags:
    return _true_or_null(pc.less_equal(bounds, pa.scalar(text, pa.binary())))


def _true_or_null(flags: pa.BooleanArray) -> Flags:
    found: Flags = pc.fill_null(flags, True).to_numpy(zero_copy_only=False)
    return found
