"""When user requests come: a mild random process around a slow wave, thinned out by the incident `drop`."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

_WAVE_SECONDS = 300.0
_WAVE_DEPTH = 0.25
_DROP_FACTOR = 0.1
# Gaps are gamma-distributed; shape 1 would be Poisson, larger is more even.
_GAP_SHAPE = 3.0
_STEP_SECONDS = 0.5


class Arrivals:
    """An endless series of arrival times, in seconds from the beginning of the run."""

    def __init__(self, traces_per_second: float, dropped_at: Callable[[float], bool], random: Random) -> None:
        self._traces_per_second = traces_per_second
        self._dropped_at = dropped_at
        self._random = random
        self._now = 0.0

    def rate_at(self, seconds: float) -> float:
        wave = 1 + _WAVE_DEPTH * math.sin(2 * math.pi * seconds / _WAVE_SECONDS)
        return self._traces_per_second * wave * (_DROP_FACTOR if self._dropped_at(seconds) else 1.0)

    def next(self) -> float:
        """The next arrival. The rate is followed in small steps, so a long gap ends when the drop does."""
        left = self._random.gammavariate(_GAP_SHAPE, 1 / _GAP_SHAPE)
        while True:
            rate = self.rate_at(self._now)
            step = min(left / rate, _STEP_SECONDS)
            self._now += step
            left -= rate * step
            if left <= 1e-12:
                return self._now

    def skip_to(self, seconds: float) -> None:
        """Leave out what should have come until then: the machine could not keep up."""
        self._now = max(self._now, seconds)
