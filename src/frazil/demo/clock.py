"""The time of a run, real or simulated, and the arrival times of user requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from random import Random
from threading import Event
from typing import Protocol

_DRIFT_NANOS_MAX = 1_000_000_000
_WAVE_SECONDS = 300.0
_WAVE_DEPTH = 0.25
_DROP_FACTOR = 0.1
# Gaps are gamma-distributed. Shape 1 is a Poisson process; a larger shape is more even.
_GAP_SHAPE = 3.0
_STEP_SECONDS = 0.5


class Clock(Protocol):
    @property
    def virtual(self) -> bool:
        """True if time is simulated. The simulation then waits for the receiver instead of dropping data."""

    def elapsed(self) -> float:
        """Return the seconds since the start of the run."""

    def wait_until(self, elapsed_seconds: float, stop: Event) -> None:
        """Wait until that time, or until `stop` is set."""

    def unix_nanos(self, elapsed_seconds: float) -> int:
        """Return the Unix time at that time of the run."""


class WallClock:
    """Real time from the monotonic clock, adjusted when the system time jumps."""

    virtual = False

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._anchor_nanos = time.time_ns()

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def wait_until(self, elapsed_seconds: float, stop: Event) -> None:
        if (seconds := elapsed_seconds - self.elapsed()) > 0:
            stop.wait(seconds)

    def unix_nanos(self, elapsed_seconds: float) -> int:
        drift = time.time_ns() - self._anchor_nanos - int(self.elapsed() * 1e9)
        if abs(drift) > _DRIFT_NANOS_MAX:
            self._anchor_nanos += drift
        return self._anchor_nanos + int(elapsed_seconds * 1e9)


class VirtualClock:
    """Simulated time, which jumps ahead instead of waiting. For tests and for generating data quickly."""

    virtual = True

    def __init__(self, begin_unix_nanos: int | None = None) -> None:
        self._begin_nanos = time.time_ns() if begin_unix_nanos is None else begin_unix_nanos
        self._elapsed = 0.0

    def elapsed(self) -> float:
        return self._elapsed

    def wait_until(self, elapsed_seconds: float, stop: Event) -> None:
        if not stop.is_set():
            self._elapsed = max(self._elapsed, elapsed_seconds)

    def unix_nanos(self, elapsed_seconds: float) -> int:
        return self._begin_nanos + int(elapsed_seconds * 1e9)


class Arrivals:
    """Arrival times of user requests, in seconds from the start of the run.

    The rate follows a slow wave. The incident `drop` reduces it to a tenth.
    """

    def __init__(self, traces_per_second: float, dropped_at: Callable[[float], bool], random: Random) -> None:
        self._traces_per_second = traces_per_second
        self._dropped_at = dropped_at
        self._random = random
        self._now = 0.0

    def rate_at(self, seconds: float) -> float:
        wave = 1 + _WAVE_DEPTH * math.sin(2 * math.pi * seconds / _WAVE_SECONDS)
        return self._traces_per_second * wave * (_DROP_FACTOR if self._dropped_at(seconds) else 1.0)

    def next(self) -> float:
        """Return the next arrival. The rate is integrated in small steps, so a gap ends with the drop."""
        left = self._random.gammavariate(_GAP_SHAPE, 1 / _GAP_SHAPE)
        while True:
            rate = self.rate_at(self._now)
            step = min(left / rate, _STEP_SECONDS)
            self._now += step
            left -= rate * step
            if left <= 1e-12:
                return self._now

    def skip_to(self, seconds: float) -> None:
        """Skip the arrivals before that time, because the machine cannot keep up."""
        self._now = max(self._now, seconds)
