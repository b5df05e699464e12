"""Whether a page can read a derived table, and what it tells the user about the table's state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from frazil.dashboard.format import format_elapsed
from frazil.dashboard.view import View
from frazil.query.reads.rolled import POINTS_MIN, Rolled, rolled
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import TimeRange

State = Literal["ok", "off", "no data", "not derived", "catching up"]
Tables = Sequence[Mapping[str, Any]]
"""The tables of a response of `GET /api/v1/tables`."""


@dataclass(frozen=True)
class DerivedTable:
    name: str
    source: str
    enabled: bool
    days_left: int
    """Past days that are still to be derived."""
    lag_seconds: float | None
    """Of what has landed; 0 if all of it is derived, None if nothing is derived yet."""
    has_source_rows: bool

    @classmethod
    def of(cls, tables: Tables, name: str) -> DerivedTable:
        by_name = {table["name"]: table for table in tables}
        facts = by_name.get(name, {}).get("derived") or {}
        source = by_name.get(facts.get("source", ""), {})
        return cls(
            name,
            facts.get("source", ""),
            facts.get("enabled", False),
            facts.get("days_left", 0),
            facts.get("lag_seconds"),
            has_source_rows=bool((source.get("rows") or 0) + (source.get("tail_rows") or 0)),
        )

    @property
    def state(self) -> State:
        if not self.enabled:
            return "off"
        if not self.has_source_rows:
            return "no data"
        if self.lag_seconds is None:
            return "not derived"
        return "catching up" if self.days_left else "ok"

    @property
    def note(self) -> str:
        """A sentence in Markdown about what the table may lack, empty if it has everything."""
        match self.state:
            case "off":
                return (
                    f"The table `{self.name}` is off (`derive.enabled` or `derive.disabled_tables` in the "
                    "configuration): it has no new rows."
                )
            case "not derived":
                return (
                    f"The rows of `{self.source}` that have landed are not in `{self.name}` yet. The first "
                    "ones usually follow within two minutes, if the pipeline runs."
                )
            case "catching up":
                days = "1 past day is" if self.days_left == 1 else f"{self.days_left} past days are"
                behind = f", {format_elapsed(self.lag_seconds)} behind" if self.lag_seconds else ""
                return f"{days} not in `{self.name}` yet, and follow in the background{behind}."
        return ""


def rollups_of(
    tables: Tables, names: Collection[str], range: TimeRange, now: int, points_min: int = POINTS_MIN
) -> Rolled | None:
    """Returns which rows of these derived tables to read in place of raw rows. None if raw rows are better:
    for a short range, or if a table does not have all rows. The first table is a rollup; other rollups must
    have the same resolutions. `now` is in microseconds.
    """
    if any(DerivedTable.of(tables, name).state != "ok" for name in names):
        return None
    return rolled(range, next(iter(names)), now, points_min)


def read_all(
    view: View,
    statements: Callable[[Rolled | None], Sequence[Statement]],
    read: Rolled | None,
    *,
    cache_seconds: float,
) -> tuple[list[list[dict[str, Any]]], Rolled | None]:
    """Runs the statements for `read`; those for raw rows if a result from rollups lacks rows. Returns the
    rows of each statement, and what was read.
    """
    results = [view.api.sql(each.sql, each.params, cache_seconds=cache_seconds) for each in statements(read)]
    if read is not None and any(result.stats.get("missing") for result in results):
        return read_all(view, statements, None, cache_seconds=cache_seconds)
    return [result.records() for result in results], read
