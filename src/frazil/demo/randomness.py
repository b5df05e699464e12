"""Random numbers from a seed. Each purpose has its own independent stream."""

from __future__ import annotations

import math
from random import Random

from opentelemetry.sdk.trace.id_generator import IdGenerator


def stream(seed: int, purpose: str) -> Random:
    return Random(f"{seed}/{purpose}")  # noqa: S311 simulated traffic, not secrets


def lognormal(random: Random, median: float, sigma: float) -> float:
    """Draw a log-normal latency: most are near the median, a few are far above it."""
    return median * math.exp(sigma * random.gauss(0.0, 1.0))


class SeededIds(IdGenerator):
    """Generates trace and span IDs from the seed, so that runs are repeatable."""

    def __init__(self, seed: int) -> None:
        self._random = stream(seed, "ids")

    def generate_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True
