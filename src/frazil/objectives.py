"""Service level objectives: time to the ack, to visibility in queries, to landing and to derived rows; and
their metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter

from frazil.config import Config

Objective = Literal["ack", "freshness", "landing_lag", "derive_lag"]

_FRESHNESS_SECONDS = 0.7
_DERIVE_SECONDS = 15.0
"""For the round itself, after the interval between rounds."""


def targets(config: Config) -> Mapping[Objective, float]:
    """Return the target of each objective in seconds. With Kafka, queries see data only after landing.
    Without derivation there is no `derive_lag`.
    """
    status = config.status
    landing_lag = status.landing_lag_seconds or 2 * config.land.age_max(config.wal.type)
    usual = landing_lag if config.wal.type == "kafka" else _FRESHNESS_SECONDS
    found: dict[Objective, float] = {
        "ack": status.ack_seconds,
        "freshness": status.freshness_seconds or usual,
        "landing_lag": landing_lag,
    }
    if config.derive.enabled:
        usual = config.derive.interval_seconds + _DERIVE_SECONDS
        found["derive_lag"] = status.derive_lag_seconds or usual
    return found


class Objectives:
    """Counts events and misses of each objective. A histogram would need a bucket at each configured target.

    `known_here` are the objectives that this role measures.
    """

    def __init__(
        self, registry: CollectorRegistry, config: Config, known_here: Collection[Objective]
    ) -> None:
        self._targets = targets(config)
        self._events = Counter(
            "frazil_objective_events",
            "Requests, queries or commits measured against an objective.",
            ["objective"],
            registry=registry,
        )
        self._missed = Counter(
            "frazil_objective_missed",
            "Requests, queries or commits that missed their objective.",
            ["objective"],
            registry=registry,
        )
        for objective in known_here:  # a rate needs a 0 to start from
            self._events.labels(objective)
            self._missed.labels(objective)

    def observe(self, objective: Objective, seconds: float) -> None:
        self._events.labels(objective).inc()
        if seconds > self._targets[objective]:
            self._missed.labels(objective).inc()
