"""How far `time` may be from the received time. Pure, so that rows look the same before and after landing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def within_horizon(
    time: Longs, received: Longs, *, past_micros: int, ahead_micros: int
) -> tuple[Longs, Mask]:
    """`time` set to the received time where it is further back or ahead than that, and which rows that are.

    Measured from the received time, so that the same row gives the same result whenever it is looked at.
    """
    outside: Mask = (time < received - past_micros) | (time > received + ahead_micros)
    if outside.any():
        time = np.where(outside, received, time)
    return time, outside
