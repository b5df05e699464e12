"""Calls, errors and durations of spans by service, operation, kind and status."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import Column, TableSpec
from frazil.tables.derived import requests
from frazil.tables.derived.rollup import KEPT_DAYS, RESOLUTION_COLUMN, bucket_column, tenant_column
from frazil.tables.derived.rules import KEY, MAX, MIN, RESOLUTIONS, SUM, Derived, Merge
from frazil.tables.derived.sketch import sketch_of

_ERROR = 2


def span_metric_rows(spans: pa.Table) -> pa.Table:
    names = ["tenant_id", "time", "service_name", "name", "kind", "status_code"]
    duration = spans.column("duration_nano").combine_chunks()
    codes, counts = sketch_of(duration)
    made = {
        "is_request": requests.is_request(spans),
        "calls": pa.repeat(pa.scalar(1, pa.int64()), spans.num_rows),
        "errors": pc.fill_null(pc.equal(spans.column("status_code"), _ERROR), False).cast(pa.int64()),
        "duration_nano_sum": duration.cast(pa.float64()),
        "duration_nano_min": duration,
        "duration_nano_max": duration,
        "duration_codes": codes,
        "duration_counts": counts,
    }
    rows = spans.select(names).rename_columns([*names[:3], "operation", *names[4:]])
    for name, column in made.items():
        rows = rows.append_column(name, column)
    return rows


SPAN_METRICS = TableSpec(
    "span_metrics",
    "Calls, errors and durations by service, operation, kind and status, in buckets of 1 minute, 5 minutes, 1 hour "
    "and 1 day.",
    (
        tenant_column("spans", "spans"),
        RESOLUTION_COLUMN,
        Column("service_name", pa.string(), "spans.service_name", "Service", "hot", coded=True, merge=KEY),
        Column("operation", pa.string(), "spans.name", "Name of the operation", "hot", coded=True, merge=KEY),
        Column("kind", pa.int32(), "spans.kind", "Kind, as in `spans`", "hot", merge=KEY),
        Column("status_code", pa.int32(), "spans.status_code", "Status, as in `spans`", "hot", merge=KEY),
        Column("is_request", pa.bool_(), "spans.kind, spans.parent_span_id", "Whether the spans are requests to the service: of kind server or consumer, or without a parent", "hot", merge=KEY),
        bucket_column("spans", "Start of the bucket, in which the spans started"),
        Column("calls", pa.int64(), "spans", "Number of spans", merge=SUM),
        Column("errors", pa.int64(), "spans.status_code", "Number of spans with status error", merge=SUM),
        Column("duration_nano_sum", pa.float64(), "spans.duration_nano", "Sum of the durations in nanoseconds", merge=SUM),
        Column("duration_nano_min", pa.int64(), "spans.duration_nano", "Shortest duration in nanoseconds", merge=MIN),
        Column("duration_nano_max", pa.int64(), "spans.duration_nano", "Longest duration in nanoseconds", merge=MAX),
        Column("duration_codes", pa.list_(pa.int32()), "spans.duration_nano", "Sketch of the durations in nanoseconds: codes of buckets", merge=Merge("counted")),
        Column("duration_counts", pa.list_(pa.int64()), "spans.duration_nano", "Sketch of the durations: how often each code of `duration_codes` occurs", merge=Merge("counts", by="duration_codes")),
    ),
    sort_by=("resolution", "service_name", "operation", "kind", "status_code", "is_request", "time"),
    derived=Derived(
        "spans",
        ("service_name", "name", "status_code", "duration_nano", *requests.COLUMNS),
        span_metric_rows,
        RESOLUTIONS,
        counts="calls",
        kept_days=KEPT_DAYS,
    ),
)  # fmt: skip
