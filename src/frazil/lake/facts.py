"""What the choice of files to merge and the health of a table need to know of a data file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from frazil.lake.times import commit_times
from frazil.tables.columns import TENANT, TIME
from frazil.times import day_number

if TYPE_CHECKING:
    from frazil.lake.live_files import LiveFile

DAY_MICROS = 86_400_000_000


@dataclass(frozen=True, slots=True)
class FileFacts:
    path: str
    tenant: str | None
    """None in a table that is not apart by tenant."""
    day: int | None
    """Since 1970; None in a table that is not apart by day."""
    bytes: int
    rows: int
    first_micros: int
    last_micros: int
    """Of its rows; of the whole day where the file does not say."""
    sequence: int
    committed_seconds: float | None = None
    """Since 1970; None when its snapshot is gone, so long ago was it."""


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
    time_id = next((field.field_id for field in schema.fields if field.name == TIME), None)
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
    )


def _partition(file: DataFile, spec: PartitionSpec, schema: Schema) -> tuple[str | None, int | None]:
    tenant, day = None, None
    names = {field.field_id: field.name for field in schema.fields}
    for at, field in enumerate(spec.fields):
        value = file.partition[at]
        if isinstance(field.transform, DayTransform) and names.get(field.source_id) == TIME:
            day = _day(value)
        elif isinstance(field.transform, IdentityTransform) and names.get(field.source_id) == TENANT:
            tenant = value
    return tenant, day


def _day(value: Any) -> int | None:
    return None if value is None else day_number(value)


def _micros(bounds: Mapping[int, bytes] | None, field_id: int | None, unknown: int) -> int:
    bound = None if bounds is None or field_id is None else bounds.get(field_id)
    return unknown if bound is None or len(bound) != 8 else int.from_bytes(bound, "little", signed=True)
