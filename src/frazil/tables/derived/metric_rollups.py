"""Metric points by series, in buckets of time.

Which columns have values depends on the type of the metric:

| points | `value_sum`, `count` | `value_min`, `value_max` | `value_codes` | `bucket_*` | `first_*`, `last_*` |
|---|---|---|---|---|---|
| gauges, delta sums | of the values | of the values | yes | | value |
| cumulative sums | of the values, unless monotonic | of the values | | | value |
| delta histograms | of the measurements | of the measurements | | yes | sum |
| cumulative histograms | | of the measurements since the start | | `last_` | sum, count |
| summaries | | | | | sum, count, `last_quantiles` |

"Histograms" are also exponential ones. A sum or histogram is cumulative unless its temporality is delta.

`points` counts all points. A point without a value counts nowhere else: one with the flag for no recorded
value, and a gauge or sum without a number or with NaN. A NaN in `sum`, `min` or `max` is NULL.

A cumulative value restarts from zero when its source restarts. The start time, which changes then, is part of
the key, so that rows of one key have no restart between them, and merge in any order. The increase is
computed at read, as `frazil.sql.metric_steps` does, of rows of one series, resolution and start in order of
time: from each row to the next it is the difference of `last_value`; of the first row it is all of
`last_value` if the start is in the time that is read, else `last_value` - `first_value`.

Sources without start times have NULL there. A restart between two rows is a decrease from `last_value` to
`first_value`. Inside a row of a sum, `value_max` is above `last_value` if the value was higher before the
restart than at the end of the bucket: the increase is then `value_max` - `first_value` + `last_value`. A
restart is lost if it is one of several in a bucket, or if the value has passed its earlier maximum before the
bucket ends. The increase then lacks the value reached before that restart; it is never too high.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.tables.columns import QUANTILE, Column, TableSpec
from frazil.tables.derived.buckets import bucket_lists
from frazil.tables.derived.combine import whole
from frazil.tables.derived.rollup import KEPT_DAYS, RESOLUTION_COLUMN, bucket_column, tenant_column
from frazil.tables.derived.rules import ANY, KEY, MAX, MIN, RESOLUTIONS, SUM, Derived, Merge
from frazil.tables.derived.sketch import sketch_of

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_DELTA = 1
_NO_RECORDED_VALUE = 1
_TYPES = {"gauge": 1, "sum": 2, "histogram": 3, "exponential_histogram": 4, "summary": 5}
_KEPT = (
    "tenant_id",
    "time",
    "metric_name",
    "service_name",
    "series_id",
    "aggregation_temporality",
    "is_monotonic",
    "metric_type",
    "unit",
)
_VALUES = (
    "start_time_unix_nano",
    "time_unix_nano",
    "flags",
    "value_double",
    "value_int",
    "count",
    "sum",
    "min",
    "max",
    "bucket_counts",
    "explicit_bounds",
    "scale",
    "zero_count",
    "zero_threshold",
    "positive_offset",
    "positive_bucket_counts",
    "negative_offset",
    "negative_bucket_counts",
    "quantile_values",
)


def metric_rollup_rows(metrics: pa.Table) -> pa.Table:
    """Returns a row for each point. Columns that are NULL in all rows are left out."""
    if metrics.num_rows == 0:
        return metrics.select(_KEPT)
    metrics = metrics.combine_chunks()
    points = _Points(metrics)
    made = points.key() | points.values() | points.extremes() | points.buckets()
    rows = metrics.select(_KEPT)
    for name, column in made.items():
        if column.null_count < len(column):
            rows = rows.append_column(name, column)
    return rows


class _Points:
    """Points of all types, and which of their values count."""

    def __init__(self, metrics: pa.Table) -> None:
        self._metrics = metrics
        type_ = _type_codes(whole(metrics.column("metric_type")))
        is_delta = self._longs("aggregation_temporality") == _DELTA
        is_gauge, is_sum, self.is_summary = (type_ == _TYPES[name] for name in ("gauge", "sum", "summary"))
        self.is_explicit, self.is_exponential = (
            type_ == _TYPES["histogram"],
            type_ == _TYPES["exponential_histogram"],
        )
        self.is_histogram = self.is_explicit | self.is_exponential
        self.is_number = is_gauge | is_sum
        self.is_cumulative = self.is_summary | ((is_sum | self.is_histogram) & ~is_delta)
        number = self._doubles("value_double")
        is_int = self._present("value_int")
        number[is_int] = self._longs("value_int")[is_int]
        self.value = np.where(self.is_number, number, self._doubles("sum"))
        flags = self._longs("flags")
        self.is_recorded = (flags & _NO_RECORDED_VALUE == 0) & (type_ > 0)
        self.is_recorded &= ~(self.is_number & np.isnan(self.value))
        is_counter = self.is_cumulative & is_sum & self._present("is_monotonic")
        if is_counter.any():
            is_counter &= (
                whole(metrics.column("is_monotonic")).fill_null(False).to_numpy(zero_copy_only=False)
            )
        self.is_added = self.is_recorded & np.where(
            is_sum, ~is_counter, is_gauge | (self.is_histogram & ~self.is_cumulative)
        )
        self.is_sketched = self.is_recorded & self.is_number & ~self.is_cumulative

    def key(self) -> dict[str, pa.Array]:
        start = self._longs("start_time_unix_nano")
        has_start = self._present("start_time_unix_nano") & self.is_cumulative
        return {"start_time_unix_nano": pa.array(start, mask=~has_start)}

    def values(self) -> dict[str, pa.Array]:
        count = self._longs("count")
        is_counted = self.is_recorded & self._present("count")
        added = np.where(self.is_number, 1, count)
        has_count = is_counted & self.is_cumulative & (self.is_histogram | self.is_summary)
        codes, counts = sketch_of(_or_null(self.value, self.is_sketched))
        since_start = pa.array(count, mask=~has_count)
        return {
            "points": pa.repeat(pa.scalar(1, pa.int64()), len(self.value)),
            "count": pa.array(added, mask=~(self.is_added & (self.is_number | is_counted))),
            "value_sum": _or_null(self.value, self.is_added),
            "value_codes": codes,
            "value_counts": counts,
            "first_count": since_start,
            "last_count": since_start,
        }

    def extremes(self) -> dict[str, pa.Array]:
        micros = whole(self._metrics.column("time")).cast(pa.int64()).to_numpy()
        nanos = self._longs("time_unix_nano")
        nanos = np.where(nanos // 1000 == micros, nanos, micros * 1000)
        time = pa.array(nanos, mask=~self.is_recorded)
        value = _or_null(self.value, self.is_recorded)
        least, most = (np.where(self.is_number, self.value, self._doubles(name)) for name in ("min", "max"))
        return {
            "value_min": _or_null(least, self.is_recorded),
            "value_max": _or_null(most, self.is_recorded),
            "first_time_unix_nano": time,
            "first_value": value,
            "last_time_unix_nano": time,
            "last_value": value,
        }

    def buckets(self) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        if (self.is_histogram & self.is_recorded).any():
            explicit, exponential = (
                each & self.is_recorded for each in (self.is_explicit, self.is_exponential)
            )
            bounds, counts = bucket_lists(self._metrics, explicit, exponential)
            made |= {
                "bucket_bounds": _only(bounds, ~self.is_cumulative),
                "bucket_counts": _only(counts, ~self.is_cumulative),
                "last_bucket_bounds": _only(bounds, self.is_cumulative),
                "last_bucket_counts": _only(counts, self.is_cumulative),
            }
        if (is_used := self.is_summary & self.is_recorded).any():
            made["last_quantiles"] = _only(whole(self._metrics.column("quantile_values")), is_used)
        return made

    def _present(self, name: str) -> Mask:
        column = whole(self._metrics.column(name))
        if column.null_count == 0:
            return np.ones(len(column), np.bool_)
        found: Mask = column.is_valid().to_numpy(zero_copy_only=False)
        return found

    def _longs(self, name: str) -> Longs:
        """Returns the integers of a column; 0 for NULL."""
        found: Longs = whole(self._metrics.column(name)).fill_null(0).to_numpy().astype(np.int64)
        return found

    def _doubles(self, name: str) -> Doubles:
        """Returns the numbers of a column; NaN for NULL."""
        found: Doubles = whole(self._metrics.column(name)).to_numpy(zero_copy_only=False).astype(np.float64)
        return found


def _type_codes(types: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the number of each type; 0 for an unknown one."""
    encoded = types if pa.types.is_dictionary(types.type) else types.dictionary_encode()
    codes = np.array([*(_TYPES.get(name, 0) for name in encoded.dictionary.to_pylist()), 0])
    found: Longs = codes[encoded.indices.fill_null(len(codes) - 1).to_numpy()]
    return found


def _or_null(numbers: Doubles, mask: Mask) -> pa.Array:
    """Returns the numbers of the mask; NULL for NaN and for all others."""
    return pa.array(numbers + 0.0, mask=~mask | np.isnan(numbers))


def _only(lists: pa.ListArray, mask: Mask) -> pa.ListArray:
    """Returns the lists of the rows in the mask; NULL for the others."""
    if lists.null_count:
        mask = mask & lists.is_valid().to_numpy(zero_copy_only=False)
    if mask.all():
        return lists
    places = np.arange(len(lists))
    return lists.take(pa.array(places, mask=~mask))


_LONG, _DOUBLE = pa.int64(), pa.float64()
_FIRST, _LAST = Merge("first", by="first_time_unix_nano"), Merge("last", by="last_time_unix_nano")
_NUMBER = "metrics.value_double, else value_int"
_NUMBER_OR_SUM = "The value of a gauge or sum; the sum of a histogram or summary"
_SINCE = "since its start"

METRIC_ROLLUPS = TableSpec(
    "metric_rollups",
    "Metric points by series, in buckets of 1 minute, 5 minutes, 1 hour and 1 day. Sums and histograms are cumulative "
    "unless their temporality is delta. The increase of a cumulative series is not stored: of rows of one series, "
    "resolution and start it is the difference of `last_value` (`last_count`, `last_bucket_counts`) from each row to the "
    "next; of the first row, all of `last_value` if the start is in the time that is read, else `last_value` - "
    "`first_value`. Without a start, a restart of the source is a decrease: from `last_value` to the next `first_value`, or "
    "from `value_max` to `last_value`. The SQL function `metric_steps` computes increases.",
    (
        tenant_column("metrics", "points"),
        RESOLUTION_COLUMN,
        Column("metric_name", pa.string(), "metrics.metric_name", "Name of the metric", "hot", coded=True, merge=KEY),
        Column("service_name", pa.string(), "metrics.service_name", "Service", "hot", coded=True, merge=KEY),
        Column("series_id", _LONG, "metrics.series_id", "Id of the series; its attributes are in `series`", "hot", required=True, merge=KEY),
        Column("start_time_unix_nano", _LONG, "metrics.start_time_unix_nano", "Time since which a cumulative sum or histogram, or a summary, counts: it changes when the source restarts. NULL if unknown, and for gauges and delta metrics", "hot", merge=KEY),
        bucket_column("metrics"),
        Column("aggregation_temporality", pa.int32(), "metrics.aggregation_temporality", "1 delta, 2 cumulative; NULL where the type has none", "hot", merge=KEY),
        Column("is_monotonic", pa.bool_(), "metrics.is_monotonic", "Whether a sum only grows; NULL for other types", "hot", merge=KEY),
        Column("metric_type", pa.string(), "metrics.metric_type", "gauge, sum, histogram, exponential_histogram or summary", "hot", coded=True, merge=ANY),
        Column("unit", pa.string(), "metrics.unit", "Unit, in UCUM notation", "hot", coded=True, merge=ANY),
        Column("points", _LONG, "metrics", "Number of points, also of those without a value (no recorded value, NaN, no number), which count in no other column", "hot", merge=SUM),
        Column("count", _LONG, "metrics.count", "Number of values in `value_sum`: values of gauges, delta sums and cumulative sums that are not monotonic, and measurements of delta histograms; else NULL. The average is `value_sum` / `count` if histograms have sums", "hot", merge=SUM),
        Column("value_sum", _DOUBLE, f"{_NUMBER}; metrics.sum", "Sum of the values of a gauge, a delta sum or a cumulative sum that is not monotonic, and of the sums of a delta histogram; else NULL", "hot", merge=SUM),
        Column("value_min", _DOUBLE, f"{_NUMBER}; metrics.min", f"Smallest value of a gauge or sum; smallest measurement of a histogram, of a cumulative one {_SINCE}", "hot", merge=MIN),
        Column("value_max", _DOUBLE, f"{_NUMBER}; metrics.max", f"Largest value of a gauge or sum; largest measurement of a histogram, of a cumulative one {_SINCE}", "hot", merge=MAX),
        Column("first_time_unix_nano", _LONG, "metrics.time_unix_nano", "Time of the first point with a value. The received time if `metrics.time` is that", merge=MIN),
        Column("first_value", _DOUBLE, f"{_NUMBER}; metrics.sum", f"{_NUMBER_OR_SUM}, at the first point; NULL if that point has no sum", merge=_FIRST),
        Column("last_time_unix_nano", _LONG, "metrics.time_unix_nano", "Time of the last point with a value. The received time if `metrics.time` is that", merge=MAX),
        Column("last_value", _DOUBLE, f"{_NUMBER}; metrics.sum", f"{_NUMBER_OR_SUM}, at the last point; NULL if that point has no sum", merge=_LAST),
        Column("first_count", _LONG, "metrics.count", f"Measurements of a cumulative histogram or summary {_SINCE}, at the first point; else NULL", merge=_FIRST),
        Column("last_count", _LONG, "metrics.count", f"Measurements of a cumulative histogram or summary {_SINCE}, at the last point; else NULL", merge=_LAST),
        Column("value_codes", pa.list_(pa.int32()), _NUMBER, "Sketch of the values of a gauge or delta sum: codes of buckets; else NULL", merge=Merge("counted")),
        Column("value_counts", pa.list_(_LONG), _NUMBER, "Sketch of the values: how often each code of `value_codes` occurs", merge=Merge("counts", by="value_codes")),
        Column("bucket_bounds", pa.list_(_DOUBLE), "metrics.explicit_bounds; metrics.scale and offsets", "Upper bounds of a delta histogram's buckets, ascending; of an explicit histogram the last is infinity. An exponential histogram has the buckets with measurements, and before each run of these an empty bucket whose bound is the run's lower edge. NULL for other types, and without buckets", merge=Merge("counted")),
        Column("bucket_counts", pa.list_(_LONG), "metrics.bucket_counts; positive_bucket_counts, zero_count and negative_bucket_counts", "Measurements in each bucket of `bucket_bounds`. Histograms with different bounds merge: a bucket's lower edge is then at or below the bound before it", merge=Merge("counts", by="bucket_bounds")),
        Column("last_bucket_bounds", pa.list_(_DOUBLE), "metrics.explicit_bounds; metrics.scale and offsets", "Bounds as in `bucket_bounds`, of a cumulative histogram's last point; else NULL", merge=_LAST),
        Column("last_bucket_counts", pa.list_(_LONG), "metrics.bucket_counts; positive_bucket_counts, zero_count and negative_bucket_counts", f"Measurements {_SINCE} in each bucket of `last_bucket_bounds`", merge=_LAST),
        Column("last_quantiles", pa.list_(QUANTILE), "metrics.quantile_values", "Quantiles that the client computed, of a summary's last point; else NULL", merge=_LAST),
    ),
    sort_by=(
        "resolution",
        "metric_name",
        "service_name",
        "series_id",
        "start_time_unix_nano",
        "time",
        "aggregation_temporality",
        "is_monotonic",
    ),
    derived=Derived(
        "metrics",
        (*(name for name in _KEPT if name not in ("tenant_id", "time")), *_VALUES),
        metric_rollup_rows,
        RESOLUTIONS,
        counts="points",
        kept_days=KEPT_DAYS,
    ),
)  # fmt: skip
