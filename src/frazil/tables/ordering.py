"""Sorts rows by columns of integers. Pure NumPy, without loops over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]

_NUMBERS_MAX = 2**62
_DIGIT_BITS = 16


@dataclass(frozen=True)
class Key:
    """A column of integers from 0 to below `size`."""

    values: Longs
    size: int

    @classmethod
    def of(cls, values: Longs) -> Key:
        """Returns a key that sorts as the values do."""
        if len(values) == 0:
            return cls(values, 1)
        least, most = int(values.min()), int(values.max())
        if most - least >= _NUMBERS_MAX:
            distinct, places = np.unique(values, return_inverse=True)
            return cls(places.astype(np.int64), len(distinct))
        return cls(values - least, most - least + 1)


def order_of(keys: Sequence[Key]) -> Longs:
    """Returns the stable order that sorts rows by the first key, then by the second, and so on.

    Joins keys to as few numbers as possible. Measured with the rows of `metric_rollups`, which have nine
    keys: 3 times as fast as `np.lexsort`, which sorts by each key.
    """
    joined: list[Key] = []
    for key in keys:
        if joined and joined[-1].size * key.size <= _NUMBERS_MAX:
            before = joined.pop()
            if key.size > 1:
                key = Key(before.values * key.size + key.values, before.size * key.size)
            else:
                key = before
        joined.append(key)
    order = stable_order(joined[-1])
    for key in reversed(joined[:-1]):
        order = order[stable_order(Key(key.values[order], key.size))]
    return order


def stable_order(key: Key) -> Longs:
    """Returns the stable order that sorts rows by the key. Measured: 2 to 7 times as fast as NumPy's stable
    sort of 64-bit numbers, because NumPy sorts 16-bit numbers by radix.
    """
    order: Longs = np.argsort(key.values.astype(np.uint16), kind="stable")  # wraps: the lowest 16 bits
    bits = _DIGIT_BITS
    while key.size > 1 << bits:
        digits = (key.values >> bits).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
        bits += _DIGIT_BITS
    return order
