"""What is meant to hold, and whether it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from frazil.config import Config
from frazil.objectives import Objective, targets
from frazil.status.model import Stages


@dataclass(frozen=True)
class Judged:
    """`kept` is so where nothing has happened that could have been slow; not where nobody can say."""

    name: str
    target: float
    value: float | None
    kept: bool


def judge(stages: Stages, config: Config, answering: frozenset[str]) -> list[Judged]:
    """`answering` are the kinds of roles of which at least one has said what it has counted."""
    tables = stages.land.tables.values()
    limits = targets(config)
    values: Mapping[Objective, tuple[str, float | None]] = {
        "ack": ("receiver", stages.receive.total.ack.p99_seconds),
        "freshness": ("api", _worst(table.freshness_seconds for table in tables)),
        "landing_lag": ("pipeline", _worst(table.lag_seconds for table in tables)),
    }
    return [
        Judged(
            name,
            limits[name],
            value,
            kept=role in answering and (value is None or value <= limits[name]),
        )
        for name, (role, value) in values.items()
    ]


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
