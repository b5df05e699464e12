"""The answer to a metric's question as lines to draw, and what each amounts to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.dashboard.metric_kinds import QUANTILES, How

OTHERS = "all others"


@dataclass(frozen=True)
class Line:
    name: str
    points: tuple[tuple[dt.datetime, float], ...]

    @property
    def summary(self) -> dict[str, float]:
        values = [value for _, value in self.points]
        return {
            "latest": values[-1],
            "lowest": min(values),
            "mean": sum(values) / len(values),
            "highest": max(values),
        }

    def drawn(self, width_seconds: int) -> list[tuple[dt.datetime, float | None]]:
        """With a hole where a bucket is missing: a straight line there would claim to know."""
        width = dt.timedelta(seconds=width_seconds)
        found: list[tuple[dt.datetime, float | None]] = []
        for time, value in self.points:
            if found and time - found[-1][0] > width:
                found.append((found[-1][0] + width, None))
            found.append((time, value))
        return found


def lines(rows: Iterable[Mapping[str, Any]], name: str, how: How) -> list[Line]:
    """The largest first, the rest of them last; quantiles in their own order."""
    found: dict[str, list[tuple[dt.datetime, float]]] = {}
    for row in rows:
        given = (
            {str(q): row[q] for q in QUANTILES} if how == "quantiles" else {_name(row, name): row["value"]}
        )
        for series, value in given.items():
            if value is not None:
                found.setdefault(series, []).append((row["time"].astimezone(dt.UTC), float(value)))
    made = [Line(series, tuple(sorted(points))) for series, points in found.items()]
    if how == "quantiles":
        return sorted(made, key=lambda line: line.name)
    return sorted(made, key=lambda line: (line.name == OTHERS, -line.summary["mean"], line.name))


def _name(row: Mapping[str, Any], name: str) -> str:
    if row["series"] is None:
        return OTHERS
    return row["series"] or name
