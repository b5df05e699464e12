"""Entries of manifests: how a file is named that stays, how one that goes, and which manifest can name it."""

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
"""So many files are named by one manifest at most, where several are merged. Measured: reading that many
takes 70 ms, writing them 330 ms.
"""
SMALL_MANIFEST = ENTRIES_PER_MANIFEST // 2
"""Manifests that name fewer live files are merged. Even parts of many are not smaller, so what was merged
once is left alone.
"""


def existing(entry: ManifestEntry) -> ManifestEntry:
    """The entry in another manifest: who added the file, and when, stays."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def deleted(entry: ManifestEntry, snapshot_id: int) -> ManifestEntry:
    """The entry of a file that goes with this snapshot."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.DELETED,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=_without_values(entry.data_file),
    )


def in_parts(entries: Iterable[ManifestEntry]) -> list[list[ManifestEntry]]:
    """By day, in as few parts as each manifest may be long, and about even."""
    ordered = sorted(entries, key=_day_first)
    parts = -(-len(ordered) // ENTRIES_PER_MANIFEST)
    cuts = [len(ordered) * number // parts for number in range(parts + 1)]
    return [ordered[start:end] for start, end in itertools.pairwise(cuts)]


def _day_first(entry: ManifestEntry) -> tuple[tuple[bool, Any], ...]:
    """The partition, its last field first: a question, a merge and what has become too old are of some days,
    and of any tenants.
    """
    values = reversed(_values(entry.data_file))
    return tuple((value is not None, value if value is not None else 0) for value in values)


def _values(file: DataFile) -> tuple[Any, ...]:
    return tuple(file.partition[number] for number in range(len(file.partition)))


def partitions_of(files: Sequence[DataFile]) -> dict[int, set[tuple[Any, ...]]] | None:
    """By spec; None if a file does not say of which it is."""
    found: dict[int, set[tuple[Any, ...]]] = {}
    for file in files:
        if not hasattr(file, "_spec_id"):
            return None
        found.setdefault(file.spec_id, set()).add(_values(file))
    return found


def may_name(
    table: Table, manifest: ManifestFile, partitions: Mapping[int, Iterable[tuple[Any, ...]]] | None
) -> bool:
    """Whether the manifest can name a file of one of these partitions, by its own bounds."""
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
    """What says that a file went must not keep values of its rows: they may have been erased for good."""
    return DataFile.from_args(
        content=file.content,
        file_path=file.file_path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        sort_order_id=file.sort_order_id,
    )
