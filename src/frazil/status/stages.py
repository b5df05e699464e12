"""Computes the state of each stage from the metrics that roles report."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from frazil.config import Config
from frazil.health import Role
from frazil.objectives import targets
from frazil.role_status import WINDOWS_SECONDS, RoleReport
from frazil.status import model
from frazil.status.rates import Rates, Samples, by_label, largest, samples_of, value
from frazil.tables import SIGNALS, derived_specs, table_specs

_ACCEPTED = ("ok", "partial")
_STORES = ("wal", "lake")


@dataclass(frozen=True)
class Endpoint:
    role: Role
    url: str
    certificate: Path | None = None  # of this configuration's own role; trusted for any host name


@dataclass(frozen=True)
class PolledRole:
    """The result of polling one role. `report` is None if the role did not respond."""

    endpoint: Endpoint
    state: model.State
    reasons: Sequence[str] = ()
    report: RoleReport | None = field(default=None, repr=False)


class PolledRoles:
    """The results of polling all roles at one time, with their rates added up."""

    def __init__(self, roles: Sequence[PolledRole]) -> None:
        self.roles = roles
        reports = [(role.endpoint.role, role.report) for role in roles if role.report is not None]
        self.samples: dict[str, list[Samples]] = defaultdict(list)
        for role, report in reports:
            self.samples[role].append(samples_of(report.values))
        # The five minutes are for events that are rarer than one per second.
        self.recent, self.minute, self.minutes = (
            Rates.of([report for _, report in reports], seconds) for seconds in WINDOWS_SECONDS
        )
        pipelines = self.samples["pipeline"]
        leading = [samples for samples in pipelines if value(samples, "frazil_pipeline_leader")]
        self.has_leader = bool(leading)
        self.leader: Samples = next(iter([*leading, *pipelines]), {})  # metrics of the others are stale
        self.pipeline_problems = {
            part: why
            for role, report in reports
            if role == "pipeline"
            for part, why in report.problems.items()
        }

    def sum(self, role: Role, name: str) -> float | None:
        numbers = [number for each in self.samples[role] if (number := value(each, name)) is not None]
        return sum(numbers) if numbers else None

    def first_with(self, name: str, table: str) -> Samples | None:
        """Returns the samples of the first role that has measured `name` of the table."""
        measured = [self.leader, *self.samples["api"]]
        return next((samples for samples in measured if value(samples, name, table=table) is not None), None)


def stages(roles: PolledRoles, config: Config) -> model.Stages:
    land = _land(roles, config)
    derive = _derive(roles, config)
    return model.Stages(
        _receive(roles), _wal(roles), land, derive, _lake(roles), _query(roles), _maintain(roles)
    )


def refused(rates: Rates, **labels: str) -> dict[str, float]:
    """Returns refused requests per second, by reason."""
    outcomes = by_label(rates.grown, "frazil_receive_requests_total", "outcome", **labels)
    return {outcome: rate for outcome, rate in sorted(outcomes.items()) if outcome not in _ACCEPTED}


def _receive(roles: PolledRoles) -> model.ReceiveStage:
    return model.ReceiveStage(
        total=_received(roles.minute),
        signals={signal: _received(roles.minute, signal=signal) for signal in SIGNALS},
        refusals=refused(roles.minute),
        in_flight_bytes=roles.sum("receiver", "frazil_receive_in_flight_bytes"),
        ready_workers=roles.sum("receiver", "frazil_receive_ready_workers"),
    )


def _received(rates: Rates, **labels: str) -> model.Received:
    return model.Received(
        records_per_second=rates.rate("frazil_receive_records_total", outcome="accepted", **labels),
        requests_per_second=rates.rate("frazil_receive_requests_total", **labels),
        bytes_per_second=rates.rate("frazil_receive_bytes_total", **labels),
        refused_per_second=sum(refused(rates, **labels).values()) if rates.is_known else None,
        rejected_per_second=rates.rate("frazil_receive_records_total", outcome="rejected", **labels),
        ack=_latency(rates, "frazil_receive_ack_seconds", **labels),
    )


def _wal(roles: PolledRoles) -> model.WalStage:
    rates = roles.minute
    signals: dict[str, model.Backlog] = {signal: _backlog(roles.leader, table=signal) for signal in SIGNALS}
    age = largest(backlog.age_seconds for backlog in signals.values())
    return model.WalStage(
        rows_per_second=rates.rate("frazil_wal_rows_total"),
        bytes_per_second=rates.rate("frazil_wal_bytes_total"),
        segments_per_second=rates.rate("frazil_wal_segments_total"),
        failures_per_second=rates.rate("frazil_wal_failures_total"),
        encode=_latency(rates, "frazil_wal_encode_seconds"),
        store=_latency(rates, "frazil_wal_store_seconds"),
        backlog=replace(_backlog(roles.leader), age_seconds=age),
        signals=signals,
    )


def _backlog(leader: Samples, **labels: str) -> model.Backlog:
    names = ("bytes", "age_seconds", "segments")
    return model.Backlog(*(value(leader, f"frazil_land_pending_{name}", **labels) for name in names))


def _land(roles: PolledRoles, config: Config) -> model.LandStage:
    return model.LandStage(
        tables={table: _landed(roles, config, table) for table in SIGNALS},
        batch=_latency(roles.minutes, "frazil_land_seconds"),
        commit=_latency(roles.minutes, "frazil_land_commit_seconds"),
        has_leader=roles.has_leader,
    )


def _landed(roles: PolledRoles, config: Config, table: str) -> model.LandedTable:
    rates, leader = roles.minute, roles.leader
    lag = value(leader, "frazil_land_pending_age_seconds", table=table)
    return model.LandedTable(
        rows_per_second=rates.rate("frazil_landed_rows_total", table=table),
        bytes_per_second=rates.rate("frazil_landed_bytes_total", table=table),
        lag_seconds=lag,
        freshness_seconds=_freshness(roles, config, lag),
        commits=value(leader, "frazil_land_commits_total", table=table),
        errors=value(leader, "frazil_land_errors_total", table=table),
        set_aside=value(leader, "frazil_land_set_aside_total", table=table),
        last_commit_at=value(leader, "frazil_land_last_commit_timestamp_seconds", table=table) or None,
        is_stopped=bool(value(leader, "frazil_land_stopped", table=table)),
    )


def _freshness(roles: PolledRoles, config: Config, lag: float | None) -> float | None:
    # A query sees all data acked before its planning started; with Kafka, without a tail, only landed data.
    if not roles.samples["api"]:
        return None
    return lag if config.wal.type == "kafka" else roles.minute.quantile(0.99, "frazil_query_planning_seconds")


def _derive(roles: PolledRoles, config: Config) -> model.DeriveStage:
    target = targets(config).get("derive_lag", math.inf)
    sources = {spec.name: spec.derived.source for spec in derived_specs() if spec.derived is not None}
    limited = {spec.name for spec in derived_specs() if spec.derived is not None and spec.derived.limited_key}
    sources |= _views(roles)
    tables = {
        name: replace(
            _derived(roles, name, source, target, is_limited=name in limited),
            unmatched_ratio=_unmatched_ratio(roles, config, name),
        )
        for name, source in sources.items()
    }
    return model.DeriveStage(tables, _latency(roles.minutes, "frazil_derive_seconds"))


def _views(roles: PolledRoles) -> dict[str, str]:
    """Returns the views that the pipeline reports, with their sources."""
    found = (dict(labels) for labels in roles.leader.get("frazil_derive_view", {}))
    return {labels["table"]: labels["source"] for labels in found if "table" in labels}


def _derived(
    roles: PolledRoles, name: str, source: str, target: float, *, is_limited: bool
) -> model.DerivedTable:
    leader = roles.leader
    is_off = value(leader, "frazil_derive_disabled", table=name)
    is_failing = value(leader, "frazil_derive_failing", table=name)
    lag = value(leader, "frazil_derive_pending_age_seconds", table=name)
    days_left = value(leader, "frazil_derive_days_left", table=name)
    last_commit_at = value(leader, "frazil_derive_last_commit_timestamp_seconds", table=name) or None
    state: model.DeriveState | None
    if is_off is None:  # no pipeline reports
        state = None
    elif is_off:
        state = "off"
    elif value(leader, "frazil_derive_stopped", table=name):
        state = "stopped"
    elif is_failing:
        state = "failing"
    elif days_left:
        state = "catching_up"
    elif lag is not None and lag > target:
        state = "late"
    else:
        state = "waiting" if last_commit_at is None else "ok"
    problems = roles.pipeline_problems
    reason = problems.get(name) or problems.get(f"derivation {source}")
    return model.DerivedTable(
        source,
        state,
        reason=reason if state in ("stopped", "failing") else None,
        rows_per_second=roles.minute.rate("frazil_derived_source_rows_total", table=name),
        lag_seconds=None if state == "off" else lag,
        days_left=days_left,
        last_commit_at=last_commit_at,
        limited_tenants=value(leader, "frazil_derive_series_limited_tenants") if is_limited else None,
    )


def _unmatched_ratio(roles: PolledRoles, config: Config, name: str) -> float | None:
    most = value(roles.leader, "frazil_derive_unmatched_max", table=name)
    bound = config.derive.unmatched_spans_per_day_max
    if most is None or bound == 0:  # 0: no span waits, so that none is near the bound
        return None
    return most / bound if most >= model.NEAR_BOUND * bound else None


def _lake(roles: PolledRoles) -> model.LakeStage:
    rates = roles.minutes
    stores: dict[str, model.Latency] = {}
    failures: dict[str, float] = {}
    for store in _STORES:
        timed = by_label(rates.grown, "frazil_store_seconds_count", "operation", store=store)
        for operation in sorted(timed):
            labels = {"store": store, "operation": operation}
            stores[f"{store} {operation}"] = _latency(rates, "frazil_store_seconds", **labels)
        failed = by_label(rates.grown, "frazil_store_failures_total", "operation", store=store)
        failures |= {f"{store} {operation}": rate for operation, rate in sorted(failed.items())}
    names = [*dict.fromkeys([*table_specs(), *_views(roles)])]
    tables = {table: found for table in names if (found := _table(roles, table)) is not None}
    return model.LakeStage(tables, stores, failures)


def _table(roles: PolledRoles, table: str) -> model.LakeTable | None:
    samples = roles.first_with("frazil_table_files", table)
    if samples is None:
        return None
    names = ("files", "bytes", "rows", "small_files", "files_per_moment", "snapshots", "monthly_cost")
    return model.LakeTable(*(value(samples, f"frazil_table_{name}", table=table) for name in names))


def _query(roles: PolledRoles) -> model.QueryStage:
    rates = roles.minute
    return model.QueryStage(
        per_second=rates.rate("frazil_queries_total"),
        outcomes=dict(sorted(by_label(rates.grown, "frazil_queries_total", "outcome").items())),
        latency=_latency(rates, "frazil_query_seconds"),
        planning=_latency(rates, "frazil_query_planning_seconds"),
        running=roles.sum("api", "frazil_queries_running"),
        waiting=roles.sum("api", "frazil_queries_waiting"),
        cached_per_second=rates.rate("frazil_query_cached_total"),
        workers_killed=roles.sum("api", "frazil_query_workers_killed_total"),
    )


def _maintain(roles: PolledRoles) -> model.MaintainStage:
    leader = roles.leader
    tasks: dict[str, model.MaintainTask] = {}
    for task in sorted(by_label(leader, "frazil_maintain_runs_total", "task")):
        failing = by_label(leader, "frazil_maintain_failing", "table", task=task)
        last = by_label(leader, "frazil_maintain_last_timestamp_seconds", "table", task=task)
        tasks[task] = model.MaintainTask(
            runs=by_label(leader, "frazil_maintain_runs_total", "outcome", task=task),
            last_at=max(last.values(), default=None),
            failing=sorted(table for table, is_failing in failing.items() if is_failing),
        )
    merged = [name for name, spec in table_specs().items() if spec.merged_as is not None]
    merged += [name for name in _views(roles) if name not in merged]
    return model.MaintainStage(tasks, {table: _waiting(roles, table) for table in merged})


def _waiting(roles: PolledRoles, table: str) -> model.Waiting:
    samples = roles.first_with("frazil_maintain_waiting_bytes", table) or {}
    names = ("waiting_bytes", "lag_seconds")
    return model.Waiting(*(value(samples, f"frazil_maintain_{name}", table=table) for name in names))


def _latency(rates: Rates, name: str, **labels: str) -> model.Latency:
    p50, p95, p99 = (rates.quantile(q, name, **labels) for q in (0.5, 0.95, 0.99))
    return model.Latency(p50, p95, p99, per_second=rates.rate(f"{name}_count", **labels))
