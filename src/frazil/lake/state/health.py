"""Health of a table: file counts and sizes, overlap, compaction backlog, storage cost; also as gauges."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from prometheus_client import CollectorRegistry, Gauge
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.config.maintain import CompactConfig, MaintainConfig
from frazil.lake.commits.metadata_commit import MAINTENANCE, json_property, number_or_none
from frazil.lake.live_files import FileFacts, all_facts, live_files
from frazil.lake.snapshots import commit_times
from frazil.lake.upkeep.choose import Group, closed_at, due, small_bytes
from frazil.tables.columns import TableSpec

KIB, MIB = 1024, 1024 * 1024
SIZES_MAX: tuple[int | None, ...] = (64 * KIB, MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, None)
"""Upper bounds of the classes of the file size histogram. None is unbounded."""
_PRICED_BYTES = 1_000_000_000
_COUNT_MAX = 10**18
_RUNS = ("compacted_at", "expired_at", "orphans_at", "retained_at")


@dataclass(frozen=True)
class SizeClass:
    """The number and total size of files up to `bytes_max` that are larger than the class before allows."""

    bytes_max: int | None
    files: int
    bytes: int


@dataclass(frozen=True)
class TableState:
    """Numbers of the whole table that cannot be split by tenant. None: not known yet."""

    snapshots: int
    manifests: int
    metadata_bytes: int | None
    """Size of the metadata file. Every commit rewrites it."""
    orphan_bytes: int | None
    """Bytes of files that no snapshot referenced at the last search, including those too young to delete."""
    old_bytes: int | None
    """Bytes of files that only old snapshots referenced at the last search."""
    runs: Mapping[str, float]
    """When each maintenance task last ran, in seconds since 1970: `compacted_at`, `expired_at`, …"""


@dataclass(frozen=True)
class TableHealth:
    files: int
    bytes: int
    rows: int
    sizes: Sequence[SizeClass]
    small_files: int
    """Files below the size at which compaction leaves them alone."""
    files_per_moment: float | None
    """Average number of files that overlap at a point in time of a tenant's day, where there is any. 1 is
    best: a query for an hour then reads no file without matching rows. None without files.
    """
    oldest_micros: int | None
    waiting_files: int
    """Files that compaction should merge now."""
    waiting_bytes: int
    lag_seconds: float
    """Minimum time for which the waiting files have been due. 0 if there are none."""
    monthly_cost: float
    """Storage cost of these files; for a whole table, of old and orphan files too."""
    table: TableState | None
    """None if only one tenant's files were measured."""


def health(
    files: Iterable[FileFacts],
    config: MaintainConfig,
    now_seconds: float,
    *,
    known_since: float | None = None,
    table: TableState | None = None,
    spec: TableSpec | None = None,
) -> TableHealth:
    """Computes the health from file facts, without I/O. `files` are all of the table, or those of one tenant
    if `table` is None. Commit times before `known_since` are unknown, because their snapshots have expired.
    `spec` says how files are merged; None: as those of a landed table.
    """
    ordered = sorted(files, key=_partition)
    is_merged = spec is None or spec.merged_as is not None
    waiting = due(ordered, config.compact, now_seconds, spec) if is_merged else []
    known_since = now_seconds if known_since is None else known_since
    due_since = [min(now_seconds, _due_since(group, config.compact, known_since)) for group in waiting]
    total = sum(file.bytes for file in ordered)
    unused = 0 if table is None else (table.orphan_bytes or 0) + (table.old_bytes or 0)
    return TableHealth(
        files=len(ordered),
        bytes=total,
        rows=sum(file.rows for file in ordered),
        sizes=_sizes(ordered),
        small_files=sum(file.bytes < small_bytes(config.compact) for file in ordered),
        files_per_moment=_files_per_moment(ordered),
        oldest_micros=min((file.first_micros for file in ordered), default=None),
        waiting_files=sum(len(group.files) for group in waiting),
        waiting_bytes=sum(group.bytes for group in waiting),
        lag_seconds=max((now_seconds - since for since in due_since), default=0.0),
        monthly_cost=(total + unused) * config.storage_price / _PRICED_BYTES,
        table=table,
    )


def state_of(metadata: TableMetadata, manifests: int, metadata_bytes: int | None = None) -> TableState:
    facts = json_property(metadata, MAINTENANCE)
    return TableState(
        snapshots=len(metadata.snapshots),
        manifests=manifests,
        metadata_bytes=metadata_bytes,
        orphan_bytes=_count(facts.get("orphan_bytes")),
        old_bytes=_count(facts.get("old_bytes")),
        runs={name: float(at) for name in _RUNS if (at := _count(facts.get(name))) is not None},
    )


def measure(
    table: Table, config: MaintainConfig, now_seconds: float | None = None, *, spec: TableSpec | None = None
) -> TableHealth:
    """Returns the health of a whole table. Reads its metadata and manifests, and lists no files. `spec` is as
    in `health`.
    """
    snapshot = table.current_snapshot()
    manifests = 0 if snapshot is None else len(snapshot.manifests(table.io))
    state = state_of(table.metadata, manifests, len(table.io.new_input(table.metadata_location)))
    now = time.time() if now_seconds is None else now_seconds
    files = all_facts(live_files(table), table, now_seconds=now)
    since = oldest_snapshot_seconds(table.metadata, now)
    return health(files, config, now, known_since=since, table=state, spec=spec)


def oldest_snapshot_seconds(metadata: TableMetadata, now_seconds: float | None = None) -> float | None:
    now = time.time() if now_seconds is None else now_seconds
    return min((ms / 1000 for ms in commit_times(metadata, int(now * 1000)).values()), default=None)


def _partition(file: FileFacts) -> tuple[str, int, int]:
    return file.tenant or "", file.day or 0, file.first_micros


def _sizes(files: Sequence[FileFacts]) -> list[SizeClass]:
    found, below = [], -1
    for bytes_max in SIZES_MAX:
        sizes = [f.bytes for f in files if below < f.bytes and (bytes_max is None or f.bytes <= bytes_max)]
        found.append(SizeClass(bytes_max, len(sizes), sum(sizes)))
        below = bytes_max or below
    return found


def _files_per_moment(files: Sequence[FileFacts]) -> float | None:
    """Returns the average number of overlapping files. Expects `files` by tenant, day and first time."""
    held, covered = 0, 0
    for _, of_day in groupby(files, key=lambda file: (file.tenant, file.day)):
        end: int | None = None
        for file in of_day:
            after = file.last_micros + 1
            begin = file.first_micros if end is None else max(file.first_micros, end)
            held += max(0, after - file.first_micros)
            covered += max(0, after - begin)
            end = after if end is None else max(end, after)
    return held / covered if covered else None


def _due_since(group: Group, config: CompactConfig, known_since: float) -> float:
    """Returns the latest time at which the group can have become due."""
    if group.due_since is not None:
        return group.due_since
    if group.closed and group.day is not None:
        return closed_at(group.day, group.files, config)
    commits = [file.committed_seconds for file in group.files if file.committed_seconds is not None]
    return max(commits, default=known_since)


def _count(value: object) -> int | None:
    number = number_or_none(value, below=_COUNT_MAX)
    return None if number is None else int(number)


_GAUGES = {
    "frazil_table_files": "Data files in the table.",
    "frazil_table_bytes": "Bytes of data files in the table.",
    "frazil_table_rows": "Rows in the table.",
    "frazil_table_small_files": "Data files that are smaller than the compaction target.",
    "frazil_table_files_per_moment": "Average number of a tenant's data files that cover one point "
    "in time; 1 is best.",
    "frazil_table_oldest_timestamp_seconds": "Unix time of the oldest row of the table.",
    "frazil_table_monthly_cost": "Estimated monthly storage cost of the table, from maintain.storage_price.",
    "frazil_maintain_waiting_bytes": "Bytes of data files that wait for compaction.",
    "frazil_maintain_lag_seconds": "Lower bound of the seconds that the oldest files due for "
    "compaction have waited.",
    "frazil_table_snapshots": "Snapshots of the table that can be queried.",
    "frazil_table_manifests": "Manifests of the table's newest snapshot.",
    "frazil_table_metadata_bytes": "Bytes of the table's metadata file, which every commit rewrites.",
    "frazil_table_orphan_bytes": "Bytes of files that no snapshot referenced at the last search for orphans.",
}


class TableGauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {name: Gauge(name, doc, ["table"], registry=registry) for name, doc in _GAUGES.items()}

    def show(self, table: str, health: TableHealth) -> None:
        """Sets the gauges of a table. A value that is not known is removed, not set to 0."""
        values: dict[str, float | None] = {
            "frazil_table_files": health.files,
            "frazil_table_bytes": health.bytes,
            "frazil_table_rows": health.rows,
            "frazil_table_small_files": health.small_files,
            "frazil_table_files_per_moment": health.files_per_moment,
            "frazil_table_oldest_timestamp_seconds": (
                None if health.oldest_micros is None else health.oldest_micros / 1_000_000
            ),
            "frazil_table_monthly_cost": health.monthly_cost,
            "frazil_maintain_waiting_bytes": health.waiting_bytes,
            "frazil_maintain_lag_seconds": health.lag_seconds,
        }
        if (state := health.table) is not None:
            values |= {
                "frazil_table_snapshots": state.snapshots,
                "frazil_table_manifests": state.manifests,
                "frazil_table_metadata_bytes": state.metadata_bytes,
                "frazil_table_orphan_bytes": state.orphan_bytes,
            }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(table).set(value)
            else:
                with contextlib.suppress(KeyError):
                    self._gauges[name].remove(table)
