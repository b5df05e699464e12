"""A quantile sketch of numbers: how often each bucket of relative width occurs, in two lists that any engine
can merge.

A number v is counted in bucket ceil(log(|v|) / log(GAMMA)), so that all numbers of a bucket are within 1 % of
its `estimate`. The bucket is stored as one integer, the *code*, that sorts as the numbers do: negative for
negative numbers, 0 for zero. Infinite numbers have codes of their own. NaN is not counted.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa

GAMMA = 1.01 / 0.99
OFFSET = 40_000
"""Added to the bucket of a positive number: the smallest double has bucket -37,222, the largest has
35,488."""
INFINITE = 100_000
"""The code of infinity."""
_LOG_GAMMA = math.log(GAMMA)
_LOG_MIDDLE = math.log(2 / (GAMMA + 1))
"""From the upper end of a bucket to its estimate. As a logarithm, because the upper end of the last bucket
overflows."""

Codes = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]


def sketch_codes(values: Doubles) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Returns the code of each number, and which numbers have one: all but NaN."""
    counted = ~np.isnan(values)
    size = np.abs(values)
    is_regular = counted & (size > 0) & np.isfinite(size)
    with np.errstate(divide="ignore", invalid="ignore"):
        buckets = np.where(is_regular, np.ceil(np.log(size) / _LOG_GAMMA) + OFFSET, 0)
    codes = np.where(np.isinf(size), INFINITE, buckets)
    return np.copysign(codes, values, where=counted, out=np.zeros_like(codes)).astype(np.int32), counted


def sketch_of(values: pa.Array | pa.ChunkedArray) -> tuple[pa.ListArray, pa.ListArray]:
    """Returns for each number a sketch of that number alone: its code and the count 1. NULL for NULL and NaN."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    numbers = values.cast(pa.float64()).fill_null(math.nan).to_numpy(zero_copy_only=False)
    codes, counted = sketch_codes(numbers)
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(counted, dtype=np.int32)))
    nulls = None if counted.all() else pa.array(~counted)
    ones = pa.repeat(pa.scalar(1, pa.int64()), int(counted.sum()))
    of_value = [pa.array(codes[counted]), ones]
    made = [pa.ListArray.from_arrays(pa.array(offsets), each, mask=nulls) for each in of_value]
    return made[0], made[1]


def estimate(code: int) -> float:
    """Returns the number that a code stands for: at most 1 % away from each number that was counted in it."""
    if code == 0:
        return 0.0
    if abs(code) >= INFINITE:
        return math.copysign(math.inf, code)
    return math.copysign(math.exp((abs(code) - OFFSET) * _LOG_GAMMA + _LOG_MIDDLE), code)


def quantile(codes: list[int], counts: list[int], share: float) -> float | None:
    """Returns the estimate of a quantile, as the SQL function `sketch_quantile` does; None of no numbers."""
    total = sum(counts)
    if total == 0:
        return None
    rank = max(1, math.ceil(share * total))
    for code, count in sorted(zip(codes, counts, strict=True)):
        rank -= count
        if rank <= 0:
            return estimate(code)
    raise AssertionError
