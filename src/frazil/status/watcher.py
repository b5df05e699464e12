"""What is known of all roles: takes looks, gives pictures. No I/O, so that time can be made up in tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from frazil.config import Config
from frazil.status.ask import Heard, State
from frazil.status.history import Lines
from frazil.status.last_runs import LastRuns
from frazil.status.model import LATENCY_SECONDS, RATE_SECONDS, Objective, RoleStatus, Status
from frazil.status.objectives import Judged, judge
from frazil.status.samples import Samples, value
from frazil.status.stages import Looked, stages
from frazil.status.totals import Totals

_NO_LEADER = "none of the pipelines has the lease, so nothing is landed"
_STARTED = ("process_start_time_seconds",)
# The first is of all processes of a role together, the second of one, as Prometheus' own client says it.
_MEMORY = ("frazil_process_memory_bytes", "process_resident_memory_bytes")
_CPU = ("frazil_process_cpu_seconds_total", "process_cpu_seconds_total")


class Watcher:
    """Not for several threads at once."""

    def __init__(self, config: Config, wall: Callable[[], float] = time.time) -> None:
        self._config = config
        self._wall = wall
        self._totals = Totals(LATENCY_SECONDS)
        self._lines = Lines(config.status)
        self._last_runs = LastRuns()
        self._heard: Sequence[Heard] = ()
        self._at = self._wall_at = 0.0

    def take(self, at: float, heard: Sequence[Heard]) -> None:
        """A look at all roles, at a time that never goes back."""
        self._at, self._wall_at, self._heard = at, self._wall(), heard
        said = {
            each.place.url: (each.samples, self._up_seconds(each.samples))
            for each in heard
            if each.samples is not None
        }
        self._totals.take(at, said)

    def sample(self) -> None:
        """Keeps the last look for rates and lines."""
        looked = self._looked()
        found = stages(looked, self._config)
        judged = judge(found, self._config, _answering(looked))
        since = self._totals.span(self._at, 0.0)
        self._lines.add(self._wall_at, found, since, judged)
        self._last_runs.take(since.grown)
        self._totals.keep(self._at)

    def status(self, *, history: bool = True) -> Status:
        looked = self._looked()
        found = stages(looked, self._config)
        roles = self._roles(lacks_leader=bool(looked.of("pipeline")) and not found.land.has_leader)
        judged = judge(found, self._config, _answering(looked))
        return Status(
            at=self._wall_at,
            state=_state(roles),
            roles=roles,
            stages=replace(found, maintain=self._last_runs.of(found.maintain)),
            objectives=[self._objective(each) for each in judged],
            history=self._lines.history() if history else None,
        )

    def _looked(self) -> Looked:
        return Looked(
            self._heard,
            self._totals.span(self._at, RATE_SECONDS),
            self._totals.span(self._at, LATENCY_SECONDS),
        )

    def _objective(self, judged: Judged) -> Objective:
        return Objective(
            judged.name, judged.target, judged.value, judged.kept, self._lines.kept_ratio(judged.name)
        )

    def _roles(self, *, lacks_leader: bool) -> list[RoleStatus]:
        return [self._role(heard, lacks_leader=lacks_leader) for heard in self._heard]

    def _role(self, heard: Heard, *, lacks_leader: bool) -> RoleStatus:
        samples: Samples = heard.samples or {}
        state, reasons = heard.state, list(heard.reasons)
        if lacks_leader and heard.place.role == "pipeline" and state == "ok":
            state, reasons = "degraded", [_NO_LEADER]
        return RoleStatus(
            name=heard.place.role,
            url=heard.place.url,
            state=state,
            reasons=reasons,
            up_seconds=self._up_seconds(samples),
            version=heard.version or _version(samples),
            memory_bytes=_first(samples, _MEMORY),
            cpu_seconds=_first(samples, _CPU),
        )

    def _up_seconds(self, samples: Samples) -> float | None:
        started = _first(samples, _STARTED)
        return None if started is None else max(0.0, self._wall_at - started)


def _state(roles: Sequence[RoleStatus]) -> State:
    states = {role.state for role in roles}
    if states <= {"ok"}:
        return "ok"
    return "down" if states == {"down"} else "degraded"


def _answering(looked: Looked) -> frozenset[str]:
    return frozenset(heard.place.role for heard in looked.heard if heard.samples is not None)


def _first(samples: Samples, names: Sequence[str]) -> float | None:
    return next((found for name in names if (found := value(samples, name)) is not None), None)


def _version(samples: Samples) -> str | None:
    for labels in samples.get("frazil_build_info", {}):
        return dict(labels).get("version")
    return None
