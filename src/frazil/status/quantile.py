"""Quantiles from the buckets of a histogram."""

from __future__ import annotations

import math
from collections.abc import Mapping


def quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """`buckets` says how many were no more than each bound; one bound is infinite. None if there were none.

    Within a bucket they are taken to lie evenly. What is over the last finite bound is said to be that bound,
    which is all that is known.
    """
    bounds = sorted(buckets)
    if not bounds or not math.isinf(bounds[-1]):
        return None
    total = buckets[bounds[-1]]
    if total <= 0:
        return None
    wanted, below, lower = q * total, 0.0, 0.0
    for bound in bounds:
        up_to = max(below, buckets[bound])  # scrapes of several processes may be a moment apart
        if up_to >= wanted and up_to > below:
            if math.isinf(bound):
                break
            return lower + (bound - lower) * (wanted - below) / (up_to - below)
        below = up_to
        if not math.isinf(bound):
            lower = bound
    return lower if len(bounds) > 1 else None
