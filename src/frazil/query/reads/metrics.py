"""Lists a tenant's metrics with their kinds, and the attributes of a metric's series."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import TimeRange
from frazil.times import iso

Kind = Literal["gauge", "level", "counter", "changes", "histogram", "exponential_histogram", "summary"]
"""`level`: a non-monotonic cumulative sum; `changes`: a non-monotonic delta sum."""
Aggregation = Literal[
    "rate", "increase", "total", "average", "min", "max", "latest", "mean", "quantiles", "p50", "p95", "p99"
]
QUANTILES: dict[Aggregation, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

_LEVELS: tuple[Aggregation, ...] = ("average", "min", "max", "latest", "total")
_SPREAD: tuple[Aggregation, ...] = ("quantiles", "p50", "p95", "p99", "mean", "rate")
AGGREGATIONS: dict[Kind, tuple[Aggregation, ...]] = {
    "gauge": _LEVELS,
    "level": ("total", "average", "min", "max", "latest"),
    "counter": ("rate", "increase", "total"),
    "changes": ("rate", "increase"),
    "histogram": _SPREAD,
    "exponential_histogram": _SPREAD,
    "summary": ("mean", "rate", "p50", "p95", "p99"),
}
"""The aggregations of each kind; the first is the default."""
VALUES_MAX = 40

_LIST = """\
SELECT metric_name, metric_type, unit, any_value(description) AS description,
       list(DISTINCT service_name) FILTER (service_name IS NOT NULL) AS services,
       bool_or(is_monotonic) AS is_monotonic,
       bool_or(aggregation_temporality IS DISTINCT FROM 1) AS has_cumulative,
       count(*) AS points
FROM metrics
WHERE time >= $1::TIMESTAMPTZ AND time < $2::TIMESTAMPTZ
GROUP BY metric_name, metric_type, unit
ORDER BY metric_name, metric_type, unit"""

_KEYS = f"""\
WITH series AS (
    SELECT series_id, any_value(attributes) AS of_point, any_value(resource_attributes) AS of_resource
    FROM metrics
    WHERE metric_name = $1 AND metric_type = $2 AND time >= $3::TIMESTAMPTZ AND time < $4::TIMESTAMPTZ
    GROUP BY series_id
), entries AS (
    SELECT true AS is_of_point, unnest(map_entries(of_point)) AS entry FROM series
    UNION ALL
    SELECT false, unnest(map_entries(of_resource)) FROM series
)
SELECT entry.key AS key, entry.value AS value, bool_or(is_of_point) AS is_of_point, count(*) AS series
FROM entries
WHERE entry.value IS NOT NULL
GROUP BY entry.key, entry.value
QUALIFY row_number() OVER (PARTITION BY entry.key ORDER BY count(*) DESC, entry.value) <= {VALUES_MAX}
ORDER BY is_of_point DESC, key, series DESC, value"""


@dataclass(frozen=True)
class Metric:
    """A metric, identified by name, type and unit."""

    name: str
    type: str
    unit: str
    description: str
    services: tuple[str, ...]
    is_monotonic: bool
    has_cumulative: bool
    """Whether any point is not a delta."""
    points: int
    label: str = ""
    """Unique among the metrics of a list."""

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


def metric_list(range: TimeRange) -> Statement:
    """List all metrics that have points in the range."""
    return Statement(_LIST, (iso(range.begin), iso(range.end)))


def metric_attributes(metric: Metric, range: TimeRange) -> Statement:
    """List attribute keys and values of a metric's series: those of points first, then those of resources."""
    return Statement(_KEYS, (metric.name, metric.type, iso(range.begin), iso(range.end)))


def metrics(rows: Iterable[Mapping[str, Any]]) -> dict[str, Metric]:
    """Read the result of `metric_list` by label: the name, with type and unit if it is ambiguous."""
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
