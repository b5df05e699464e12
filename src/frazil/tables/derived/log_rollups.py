"""Log records and bytes by service and severity."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import Column, TableSpec
from frazil.tables.derived.rollup import KEPT_DAYS, RESOLUTION_COLUMN, bucket_column, tenant_column
from frazil.tables.derived.rules import KEY, RESOLUTIONS, SUM, Derived


def log_rollup_rows(logs: pa.Table) -> pa.Table:
    names = ["tenant_id", "time", "service_name", "severity_number"]
    ones = pa.repeat(pa.scalar(1, pa.int64()), logs.num_rows)
    size = pc.fill_null(pc.binary_length(logs.column("body")), 0).cast(pa.int64())
    return logs.select(names).append_column("records", ones).append_column("body_bytes", size)


LOG_ROLLUPS = TableSpec(
    "log_rollups",
    "Log records by service and severity, in buckets of 1 minute, 5 minutes, 1 hour and 1 day.",
    (
        tenant_column("logs", "records"),
        RESOLUTION_COLUMN,
        Column("service_name", pa.string(), "logs.service_name", "Service", "hot", coded=True, merge=KEY),
        Column("severity_number", pa.int32(), "logs.severity_number", "Severity, as in `logs`", "hot", merge=KEY),
        bucket_column("logs"),
        Column("records", pa.int64(), "logs", "Number of records", merge=SUM),
        Column("body_bytes", pa.int64(), "logs.body", "Bytes of the records' bodies, as UTF-8 text", merge=SUM),
    ),
    sort_by=("resolution", "service_name", "severity_number", "time"),
    derived=Derived(
        "logs",
        ("service_name", "severity_number", "body"),
        log_rollup_rows,
        RESOLUTIONS,
        counts="records",
        kept_days=KEPT_DAYS,
    ),
)  # fmt: skip
