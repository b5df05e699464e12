"""Converts columns of DuckDB's results to JSON values and to text. Does not use Python's dates, which end at
the year 9999: DuckDB's do not.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""First second of the year 1 and last second of the year 9999."""
_FIRST_DAY, _LAST_DAY = _FIRST_SECOND // 86_400, _LAST_SECOND // 86_400
_DAYS_OF_400_YEARS = 146_097
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86_400


def plain_values(array: pa.Array) -> list[Any]:
    """Return values that `orjson` can write: text, numbers, booleans, lists, dicts and None."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return plain_values(array.storage)
    if pa.types.is_dictionary(type_):
        return plain_values(array.dictionary_decode())
    if pa.types.is_decimal(type_):
        return _decimals(array)
    if pa.types.is_temporal(type_) and not pa.types.is_duration(type_):
        found: list[Any] = _temporal(array).to_pylist()
        return found
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [None if value is None else base64.b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_nested(type_):
        return _nested(array)
    values: list[Any] = array.to_pylist()
    return values


def texts(array: pa.Array) -> pa.Array:
    """Return the values as text; values that are not text become JSON."""
    if pa.types.is_decimal(array.type):
        return array.cast(pa.string())
    if pa.types.is_temporal(array.type) and not pa.types.is_duration(array.type):
        return _temporal(array)
    found = [
        value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
        for value in plain_values(array)
    ]
    return pa.array(found, pa.string())


def _decimals(array: pa.Array) -> list[Any]:
    """Return exact numbers: sums of integers are decimals, with more digits than a double has."""
    if array.type.scale == 0:
        try:
            integers: list[Any] = array.cast(pa.int64()).to_pylist()
        except pa.ArrowInvalid:
            pass
        else:
            return integers
    return [None if text is None else orjson.Fragment(text) for text in array.cast(pa.string()).to_pylist()]


# Nested


def _nested(array: pa.Array) -> list[Any]:
    type_ = array.type
    if pa.types.is_map(type_):
        return _maps(array)
    if pa.types.is_struct(type_):
        return _structs(array)
    if pa.types.is_union(type_):
        return _unions(array)
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        values = plain_values(array.values.slice(array.offset * size, len(array) * size))
        return _cut(array, values, [at * size for at in range(len(array) + 1)])
    bounds, begin, length = _bounds(array)
    return _cut(array, plain_values(array.values.slice(begin, length)), bounds)


def _bounds(array: pa.Array) -> tuple[Sequence[int], int, int]:
    """Return the list offsets relative to the first element, the index of that element, and the length."""
    offsets = array.offsets.to_pylist()
    begin = offsets[0] if offsets else 0
    return [offset - begin for offset in offsets], begin, (offsets[-1] if offsets else 0) - begin


def _cut(array: pa.Array, values: list[Any], bounds: Sequence[int]) -> list[Any]:
    return [
        values[bounds[at] : bounds[at + 1]] if is_valid else None
        for at, is_valid in enumerate(array.is_valid().to_pylist())
    ]


def _maps(array: pa.Array) -> list[Any]:
    bounds, begin, length = _bounds(array)
    keys = [_key(key) for key in plain_values(array.keys.slice(begin, length))]
    pairs = list(zip(keys, plain_values(array.items.slice(begin, length)), strict=True))
    return [None if each is None else dict(each) for each in _cut(array, pairs, bounds)]


def _key(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _structs(array: pa.Array) -> list[Any]:
    names = [array.type.field(at).name for at in range(array.type.num_fields)]
    fields = [plain_values(array.field(at)) for at in range(array.type.num_fields)]
    return [
        dict(zip(names, values, strict=True)) if is_valid else None
        for values, is_valid in zip(zip(*fields, strict=True), array.is_valid().to_pylist(), strict=True)
    ]


def _unions(array: pa.Array) -> list[Any]:
    """Read sparse unions, which DuckDB uses: each alternative has as many values as the union."""
    codes = {code: at for at, code in enumerate(array.type.type_codes)}
    fields = [plain_values(array.field(at)) for at in range(array.type.num_fields)]
    return [fields[codes[code]][row] for row, code in enumerate(array.type_codes.to_pylist())]


# Times


def _temporal(array: pa.Array) -> pa.StringArray:
    type_ = array.type
    if pa.types.is_interval(type_):
        return pa.array(
            [None if value is None else _interval(*value) for value in array.to_pylist()], pa.string()
        )
    if pa.types.is_date(type_):
        return _dates(array.cast(pa.date32()))
    if pa.types.is_time(type_):
        return _without_zeros(_times(array))
    return _timestamps(array)


def _timestamps(array: pa.Array) -> pa.StringArray:
    unit, suffix = array.type.unit, "Z" if array.type.tz else ""
    per_second = _PER_SECOND[unit]
    units = array.view(pa.int64())
    if _is_within(units, _FIRST_SECOND * per_second, _LAST_SECOND * per_second):
        found = pc.strftime(array.view(pa.timestamp(unit)), format="%Y-%m-%dT%H:%M:%S")
        found = _without_zeros(found)
        return pc.binary_join_element_wise(found, suffix, "") if suffix else found
    return pa.array(
        [None if value is None else _timestamp(value, per_second, suffix) for value in units.to_pylist()],
        pa.string(),
    )


def _timestamp(value: int, per_second: int, suffix: str) -> str:
    if abs(value) == 2**63 - 1:
        return "infinity" if value > 0 else "-infinity"
    seconds, fraction = divmod(value, per_second)
    days, seconds = divmod(seconds, _DAY_SECONDS)
    digits = f".{fraction:0{len(str(per_second)) - 1}}" if fraction else ""
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{_day(days)}T{clock}{digits}{suffix}"


def _dates(array: pa.Array) -> pa.StringArray:
    days = array.view(pa.int32())
    if _is_within(days, _FIRST_DAY, _LAST_DAY):
        return array.cast(pa.string())
    return pa.array([None if value is None else _date(value) for value in days.to_pylist()], pa.string())


def _date(days: int) -> str:
    if abs(days) == 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    return _day(days)


def _day(days: int) -> str:
    """Format a date of any year. The calendar repeats every 400 years; the year 0 is 1 BC, as in ISO 8601."""
    cycles, ordinal = divmod(days + _EPOCH_ORDINAL - 1, _DAYS_OF_400_YEARS)
    found = date.fromordinal(ordinal + 1)
    year = found.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{found.month:02}-{found.day:02}"


def _times(array: pa.Array) -> pa.StringArray:
    per_day = _DAY_SECONDS * _PER_SECOND[array.type.unit]
    units = array.view(pa.int64() if array.type.bit_width == 64 else pa.int32())
    if _is_within(units, 0, per_day - 1):
        return array.cast(pa.string())
    is_end = pc.greater_equal(units, per_day)
    rest = pc.if_else(is_end, 0, units).cast(units.type).view(array.type).cast(pa.string())
    return pc.if_else(is_end, "24:00:00", rest)


def _is_within(values: pa.Array, low: int, high: int) -> bool:
    found = pc.min_max(values)
    return found["min"].as_py() is None or (found["min"].as_py() >= low and found["max"].as_py() <= high)


def _without_zeros(found: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(found, r"\.0+$", "")


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Format an interval as DuckDB does."""
    sign = -1 if months < 0 else 1
    parts = [(sign * (abs(months) // 12), "year"), (sign * (abs(months) % 12), "month"), (days, "day")]
    pieces = [f"{count} {unit}{'' if abs(count) == 1 else 's'}" for count, unit in parts if count]
    if nanoseconds or not pieces:
        seconds, fraction = divmod(abs(nanoseconds) // 1000, 10**6)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        pieces.append(
            f"{'-' if nanoseconds < 0 else ''}{clock}" + (f".{fraction:06}".rstrip("0") if fraction else "")
        )
    return " ".join(pieces)
