"""SQL for a metric over time: rates, levels, means and quantiles.

*Levels* (gauges, non-monotonic sums). Each series has one value per time bucket. If a series sent no point in
a bucket, its last value is used, for at most `HOLD_SECONDS`. So a total over series does not dip when one
series reports less often than the bucket width.

*Increases* (counters, histograms). Points become steps: the amount counted between two times. A delta point
is a step from its start to its time. Two cumulative points make a step of their difference. After a reset
(the value is lower, or its start is later and not before the previous point) the step is the whole value,
from the new start if that is known. The first point is a step only if its start is within the range read; a
start equal to the point's own time means that the start is unknown. Each step is spread evenly over the
buckets that it overlaps, so nothing is lost or counted twice, and buckets need not match the client's
reporting interval.

*Quantiles* of histograms come from the steps of their buckets, with linear interpolation within a bucket. The
first explicit bucket begins at 0 if its bound is above 0; the last bucket, which has no upper bound, counts
as its lower bound. Series with different bounds or scales add up: each bucket counts at its own bounds.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.query.reads.metrics import QUANTILES, Aggregation, Metric
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.times import iso, micros_of

HOLD_SECONDS = 120
"""Twice the default export interval of SDKs."""
SERIES_MAX = 10
_BUCKETS_MAX = 120
OTHERS = "all others"


@dataclass(frozen=True)
class MetricRequest:
    metric: Metric
    aggregation: Aggregation
    range: TimeRange
    services: Sequence[str] = ()
    attributes: Sequence[tuple[str, str]] = ()
    """Keys and values that must all match, of the point or else of its resource."""
    by: str | None = None
    """An attribute, or `service`."""
    width_seconds: int = 0
    """Bucket width; 0: chosen by the range."""
    now: dt.datetime | None = None
    """The current time if the range ends now: buckets that are not complete yet are left out."""

    @property
    def width(self) -> int:
        return self.width_seconds or self.range.bucket_seconds(_BUCKETS_MAX)


@dataclass(frozen=True)
class MetricSeries:
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

    def with_gaps(self, width_seconds: int) -> list[tuple[dt.datetime, float | None]]:
        """Return the points, with a None where buckets are missing so that charts show a gap."""
        width = dt.timedelta(seconds=width_seconds)
        found: list[tuple[dt.datetime, float | None]] = []
        for time, value in self.points:
            if found and time - found[-1][0] > width:
                found.append((found[-1][0] + width, None))
            found.append((time, value))
        return found


def read_series(rows: Iterable[Mapping[str, Any]], request: MetricRequest) -> list[MetricSeries]:
    """Read the result of `metric_series`: largest series first, the sum of the others last."""
    found: dict[str, list[tuple[dt.datetime, float]]] = {}
    is_quantiles = request.aggregation == "quantiles"
    for row in rows:
        if is_quantiles:
            values = {str(quantile): row[quantile] for quantile in QUANTILES}
        else:
            series = row["series"]
            values = {OTHERS if series is None else series or request.metric.name: row["value"]}
        for name, value in values.items():
            if value is not None:
                found.setdefault(name, []).append((row["time"].astimezone(dt.UTC), float(value)))
    series_list = [MetricSeries(name, tuple(sorted(points))) for name, points in found.items()]
    if is_quantiles:
        return sorted(series_list, key=lambda series: series.name)
    return sorted(
        series_list, key=lambda series: (series.name == OTHERS, -series.summary["mean"], series.name)
    )


def metric_series(request: MetricRequest) -> Statement:
    """Return SQL with columns `time`, `series` (NULL: all but the largest), and `value` or the quantiles."""
    frame = _Frame(request)
    aggregation, kind = request.aggregation, request.metric.kind
    if kind == "summary" and aggregation in QUANTILES:
        sql = _levels(frame, _sent_quantile(QUANTILES[aggregation]), "max(v)", "max(v)")
    elif aggregation in _REDUCED:
        sql = _levels(frame, _NUMBER, *_REDUCED[aggregation])
    elif aggregation in ("rate", "increase"):
        sql = _counted(frame)
    elif aggregation == "mean":
        sql = _mean(frame)
    else:
        sql = _quantiles(frame, tuple(QUANTILES) if aggregation == "quantiles" else (aggregation,))
    return Statement(sql, tuple(frame.params))


_NUMBER = "coalesce(value_double, value_int::DOUBLE)"
_REDUCED: dict[Aggregation, tuple[str, str]] = {
    "average": ("avg(v)", "avg(v)"),
    "min": ("min(v)", "min(v)"),
    "max": ("max(v)", "max(v)"),
    "latest": ("arg_max(v, t)", "avg(v)"),
    "total": ("arg_max(v, t)", "sum(v)"),
}
"""SQL that reduces the points of one series in a bucket, and SQL that combines several series."""


@dataclass
class _Frame:
    """The time bounds of a request in microseconds, and the parameters of its statement."""

    request: MetricRequest
    params: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.width = self.request.width * MICRO
        self.start = self.request.range.begin // self.width * self.width
        self.end = -(-self.request.range.end // self.width) * self.width
        # The margin read before and after the range, for steps that reach into it and values that still hold.
        self.beyond = max(self.width, HOLD_SECONDS * MICRO)

    def param(self, value: Any) -> str:
        if value not in self.params:
            self.params.append(value)
        return f"${self.params.index(value) + 1}"

    def read_from(self) -> int:
        return self.start - self.beyond

    def where(self) -> str:
        request, metric = self.request, self.request.metric
        begin, end = iso(self.read_from()), iso(self.end + self.beyond)
        conditions = [
            f"metric_name = {self.param(metric.name)}",
            f"metric_type = {self.param(metric.type)}",
            f"coalesce(unit, '') = {self.param(metric.unit)}",
            f"time >= {self.param(begin)}::TIMESTAMPTZ",
            f"time < {self.param(end)}::TIMESTAMPTZ",
            "coalesce(flags, 0) & 1 = 0",
        ]
        if request.services:
            conditions.append(f"service_name IN ({', '.join(map(self.param, request.services))})")
        conditions += [f"{self.attribute(key)} = {self.param(value)}" for key, value in request.attributes]
        return " AND\n          ".join(conditions)

    def attribute(self, key: str) -> str:
        name = self.param(key)
        return f"coalesce(attributes[{name}], resource_attributes[{name}])"

    def label(self) -> str:
        by = self.request.by
        if by is None:
            return "''"
        return f"coalesce({'service_name' if by == 'service' else self.attribute(by)}, '(none)')"

    def largest(self, rows: str, weight: str) -> str:
        """Return CTEs that name the series of the rows: the label of the largest, NULL for all others."""
        return f"""largest AS (
    SELECT label FROM {rows} GROUP BY label ORDER BY {weight} DESC, label LIMIT {SERIES_MAX}
), named AS (
    SELECT {rows}.* EXCLUDE (label), largest.label AS series FROM {rows} LEFT JOIN largest USING (label)
)"""


def _levels(frame: _Frame, value: str, reduce: str, combine: str) -> str:
    hold = max(1, HOLD_SECONDS * MICRO // frame.width) * frame.width
    return f"""WITH points AS (
    SELECT series_id, epoch_us(time) AS t, {frame.label()} AS label, {value} AS v
    FROM metrics
    WHERE {frame.where()} AND aggregation_temporality IS DISTINCT FROM 1
), reduced AS (
    SELECT series_id, label, t // {frame.width} * {frame.width} AS bucket, {reduce} AS v
    FROM points WHERE isfinite(v) GROUP BY ALL
), until AS (
    SELECT *, least(coalesce(lead(bucket) OVER (PARTITION BY series_id ORDER BY bucket), bucket + {hold}),
                    bucket + {hold}, {frame.end}) AS until
    FROM reduced
), held AS (
    SELECT label, v, unnest(range(greatest(bucket, {frame.start}), until, {frame.width})) AS bucket FROM until
), {frame.largest("held", "max(abs(v))")}
SELECT to_timestamp(bucket / 1e6) AS time, series, {combine} AS value
FROM named GROUP BY bucket, series ORDER BY bucket, series"""


def _sent_quantile(quantile: float) -> str:
    """Return SQL for a quantile from the client. Such quantiles cannot be merged: the highest is used."""
    return f"list_filter(quantile_values, lambda q: abs(q.quantile - {quantile}) < 1e-6)[1].value"


def _steps(frame: _Frame, value: str, carried: dict[str, str]) -> str:
    """Return CTEs up to `steps`, with `label`, `f` and `t` (start and end), `is_whole` (nothing to subtract),
    and `v` and each of `carried` with the previous point's value as `…_before`.
    """
    also = "".join(f", {source} AS {name}" for name, source in carried.items())
    before = "".join(f", lag({name}) OVER before AS {name}_before" for name in ("v", *carried))
    return f"""points AS (
    SELECT series_id, epoch_us(time) AS t, {frame.label()} AS label, {value} AS v,
           start_time_unix_nano // 1000 AS began,
           coalesce(aggregation_temporality = 1, false) AS is_delta{also}
    FROM metrics
    WHERE {frame.where()}
), paired AS (
    SELECT *, lag(t) OVER before AS t_before, lag(began) OVER before AS began_before{before}
    FROM points WHERE isfinite(v)
    WINDOW before AS (PARTITION BY series_id, is_delta ORDER BY t, v)
), judged AS (
    SELECT *, CASE WHEN is_delta THEN 'delta'
                   WHEN t_before IS NULL THEN 'first'
                   WHEN began > began_before AND began >= t_before THEN 'restarted'
                   WHEN v < v_before THEN 'decreased'
                   ELSE 'grown' END AS what
    FROM paired
), steps AS (
    SELECT *, what <> 'grown' AS is_whole
    FROM (SELECT *, CASE what WHEN 'delta' THEN least(coalesce(nullif(began, 0), t), t)
                              WHEN 'first' THEN began
                              WHEN 'restarted' THEN began
                              ELSE t_before END AS f FROM judged)
    WHERE is_delta OR (what IN ('grown', 'decreased'))
       OR (began < t AND (what = 'restarted' OR began >= {frame.read_from()}))
)"""


def _spread(frame: _Frame, rows: str, columns: Sequence[str]) -> str:
    """Return SQL with a row per bucket that a step overlaps, and the `part` of the step in the bucket."""
    names = ", ".join(columns)
    return f"""(
    SELECT {names}, bucket, CASE WHEN t = f THEN 1.0
           ELSE (least(t, bucket + {frame.width}) - greatest(f, bucket)) / (t - f)::DOUBLE END AS part
    FROM (SELECT *, unnest(range(greatest(f // {frame.width} * {frame.width}, {frame.start}),
                                 least(greatest(t, f + 1), {frame.end}), {frame.width})) AS bucket
          FROM {rows})
)"""


def _complete(frame: _Frame) -> str:
    """Return a condition that leaves out incomplete buckets, which a reporting series has not reached yet."""
    if frame.request.now is None:
        return ""
    recent = micros_of(frame.request.now) - HOLD_SECONDS * MICRO
    return f"""
WHERE bucket + {frame.width} <= greatest({recent}, coalesce((
    SELECT min(last)
    FROM (SELECT max(t) AS last, arg_max(t - f, t) AS took FROM steps WHERE t > f GROUP BY series_id)
    WHERE last + took * 1.5 >= (SELECT max(t) FROM steps)), {frame.end}))"""


def _counted(frame: _Frame) -> str:
    is_number = frame.request.metric.type == "sum"
    value = _NUMBER if is_number else "count::DOUBLE"
    per = frame.request.width if frame.request.aggregation == "rate" else 1
    return f"""WITH {_steps(frame, value, {})}, spread AS (
    SELECT label, bucket, (CASE WHEN is_whole THEN v ELSE v - v_before END) * part AS n
    FROM {_spread(frame, "steps", ("label", "v", "v_before", "is_whole"))}
), {frame.largest("spread", "sum(abs(n))")}
SELECT to_timestamp(bucket / 1e6) AS time, series, sum(n) / {per} AS value
FROM named{_complete(frame)} GROUP BY bucket, series ORDER BY bucket, series"""


def _mean(frame: _Frame) -> str:
    return f"""WITH {_steps(frame, "count::DOUBLE", {"s": "sum"})}, spread AS (
    SELECT label, bucket, (CASE WHEN is_whole THEN v ELSE v - v_before END) * part AS n,
           (CASE WHEN is_whole THEN s ELSE s - s_before END) * part AS s
    FROM {_spread(frame, "steps", ("label", "v", "v_before", "s", "s_before", "is_whole"))}
    WHERE s IS NOT NULL AND (is_whole OR s_before IS NOT NULL)
), {frame.largest("spread", "sum(n)")}
SELECT to_timestamp(bucket / 1e6) AS time, series, sum(s) / sum(n) AS value
FROM named{_complete(frame)} GROUP BY bucket, series HAVING sum(n) > 1e-9 ORDER BY bucket, series"""


_EXPLICIT = {"counts": "bucket_counts", "bounds": "explicit_bounds"}
_EXPONENTIAL = {
    "scale": "scale",
    "zeros": "zero_count",
    "near_zero": "coalesce(zero_threshold, 0)",
    "above": "positive_bucket_counts",
    "above_from": "positive_offset",
    "below": "negative_bucket_counts",
    "below_from": "negative_offset",
}


def _quantiles(frame: _Frame, quantiles: Sequence[Aggregation]) -> str:
    is_explicit = frame.request.metric.type == "histogram"
    carried = _EXPLICIT if is_explicit else _EXPONENTIAL
    buckets = _explicit_buckets() if is_explicit else _exponential_buckets()
    values = ", ".join(
        f"arg_min(low + (high - low) * greatest(0, ({QUANTILES[name]} * total - (up_to - n)) / n), up_to) "
        f"FILTER (up_to >= {QUANTILES[name]} * total - 1e-9) AS {name if len(quantiles) > 1 else 'value'}"
        for name in quantiles
    )
    return f"""WITH {_steps(frame, "count::DOUBLE", carried)}, buckets AS (
{buckets}
), spread AS (
    SELECT label, bucket, low, high, n * part AS n
    FROM {_spread(frame, "buckets", ("label", "low", "high", "n"))}
), {frame.largest("spread", "sum(n)")}, summed AS (
    SELECT bucket, series, low, high, sum(n) AS n
    FROM named{_complete(frame)} GROUP BY bucket, series, low, high HAVING sum(n) > 1e-9
), ranked AS (
    SELECT *, sum(n) OVER (PARTITION BY bucket, series ORDER BY high, low) AS up_to,
              sum(n) OVER (PARTITION BY bucket, series) AS total
    FROM summed
)
SELECT to_timestamp(bucket / 1e6) AS time, series, {values}
FROM ranked GROUP BY bucket, series ORDER BY bucket, series"""


def _explicit_buckets() -> str:
    """Return SQL for the increase of each bucket in a step: the point's counts less the previous point's."""
    return """    SELECT label, f, t, sign * counts[i] AS n,
           coalesce(bounds[i - 1], least(bounds[1], 0)) AS low, coalesce(bounds[i], bounds[i - 1]) AS high
    FROM (SELECT *, unnest(range(1, len(counts) + 1)) AS i FROM (
        SELECT label, f, t, 1 AS sign, counts, bounds FROM steps
        WHERE is_whole OR bounds = bounds_before
        UNION ALL
        SELECT label, f, t, -1, counts_before, bounds FROM steps
        WHERE NOT is_whole AND bounds = bounds_before))
    WHERE counts[i] > 0 AND len(bounds) > 0"""


def _exponential_buckets() -> str:
    """Return the same SQL for exponential buckets. Points are compared at the coarser scale of the two."""
    return """    SELECT label, f, t, sign * n AS n,
           CASE side WHEN 0 THEN 0 WHEN 1 THEN pow(2, i / pow(2, common))
                     ELSE -pow(2, (i + 1) / pow(2, common)) END AS low,
           CASE side WHEN 0 THEN near_zero WHEN 1 THEN pow(2, (i + 1) / pow(2, common))
                     ELSE -pow(2, i / pow(2, common)) END AS high
    FROM (
        SELECT label, f, t, sign, side, common, near_zero, counts[k] AS n,
               floor((first_index + k - 1) / pow(2, scale - common)) AS i
        FROM (SELECT *, unnest(range(1, len(counts) + 1)) AS k FROM (
            SELECT label, f, t, sign, common, scale, near_zero, unnest([
                {'side': 0, 'first_index': 0, 'counts': [zeros]},
                {'side': 1, 'first_index': above_from, 'counts': above},
                {'side': 2, 'first_index': below_from, 'counts': below}], recursive := true)
            FROM (
                SELECT label, f, t, 1 AS sign, near_zero, scale, zeros, above, above_from, below, below_from,
                       CASE WHEN is_whole THEN scale ELSE least(scale, scale_before) END AS common
                FROM steps
                UNION ALL
                SELECT label, f, t, -1, near_zero, scale_before, zeros_before, above_before,
                       above_from_before, below_before, below_from_before, least(scale, scale_before)
                FROM steps WHERE NOT is_whole)))
        WHERE counts[k] > 0)"""
