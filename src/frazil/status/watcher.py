"""Merges what roles answer into one status, judges the objectives and keeps history. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from frazil import objectives
from frazil.config import Config
from frazil.status.history import Lines
from frazil.status.model import Objective, RoleStatus, Stages, Status
from frazil.status.poll import PolledRole, State
from frazil.status.stages import Looked, stages

_NO_LEADER = "no pipeline holds the lease, so nothing lands"


class Watcher:
    """Not for several threads at once."""

    def __init__(self, config: Config, wall: Callable[[], float] = time.time) -> None:
        self._config = config
        self._wall = wall
        self._lines = Lines(config.status)
        self._looked = Looked(())
        self._at = 0.0

    def take(self, heard: Sequence[PolledRole]) -> None:
        """Takes what all roles have answered now."""
        self._at, self._looked = self._wall(), Looked(heard)

    def sample(self) -> None:
        """Adds a point to the history."""
        found = stages(self._looked, self._config)
        kept = {each.name: each.kept for each in self._objectives(found)}
        self._lines.add(self._at, found, self._looked.recent, kept)

    def status(self, *, history: bool = True) -> Status:
        found = stages(self._looked, self._config)
        lacks_leader = bool(self._looked.of("pipeline")) and not found.land.has_leader
        roles = [self._role(heard, lacks_leader=lacks_leader) for heard in self._looked.heard]
        return Status(
            at=self._at,
            state=_state(roles),
            roles=roles,
            stages=found,
            objectives=self._objectives(found),
            history=self._lines.history() if history else None,
        )

    def _objectives(self, stages: Stages) -> list[Objective]:
        """Where nothing has happened that could be slow, an objective is kept; not where no role can know."""
        answering = {heard.place.role for heard in self._looked.heard if heard.report is not None}
        tables = stages.land.tables.values()
        values: Mapping[objectives.Objective, tuple[str, float | None]] = {
            "ack": ("receiver", stages.receive.total.ack.p99_seconds),
            "freshness": ("api", _worst(table.freshness_seconds for table in tables)),
            "landing_lag": ("pipeline", _worst(table.lag_seconds for table in tables)),
        }
        limits = objectives.targets(self._config)
        return [
            Objective(
                name,
                limits[name],
                value,
                kept=role in answering and (value is None or value <= limits[name]),
                kept_ratio=self._lines.kept_ratio(name),
            )
            for name, (role, value) in values.items()
        ]

    def _role(self, heard: PolledRole, *, lacks_leader: bool) -> RoleStatus:
        state, reasons, report = heard.state, list(heard.reasons), heard.report
        if lacks_leader and heard.place.role == "pipeline" and state == "ok":
            state, reasons = "degraded", [_NO_LEADER]
        found = RoleStatus(heard.place.role, heard.place.url, state, reasons)
        if report is None:
            return found
        started = report.started_at
        return replace(
            found,
            up_seconds=None if started is None else max(0.0, self._at - started),
            version=report.version,
            memory_bytes=report.memory_bytes,
            cpu_seconds=report.cpu_seconds,
        )


def _state(roles: Sequence[RoleStatus]) -> State:
    states = {role.state for role in roles}
    if states <= {"ok"}:
        return "ok"
    return "down" if states == {"down"} else "degraded"


def _worst(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
