"""Selects the data files that can hold matching rows. Pure functions on decoded manifests, stored as columns.

A file is left out only if its tenant, its day or the bounds of a column exclude all of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.errors import QueryInvalid
from frazil.lake.live_files import FileFacts
from frazil.sql.bounds import Column, Flags, Kind, Longs, may_match, numbers
from frazil.sql.constraint import Constraints
from frazil.tables import Fill
from frazil.tables.columns import RECEIVED, RESOLUTION, TENANT, TIME
from frazil.tables.promoted import fingerprint_of
from frazil.times import day_number

_DAY_MICROS = 86_400_000_000
_LONG = np.iinfo(np.int64)
_NO_DAY = _LONG.min
_DAY_MAX = _LONG.max // _DAY_MICROS - 1

V = TypeVar("V")


class NoTenant(Enum):
    """The owner of rows without a tenant."""

    NO_TENANT = "no tenant"


NO_TENANT = NoTenant.NO_TENANT
Owner = str | NoTenant

_KINDS: Mapping[type[IcebergType], Kind] = {
    IntegerType: "integer",
    LongType: "integer",
    TimestampType: "integer",
    TimestamptzType: "integer",
    DoubleType: "double",
    BooleanType: "boolean",
    StringType: "text",
}


@dataclass(frozen=True, slots=True)
class File:
    """A data file. `columns` are the ids of the columns in it: files older than a column lack it."""

    path: str
    bytes: int
    rows: int
    columns: frozenset[int]
    unfilled: frozenset[int] = frozenset()
    """Ids of promoted columns that were filled from other attributes: the attribute map has the values."""

    def lacks(self, column: int) -> bool:
        """Return whether the values of a promoted column are only in the attribute map."""
        return column in self.unfilled or (bool(self.columns) and column not in self.columns)


@dataclass(frozen=True)
class Files:
    """The files to read, out of the `total` that the tenant has. Times are those of all of the tenant's
    files, in microseconds since 1970.
    """

    files: Sequence[File]
    total: int
    total_bytes: int
    total_rows: int
    first_time: int | None
    last_time: int | None


NO_FILES = Files((), 0, 0, 0, None, None)


@dataclass(frozen=True)
class Manifest:
    """The live files of a manifest, stored by column. Bounds stay encoded: queries constrain few columns."""

    files: Sequence[File]
    tenants: Sequence[Owner | None]
    days: Mapping[int, Longs]
    """Partition days, by the id of the partition's source column."""
    lower: Mapping[int, pa.BinaryArray]
    upper: Mapping[int, pa.BinaryArray]
    null_only: Mapping[int, Flags]
    nan_free: Mapping[int, Flags]
    snapshots: Sequence[int | None] = ()
    """The snapshots that added the files, if known."""

    def __len__(self) -> int:
        return len(self.files)


def decode(
    entries: Sequence[ManifestEntry], spec: PartitionSpec, schema: Schema, table: str, fill: Fill
) -> Manifest:
    """Raises QueryInvalid for delete files and for formats other than Parquet."""
    found = of_files([entry.data_file for entry in entries], spec, schema, table, fill)
    return replace(found, snapshots=[entry.snapshot_id for entry in entries])


def of_files(
    data: Sequence[DataFile], spec: PartitionSpec, schema: Schema, table: str, fill: Fill
) -> Manifest:
    """Return a manifest like `decode`, from data files without manifest entries."""
    for file in data:
        if file.content != DataFileContent.DATA:
            raise delete_files_error(table)
        if file.file_format != FileFormat.PARQUET:
            raise QueryInvalid(
                f"{table} has data files in {file.file_format}, which frazil does not read: rewrite them as "
                "Parquet with Spark's rewrite_data_files"
            )
    files = _files(data, schema, fill)
    tenant = next((field for field in schema.fields if field.name == TENANT), None)
    return Manifest(
        files=files,
        tenants=_tenants(data, files, spec, tenant),
        days={
            field.source_id: np.array([_day(file.partition[at]) for file in data], np.int64)
            for at, field in enumerate(spec.fields)
            if isinstance(field.transform, DayTransform)
        },
        lower=_bounds([_known(file.lower_bounds, one) for file, one in zip(data, files, strict=True)]),
        upper=_bounds([_known(file.upper_bounds, one) for file, one in zip(data, files, strict=True)]),
        null_only=_flags([_known(_null_only(file), one) for file, one in zip(data, files, strict=True)]),
        nan_free=_flags([_known(_nan_free(file), one) for file, one in zip(data, files, strict=True)]),
    )


def delete_files_error(table: str) -> QueryInvalid:
    return QueryInvalid(
        f"{table} has delete files, but frazil reads only copy-on-write tables. Rewrite them with "
        f"Spark: CALL CATALOG.system.rewrite_data_files(table => '{table}', options => "
        "map('delete-file-threshold', '1')), and set write.delete.mode to copy-on-write"
    )


def _files(data: Sequence[DataFile], schema: Schema, fill: Fill) -> list[File]:
    ids = {field.name: field.field_id for field in schema.fields}
    shared: dict[frozenset[int], frozenset[int]] = {}
    found = []
    for file in data:
        names = fill.unfilled(fingerprint_of(file.file_path))
        unfilled = frozenset(ids[name] for name in names if name in ids)
        columns = frozenset((*(file.value_counts or ()), *(file.column_sizes or ())))
        columns, unfilled = shared.setdefault(columns, columns), shared.setdefault(unfilled, unfilled)
        found.append(File(file.file_path, file.file_size_in_bytes, file.record_count, columns, unfilled))
    return found


def _known(facts: Mapping[int, V] | None, file: File) -> Mapping[int, V]:
    """Drop facts of columns that were filled from other attributes: the values in the map may differ."""
    facts = facts or {}
    return {key: each for key, each in facts.items() if key not in file.unfilled} if file.unfilled else facts


def _tenants(
    data: Sequence[DataFile], files: Sequence[File], spec: PartitionSpec, tenant: NestedField | None
) -> list[Owner | None]:
    """Return the owner of each file's rows; None, so that it is never read, if there may be several."""
    if tenant is None:
        return [NO_TENANT] * len(data)
    for at, field in enumerate(spec.fields):
        if field.source_id == tenant.field_id and isinstance(field.transform, IdentityTransform):
            unowned = None if tenant.required else NO_TENANT
            return [unowned if (value := file.partition[at]) is None else value for file in data]
    # Rows of files that are older than the column have no tenant.
    return [NO_TENANT if file.columns and tenant.field_id not in file.columns else None for file in files]


def _day(value: Any) -> int:
    return _NO_DAY if value is None else day_number(value)


def _bounds(bounds: Sequence[Mapping[int, bytes]]) -> dict[int, pa.BinaryArray]:
    ids = {field_id for each in bounds for field_id in each}
    return {field_id: pa.array([each.get(field_id) for each in bounds], pa.binary()) for field_id in ids}


def _flags(true_for: Sequence[Mapping[int, bool]]) -> dict[int, Flags]:
    """Return flags by column, only of columns that have one for some file."""
    found: dict[int, Flags] = {}
    for at, columns in enumerate(true_for):
        for field_id in columns:
            found.setdefault(field_id, np.zeros(len(true_for), np.bool_))[at] = True
    return found


def _null_only(file: DataFile) -> dict[int, bool]:
    counts, nulls = file.value_counts or {}, file.null_value_counts or {}
    return {field_id: True for field_id, count in counts.items() if nulls.get(field_id) == count}


def _nan_free(file: DataFile) -> dict[int, bool]:
    return {field_id: True for field_id, count in (file.nan_value_counts or {}).items() if count == 0}


class Index:
    """The files of one snapshot, sorted by tenant, so that a selection reads only one tenant's files."""

    def __init__(self, manifests: Sequence[Manifest]) -> None:
        self._manifests = [manifest for manifest in manifests if len(manifest)]
        self._columns: dict[tuple[int, Kind], Column] = {}
        tenants = [tenant for manifest in self._manifests for tenant in manifest.tenants]
        by_tenant: dict[Owner, list[int]] = {}
        for at, tenant in enumerate(tenants):
            if tenant is not None:
                by_tenant.setdefault(tenant, []).append(at)
        self._order = np.array([at for places in by_tenant.values() for at in places], np.int64)
        self._parts: dict[Owner, slice] = {}
        begin = 0
        for tenant, places in by_tenant.items():
            self._parts[tenant] = slice(begin, begin + len(places))
            begin += len(places)

    def __len__(self) -> int:
        return len(self._order)

    def select(
        self, tenant: str, constraints: Constraints, schema: Schema, *, unowned: bool = False
    ) -> Files:
        """Return the tenant's files that may hold rows for which all constraints hold. `unowned`: also files
        of rows without a tenant.
        """
        owners: tuple[Owner, ...] = (tenant, NO_TENANT) if unowned else (tenant,)
        fields = {field.name: field for field in schema.fields}
        parts = [self._parts[owner] for owner in owners if owner in self._parts]
        return _together([self._select(part, constraints, fields) for part in parts])

    def _select(self, part: slice, constraints: Constraints, fields: Mapping[str, NestedField]) -> Files:
        keep = np.ones(part.stop - part.start, np.bool_)
        for name, constraint in constraints.items():
            field = fields.get(name)
            kind = None if field is None else _KINDS.get(type(field.field_type))
            if field is not None and kind is not None:
                keep &= may_match(self._column(field.field_id, kind).part(part), kind, constraint)
        first, last = self._times(part, fields.get(TIME))
        return Files(
            [self._files[at] for at in (np.flatnonzero(keep) + part.start).tolist()],
            len(keep),
            int(self._bytes[part].sum()),
            int(self._rows[part].sum()),
            first,
            last,
        )

    @property
    def manifests(self) -> int:
        """Number of manifests with live files."""
        return len(self._manifests)

    def facts(
        self, schema: Schema, committed: Mapping[int, float], tenant: str | None = None
    ) -> list[FileFacts]:
        """Return facts on a tenant's files, or on all. `committed` has commit times by snapshot."""
        part = slice(0, len(self)) if tenant is None else self._parts.get(tenant, slice(0, 0))
        field = next((field for field in schema.fields if field.name == TIME), None)
        if field is None or _KINDS.get(type(field.field_type)) != "integer":
            return []
        times = self._column(field.field_id, "integer").part(part)
        resolutions, pending_since = self._resolutions(schema)[part], self._pending_since(schema)[part]
        days = self._days(field.field_id)[part].tolist()
        return [
            FileFacts(
                path=file.path,
                tenant=owner,
                day=None if day == _NO_DAY else day,
                bytes=file.bytes,
                rows=file.rows,
                first_micros=0 if first == _LONG.min else first,
                last_micros=0 if last == _LONG.max else last,
                sequence=0,
                committed_seconds=None if snapshot is None else committed.get(snapshot),
                resolution=resolution,
                pending_since=since,
            )
            for file, (owner, snapshot), day, first, last, resolution, since in zip(
                self._files[part],
                self._origins[part],
                days,
                times.lower.tolist(),
                times.upper.tolist(),
                resolutions,
                pending_since,
                strict=True,
            )
        ]

    def _resolutions(self, schema: Schema) -> list[int | None]:
        """Return the resolution of each file whose rows all have the same."""
        field = next((field for field in schema.fields if field.name == RESOLUTION), None)
        if field is None or not isinstance(field.field_type, IntegerType):
            return [None] * len(self)
        column = self._column(field.field_id, "integer")
        pairs = zip(column.lower.tolist(), column.upper.tolist(), strict=True)
        return [low if low == high else None for low, high in pairs]

    def _pending_since(self, schema: Schema) -> list[float | None]:
        """Return when the first source row of a pending row of each file arrived."""
        ids = {field.name: field.field_id for field in schema.fields}
        if RESOLUTION not in ids or RECEIVED not in ids:
            return [None] * len(self)
        lower = self._column(ids[RECEIVED], "integer").lower
        return [None if low < 0 else low / 1_000_000 for low in lower.tolist()]

    @cached_property
    def _origins(self) -> list[tuple[str | None, int | None]]:
        """The tenant of each file, and the snapshot that added it."""
        found = [
            (owner if isinstance(owner, str) else None, snapshot)
            for each in self._manifests
            for owner, snapshot in zip(each.tenants, each.snapshots or [None] * len(each), strict=True)
        ]
        return [found[at] for at in self._order.tolist()]

    @cached_property
    def _files(self) -> list[File]:
        files = [file for manifest in self._manifests for file in manifest.files]
        return [files[at] for at in self._order.tolist()]

    @cached_property
    def _bytes(self) -> Longs:
        return np.array([file.bytes for file in self._files], np.int64)

    @cached_property
    def _rows(self) -> Longs:
        return np.array([file.rows for file in self._files], np.int64)

    def _times(self, part: slice, field: NestedField | None) -> tuple[int | None, int | None]:
        if field is None or _KINDS.get(type(field.field_type)) != "integer":
            return None, None
        column = self._column(field.field_id, "integer").part(part)
        first = column.lower[column.lower != _LONG.min]
        last = column.upper[column.upper != _LONG.max]
        return (int(first.min()) if len(first) else None, int(last.max()) if len(last) else None)

    def _column(self, field_id: int, kind: Kind) -> Column:
        """Return a column. Not locked: two threads may compute the same column, with the same result."""
        found = self._columns.get((field_id, kind))
        if found is None:
            found = self._columns[(field_id, kind)] = self._make_column(field_id, kind)
        return found

    def _make_column(self, field_id: int, kind: Kind) -> Column:
        lower = self._gather([(each.lower.get(field_id), len(each)) for each in self._manifests])
        upper = self._gather([(each.upper.get(field_id), len(each)) for each in self._manifests])
        flags = [
            self._gather_flags([(getattr(each, name).get(field_id), len(each)) for each in self._manifests])
            for name in ("null_only", "nan_free")
        ]
        if kind == "text":
            return Column(lower, upper, *flags)
        widest = (-math.inf, math.inf) if kind == "double" else (_LONG.min, _LONG.max)
        low, high = numbers(lower, kind, widest[0]), numbers(upper, kind, widest[1])
        if kind == "integer":
            self._narrow_by_day(field_id, low, high)
        return Column(low, high, *flags)

    def _narrow_by_day(self, field_id: int, low: Longs, high: Longs) -> None:
        """Bound files without column bounds by their partition day."""
        day = self._days(field_id)
        known = (day > -_DAY_MAX) & (day < _DAY_MAX)
        begin = np.where(known, day, 0) * _DAY_MICROS
        np.copyto(low, begin, where=known & (low == _LONG.min))
        np.copyto(high, begin + _DAY_MICROS - 1, where=known & (high == _LONG.max))

    def _days(self, field_id: int) -> Longs:
        days = [each.days.get(field_id, np.full(len(each), _NO_DAY)) for each in self._manifests]
        return np.concatenate(days)[self._order] if days else np.empty(0, np.int64)

    def _gather(self, pieces: Sequence[tuple[pa.BinaryArray | None, int]]) -> pa.BinaryArray:
        arrays = [pa.nulls(length, pa.binary()) if piece is None else piece for piece, length in pieces]
        return pa.concat_arrays(arrays or [pa.nulls(0, pa.binary())]).take(pa.array(self._order))

    def _gather_flags(self, pieces: Sequence[tuple[Flags | None, int]]) -> Flags:
        arrays = [np.zeros(length, np.bool_) if piece is None else piece for piece, length in pieces]
        return np.concatenate(arrays)[self._order] if arrays else np.zeros(0, np.bool_)


def _together(found: Sequence[Files]) -> Files:
    if len(found) < 2:
        return found[0] if found else NO_FILES
    return Files(
        [file for each in found for file in each.files],
        sum(each.total for each in found),
        sum(each.total_bytes for each in found),
        sum(each.total_rows for each in found),
        min((each.first_time for each in found if each.first_time is not None), default=None),
        max((each.last_time for each in found if each.last_time is not None), default=None),
    )
