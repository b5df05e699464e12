"""A clock that includes system sleep, and a monitor of the wall clock's skew from the store's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from frazil.errors import ClockSkewed

Clock = Callable[[], float]
"""Returns seconds since an arbitrary moment; monotonic."""

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC includes system sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    return time.clock_gettime(_CLOCK)


class ClockWatch:
    """Compares the wall clock with the store's clock.

    Between measurements the boot clock extrapolates the store's time, so a change of the wall clock is
    detected immediately.
    """

    def __init__(
        self,
        store_now: Callable[[], float],
        seconds_max: float,
        *,
        wall: Callable[[], float] = time.time,
        clock: Clock = boot_seconds,
    ) -> None:
        self._store_now = store_now
        self._seconds_max = seconds_max
        self._wall = wall
        self._clock = clock
        self._base: float | None = None
        """The store's time minus the boot clock's."""

    def measure(self) -> None:
        """Reads the store's clock. Raises StoreUnavailable."""
        before = self._clock()
        store = self._store_now()
        after = self._clock()
        # The store read its clock between `before` and `after`: use the smallest possible difference.
        offset = self._wall() - after
        most, least = offset - (store - after), offset - (store - before)
        skew = least if least > 0 else most if most < 0 else 0.0
        self._base = offset - skew

    @property
    def skew_seconds(self) -> float | None:
        """Seconds by which the wall clock is ahead of the store's; negative if behind, None if unmeasured."""
        return None if self._base is None else self._wall() - self._clock() - self._base

    @property
    def failure(self) -> ClockSkewed | None:
        """The reason to refuse requests; None while the skew is within the limit or unmeasured."""
        skew = self.skew_seconds
        if skew is None or abs(skew) <= self._seconds_max:
            return None
        return ClockSkewed(
            f"this machine's clock is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} the store's, "
            f"more than receive.clock_skew_seconds_max ({self._seconds_max:g} s); correct the clock (NTP)"
        )
