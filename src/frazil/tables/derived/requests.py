"""Which spans are requests to their service."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_SERVER, _CONSUMER = 2, 5
COLUMNS = ("kind", "parent_span_id")
"""The columns of `spans` that decide it."""


def is_request(spans: pa.Table) -> pa.ChunkedArray:
    """Returns whether each span is of kind server or consumer, or has no parent. Never NULL."""
    kinds = pa.array([_SERVER, _CONSUMER], pa.int32())
    return pc.or_(pc.is_in(spans.column("kind"), kinds), pc.is_null(spans.column("parent_span_id")))
