"""The data files of a snapshot, as its manifests name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.errors import Refused
from frazil.lake.catalog import full_name

T = TypeVar("T")
R = TypeVar("R")
_READERS = 8


class FilePartition(NamedTuple):
    """The tenant and the day since 1970 of a file's rows. None where the table is not partitioned by it, or
    the rows have no tenant.
    """

    tenant: str | None
    day: int | None


def partition_of(file: DataFile) -> FilePartition:
    """The partition of a file that frazil wrote: see `TableSpec.partition`."""
    values = file.partition
    return FilePartition(values[0] if len(values) > 0 else None, values[1] if len(values) > 1 else None)


@dataclass(frozen=True)
class LiveFile:
    """A data file and the commit that added it."""

    file: DataFile
    snapshot_id: int
    sequence: int
    file_sequence: int


def live_files(table: Table, snapshot: Snapshot | None = None) -> list[LiveFile]:
    """Those of `main`, or of another snapshot; in no order. Refused if the snapshot has delete files: what
    they delete would come back when a file is replaced.
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
        for entries in read_entries(table.io, data_manifests(table, snapshot))
        for entry in entries
    ]


def data_manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Those that name a live file. Refused if there are any of delete files."""
    found = living(snapshot.manifests(table.io))
    if any(manifest.content != ManifestContent.DATA for manifest in found):
        raise Refused(
            f"{full_name(table)} has delete files, which frazil never writes and cannot keep; rewrite "
            "the table without them (Spark: CALL system.rewrite_data_files with `delete-file-threshold` 1)"
        )
    return found


def living(manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """Without those that only say what was deleted."""
    return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]


def read_entries(io: FileIO, manifests: Sequence[ManifestFile]) -> list[list[ManifestEntry]]:
    """The live entries of each manifest, several read at a time."""
    return list(in_parallel(lambda manifest: manifest.fetch_manifest_entry(io), manifests))


def in_parallel(work: Callable[[T], R], of: Sequence[T]) -> Iterator[R]:
    """What it makes of each, in their order, several at a time: most of it is waiting for files."""
    if len(of) < 2:
        yield from map(work, of)
        return
    with ThreadPoolExecutor(min(_READERS, len(of)), thread_name_prefix="frazil-manifests") as readers:
        yield from readers.map(work, of)
