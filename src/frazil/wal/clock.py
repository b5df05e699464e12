"""A clock that also counts while the machine is suspended: what a sleeper must ask before it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since some moment; never goes back."""

# macOS has no CLOCK_BOOTTIME, and needs none: its CLOCK_MONOTONIC counts sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    return time.clock_gettime(_CLOCK)
