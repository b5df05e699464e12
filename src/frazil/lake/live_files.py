"""The data files of a snapshot: which ones are live, their size, tenant and time range, and corrupt ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform

from frazil.errors import Refused
from frazil.lake.catalog import full_name
from frazil.lake.snapshots import commit_times
from frazil.tables.columns import RECEIVED, RESOLUTION, TENANT, TIME
from frazil.times import day_number

T = TypeVar("T")
R = TypeVar("R")
_READERS = 8
DAY_MICROS = 86_400_000_000


class FilePartition(NamedTuple):
    """The tenant and the day (since 1970) of a file's rows. None if the table is not partitioned by it, or
    the rows have no tenant.
    """

    tenant: str | None
    day: int | None


def partition_of(file: DataFile) -> FilePartition:
    """Returns the partition of a file that frazil wrote: see `TableSpec.partition`."""
    values = file.partition
    return FilePartition(values[0] if len(values) > 0 else None, values[1] if len(values) > 1 else None)


@dataclass(frozen=True)
class LiveFile:
    """A data file and the commit that added it."""

    file: DataFile
    snapshot_id: int
    sequence: int
    file_sequence: int


def live_files(
    table: Table, snapshot: Snapshot | None = None, *, days: Collection[int | None] | None = None
) -> list[LiveFile]:
    """Returns the data files of `main`, or of another snapshot, in no order. With `days`, reads only the
    manifests that may name files of these days, and returns all their files. Raises Refused if the snapshot
    has delete files: rows that they delete would reappear when a data file is replaced.
    """
    snapshot = snapshot or table.current_snapshot()
    if snapshot is None:
        return []
    return [
        LiveFile(
            entry.data_file,
            entry.snapshot_id or 0,
            entry.sequence_number or 0,
            entry.file_sequence_number or 0,
        )
        for entries in read_entries(
            table.io,
            [
                manifest
                for manifest in data_manifests(table, snapshot)
                if days is None or _may_name(table, manifest, days)
            ],
        )
        for entry in entries
    ]


def _may_name(table: Table, manifest: ManifestFile, days: Collection[int | None]) -> bool:
    """Returns whether the manifest's bounds allow files of one of the days."""
    spec = table.metadata.specs()[manifest.partition_spec_id]
    for field, bounds in zip(spec.fields, manifest.partitions or (), strict=False):
        if isinstance(field.transform, DayTransform) and bounds.lower_bound and bounds.upper_bound:
            first, last = (_whole(bound) for bound in (bounds.lower_bound, bounds.upper_bound))
            return any(bounds.contains_null if day is None else first <= day <= last for day in days)
    return True


def _whole(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


def data_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Returns the manifests that name a live file. Raises Refused if any of them names delete files."""
    found = with_live_files(snapshot.manifests(table.io))
    if any(manifest.content != ManifestContent.DATA for manifest in found):
        raise Refused(
            f"{full_name(table)} has delete files, which frazil does not support; rewrite the table without "
            "them (Spark: CALL system.rewrite_data_files with `delete-file-threshold` 1)"
        )
    return found


def with_live_files(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Filters out the manifests that only record deleted files."""
    return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]


def read_entries(io: FileIO, manifests: Sequence[ManifestFile]) -> list[list[ManifestEntry]]:
    """Returns the live entries of each manifest."""
    return list(in_parallel(lambda manifest: manifest.fetch_manifest_entry(io), manifests))


def in_parallel(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yields `work(item)` for each item in order. Uses threads: most of the time is spent waiting for I/O."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(_READERS, len(items)), thread_name_prefix="frazil-manifests") as readers:
        yield from readers.map(work, items)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The properties of a data file that compaction and table health use."""

    path: str
    tenant: str | None
    """None in a table that is not partitioned by tenant."""
    day: int | None
    """Days since 1970. None in a table that is not partitioned by day."""
    bytes: int
    rows: int
    first_micros: int
    last_micros: int
    """Time range of the rows; the whole day if the file has no bounds."""
    sequence: int
    committed_seconds: float | None = None
    """Seconds since 1970. None if the snapshot that added the file has expired."""
    resolution: int | None = None
    """The `resolution` that all rows have. None if there are several, or no such column."""
    pending_since: float | None = None
    """When the first source row of a pending row arrived, in seconds since 1970. None if bounds show no
    pending row."""


def all_facts(
    files: Iterable[LiveFile], table: Table, *, now_seconds: float | None = None
) -> list[FileFacts]:
    specs, schema = table.metadata.specs(), table.schema()
    times = commit_times(table.metadata, int((time.time() if now_seconds is None else now_seconds) * 1000))
    return [_facts(each.file, each.sequence, times.get(each.snapshot_id), specs, schema) for each in files]


def _facts(
    file: DataFile,
    sequence: int,
    committed_ms: int | None,
    specs: Mapping[int, PartitionSpec],
    schema: Schema,
) -> FileFacts:
    tenant, day = _partition(file, specs[file.spec_id], schema)
    begin = 0 if day is None else day * DAY_MICROS
    ids = {field.name: field.field_id for field in schema.fields}
    time_id = ids.get(TIME)
    return FileFacts(
        path=file.file_path,
        tenant=tenant,
        day=day,
        bytes=file.file_size_in_bytes,
        rows=file.record_count,
        first_micros=_micros(file.lower_bounds, time_id, begin),
        last_micros=_micros(file.upper_bounds, time_id, begin + DAY_MICROS - 1),
        sequence=sequence,
        committed_seconds=None if committed_ms is None else committed_ms / 1000,
        resolution=only_value(file, ids.get(RESOLUTION)),
        pending_since=_pending_since(file, ids),
    )


def _pending_since(file: DataFile, ids: Mapping[str, int]) -> float | None:
    if RESOLUTION not in ids or RECEIVED not in ids:
        return None
    found = _micros(file.lower_bounds, ids[RECEIVED], -1)
    return None if found < 0 else found / 1_000_000


def only_value(file: DataFile, field_id: int | None) -> int | None:
    """Returns the value of an integer column if its bounds show that all rows have the same."""
    if field_id is None:
        return None
    lower, upper = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if lower is None or lower != upper or (file.null_value_counts or {}).get(field_id) != 0:
        return None
    return int.from_bytes(lower, "little", signed=True)


def _partition(file: DataFile, spec: PartitionSpec, schema: Schema) -> FilePartition:
    """Reads the partition of a file, even with a partition spec that another engine set."""
    tenant, day = None, None
    names = {field.field_id: field.name for field in schema.fields}
    for at, field in enumerate(spec.fields):
        value = file.partition[at]
        if isinstance(field.transform, DayTransform) and names.get(field.source_id) == TIME:
            day = None if value is None else day_number(value)
        elif isinstance(field.transform, IdentityTransform) and names.get(field.source_id) == TENANT:
            tenant = value
    return FilePartition(tenant, day)


def _micros(bounds: Mapping[int, bytes] | None, field_id: int | None, default: int) -> int:
    bound = None if bounds is None or field_id is None else bounds.get(field_id)
    return default if bound is None or len(bound) != 8 else int.from_bytes(bound, "little", signed=True)


def corruption_in(error: Exception) -> str | None:
    """Describes in one line the corruption that Arrow found in a file. Returns None if the error is not about
    the content: out of memory, or an error of the operating system, which may be transient.
    """
    if isinstance(error, MemoryError):
        return None
    if isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None):
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def find_corruption(path: Path) -> str | None:
    """Reads a whole Parquet file. Returns the corruption found, or None. Raises FileNotFoundError."""
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                for name in file.schema_arrow.names:
                    file.read_row_group(number, [name], use_threads=False)
    except Exception as error:
        if (found := corruption_in(error)) is None:
            raise
        return found
    return None
