"""Chooses a chart for a query result by the types of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["line", "bar", "points"]
KINDS: tuple[Kind, ...] = ("line", "bar", "points")
POINTS_MAX = 5_000
BARS_MAX = 50
SERIES_MAX = 12


@dataclass(frozen=True)
class Columns:
    """Columns that can be drawn, in the order of the result."""

    times: tuple[str, ...]
    numbers: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.times, *self.texts, *self.numbers)


@dataclass(frozen=True)
class Choice:
    kind: Kind
    x: str
    y: str
    series: str | None = None


def columns(table: pa.Table) -> Columns:
    times, numbers, texts = [], [], []
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            times.append(name)
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind):
            numbers.append(name)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
            texts.append(name)
    return Columns(tuple(times), tuple(numbers), tuple(texts))


def choose(table: pa.Table) -> Choice | None:
    """Chooses lines for a time and a number, bars for a text and a number, points for two numbers."""
    found = columns(table)
    if not found.numbers or table.num_rows < 2:
        return None
    number = found.numbers[0]
    if found.times and pc.count_distinct(table[found.times[0]]).as_py() > 1:
        return Choice("line", found.times[0], number, _series(table, found.texts))
    if found.texts:
        text = max(found.texts, key=lambda name: pc.count_distinct(table[name]).as_py())
        return Choice("bar", text, number, _series(table, [name for name in found.texts if name != text]))
    if len(found.numbers) > 1:
        return Choice("points", number, found.numbers[1])
    return None


def _series(table: pa.Table, texts: Sequence[str]) -> str | None:
    """Returns the first column with several rows per value: names, not IDs or messages."""
    for name in texts:
        if 1 < pc.count_distinct(table[name]).as_py() <= table.num_rows // 2:
            return name
    return None


def rows_to_draw(table: pa.Table, choice: Choice) -> tuple[pa.Table, str]:
    """Returns the rows to draw, and a note if rows are omitted."""
    names = list(dict.fromkeys(n for n in (choice.x, choice.y, choice.series) if n is not None))
    rows = table.select(names).filter(pc.is_valid(table[choice.y]))
    notes = []
    if choice.series is not None and choice.series not in (choice.x, choice.y):
        rows, note = _largest(rows, choice.series, choice.y, SERIES_MAX)
        notes.append(note)
    if choice.kind == "bar":
        rows, note = _largest(rows, choice.x, choice.y, BARS_MAX)
        notes.append(note)
    elif rows.num_rows > POINTS_MAX:
        notes.append(f"Shows the first {POINTS_MAX:,} of {rows.num_rows:,} rows.")
        rows = rows.slice(0, POINTS_MAX)
    return rows, " ".join(note for note in notes if note)


def _largest(rows: pa.Table, name: str, number: str, count_max: int) -> tuple[pa.Table, str]:
    """Returns the rows of the values of `name` with the largest sums."""
    if name == number:
        return rows, ""
    sums = rows.group_by(name).aggregate([(number, "sum")])
    sums = sums.sort_by([(f"{number}_sum", "descending"), (name, "ascending")])
    if sums.num_rows <= count_max:
        return rows, ""
    most = sums[name].slice(0, count_max).combine_chunks()
    kept = rows.filter(pc.is_in(rows[name], value_set=most))
    return kept, f"Shows the {count_max} largest of {sums.num_rows:,} values of {name}."


def apply_choices(choice: Choice, chosen: Mapping[str, str | None], found: Columns) -> Choice:
    """Applies the user's choices to the proposal, if the result has these columns."""
    kind: Kind = next((k for k in KINDS if k == chosen.get("kind")), choice.kind)
    x, y, series = chosen.get("x"), chosen.get("y"), chosen.get("series", choice.series)
    return Choice(
        kind,
        x if x in found.all else choice.x,
        y if y in found.numbers else choice.y,
        series if series in found.texts else None,
    )
