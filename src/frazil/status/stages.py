"""From what roles have counted to what each stage does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from frazil.config import Config
from frazil.role_status import LATENCY_SECONDS, RATE_SECONDS, RECENT_SECONDS, RoleReport
from frazil.status.model import (
    Backlog,
    LakeStage,
    LakeTable,
    LandedTable,
    LandStage,
    Latency,
    MaintainStage,
    MaintainTask,
    QueryStage,
    Received,
    ReceiveStage,
    Stages,
    Waiting,
    WalStage,
)
from frazil.status.poll import PolledRole
from frazil.status.rates import Rates, Samples, by_label, samples_of, value
from frazil.tables import SIGNALS, table_specs

_TAKEN = ("ok", "partial")
_STORES = ("wal", "lake")


@dataclass(frozen=True)
class Looked:
    """What all roles have answered at one time, with their rates added up."""

    heard: Sequence[PolledRole]

    def of(self, role: str) -> list[Samples]:
        return [samples for name, samples in self._values if name == role]

    @cached_property
    def _values(self) -> list[tuple[str, Samples]]:
        there = [(heard.place.role, heard.report) for heard in self.heard]
        return [(role, samples_of(report.values)) for role, report in there if report is not None]

    @cached_property
    def _reports(self) -> list[RoleReport]:
        return [heard.report for heard in self.heard if heard.report is not None]

    @cached_property
    def recent(self) -> Rates:
        return Rates.of(self._reports, RECENT_SECONDS)

    @cached_property
    def minute(self) -> Rates:
        return Rates.of(self._reports, RATE_SECONDS)

    @cached_property
    def minutes(self) -> Rates:
        """For what happens less often than once a second."""
        return Rates.of(self._reports, LATENCY_SECONDS)

    @property
    def leader(self) -> list[Samples]:
        """The pipeline that works, alone: others know old things."""
        found = self.of("pipeline")
        leading = [samples for samples in found if value(samples, "frazil_pipeline_leader")]
        return leading[:1] if leading else found[:1]


def stages(looked: Looked, config: Config) -> Stages:
    return Stages(
        receive=_receive(looked),
        wal=_wal(looked),
        land=_land(looked, config),
        lake=_lake(looked),
        query=_query(looked),
        maintain=_maintain(looked),
    )


def _receive(looked: Looked) -> ReceiveStage:
    span, workers = looked.minute, looked.of("receiver")
    outcomes = span.rates("frazil_receive_requests_total", "outcome")
    return ReceiveStage(
        total=_received(span),
        signals={signal: _received(span, signal=signal) for signal in SIGNALS},
        refusals={reason: rate for reason, rate in sorted(outcomes.items()) if reason not in _TAKEN},
        in_flight_bytes=_sum(workers, "frazil_receive_in_flight_bytes"),
        ready_workers=_sum(workers, "frazil_receive_ready_workers"),
    )


def _received(span: Rates, **labels: str) -> Received:
    outcomes = span.rates("frazil_receive_requests_total", "outcome", **labels)
    known = span.is_known
    return Received(
        records_per_second=span.rate("frazil_receive_records_total", outcome="accepted", **labels),
        requests_per_second=sum(outcomes.values()) if known else None,
        bytes_per_second=span.rate("frazil_receive_bytes_total", **labels),
        refused_per_second=sum(r for o, r in outcomes.items() if o not in _TAKEN) if known else None,
        rejected_per_second=span.rate("frazil_receive_records_total", outcome="rejected", **labels),
        ack=_latency(span, "frazil_receive_ack_seconds", **labels),
    )


def _wal(looked: Looked) -> WalStage:
    span = looked.minute
    signals: dict[str, Backlog] = {signal: _backlog(looked, signal) for signal in SIGNALS}
    ages = [backlog.age_seconds for backlog in signals.values() if backlog.age_seconds is not None]
    return WalStage(
        rows_per_second=span.rate("frazil_wal_rows_total"),
        bytes_per_second=span.rate("frazil_wal_bytes_total"),
        segments_per_second=span.rate("frazil_wal_segments_total"),
        failures_per_second=span.rate("frazil_wal_failures_total"),
        encode=_latency(span, "frazil_wal_encode_seconds"),
        store=_latency(span, "frazil_wal_store_seconds"),
        backlog=Backlog(
            bytes=_sum(looked.leader, "frazil_land_pending_bytes"),
            age_seconds=max(ages, default=None),
            segments=_sum(looked.leader, "frazil_land_pending_segments"),
        ),
        signals=signals,
    )


def _backlog(looked: Looked, table: str) -> Backlog:
    return Backlog(
        bytes=_sum(looked.leader, "frazil_land_pending_bytes", table=table),
        age_seconds=_sum(looked.leader, "frazil_land_pending_age_seconds", table=table),
        segments=_sum(looked.leader, "frazil_land_pending_segments", table=table),
    )


def _land(looked: Looked, config: Config) -> LandStage:
    return LandStage(
        tables={table: _landed(looked, config, table) for table in SIGNALS},
        batch=_latency(looked.minutes, "frazil_land_seconds"),
        commit=_latency(looked.minutes, "frazil_land_commit_seconds"),
        has_leader=any(value(samples, "frazil_pipeline_leader") for samples in looked.of("pipeline")),
    )


def _landed(looked: Looked, config: Config, table: str) -> LandedTable:
    span, leader = looked.minute, looked.leader
    lag = _sum(leader, "frazil_land_pending_age_seconds", table=table)
    return LandedTable(
        rows_per_second=span.rate("frazil_landed_rows_total", table=table),
        bytes_per_second=span.rate("frazil_landed_bytes_total", table=table),
        lag_seconds=lag,
        freshness_seconds=_freshness(looked, config, lag),
        commits=_sum(leader, "frazil_land_commits_total", table=table),
        errors=_sum(leader, "frazil_land_errors_total", table=table),
        set_aside=_sum(leader, "frazil_land_set_aside_total", table=table),
        last_commit_at=_sum(leader, "frazil_land_last_commit_timestamp_seconds", table=table) or None,
        is_stopped=bool(_sum(leader, "frazil_land_stopped", table=table)),
    )


def _freshness(looked: Looked, config: Config, lag: float | None) -> float | None:
    """A question sees all that was acked before it began to look at the catalog and the log. Kafka has no
    tail: there, what has not landed is not seen.
    """
    if not looked.of("api"):
        return None
    if config.wal.type == "kafka":
        return lag
    return looked.minute.quantile(0.99, "frazil_query_planning_seconds")


def _lake(looked: Looked) -> LakeStage:
    span = looked.minutes
    stores: dict[str, Latency] = {}
    failures: dict[str, float] = {}
    for store in _STORES:
        for operation in sorted(span.rates("frazil_store_seconds_count", "operation", store=store)):
            labels = {"store": store, "operation": operation}
            stores[f"{store} {operation}"] = _latency(span, "frazil_store_seconds", **labels)
        failed = span.rates("frazil_store_failures_total", "operation", store=store)
        failures |= {f"{store} {operation}": rate for operation, rate in sorted(failed.items())}
    measured = [*looked.leader, *looked.of("api")]
    return LakeStage(
        tables={table: found for table in table_specs() if (found := _table(measured, table)) is not None},
        stores=stores,
        store_failures_per_second=failures,
    )


def _table(measured: Sequence[Samples], table: str) -> LakeTable | None:
    """As the first says that has measured it."""
    for samples in measured:
        if value(samples, "frazil_table_files", table=table) is not None:
            names = ("files", "bytes", "rows", "small_files", "files_per_moment", "snapshots", "monthly_cost")
            return LakeTable(*(value(samples, f"frazil_table_{name}", table=table) for name in names))
    return None


def _query(looked: Looked) -> QueryStage:
    span, apis = looked.minute, looked.of("api")
    return QueryStage(
        per_second=span.rate("frazil_queries_total"),
        outcomes=dict(sorted(span.rates("frazil_queries_total", "outcome").items())),
        latency=_latency(span, "frazil_query_seconds"),
        planning=_latency(span, "frazil_query_planning_seconds"),
        running=_sum(apis, "frazil_queries_running"),
        waiting=_sum(apis, "frazil_queries_waiting"),
        cached_per_second=span.rate("frazil_query_cached_total"),
        workers_killed=_sum(apis, "frazil_query_workers_killed_total"),
    )


def _maintain(looked: Looked) -> MaintainStage:
    tasks: dict[str, MaintainTask] = {}
    for samples in looked.leader:
        for task in sorted(by_label(samples, "frazil_maintain_runs_total", "task")):
            last = by_label(samples, "frazil_maintain_last_timestamp_seconds", "table", task=task)
            failing = by_label(samples, "frazil_maintain_failing", "table", task=task)
            tasks[task] = MaintainTask(
                runs=by_label(samples, "frazil_maintain_runs_total", "outcome", task=task),
                last_at=max(last.values(), default=None),
                failing=sorted(table for table, is_failing in failing.items() if is_failing),
            )
    measured = [*looked.leader, *looked.of("api")]
    merged = [name for name, spec in table_specs().items() if spec.merged_as is not None]
    return MaintainStage(tasks, {table: _waiting(measured, table) for table in merged})


def _waiting(measured: Iterable[Samples], table: str) -> Waiting:
    for samples in measured:
        size = value(samples, "frazil_maintain_waiting_bytes", table=table)
        if size is not None:
            return Waiting(size, value(samples, "frazil_maintain_lag_seconds", table=table))
    return Waiting(None, None)


def _sum(found: Iterable[Samples], name: str, **labels: str) -> float | None:
    numbers = [number for samples in found if (number := value(samples, name, **labels)) is not None]
    return sum(numbers) if numbers else None


def _latency(span: Rates, name: str, **labels: str) -> Latency:
    return Latency(
        p50_seconds=span.quantile(0.5, name, **labels),
        p95_seconds=span.quantile(0.95, name, **labels),
        p99_seconds=span.quantile(0.99, name, **labels),
        per_second=span.rate(f"{name}_count", **labels),
    )
