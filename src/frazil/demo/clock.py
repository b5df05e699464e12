"""The time of a run: real, or as fast as the machine can."""

from __future__ import annotations

import time
from threading import Event
from typing import Protocol

_DRIFT_NANOS_MAX = 1_000_000_000


class Clock(Protocol):
    @property
    def virtual(self) -> bool:
        """Nobody waits for this clock; the simulation waits for the receiver instead of dropping."""

    def elapsed(self) -> float:
        """Seconds since the clock was made."""

    def wait_until(self, elapsed_seconds: float, stop: Event) -> None:
        """Return at that time, or earlier when stopped."""

    def unix_nanos(self, elapsed_seconds: float) -> int:
        """The time of day at that time of the run."""


class WallClock:
    """Real time: paced by the monotonic clock; anchored anew when the time of day jumps."""

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
    """Simulated time, which passes as soon as it is waited for. For tests and for filling a lake quickly."""

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
