"""Manifest entries: entries of kept and deleted files, and which manifests may name a file."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, PrimitiveType

ENTRIES_PER_MANIFEST = 2000
"""Maximum size of a merged manifest. Measured: reading that many entries takes 70 ms, writing them 330 ms."""
SMALL_MANIFEST = ENTRIES_PER_MANIFEST // 2
"""Manifests with fewer live files are merged. `split_by_day` makes parts of at least this size, so that a
merged manifest is not merged again.
"""


def existing_entry(entry: ManifestEntry) -> ManifestEntry:
    """Returns the entry for another manifest, with the snapshot and sequence that added the file."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def deleted_entry(entry: ManifestEntry, snapshot_id: int) -> ManifestEntry:
    """Returns the entry of a file that this snapshot deletes."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=_without_values(entry.data_file),
    )


def split_by_day(entries: Iterable[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Sorts entries by day and splits them into the fewest manifests, of about equal size."""
    ordered = sorted(entries, key=_day_first)
    parts = -(-len(ordered) // ENTRIES_PER_MANIFEST)
    cuts = [len(ordered) * number // parts for number in range(parts + 1)]
    return [ordered[start:end] for start, end in itertools.pairwise(cuts)]


def _day_first(entry: ManifestEntry) -> tuple[tuple[bool, Any], ...]:
    """Returns the partition, last field first: queries, merges and expired rows concern few days but any
    tenant.
    """
    values = reversed(_values(entry.data_file))
    return tuple((value is not None, value if value is not None else 0) for value in values)


def _values(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[number] for number in range(len(file.partition)))


def partitions_of(files: Sequence[DataFile]) -> dict[int, set[tuple[Any, ...]]] | None:
    """Returns the partitions by partition spec; None if a file does not have its spec."""
    found: dict[int, set[tuple[Any, ...]]] = {}
    for file in files:
        if not hasattr(file, "_spec_id"):
            return None
        found.setdefault(file.spec_id, set()).add(_values(file))
    return found


def may_contain(
    table: Table, manifest: ManifestFile, partitions: Mapping[int, Iterable[tuple[Any, ...]]] | None
) -> bool:
    """Returns whether the manifest's bounds allow a file of one of these partitions."""
    if partitions is None or manifest.partitions is None:
        return True
    spec = table.metadata.specs()[manifest.partition_spec_id]
    types = [field.field_type for field in spec.partition_type(table.metadata.schema()).fields]
    if len(manifest.partitions) != len(types):
        return True
    return any(
        all(
            _within(value, bounds, type_)
            for value, bounds, type_ in zip(values, manifest.partitions, types, strict=True)
        )
        for values in partitions.get(manifest.partition_spec_id, ())
    )


def _within(value: Any, bounds: PartitionFieldSummary, type_: IcebergType) -> bool:
    if value is None:
        return bounds.contains_null
    if not isinstance(type_, PrimitiveType) or bounds.lower_bound is None or bounds.upper_bound is None:
        return True
    lower, upper = from_bytes(type_, bounds.lower_bound), from_bytes(type_, bounds.upper_bound)
    return bool(lower <= value <= upper)


def _without_values(file: DataFile) -> DataFile:
    """Drops the column bounds: the entry of a deleted file must not keep values of rows that were erased."""
    return DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        sort_order_id=file.sort_order_id,
    )
