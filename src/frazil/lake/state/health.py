"""How a table does: its files, how well they are sorted, what waits to be merged, what it costs to keep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from frazil.config.maintain import CompactConfig, MaintainConfig
from frazil.lake.facts import FileFacts, all_facts
from frazil.lake.live_files import live_files
from frazil.lake.properties import MAINTENANCE, json_property
from frazil.lake.times import commit_times
from frazil.lake.upkeep.choose import Group, closed_at, due, small_bytes

KIB, MIB = 1024, 1024 * 1024
SIZES_MAX: tuple[int | None, ...] = (64 * KIB, MIB, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, None)
"""Sizes of files are counted up to these, each and what is between it and the one before. None: any."""
_PRICED_BYTES = 1_000_000_000
_COUNT_MAX = 10**18
_RUNS = ("compacted_at", "expired_at", "orphans_at", "retained_at")


@dataclass(frozen=True)
class SizeClass:
    """Files that are no larger than `bytes_max`, and larger than that of the class before."""

    bytes_max: int | None
    files: int
    bytes: int


@dataclass(frozen=True)
class TableState:
    """What is of the whole table and of no tenant. None is what nobody has found out yet."""

    snapshots: int
    manifests: int
    metadata_bytes: int | None
    """Of the file that every commit writes anew."""
    orphan_bytes: int | None
    """Of files that no snapshot knew at the last look, also of those that were too young to be removed."""
    old_bytes: int | None
    """Of files that only old snapshots held then."""
    runs: Mapping[str, float]
    """When each task of maintenance last ran, in seconds since 1970: `compacted_at`, `expired_at`, …"""


@dataclass(frozen=True)
class TableHealth:
    files: int
    bytes: int
    rows: int
    sizes: Sequence[SizeClass]
    small_files: int
    """Those that are to be merged some day."""
    files_per_moment: float | None
    """How many files hold an average moment of a tenant's day, of the moments that any holds. 1 is best: then
    a question about an hour reads no file in vain. None without files.
    """
    oldest_micros: int | None
    waiting_files: int
    """Those that are worth merging now."""
    waiting_bytes: int
    lag_seconds: float
    """For how long, at least, what is worth merging has been so. 0 if nothing is."""
    monthly_cost: float
    """What it costs to keep these files, and for the whole table also the old and the lost ones."""
    table: TableState | None
    """None where only a tenant's files were looked at."""


def health(
    files: Iterable[FileFacts],
    config: MaintainConfig,
    now_seconds: float,
    *,
    known_since: float | None = None,
    table: TableState | None = None,
    is_merged: bool = True,
) -> TableHealth:
    """Pure. `files` are those of the table, or those of one tenant if `table` is None. Commits before
    `known_since`, as of `oldest_snapshot_seconds`, are not known any more. Small files of a table that is
    not merged wait for nothing.
    """
    there = sorted(files, key=_partition)
    waiting = due(there, config.compact, now_seconds) if is_merged else []
    known_since = now_seconds if known_since is None else known_since
    due_since = [min(now_seconds, _due_since(group, config.compact, known_since)) for group in waiting]
    total = sum(file.bytes for file in there)
    unused = 0 if table is None else (table.orphan_bytes or 0) + (table.old_bytes or 0)
    return TableHealth(
        files=len(there),
        bytes=total,
        rows=sum(file.rows for file in there),
        sizes=_sizes(there),
        small_files=sum(file.bytes < small_bytes(config.compact) for file in there),
        files_per_moment=_files_per_moment(there),
        oldest_micros=min((file.first_micros for file in there), default=None),
        waiting_files=sum(len(group.files) for group in waiting),
        waiting_bytes=sum(group.bytes for group in waiting),
        lag_seconds=max((now_seconds - since for since in due_since), default=0.0),
        monthly_cost=(total + unused) * config.storage_price / _PRICED_BYTES,
        table=table,
    )


def state_of(metadata: TableMetadata, manifests: int, metadata_bytes: int | None = None) -> TableState:
    noted = json_property(metadata, MAINTENANCE)
    return TableState(
        snapshots=len(metadata.snapshots),
        manifests=manifests,
        metadata_bytes=metadata_bytes,
        orphan_bytes=_count(noted.get("orphan_bytes")),
        old_bytes=_count(noted.get("old_bytes")),
        runs={name: float(at) for name in _RUNS if (at := _count(noted.get(name))) is not None},
    )


def measure(
    table: Table, config: MaintainConfig, now_seconds: float | None = None, *, is_merged: bool = True
) -> TableHealth:
    """Of the whole table, as its metadata says: reads manifests, and no listing."""
    snapshot = table.current_snapshot()
    manifests = 0 if snapshot is None else len(snapshot.manifests(table.io))
    state = state_of(table.metadata, manifests, len(table.io.new_input(table.metadata_location)))
    now = time.time() if now_seconds is None else now_seconds
    files = all_facts(live_files(table), table, now_seconds=now)
    since = oldest_snapshot_seconds(table.metadata, now)
    return health(files, config, now, known_since=since, table=state, is_merged=is_merged)


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
    """`files` lie by tenant and day, and there by their first time."""
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
    """No later than this it was worth merging."""
    if group.closed and group.day is not None:
        return closed_at(group.day, group.files, config)
    commits = [file.committed_seconds for file in group.files if file.committed_seconds is not None]
    return max(commits, default=known_since)


def _count(value: object) -> int | None:
    """Of a property that anyone may have written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value < _COUNT_MAX else None  # type: ignore[call-overload,operator]
