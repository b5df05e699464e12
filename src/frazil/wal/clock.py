"""A clock that also counts while the machine sleeps, and how far the wall clock is from the store's."""

from __future__ import annotations

import time
from collections.abc import Callable

from frazil.errors import ClockSkewed

Clock = Callable[[], float]
"""Seconds since some moment; never goes back."""

# macOS has no CLOCK_BOOTTIME, and needs none: its CLOCK_MONOTONIC counts sleep.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    return time.clock_gettime(_CLOCK)


class ClockWatch:
    """Compares the wall clock with the store's. Between two measurements the boot clock measures the time
    that has passed, so a change of the wall clock is noticed at once.
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
        """Asks the store. Raises StoreUnavailable."""
        before = self._clock()
        store = self._store_now()
        after = self._clock()
        # The store read its clock between both moments: of the possible differences the smallest counts.
        offset = self._wall() - after
        most, least = offset - (store - after), offset - (store - before)
        skew = least if least > 0 else most if most < 0 else 0.0
        self._base = offset - skew

    @property
    def skew_seconds(self) -> float | None:
        """How far the wall clock is ahead of the store's clock, negative if it is behind. None before the
        first measurement.
        """
        return None if self._base is None else self._wall() - self._clock() - self._base

    @property
    def failure(self) -> ClockSkewed | None:
        """Why no request may be stamped now; None while the clock is right or was not measured yet."""
        skew = self.skew_seconds
        if skew is None or abs(skew) <= self._seconds_max:
            return None
        return ClockSkewed(
            f"this machine's clock is {abs(skew):,.0f} s {'ahead of' if skew > 0 else 'behind'} the store's, "
            f"more than receive.clock_skew_seconds_max ({self._seconds_max:g} s); set the clock (NTP)"
        )
