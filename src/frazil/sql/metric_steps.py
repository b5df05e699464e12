"""The table function `metric_steps`: a metric in steps of time, from the coarsest rollup that has the answer.

It is a macro over the merging view of `metric_rollups`. When DuckDB plans a query, all conditions of the
macro become constants, so they choose files as those of a query do.

*Increase.* Rows of one series and start follow each other in time. The increase of a row is what was counted
from the last point of the row before it until its own last point. If there is no row before it, all that was
counted since the start is new if the start is in the time that is read; else only what was counted since the
row's first point. A start at the time of the first point means that the start is unknown. A value below the
one before it was reset, and is new as a whole. The largest and the smallest value show a reset inside a row
of a sum: the largest is above the last, or the smallest is below the first.
"""

# ruff: noqa: S608 -- only constants
from __future__ import annotations

from frazil.tables.derived.rules import RESOLUTIONS

NAME = "metric_steps"
ARGUMENTS = "metric, step, begin_time, end_time"
SOURCE = "metric_rollups"

_SECOND = 1_000_000
_FIRST_STEP = 946_857_600 * _SECOND
"""2000-01-03, a Monday, from which `time_bucket` counts too: steps of weeks begin on Mondays."""
READ_BEFORE_SECONDS = 900
"""How far before the first step rows are read at least, for the increase since the row before."""
_JITTER_NANOS = 60_000_000_000
"""Starts that differ by at most this much, of points that follow each other, can be one start that the source
computes inexactly.
"""

_STEP = "CAST(step AS INTERVAL)"
_WIDTH = f"epoch_us({_STEP})"
_BEGIN, _END = "epoch_us(CAST(begin_time AS TIMESTAMPTZ))", "epoch_us(CAST(end_time AS TIMESTAMPTZ))"
_COARSEST_FIRST = sorted(RESOLUTIONS, reverse=True)
_FITTING = " ".join(f"WHEN {_WIDTH} % {each * _SECOND} = 0 THEN {each}" for each in _COARSEST_FIRST)
_RESOLUTION = f"CASE {_FITTING} ELSE {min(RESOLUTIONS)} END"
_FROM = f"({_BEGIN} - (({_BEGIN} - {_FIRST_STEP}) % {_WIDTH} + {_WIDTH}) % {_WIDTH})"
_UNTIL = f"({_END} + ({_WIDTH} - ({_END} - {_FIRST_STEP}) % {_WIDTH}) % {_WIDTH})"
_READ_FROM = f"({_FROM} - CAST(greatest({_RESOLUTION}, {READ_BEFORE_SECONDS}) AS BIGINT) * {_SECOND})"
_IS_VALID = (
    f"{_WIDTH} > 0 AND {_WIDTH} % {min(RESOLUTIONS) * _SECOND} = 0 "
    f"AND date_part('month', {_STEP}) = 0 AND date_part('year', {_STEP}) = 0"
)
_REFUSAL = f"the step of {NAME} must be whole minutes, hours, days or weeks, not months"

COLUMNS = (
    "resolution",
    "metric_name",
    "service_name",
    "series_id",
    "start_time_unix_nano",
    "time",
    "aggregation_temporality",
    "is_monotonic",
    "metric_type",
    "unit",
    "points",
    "count",
    "value_sum",
    "value_min",
    "value_max",
    "first_time_unix_nano",
    "first_value",
    "last_time_unix_nano",
    "last_value",
    "first_count",
    "last_count",
    "value_codes",
    "value_counts",
    "bucket_bounds",
    "bucket_counts",
    "last_bucket_bounds",
    "last_bucket_counts",
    "last_quantiles",
)
"""The columns of the rollup that the macro reads."""


def _new(of: str, in_row: str) -> str:
    """Return the increase of a number whose first, last and earlier values are in columns named after it."""
    return (
        f"CASE base WHEN 'same' THEN first_{of} - same_{of} WHEN 'other' THEN first_{of} - other_{of} "
        f"WHEN 'zero' THEN first_{of} ELSE 0 END + {in_row}"
    )


_NEW_IN_SUM = (
    "CASE WHEN value_max > last_n THEN value_max - first_n + last_n "
    "WHEN value_min < first_n THEN last_n ELSE last_n - first_n END"
)
_NEW_N = _new(
    "n",
    f"CASE WHEN metric_type = 'sum' THEN {_NEW_IN_SUM} "
    "WHEN last_n >= first_n THEN last_n - first_n ELSE last_n END",
)
_NEW_VALUE = _new("value", "CASE WHEN last_n >= first_n THEN last_value - first_value ELSE last_value END")


def _lists(values: str, counts: str) -> tuple[str, str]:
    """Return the concatenated lists of a group, in the same order. NULL if there are none."""
    pairs = f"list({{'1': {values}, '2': {counts}}}) FILTER ({values} IS NOT NULL AND {counts} IS NOT NULL)"
    of_values, of_counts = (f'flatten(list_transform({pairs}, lambda pair_: pair_."{n}"))' for n in (1, 2))
    return of_values, of_counts


_CODES, _CODE_COUNTS = _lists("value_codes", "value_counts")
_BOUNDS, _BOUND_COUNTS = _lists("new_bounds", "new_counts")
_HAS_BUCKETS = "metric_type IN ('histogram', 'exponential_histogram')"
_IS_COUNTED = "metric_type IN ('histogram', 'exponential_histogram', 'summary')"


def _step_of(time: str) -> str:
    return f"epoch_us({time}) - (epoch_us({time}) - {_FIRST_STEP}) % {_WIDTH}"


# The last moment is a bound, and not the end, because bounds that choose files include their value.
# Measured: DuckDB computes all functions of a window, also those that a query does not need. So lists are in
# none: a row subtracts its own buckets from those of the step in which the row after it is.
_READ = f"""SELECT *,
  metric_type = 'summary' OR (metric_type <> 'gauge' AND aggregation_temporality IS DISTINCT FROM 1)
    AS is_running,
  last_time_unix_nano IS NULL AS is_empty,
  CASE WHEN metric_type = 'sum' THEN first_value ELSE CAST(first_count AS DOUBLE) END AS first_n,
  CASE WHEN metric_type = 'sum' THEN last_value ELSE CAST(last_count AS DOUBLE) END AS last_n
FROM main.{SOURCE}
WHERE metric_name = metric AND resolution = {_RESOLUTION}
  AND time >= make_timestamptz({_READ_FROM}) AND time <= make_timestamptz({_UNTIL} - 1)"""
_WITH_NEIGHBOURS = f"""SELECT *,
  lag(last_n) OVER same AS same_n,
  lag(last_value) OVER same AS same_value,
  lead(time) OVER same AS time_after,
  lead(first_n) OVER same AS first_n_after,
  lead(last_n) OVER same AS last_n_after,
  lag(last_n) OVER other AS other_n,
  lag(last_value) OVER other AS other_value,
  lag(last_time_unix_nano) OVER other AS other_time,
  lag(start_time_unix_nano) OVER other AS other_start
FROM ({_READ})
WINDOW
  same AS (PARTITION BY series_id, service_name, aggregation_temporality, is_monotonic, is_empty,
           start_time_unix_nano ORDER BY time),
  other AS (PARTITION BY series_id, service_name, aggregation_temporality, is_monotonic, is_empty
            ORDER BY time, first_time_unix_nano, start_time_unix_nano)"""
_WITH_BASE = f"""SELECT *, {_step_of("time")} AS step_begin, {_step_of("time_after")} AS step_after,
  CASE WHEN NOT is_running OR first_n IS NULL THEN 'none'
       WHEN same_n IS NOT NULL THEN CASE WHEN first_n >= same_n THEN 'same' ELSE 'zero' END
       WHEN start_time_unix_nano < other_time AND other_time <= first_time_unix_nano
            AND first_n >= other_n AND abs(start_time_unix_nano - other_start) <= {_JITTER_NANOS} THEN 'other'
       WHEN start_time_unix_nano >= {_READ_FROM} * 1000 AND start_time_unix_nano < first_time_unix_nano
       THEN 'zero'
       ELSE 'none' END AS base,
  coalesce(is_running AND {_HAS_BUCKETS} AND first_n_after >= last_n AND last_n_after >= first_n_after, false)
    AS is_base_after
FROM ({_WITH_NEIGHBOURS})"""
_WITH_SIGN = f"""SELECT *, base IN ('same', 'zero') OR last_n < first_n AS has_base,
  unnest(CASE WHEN is_base_after AND step_after <> step_begin THEN [1, -1] ELSE [1] END) AS sign
FROM ({_WITH_BASE})"""
_IS_CANCELLED = "is_base_after AND step_after = step_begin"
_NEW = f"""SELECT * EXCLUDE (step_begin),
  CASE WHEN sign = 1 THEN step_begin ELSE step_after END AS step_begin,
  {_NEW_N} AS new_n,
  {_NEW_VALUE} AS new_value,
  CASE WHEN NOT is_running THEN bucket_bounds ELSE last_bucket_bounds END AS new_bounds,
  CASE WHEN NOT is_running THEN bucket_counts
       WHEN sign = -1 OR (NOT has_base AND {_IS_CANCELLED})
       THEN list_transform(last_bucket_counts, lambda n_: -n_)
       WHEN has_base AND NOT ({_IS_CANCELLED}) THEN last_bucket_counts END AS new_counts
FROM ({_WITH_SIGN})"""
_STEPS = f"""SELECT
  make_timestamptz(step_begin) AS time,
  series_id, service_name, metric_name, metric_type, unit,
  CAST(sum(points) FILTER (sign = 1) AS BIGINT) AS points,
  TRY_CAST(sum(CASE WHEN is_running AND {_IS_COUNTED} THEN new_n ELSE count END) FILTER (sign = 1) AS BIGINT)
    AS count,
  sum(CASE WHEN is_running AND {_IS_COUNTED} THEN new_value ELSE value_sum END) FILTER (sign = 1) AS sum,
  min(value_min) FILTER (NOT is_running OR metric_type = 'sum') AS min,
  max(value_max) FILTER (NOT is_running OR metric_type = 'sum') AS max,
  arg_max(last_value, last_time_unix_nano)
    FILTER (metric_type = 'gauge' OR (metric_type = 'sum' AND is_running)) AS last,
  sum(CASE WHEN is_running AND (is_monotonic OR {_IS_COUNTED}) THEN new_n
           WHEN is_running OR metric_type = 'gauge' THEN NULL
           WHEN {_IS_COUNTED} THEN CAST(count AS DOUBLE) ELSE value_sum END) FILTER (sign = 1) AS new,
  {_CODES} AS value_codes,
  {_CODE_COUNTS} AS value_counts,
  {_BOUNDS} AS bucket_bounds,
  {_BOUND_COUNTS} AS bucket_counts,
  arg_max(last_quantiles, last_time_unix_nano) AS last_quantiles
FROM ({_NEW})
WHERE step_begin >= {_FROM}
GROUP BY ALL"""

SQL = f"""SELECT time, series_id, service_name, metric_name, metric_type, unit, points, count, sum, min, max,
  sum / count AS avg, last, CASE WHEN isfinite(new) THEN new END AS increase,
  CASE WHEN isfinite(new) THEN new END / ({_WIDTH} / {_SECOND}) AS rate,
  value_codes, value_counts, bucket_bounds, bucket_counts, last_quantiles
FROM ({_STEPS})
UNION ALL BY NAME
SELECT CAST(error('{_REFUSAL}') AS TIMESTAMPTZ) AS time WHERE ({_IS_VALID}) IS DISTINCT FROM true"""
"""The macro's SELECT. Its last part has a row, which is an error, only if the step is invalid."""
