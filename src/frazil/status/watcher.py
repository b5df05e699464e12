"""Merges the reports of all roles into one status, judges the objectives and keeps history. No I/O."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from frazil import objectives
from frazil.config import Config
from frazil.status.model import History, Objective, RoleSummary, Series, Stages, State, Status
from frazil.status.rates import Rates, largest
from frazil.status.stages import PolledRole, PolledRoles, refused, stages

_NO_LEADER = "no pipeline holds the lease, so nothing lands"
_DIGITS = 5
"""Significant digits of values in the history: an hour of it is in every response."""

SeriesKey = tuple[str, str | None]
_Sample = tuple[float, tuple[float | None, ...], Mapping[str, bool]]
"""The time, the values of all series, and whether each objective was kept."""


class Watcher:
    """The merged status of all roles and its history. Not safe to use from several threads."""

    def __init__(self, config: Config, wall: Callable[[], float] = time.time) -> None:
        self._config, self._wall = config, wall
        self._polled, self._at = PolledRoles(()), 0.0
        self._series = list(_series_values(stages(self._polled, config), self._polled.recent))
        length = math.ceil(config.status.kept_seconds / config.status.sample_seconds)
        self._samples: deque[_Sample] = deque(maxlen=length)

    def update(self, polled: Sequence[PolledRole]) -> None:
        """Replaces the reports of all roles."""
        self._at, self._polled = self._wall(), PolledRoles(polled)

    def sample(self) -> None:
        """Adds a point to the history."""
        found = stages(self._polled, self._config)
        kept = {objective.name: objective.kept for objective in self._objectives(found)}
        values = _series_values(found, self._polled.recent)
        rounded = tuple(None if v is None else float(f"{v:.{_DIGITS}g}") for v in values.values())
        self._samples.append((round(self._at, 3), rounded, kept))

    def status(self, *, history: bool = True) -> Status:
        found = stages(self._polled, self._config)
        roles = [self._role(role) for role in self._polled.roles]
        states = {role.state for role in roles}
        state: State = "ok" if states <= {"ok"} else "down" if states == {"down"} else "degraded"
        return Status(
            self._at, state, roles, found, self._objectives(found), self._history() if history else None
        )

    def _history(self) -> History:
        series = [
            Series(name, of, [values[index] for _, values, _ in self._samples])
            for index, (name, of) in enumerate(self._series)
        ]
        return History(self._config.status.sample_seconds, [at for at, _, _ in self._samples], series)

    def _objectives(self, stages: Stages) -> list[Objective]:
        """Evaluates the objectives. An objective without measurements is met, unless the role that measures
        it is down.
        """
        reporting = {role.endpoint.role for role in self._polled.roles if role.report is not None}
        tables = stages.land.tables.values()
        values: Mapping[objectives.Objective, tuple[str, float | None]] = {
            "ack": ("receiver", stages.receive.total.ack.p99_seconds),
            "freshness": ("api", largest(table.freshness_seconds for table in tables)),
            "landing_lag": ("pipeline", largest(table.lag_seconds for table in tables)),
            "derive_lag": ("pipeline", _derive_lag(stages)),
        }
        limits = objectives.targets(self._config)
        return [
            Objective(
                name,
                limits[name],
                value,
                kept=role in reporting and (value is None or value <= limits[name]),
                kept_ratio=fmean(kept[name] for _, _, kept in self._samples) if self._samples else None,
            )
            for name, (role, value) in values.items()
            if name in limits
        ]

    def _role(self, polled: PolledRole) -> RoleSummary:
        endpoint, report = polled.endpoint, polled.report
        role = RoleSummary(endpoint.role, endpoint.url, polled.state, list(polled.reasons))
        if endpoint.role == "pipeline" and role.state == "ok" and not self._polled.has_leader:
            role = replace(role, state="degraded", reasons=[_NO_LEADER])
        if report is None:
            return role
        return replace(
            role,
            up_seconds=None if report.started_at is None else max(0.0, self._at - report.started_at),
            version=report.version,
            memory_bytes=report.memory_bytes,
            cpu_seconds=report.cpu_seconds,
        )


def _derive_lag(stages: Stages) -> float | None:
    return largest(table.lag_seconds for table in stages.derive.tables.values())


def _series_values(stages: Stages, recent: Rates) -> dict[SeriesKey, float | None]:
    """Rates cover the last seconds, so that a burst appears at its time."""
    values: dict[SeriesKey, float | None] = {
        ("backlog_bytes", None): stages.wal.backlog.bytes,
        ("backlog_age_seconds", None): stages.wal.backlog.age_seconds,
        ("derive_lag_seconds", None): _derive_lag(stages),
        ("ack_p99_seconds", None): stages.receive.total.ack.p99_seconds,
        ("refusals_per_second", None): sum(refused(recent).values()) if recent.is_known else None,
        ("queries_per_second", None): recent.rate("frazil_queries_total"),
        ("query_p95_seconds", None): stages.query.latency.p95_seconds,
    }
    for name, table in stages.land.tables.items():
        values["received_records_per_second", name] = recent.rate(
            "frazil_receive_records_total", signal=name, outcome="accepted"
        )
        values["landed_rows_per_second", name] = recent.rate("frazil_landed_rows_total", table=name)
        values["landing_lag_seconds", name] = table.lag_seconds
        values["freshness_seconds", name] = table.freshness_seconds
    return values
