"""What a Spark task sends to the driver: its result, and how long stores took meanwhile. Nobody scrapes
Spark's workers, so the driver counts for them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from frazil.storage import metrics as store_metrics

COLUMNS = "result binary, calls binary"
"""For `mapInArrow`."""
_SCHEMA = pa.schema([("result", pa.binary()), ("calls", pa.binary())])


def packed(work: Callable[[], object]) -> pa.RecordBatch:
    """Does the work, in the worker."""
    with store_metrics.gathering() as calls:
        result = work()
    columns = [pa.array([pickle.dumps(each)], pa.binary()) for each in (result, calls)]
    return pa.record_batch(columns, schema=_SCHEMA)


def unpacked(table: pa.Table) -> list[Any]:
    """The results, in the driver."""
    for calls in table.column("calls").to_pylist():
        store_metrics.replay(pickle.loads(calls))  # noqa: S301
    return [pickle.loads(result) for result in table.column("result").to_pylist()]  # noqa: S301
