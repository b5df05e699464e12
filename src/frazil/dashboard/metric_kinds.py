"""What a metric can be shown as, by its type: and the words for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["gauge", "level", "counter", "changes", "histogram", "exponential_histogram", "summary"]
"""`level`: a sum that goes up and down, as it stands; `changes`: the same, sent as differences."""
How = Literal[
    "rate", "increase", "total", "average", "min", "max", "latest", "mean", "quantiles", "p50", "p95", "p99"
]
QUANTILES: dict[How, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_LEVELS: tuple[How, ...] = ("average", "min", "max", "latest", "total")
_SPREAD: tuple[How, ...] = ("quantiles", "p50", "p95", "p99", "mean", "rate")
HOWS: dict[Kind, tuple[How, ...]] = {
    "gauge": _LEVELS,
    "level": ("total", "average", "min", "max", "latest"),
    "counter": ("rate", "increase", "total"),
    "changes": ("rate", "increase"),
    "histogram": _SPREAD,
    "exponential_histogram": _SPREAD,
    "summary": ("mean", "rate", "p50", "p95", "p99"),
}
"""What is offered; the first is what a metric is shown as at first."""
_UNITS = {"By": "bytes", "KiBy": "KiB", "MiBy": "MiB", "GiBy": "GiB", "1": "", "%": "%"}


@dataclass(frozen=True)
class Metric:
    """One name may be sent with different types or units: those are different metrics."""

    name: str
    type: str
    unit: str
    description: str
    services: tuple[str, ...]
    is_monotonic: bool
    has_cumulative: bool
    """Whether any point is not a difference."""
    points: int
    label: str = ""
    """What it is called in the list and in the address."""

    @property
    def kind(self) -> Kind:
        match self.type:
            case "histogram" | "exponential_histogram" | "summary":
                return self.type
            case "sum" if self.is_monotonic:
                return "counter"
            case "sum":
                return "level" if self.has_cumulative else "changes"
            case _:
                return "gauge"


def metrics(rows: Iterable[Mapping[str, Any]]) -> dict[str, Metric]:
    """The answer to `metric_questions.LIST`, by label: the name alone where that is enough."""
    found = [
        Metric(
            name=row["metric_name"],
            type=row["metric_type"],
            unit=row["unit"] or "",
            description=row["description"] or "",
            services=tuple(sorted(row["services"] or ())),
            is_monotonic=bool(row["is_monotonic"]),
            has_cumulative=bool(row["has_cumulative"]),
            points=row["points"],
        )
        for row in rows
    ]
    names = Counter(metric.name for metric in found)
    labelled: dict[str, Metric] = {}
    for metric in sorted(found, key=lambda metric: (metric.name, metric.type, metric.unit)):
        label = metric.name
        if names[metric.name] > 1:
            label = f"{metric.name} ({metric.type}{', ' if metric.unit else ''}{metric.unit})"
        labelled[label] = Metric(**{**vars(metric), "label": label})
    return labelled


def axis_unit(metric: Metric, how: How, width_seconds: int) -> str:
    """What the axis says. Histograms count measurements, whatever these are in.

    UCUM writes what is counted in braces: {order}.
    """
    if how == "rate" and metric.kind in ("histogram", "exponential_histogram", "summary"):
        return "measurements/s"
    plain = _UNITS.get(metric.unit, re.sub(r"\{([^}]*)\}", r"\1", metric.unit))
    if how == "rate":
        return f"{plain}/s" if plain else "per second"
    if how == "increase":
        return f"{plain} per {_width(width_seconds)}".strip()
    return plain


def _width(seconds: int) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
