"""What all rollups declare alike: the columns of tenant, resolution and bucket, and how long rows are kept."""

from __future__ import annotations

import pyarrow as pa

from frazil.tables.columns import RESOLUTION, TIMESTAMP, Column
from frazil.tables.derived.rules import KEY

KEPT_DAYS: tuple[tuple[int, int | None], ...] = ((60, 14), (300, 60), (3600, 400), (86_400, None))
RESOLUTION_COLUMN = Column(
    RESOLUTION,
    pa.int32(),
    "frazil",
    "Length of the bucket in seconds: 60, 300, 3600 or 86400",
    "hot",
    required=True,
    merge=KEY,
)


def tenant_column(source: str, rows: str) -> Column:
    """Returns the column with the tenant that sent the rows of the source."""
    doc = f"Tenant that sent the {rows}"
    return Column("tenant_id", pa.string(), source, doc, "hot", required=True, coded=True, merge=KEY)


def bucket_column(source: str, doc: str = "Start of the bucket") -> Column:
    """Returns the column with the start of the bucket."""
    return Column("time", TIMESTAMP, f"{source}.time", doc, "hot", required=True, merge=KEY)
