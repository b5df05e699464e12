"""Which chart an answer makes, by the types of its columns."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Those that can be drawn, in the order of the answer."""

    times: tuple[str, ...]
    numbers: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.times, *self.words, *self.numbers)


@dataclass(frozen=True)
class Choice:
    kind: Kind
    x: str
    y: str
    series: str | None = None
    """What the lines or bars are told apart by."""


def columns(table: pa.Table) -> Columns:
    times, numbers, words = [], [], []
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            times.append(name)
        elif pa.types.is_floating(kind) or pa.types.is_integer(kind):
            numbers.append(name)
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
            words.append(name)
    return Columns(tuple(times), tuple(numbers), tuple(words))


def choose(table: pa.Table) -> Choice | None:
    """A time and a number make lines, a word and a number bars, two numbers points. None: nothing to draw."""
    found = columns(table)
    if not found.numbers or table.num_rows < 2:
        return None
    number = found.numbers[0]
    if found.times and pc.count_distinct(table[found.times[0]]).as_py() > 1:
        return Choice("line", found.times[0], number, _series(table, found.words))
    if found.words:
        words = max(found.words, key=lambda name: pc.count_distinct(table[name]).as_py())
        return Choice("bar", words, number, _series(table, [w for w in found.words if w != words]))
    if len(found.numbers) > 1:
        return Choice("points", number, found.numbers[1])
    return None


def _series(table: pa.Table, words: tuple[str, ...] | list[str]) -> str | None:
    """The first that tells rows apart and has several rows for each value: names, and not ids or messages."""
    for name in words:
        if 1 < pc.count_distinct(table[name]).as_py() <= table.num_rows // 2:
            return name
    return None


def drawn(table: pa.Table, choice: Choice) -> tuple[pa.Table, str]:
    """The rows to draw, and what must be said about them (or nothing)."""
    names = list(dict.fromkeys(n for n in (choice.x, choice.y, choice.series) if n is not None))
    rows = table.select(names).filter(pc.is_valid(table[choice.y]))
    said = []
    if choice.series is not None and choice.series not in (choice.x, choice.y):
        rows, note = _largest(rows, choice.series, choice.y, SERIES_MAX)
        said.append(note)
    if choice.kind == "bar":
        rows, note = _largest(rows, choice.x, choice.y, BARS_MAX)
        said.append(note)
    elif rows.num_rows > POINTS_MAX:
        said.append(f"Shows the first {POINTS_MAX:,} of {rows.num_rows:,} rows.")
        rows = rows.slice(0, POINTS_MAX)
    return rows, " ".join(note for note in said if note)


def _largest(rows: pa.Table, name: str, number: str, count_max: int) -> tuple[pa.Table, str]:
    """The rows of those `name`s that add up to most."""
    if name == number:
        return rows, ""
    sums = rows.group_by(name).aggregate([(number, "sum")])
    sums = sums.sort_by([(f"{number}_sum", "descending"), (name, "ascending")])
    if sums.num_rows <= count_max:
        return rows, ""
    most = sums[name].slice(0, count_max).combine_chunks()
    kept = rows.filter(pc.is_in(rows[name], value_set=most))
    return kept, f"Shows the {count_max} largest of {sums.num_rows:,} values of {name}."


def settled(choice: Choice, wanted: Mapping[str, str | None], found: Columns) -> Choice:
    """`choice`, with what a person has chosen instead where the answer still has it."""
    kind: Kind = next((k for k in KINDS if k == wanted.get("kind")), choice.kind)
    x, y, series = wanted.get("x"), wanted.get("y"), wanted.get("series", choice.series)
    return Choice(
        kind,
        x if x in found.all else choice.x,
        y if y in found.numbers else choice.y,
        series if series in found.words else None,
    )
