"""The time series of each day, with the attributes that identify them. A query finds series here, and their
points by `series_id` in `metrics` and `metric_rollups`, without reading the attribute maps of every point.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.tables.columns import ATTRIBUTES, TIMESTAMP, Column, TableSpec
from frazil.tables.derived.combine import Groups, whole
from frazil.tables.derived.rollup import bucket_column, tenant_column
from frazil.tables.derived.rules import ANY, KEY, MAX, MIN, Derived

_DAY_MICROS = 86_400_000_000
_OF_SERIES = (
    "metric_name",
    "metric_type",
    "unit",
    "service_name",
    "aggregation_temporality",
    "is_monotonic",
    "description",
    "attributes",
    "attribute_types",
    "resource_attributes",
    "resource_attribute_types",
    "scope_name",
)


def series_rows(metrics: pa.Table) -> pa.Table:
    """Returns one row for each series and day. Attribute maps, the greatest cost, are read of those rows only."""
    if metrics.num_rows == 0:
        return metrics.select(["tenant_id", "time", "series_id", *_OF_SERIES])
    micros = metrics.column("time").cast(pa.int64()).to_numpy()
    days = micros - micros % _DAY_MICROS
    tenants, ids = (whole(metrics.column(name)) for name in ("tenant_id", "series_id"))
    groups = Groups.of([tenants, ids, pa.array(days)], metrics.num_rows)
    firsts = groups.first.to_numpy()
    is_first = np.zeros(metrics.num_rows, np.bool_)
    is_first[firsts] = True
    # `take` would copy the maps of all rows into one chunk. Groups are in order of their first rows, too.
    rows = metrics.select(["tenant_id", "series_id", *_OF_SERIES]).filter(pa.array(is_first))
    for name in ("attributes", "resource_attributes"):
        plain = rows.column(name).cast(ATTRIBUTES)
        rows = rows.set_column(rows.schema.get_field_index(name), name, plain)
    times = {
        "time": days[firsts],
        "first_time": groups.reduce(np.minimum, micros),
        "last_time": groups.reduce(np.maximum, micros),
    }
    for name, found in times.items():
        rows = rows.append_column(name, pa.array(found).cast(TIMESTAMP))
    return rows


_TYPES_DOC = "JSON object with the types of the values that were not strings, as in `metrics`"
_SAME = "If points of one series differ in it, that of one of them"

SERIES = TableSpec(
    "series",
    "One row per time series and day (UTC) on which it has points. A series is written at most once per hour.",
    (
        tenant_column("metrics", "points"),
        bucket_column("metrics", "Start of the day"),
        Column("metric_name", pa.string(), "metrics.metric_name", "Name of the metric", "hot", coded=True, merge=ANY),
        Column("service_name", pa.string(), "metrics.service_name", "Service", "hot", coded=True, merge=ANY),
        Column("series_id", pa.int64(), "metrics.series_id", "Id of the series", "hot", required=True, merge=KEY),
        Column("metric_type", pa.string(), "metrics.metric_type", "gauge, sum, histogram, exponential_histogram or summary", "hot", coded=True, merge=ANY),
        Column("unit", pa.string(), "metrics.unit", "Unit, in UCUM notation", "hot", coded=True, merge=ANY),
        Column("first_time", TIMESTAMP, "metrics.time", "Time of the first point of the day, right to the hour like `last_time`", merge=MIN),
        Column("last_time", TIMESTAMP, "metrics.time", "Time of the last point of the day, right to the hour: a series that was written is not written again in the same hour, so it may have points after this time", merge=MAX),
        Column("aggregation_temporality", pa.int32(), "metrics.aggregation_temporality", f"1 delta, 2 cumulative; NULL where the type has none. {_SAME}", merge=ANY),
        Column("is_monotonic", pa.bool_(), "metrics.is_monotonic", f"Whether a sum only grows; NULL for other types. {_SAME}", merge=ANY),
        Column("description", pa.string(), "metrics.description", f"What the metric measures. {_SAME}", coded=True, merge=ANY),
        Column("attributes", ATTRIBUTES, "metrics.attributes", "Point attributes as text", merge=ANY),
        Column("attribute_types", pa.string(), "metrics.attribute_types", _TYPES_DOC, merge=ANY),
        Column("resource_attributes", ATTRIBUTES, "metrics.resource_attributes", "Resource attributes as text", merge=ANY),
        Column("resource_attribute_types", pa.string(), "metrics.resource_attribute_types", _TYPES_DOC, coded=True, merge=ANY),
        Column("scope_name", pa.string(), "metrics.scope_name", "Instrumentation scope", coded=True, merge=ANY),
    ),
    sort_by=("series_id", "time"),
    derived=Derived(
        "metrics",
        ("series_id", *_OF_SERIES),
        series_rows,
        kept_days=((0, None),),
        once_per_seconds=3600,
    ),
)  # fmt: skip
