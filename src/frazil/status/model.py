"""The picture: what `GET /api/v1/status` answers, and what the terminal and the dashboard draw.

None: unknown, because the role that reports it is down, or was asked only once. Rates are per second
and of the last minute; so are latencies, but those of landing and of stores are of the last five.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from frazil.status.poll import State


@dataclass(frozen=True)
class RoleStatus:
    name: str
    url: str
    state: State
    reasons: Sequence[str]
    """Why it is not ok, in words."""
    up_seconds: float | None = None
    version: str | None = None
    memory_bytes: float | None = None
    cpu_seconds: float | None = None
    """Of all its processes, since they began."""


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
    bytes_per_second: float | None
    """Of accepted requests, decompressed."""
    refused_per_second: float | None
    rejected_per_second: float | None
    """Records of accepted requests that were not."""
    ack: Latency


@dataclass(frozen=True)
class ReceiveStage:
    total: Received
    signals: Mapping[str, Received]
    refusals: Mapping[str, float]
    """Requests a second, by the reason that was given."""
    in_flight_bytes: float | None
    ready_workers: float | None


@dataclass(frozen=True)
class Backlog:
    """Durable, and not in its table yet."""

    bytes: float | None
    age_seconds: float | None
    """For how long the oldest of it has waited."""
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
    rows_per_second: float | None
    bytes_per_second: float | None
    lag_seconds: float | None
    """How long the oldest that has not landed has waited."""
    freshness_seconds: float | None
    """How long after its ack a record is seen by SQL, as questions of the last minute found."""
    commits: float | None
    """Since the pipeline began; so are the two below."""
    errors: float | None
    set_aside: float | None
    last_commit_at: float | None
    """Seconds since 1970."""
    is_stopped: bool
    """It waits for someone to decide."""


@dataclass(frozen=True)
class LandStage:
    tables: Mapping[str, LandedTable]
    batch: Latency
    """From the position to the commit."""
    commit: Latency
    has_leader: bool
    """Of several pipelines one works."""


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
    tables: Mapping[str, LakeTable]
    """Of all tenants, as the roles measure them now and then."""
    stores: Mapping[str, Latency]
    """By store and operation: `wal put`, `lake get`, …"""
    store_failures_per_second: Mapping[str, float]


@dataclass(frozen=True)
class QueryStage:
    per_second: float | None
    outcomes: Mapping[str, float]
    """Queries a second, by what came of them."""
    latency: Latency
    planning: Latency
    running: float | None
    waiting: float | None
    cached_per_second: float | None
    workers_killed: float | None


@dataclass(frozen=True)
class MaintainTask:
    runs: Mapping[str, float]
    """By what came of them, since the pipeline began: done, nothing, failed."""
    last_at: float | None
    """When it last ended well, on any table; seconds since 1970."""
    failing: Sequence[str] = ()
    """Tables on which it failed when it last ran."""


@dataclass(frozen=True)
class Waiting:
    bytes: float | None
    lag_seconds: float | None


@dataclass(frozen=True)
class MaintainStage:
    tasks: Mapping[str, MaintainTask]
    waiting: Mapping[str, Waiting]
    """What is worth merging now, by table."""


@dataclass(frozen=True)
class Stages:
    receive: ReceiveStage
    wal: WalStage
    land: LandStage
    lake: LakeStage
    query: QueryStage
    maintain: MaintainStage


@dataclass(frozen=True)
class Objective:
    name: str
    target: float
    """Seconds; the value is to be no more."""
    value: float | None
    kept: bool
    """Now. Where nothing has happened that could be slow, it is."""
    kept_ratio: float | None
    """The share of looks in which it was, of those in `status.kept_seconds`."""


@dataclass(frozen=True)
class Series:
    name: str
    of: str | None
    """The signal or table, where there is one line for each."""
    values: Sequence[float | None]


@dataclass(frozen=True)
class History:
    sample_seconds: float
    times: Sequence[float]
    """Seconds since 1970; as many as each series has values."""
    series: Sequence[Series]


@dataclass(frozen=True)
class Status:
    at: float
    """Seconds since 1970."""
    state: State
    """ok if all roles are, down if all roles are down."""
    roles: Sequence[RoleStatus]
    stages: Stages
    objectives: Sequence[Objective]
    history: History | None = None
    ledger: Mapping[str, Any] | None = None
    """As the API's `LedgerCache` returns it, if it was requested."""
    tables: Sequence[Mapping[str, Any]] | None = None
    """As the API describes them, without their columns; None where it was not asked, or does not know."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
