"""Converts a query result for the browser: simple types, unique column names, limited size."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

ROWS_SHOWN_MAX = 10_000
_BYTES_SHOWN_MAX = 16 << 20
_CELL_CHARACTERS_MAX = 4_000
_EXACT_MAX = 2**53
"""The largest integer that browsers represent exactly. Larger integers are shown as text."""
_TRACE_ID = r"^[0-9a-f]{32}$"
_TRACE_ADDRESS = "/traces?trace="
TRACE_LINK_TEXT = r"trace=([0-9a-f]{32})$"
"""The part of a link to a trace that is shown."""


def shown(table: pa.Table) -> pa.Table:
    """Returns the table to send to the browser. Lists, maps and bytes become text."""
    table = table.rename_columns(_unique(table.column_names)).slice(0, ROWS_SHOWN_MAX)
    if table.nbytes > _BYTES_SHOWN_MAX:
        table = table.slice(0, max(1, table.num_rows * _BYTES_SHOWN_MAX // table.nbytes))
    columns = [_simple(table.column(index)) for index in range(table.num_columns)]
    return pa.Table.from_arrays(columns, names=table.column_names)


def as_cells(table: pa.Table, trace_columns: Sequence[str]) -> pa.Table:
    """Returns a `shown` table for the grid: times as text, because browsers cut them to milliseconds, and
    trace IDs as links.
    """
    for index, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        if pa.types.is_timestamp(kind):
            table = table.set_column(index, name, _time_texts(table[name]))
        elif name in trace_columns:
            links = pc.binary_join_element_wise(_TRACE_ADDRESS, table[name], "")
            table = table.set_column(index, name, links)
    return table


def trace_columns(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Returns the columns of a `shown` table that the query named `trace_id` and that have only trace IDs.
    `names` are those of the result.
    """
    return [
        column
        for column, name in zip(table.column_names, names, strict=True)
        if name == "trace_id"
        and pa.types.is_string(table[column].type)
        and pc.all(pc.match_substring_regex(table[column], _TRACE_ID)).as_py()
    ]


def full_text(result: pa.Table, row: int, column: str) -> str:
    """Returns the complete value of a cell of `shown`. NULL is an empty text."""
    index = _unique(result.column_names).index(column)
    kind = result.schema.types[index]
    value = result.column(index).slice(row, 1)
    if pa.types.is_timestamp(kind):
        value = _time_texts(value)
    value = value[0].as_py()
    return "" if value is None else value if isinstance(value, str) else _to_text(value, kind)


def _time_texts(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Formats times in UTC with as many digits as the most precise of them needs."""
    times = times.cast(pa.timestamp(times.type.unit))
    for unit in ("s", "ms", "us"):
        try:
            times = times.cast(pa.timestamp(unit))
            break
        except pa.ArrowInvalid:  # loses digits
            continue
    return pc.strftime(times, format="%Y-%m-%d %H:%M:%S")


def _unique(names: list[str]) -> list[str]:
    """SQL allows duplicate column names, data frames do not."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        candidate = name if seen[name] == 1 else f"{name} ({seen[name]})"
        while candidate in found:
            seen[name] += 1
            candidate = f"{name} ({seen[name]})"
        found.append(candidate)
    return found


def _simple(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_integer(kind):
        greatest = pc.max(pc.abs_checked(column.cast(pa.float64(), safe=False))).as_py()
        return column.cast(pa.string()) if greatest is not None and greatest > _EXACT_MAX else column
    if pa.types.is_decimal(kind):
        return column.cast(pa.string() if kind.precision > 15 and not _is_small(column) else pa.float64())
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_timestamp(kind):
        return column
    if pa.types.is_date(kind):
        return column
    return pa.array([_text(value, kind) for value in column.to_pylist()], pa.string())


def _is_small(column: pa.ChunkedArray) -> bool:
    """Sums of integers are decimals with 38 digits; most fit a number."""
    greatest = pc.max(pc.abs(column)).as_py()
    return greatest is None or greatest <= _EXACT_MAX


def _text(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else _to_text(value, kind)
    return text if len(text) <= _CELL_CHARACTERS_MAX else f"{text[:_CELL_CHARACTERS_MAX]}…"


def _to_text(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return orjson.dumps(_to_json(value, kind), default=str).decode()
    return str(value)


def _to_json(value: Any, kind: pa.DataType) -> Any:
    """Returns a value for JSON. Arrow returns maps as lists of pairs. `kind` tells empty maps from lists, and
    is null inside a union, which does not tell the type of its value.
    """
    if isinstance(value, list):
        if pa.types.is_map(kind) or (value and all(isinstance(pair, tuple) for pair in value)):
            item = getattr(kind, "item_type", pa.null())
            return {str(key): _to_json(part, item) for key, part in value}
        return [_to_json(part, getattr(kind, "value_type", pa.null())) for part in value]
    if isinstance(value, dict):
        kinds = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
        return {str(key): _to_json(part, kinds.get(key, pa.null())) for key, part in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_MAX:
        return str(value)
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value
