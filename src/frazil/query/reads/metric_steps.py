"""SQL for a metric over time, its kinds and its attributes, from rollups.

The results have the columns of the statements that read raw points (`metric_series`, `metrics`). They differ
in that the amount between two points counts in the bucket of the second one, and is not spread over both; in
that a value is not held beyond its bucket; and in that quantiles of a summary are the last ones of a bucket.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from frazil.query.reads.metric_series import HOLD_SECONDS, SERIES_MAX, MetricRequest
from frazil.query.reads.metrics import QUANTILES, VALUES_MAX, Aggregation, Metric
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.times import iso, micros_of

_DAY = 86_400 * MICRO
_HOUR = 3600 * MICRO
_LEVELS: dict[Aggregation, tuple[str, str]] = {
    "average": ("avg", "avg(v)"),
    "min": ("min", "min(v)"),
    "max": ("max", "max(v)"),
    "latest": ("last", "avg(v)"),
    "total": ("last", "sum(v)"),
}
"""The column of each series, and SQL that combines several series."""

_LIST = """\
SELECT listed.*, description
FROM (
    SELECT metric_name, metric_type, unit,
           list(DISTINCT service_name) FILTER (service_name IS NOT NULL) AS services,
           bool_or(is_monotonic) AS is_monotonic,
           bool_or(aggregation_temporality IS DISTINCT FROM 1) AS has_cumulative,
           CAST(sum(points) AS BIGINT) AS points
    FROM metric_rollups
    WHERE time >= $1::TIMESTAMPTZ AND time < $2::TIMESTAMPTZ AND resolution = $3::INTEGER
    GROUP BY metric_name, metric_type, unit
) AS listed
LEFT JOIN (
    SELECT metric_name, metric_type, unit, any_value(description) AS description
    FROM series WHERE time >= $4::TIMESTAMPTZ AND time < $2::TIMESTAMPTZ
    GROUP BY metric_name, metric_type, unit
) AS described
ON listed.metric_name = described.metric_name AND listed.metric_type = described.metric_type
   AND listed.unit IS NOT DISTINCT FROM described.unit
ORDER BY listed.metric_name, listed.metric_type, listed.unit"""

_KEYS = f"""\
WITH of_series AS (
    SELECT series_id, any_value(attributes) AS of_point, any_value(resource_attributes) AS of_resource
    FROM series
    WHERE metric_name = $1 AND metric_type = $2 AND time >= $3::TIMESTAMPTZ AND time < $4::TIMESTAMPTZ
      AND last_time >= $5::TIMESTAMPTZ
    GROUP BY series_id
), entries AS (
    SELECT true AS is_of_point, unnest(map_entries(of_point)) AS entry FROM of_series
    UNION ALL
    SELECT false, unnest(map_entries(of_resource)) FROM of_series
)
SELECT entry.key AS key, entry.value AS value, bool_or(is_of_point) AS is_of_point, count(*) AS series
FROM entries
WHERE entry.value IS NOT NULL
GROUP BY entry.key, entry.value
QUALIFY row_number() OVER (PARTITION BY entry.key ORDER BY count(*) DESC, entry.value) <= {VALUES_MAX}
ORDER BY is_of_point DESC, key, series DESC, value"""


def rolled_metric_list(rolled: Rolled) -> Statement:
    """List all metrics that have points in the range."""
    begin, end = rolled.range.begin, rolled.range.end
    return Statement(_LIST, (iso(begin), iso(end), str(rolled.resolution), iso(_day(begin))))


def rolled_metric_attributes(metric: Metric, range: TimeRange) -> Statement:
    """List attribute keys and values of a metric's series: those of points first, then those of resources.
    The time of a series' last point is right to the hour.
    """
    since = range.begin - _HOUR
    return Statement(_KEYS, (metric.name, metric.type, iso(_day(since)), iso(range.end), iso(since)))


def rolled_metric_series(request: MetricRequest) -> Statement:
    """Return SQL with columns `time`, `series` (NULL: all but the largest), and `value` or the quantiles. The
    width of the request must be whole minutes.
    """
    query = _Query(request)
    aggregation, kind = request.aggregation, request.metric.kind
    if kind == "summary" and aggregation in QUANTILES:
        sent = f"abs(q.quantile - {QUANTILES[aggregation]}) < 1e-6"
        return query.statement(
            f"list_filter(last_quantiles, lambda q: {sent})[1].value AS v", "max(v)", "max(abs(v))"
        )
    if aggregation in _LEVELS:
        column, combine = _LEVELS[aggregation]
        return query.statement(f"{column} AS v", combine, "max(abs(v))")
    if aggregation == "increase":
        return query.statement("increase AS v", "sum(v)", "sum(abs(v))", complete_only=True)
    if aggregation == "rate":
        return query.statement("increase AS v", f"sum(v) / {query.seconds()}", "sum(abs(v))")
    if aggregation == "mean":
        columns = 'CASE WHEN "sum" IS NOT NULL THEN CAST("count" AS DOUBLE) END AS v, "sum" AS total'
        return query.statement(columns, "sum(total) / nullif(sum(v), 0)", "sum(v)")
    names = tuple(QUANTILES) if aggregation == "quantiles" else (aggregation,)
    found = ", ".join(
        f"merged_histogram_quantile(bucket_bounds, bucket_counts, {QUANTILES[name]}) AS {name}"
        for name in names
    )
    columns = "increase AS v, bucket_bounds, bucket_counts"
    return query.statement(columns, found if len(names) > 1 else found.partition(" AS ")[0], "sum(v)")


class _Query:
    def __init__(self, request: MetricRequest) -> None:
        self._request = request
        self._params: list[str] = []
        self._width = request.width

    def statement(self, columns: str, value: str, weight: str, *, complete_only: bool = False) -> Statement:
        """Return the query for `value` of groups of steps. `columns` are read from each step; `v`, one of
        them, must not be NULL. `weight` orders groups. With `complete_only`, steps that have not ended are
        left out, else only those that have hardly begun.
        """
        names = value if " AS " in value else f"{value} AS value"
        sql = f"""\
WITH steps AS MATERIALIZED (
    SELECT time, {self._label()} AS label, {columns}
    FROM metric_steps({self._call()}){self._join()}
    WHERE {self._where(complete_only)}
), largest AS (
    SELECT label FROM steps WHERE isfinite(v) GROUP BY label ORDER BY {weight} DESC, label LIMIT {SERIES_MAX}
)
SELECT time, largest.label AS series, {names}
FROM steps LEFT JOIN largest USING (label)
WHERE isfinite(v)
GROUP BY time, series ORDER BY time, series"""
        return Statement(sql, tuple(self._params))

    def seconds(self) -> str:
        """Return how long a step has lasted."""
        if self._request.now is None:
            return f"{self._width}"
        return f"least({self._width}, ({micros_of(self._request.now)} - epoch_us(time)) / {MICRO})"

    def _param(self, value: str) -> str:
        if value not in self._params:
            self._params.append(value)
        return f"${self._params.index(value) + 1}"

    def _call(self) -> str:
        range = self._request.range
        times = (self._param(iso(each)) for each in (range.begin, range.end))
        return f"{self._param(self._request.metric.name)}, to_seconds({self._width}), {', '.join(times)}"

    def _where(self, complete_only: bool) -> str:
        request = self._request
        conditions = [
            f"metric_type = {self._param(request.metric.type)}",
            f"coalesce(unit, '') = {self._param(request.metric.unit)}",
        ]
        if request.services:
            conditions.append(f"service_name IN ({', '.join(map(self._param, request.services))})")
        if request.now is not None:
            lasted = self._width if complete_only else min(self._width, HOLD_SECONDS)
            conditions.append(f"epoch_us(time) <= {micros_of(request.now) - lasted * MICRO}")
        return " AND ".join(conditions)

    def _is_by_attribute(self) -> bool:
        return self._request.by not in (None, "service")

    def _label(self) -> str:
        match self._request.by:
            case None:
                return "''"
            case "service":
                return "coalesce(service_name, '(none)')"
            case _:
                return "coalesce(of_series.label, '(none)')"

    def _join(self) -> str:
        """Return the join with the attributes of each series, if they are needed."""
        request = self._request
        if not request.attributes and not self._is_by_attribute():
            return ""
        begin, end = _day(request.range.begin - self._width * MICRO), request.range.end
        conditions = [
            f"metric_name = {self._param(request.metric.name)}",
            f"time >= {self._param(iso(begin))}::TIMESTAMPTZ",
            f"time < {self._param(iso(end + self._width * MICRO))}::TIMESTAMPTZ",
            *(f"{self._attribute(key)} = {self._param(value)}" for key, value in request.attributes),
        ]
        label = ""
        if self._is_by_attribute():
            label = f", any_value({self._attribute(request.by or '')}) AS label"
        return f"""
    {"" if request.attributes else "LEFT "}JOIN (
        SELECT series_id{label} FROM series WHERE {" AND ".join(conditions)} GROUP BY series_id
    ) AS of_series USING (series_id)"""

    def _attribute(self, key: str) -> str:
        name = self._param(key)
        return f"coalesce(attributes[{name}], resource_attributes[{name}])"


def _day(micros: int) -> int:
    return micros // _DAY * _DAY
