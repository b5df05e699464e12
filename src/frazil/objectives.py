"""What is meant to hold: how soon a request is durable and answered, how soon it can be asked, how soon it
has landed; and the count of how often it did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter

from frazil.config import Config

Objective = Literal["ack", "freshness", "landing_lag"]

_FRESHNESS_SECONDS = 0.7


def targets(config: Config) -> Mapping[Objective, float]:
    """In seconds. With Kafka data can be asked when it has landed, not before."""
    status = config.status
    landing_lag = status.landing_lag_seconds or 2 * config.land.age_max(config.wal.type)
    usual = landing_lag if config.wal.type == "kafka" else _FRESHNESS_SECONDS
    return {
        "ack": status.ack_seconds,
        "freshness": status.freshness_seconds or usual,
        "landing_lag": landing_lag,
    }


class Objectives:
    """Counts how often each was kept and missed: of a histogram's buckets none need lie where the
    configuration draws the line. `known_here` are those that this role can tell of.
    """

    def __init__(
        self, registry: CollectorRegistry, config: Config, known_here: Collection[Objective]
    ) -> None:
        self._targets = targets(config)
        self._events = Counter(
            "frazil_objective_events",
            "How often it could be told whether an objective was kept",
            ["objective"],
            registry=registry,
        )
        self._missed = Counter(
            "frazil_objective_missed", "How often it was not", ["objective"], registry=registry
        )
        for objective in known_here:  # a rate needs a 0 to start from
            self._events.labels(objective)
            self._missed.labels(objective)

    def took(self, objective: Objective, seconds: float) -> None:
        self._events.labels(objective).inc()
        if seconds > self._targets[objective]:
            self._missed.labels(objective).inc()
