"""Which versions of each service were running, and how their requests ended."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import TIMESTAMP, Column, TableSpec
from frazil.tables.derived import requests
from frazil.tables.derived.rollup import bucket_column, tenant_column
from frazil.tables.derived.rules import KEY, MAX, MIN, SUM, Derived

_ERROR = 2
_KEYS = ("tenant_id", "service_name", "service_version", "deployment_environment_name")


def service_version_rows(spans: pa.Table) -> pa.Table:
    time = spans.column("time")
    is_request = requests.is_request(spans)
    is_error = pc.fill_null(pc.equal(spans.column("status_code"), _ERROR), False)
    rows = spans.select([*_KEYS, "time"])
    made = {
        "spans": pa.repeat(pa.scalar(1, pa.int64()), spans.num_rows),
        "errors": is_error.cast(pa.int64()),
        "requests": is_request.cast(pa.int64()),
        "request_errors": pc.and_(is_request, is_error).cast(pa.int64()),
        "first_time": time,
        "last_time": time,
    }
    for name, column in made.items():
        rows = rows.append_column(name, column)
    return rows


SERVICE_VERSIONS = TableSpec(
    "service_versions",
    "Versions of each service by deployment environment, with their spans and requests, in buckets of 1 hour and 1 day. "
    "Requests are spans of kind server or consumer, and spans without a parent.",
    (
        tenant_column("spans", "spans"),
        Column("resolution", pa.int32(), "frazil", "Length of the bucket in seconds: 3600 or 86400", "hot", required=True, merge=KEY),
        Column("service_name", pa.string(), "spans.service_name", "Service", "hot", coded=True, merge=KEY),
        Column("service_version", pa.string(), "spans.service_version", "Version of the service; NULL if it was not sent", "hot", coded=True, merge=KEY),
        Column("deployment_environment_name", pa.string(), "spans.deployment_environment_name", "Deployment environment", "hot", coded=True, merge=KEY),
        bucket_column("spans", "Start of the bucket, in which the spans started"),
        Column("spans", pa.int64(), "spans", "Number of spans", merge=SUM),
        Column("errors", pa.int64(), "spans.status_code", "Number of spans with status error", merge=SUM),
        Column("requests", pa.int64(), "spans", "Number of requests", merge=SUM),
        Column("request_errors", pa.int64(), "spans.status_code", "Number of requests with status error", merge=SUM),
        Column("first_time", TIMESTAMP, "spans.time", "Exact start of the first span", merge=MIN),
        Column("last_time", TIMESTAMP, "spans.time", "Exact start of the last span", merge=MAX),
    ),
    sort_by=("resolution", "service_name", "service_version", "deployment_environment_name", "time"),
    derived=Derived(
        "spans",
        ("service_name", "service_version", "deployment_environment_name", "status_code", *requests.COLUMNS),
        service_version_rows,
        (3600, 86_400),
        counts="spans",
        kept_days=((3600, 90), (86_400, 400)),
    ),
)  # fmt: skip
