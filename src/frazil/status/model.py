"""The response of `GET /api/v1/status`, which the terminal and the dashboard also show.

None means unknown: the role that reports the value is down, or was polled only once. Rates and latencies
cover the last minute, those of landing and of stores the last five minutes. Times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "degraded", "down"]
DeriveState = Literal["off", "stopped", "failing", "catching_up", "late", "waiting", "ok"]


@dataclass(frozen=True)
class RoleSummary:
    name: str
    url: str
    state: State
    reasons: Sequence[str]  # why the role is not ok
    up_seconds: float | None = None
    version: str | None = None
    memory_bytes: float | None = None
    cpu_seconds: float | None = None  # of all processes of the role, since they started


@dataclass(frozen=True)
class Latency:
    """Quantiles of a histogram, interpolated within its buckets."""

    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None
    per_second: float | None = None


@dataclass(frozen=True)
class Received:
    records_per_second: float | None
    requests_per_second: float | None
    bytes_per_second: float | None  # of accepted requests, decompressed
    refused_per_second: float | None  # requests
    rejected_per_second: float | None  # records within accepted requests
    ack: Latency


@dataclass(frozen=True)
class ReceiveStage:
    total: Received
    signals: Mapping[str, Received]
    refusals: Mapping[str, float]  # requests per second, by reason
    in_flight_bytes: float | None
    ready_workers: float | None


@dataclass(frozen=True)
class Backlog:
    """Durable data that has not landed in its table."""

    bytes: float | None
    age_seconds: float | None  # of the oldest data
    segments: float | None


@dataclass(frozen=True)
class WalStage:
    rows_per_second: float | None
    bytes_per_second: float | None
    segments_per_second: float | None
    failures_per_second: float | None
    encode: Latency
    store: Latency
    backlog: Backlog
    signals: Mapping[str, Backlog]


@dataclass(frozen=True)
class LandedTable:
    """Landing of one table. `commits`, `errors` and `set_aside` count since the pipeline started."""

    rows_per_second: float | None
    bytes_per_second: float | None
    lag_seconds: float | None  # age of the oldest data that has not landed
    freshness_seconds: float | None  # time from ack until SQL sees a record, by queries of the last minute
    commits: float | None
    errors: float | None
    set_aside: float | None
    last_commit_at: float | None
    is_stopped: bool  # landing stopped: operator action required


@dataclass(frozen=True)
class LandStage:
    tables: Mapping[str, LandedTable]
    batch: Latency  # from reading the position to the commit
    commit: Latency
    has_leader: bool  # one of the pipelines holds the lease


NEAR_BOUND = 0.8
"""Ratio to a bound from which the status says so."""


@dataclass(frozen=True)
class DerivedTable:
    """Derivation of one table. The state is the first of `DeriveState` that applies: disabled by the
    configuration, stopped because a view has too many groups, the last attempt failed, past days are left,
    the lag exceeds the objective, the table has no rows yet, or none of these.
    """

    source: str
    state: DeriveState | None
    reason: str | None  # of the failure
    rows_per_second: float | None  # of the source
    lag_seconds: float | None  # since the landing of the oldest rows that are not derived, without past days
    days_left: float | None
    last_commit_at: float | None
    limited_tenants: float | None = None  # of whom new series are not written today
    unmatched_ratio: float | None = None
    """Of the most unmatched spans that one tenant has today to `derive.unmatched_spans_per_day_max`. None
    below `NEAR_BOUND`.
    """


@dataclass(frozen=True)
class DeriveStage:
    tables: Mapping[str, DerivedTable]
    round: Latency  # from one source, with its Spark job and all commits


@dataclass(frozen=True)
class LakeTable:
    files: float | None
    bytes: float | None
    rows: float | None
    small_files: float | None
    files_per_moment: float | None
    snapshots: float | None
    monthly_cost: float | None


@dataclass(frozen=True)
class LakeStage:
    tables: Mapping[str, LakeTable]  # of all tenants, measured from time to time
    stores: Mapping[str, Latency]  # by store and operation: `wal put`, `lake get`, …
    store_failures_per_second: Mapping[str, float]


@dataclass(frozen=True)
class QueryStage:
    per_second: float | None
    outcomes: Mapping[str, float]  # queries per second, by outcome
    latency: Latency
    planning: Latency
    running: float | None
    waiting: float | None
    cached_per_second: float | None
    workers_killed: float | None


@dataclass(frozen=True)
class MaintainTask:
    runs: Mapping[str, float]  # since the pipeline started, by outcome: done, nothing, failed
    last_at: float | None  # last success on any table
    failing: Sequence[str] = ()  # tables on which the last run failed


@dataclass(frozen=True)
class Waiting:
    bytes: float | None
    lag_seconds: float | None


@dataclass(frozen=True)
class MaintainStage:
    tasks: Mapping[str, MaintainTask]
    waiting: Mapping[str, Waiting]  # data to merge now, by table


@dataclass(frozen=True)
class Stages:
    receive: ReceiveStage
    wal: WalStage
    land: LandStage
    derive: DeriveStage
    lake: LakeStage
    query: QueryStage
    maintain: MaintainStage


@dataclass(frozen=True)
class Objective:
    name: str
    target: float  # the highest value allowed, in seconds
    value: float | None
    kept: bool  # now; an objective without measurements is kept
    kept_ratio: float | None  # share of the samples within `status.kept_seconds`


@dataclass(frozen=True)
class Series:
    name: str
    of: str | None  # the signal or table, for a series per signal or table
    values: Sequence[float | None]


@dataclass(frozen=True)
class History:
    sample_seconds: float
    times: Sequence[float]  # one for each value of a series
    series: Sequence[Series]


@dataclass(frozen=True)
class Status:
    at: float
    state: State  # ok if all roles are ok, down if all roles are down
    roles: Sequence[RoleSummary]
    stages: Stages
    objectives: Sequence[Objective]
    history: History | None = None
    ledger: Mapping[str, Any] | None = None  # from the API's `LedgerCache`, if requested
    tables: Sequence[Mapping[str, Any]] | None = None  # as the API describes them, without columns
