"""SQL with its parameters, and reads of several statements."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from frazil.query.reads.time_range import TimeRange
from frazil.times import iso

T = TypeVar("T")


@dataclass(frozen=True)
class Statement:
    """One SELECT. Values from clients are in the parameters, never in the SQL."""

    sql: str
    params: tuple[Any, ...] = ()

    def inlined(self) -> str:
        """Return the SQL with `$1`, `$2`, … replaced by literals, for users to read and edit."""
        return re.sub(r"\$(\d+)", lambda match: _literal(self.params[int(match[1]) - 1]), self.sql)


def together(parts: Mapping[str, Statement]) -> Statement:
    """Return one statement with the rows of several, which therefore see the same data. The column `of` has
    the name of a row's part; columns that a part does not have are NULL.
    """
    sql = "\nUNION ALL BY NAME\n".join(
        f"SELECT '{name}' AS \"of\", * FROM ({statement.sql})"  # noqa: S608 (names are constants)
        for name, statement in parts.items()
    )
    return Statement(sql, tuple(value for statement in parts.values() for value in statement.params))


Read: TypeAlias = Generator[Statement, pa.Table, T]
"""A generator that yields statements, is sent their results, and returns the result of the read."""


@dataclass
class Conditions:
    """A WHERE clause, and the values for its `?`."""

    parts: list[str] = field(default_factory=list)
    params: list[Any] = field(default_factory=list)

    @classmethod
    def within(cls, range: TimeRange) -> Conditions:
        bounds = ["time >= CAST(? AS TIMESTAMPTZ)", "time < CAST(? AS TIMESTAMPTZ)"]
        return cls(bounds, [iso(range.begin), iso(range.end)])

    def add(self, condition: str, *params: Any) -> None:
        self.parts.append(condition)
        self.params.extend(params)

    def add_in(self, column: str, values: Any) -> None:
        """Require that the column is one of the values."""
        marks = ", ".join("?" for _ in values)
        self.add(f"{column} = ?" if len(values) == 1 else f"{column} IN ({marks})", *values)

    @property
    def sql(self) -> str:
        return " AND ".join(self.parts)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    raise TypeError(f"only text parameters can be inlined, not {type(value)}")
