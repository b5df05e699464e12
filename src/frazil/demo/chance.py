"""Randomness that a seed decides. Each purpose has its own stream, so one does not disturb another."""

from __future__ import annotations

import math
from random import Random

from opentelemetry.sdk.trace.id_generator import IdGenerator


def stream(seed: int, purpose: str) -> Random:
    """The random numbers for one purpose of a run."""
    return Random(f"{seed}/{purpose}")  # noqa: S311 simulated traffic, not secrets


def lognormal(random: Random, median: float, sigma: float) -> float:
    """Latencies are log-normal: most are near the median, a few are far above it."""
    return median * math.exp(sigma * random.gauss(0.0, 1.0))


class SeededIds(IdGenerator):
    """Trace and span ids from the seed, so that a run can be repeated id by id."""

    def __init__(self, seed: int) -> None:
        self._random = stream(seed, "ids")

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True
