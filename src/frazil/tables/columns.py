"""The types of a table's declaration. Creation, queries, maintenance and documentation follow it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.tables.derived.rules import MAX, MIN, Derived, Merge, Pending
from frazil.tables.encoding import CODED, FEW_VALUES
from frazil.tables.promoted import Promoted

Signal = Literal["logs", "spans", "metrics"]
Tier = Literal["hot", "warm", "cold"]
Retained = Literal["rules", "age", "no"]
Erased = Literal["rows", "whole", "no"]
MergedAs = Literal["sorted", "time_ordered"]
"""Row order of merged files. `sorted`: the whole file by `sort_by`. `time_ordered`: row groups follow each
other in time, and each is sorted by `sort_by`, which keeps the rows of a trace close together.
"""

TENANT, TIME, RECEIVED, RESOLUTION = "tenant_id", "time", "received_time", "resolution"
PARTITIONS = (TENANT, f"day({TIME})")
ATTRIBUTES = pa.map_(pa.string(), pa.string())
QUANTILE = pa.struct({"quantile": pa.float64(), "value": pa.float64()})
TIMESTAMP = pa.timestamp("us", tz="UTC")

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Column:
    """One column: its type, documentation and source field in OTLP.

    `tier` decides the order in the file: most queries read hot columns; cold columns only complete the
    record.
    """

    name: str
    type: pa.DataType
    source: str
    doc: str
    tier: Tier = "warm"
    required: bool = False
    coded: bool = False
    """Has few distinct values, so it is dictionary-encoded in memory."""
    internal: bool = False
    """Hidden from SQL."""
    merge: Merge | None = None
    """How rows of a derived table merge."""

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=not self.required)


@dataclass(frozen=True)
class View:
    """A view of the rows of a table in which the column `not_null` has a value."""

    name: str
    doc: str
    not_null: str


@dataclass(frozen=True)
class TableSpec:
    """One table: its columns, the partitions and order of its files, and how frazil maintains it.

    Every table has the columns `tenant_id` and `time`. If `tenant_id` may be NULL, only admins can query the
    rows without a tenant.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    bloom_filters: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = PARTITIONS
    """`PARTITIONS`, or the first of them, or none."""
    signal: Signal | None = None
    """The OTLP signal that lands in the table. Its write-ahead log is the table's tail, and `frazil verify`
    compares both. None: the table has no log.
    """
    merged_as: MergedAs | None = "sorted"
    """None: files are neither merged nor moved to the second storage location."""
    retained: Retained = "rules"
    """Which rows retention removes: by `maintain.retention.rules`, by age, or none."""
    erased: Erased = "rows"
    """What an erasure removes: matching rows of the tenant, all rows if the operator requests it, or none.
    From a derived table it removes what came from the rows that it removes from the source.
    """
    tagged: bool = True
    """Whether `frazil tag` tags it."""
    queried: bool = True
    """Whether SQL can read it."""
    views: tuple[View, ...] = ()
    promoted: tuple[Promoted, ...] = ()
    """The columns that are copies of attributes. They can be filled again from the attribute maps."""
    derived: Derived | None = None
    """How the rows are computed from another table. None: they come from outside."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        duplicates = {name for name in names if names.count(name) > 1}
        if duplicates:
            raise ValueError(f"table {self.name} declares {', '.join(sorted(duplicates))} twice")
        if missing := {TENANT, TIME, *self.sort_by, *self.bloom_filters} - {*names}:
            raise ValueError(f"table {self.name} does not declare {', '.join(sorted(missing))}")
        if self.partition_by != PARTITIONS[: len(self.partition_by)]:
            raise ValueError(f"table {self.name} cannot be partitioned by {', '.join(self.partition_by)}")
        by_day = self.retained == "rules" or self.merged_as is not None
        needed = PARTITIONS if by_day else PARTITIONS[: self.erased == "rows"]
        if len(self.partition_by) < len(needed):
            raise ValueError(f"table {self.name} must be partitioned by {', '.join(needed)}")
        if self.has_unowned_rows and (self.retained == "rules" or self.erased == "rows"):
            raise ValueError(f"table {self.name} has rows without a tenant, but removes rows by tenant")
        if self.derived is not None:
            self._check_merge(self.derived)

    def _check_merge(self, derived: Derived) -> None:
        for column in self.columns:
            if column.merge is None:
                raise ValueError(f"table {self.name} does not say how {column.name} merges")
            if column.merge.by and not self.has(column.merge.by):
                raise ValueError(f"table {self.name} does not declare {column.merge.by}")
            needed = {"first": MIN, "last": MAX}.get(column.merge.rule)
            if needed is not None and self.column(column.merge.by).merge != needed:
                raise ValueError(
                    f"table {self.name} must merge {column.merge.by} by {needed.rule}, as {column.name} needs"
                )
        if derived.counts and self._rule_of(derived.counts) != "sum":
            raise ValueError(f"table {self.name} counts rows in {derived.counts}, which is not summed")
        if derived.resolutions and not self.has(RESOLUTION):
            raise ValueError(f"table {self.name} has resolutions, but does not declare {RESOLUTION}")
        if derived.pending is not None:
            self._check_pending(derived.pending)
        if {*self.sort_by} != {*self.key} - {TENANT} or self.merged_as == "time_ordered":
            raise ValueError(f"table {self.name} must be sorted by its key, so that equal keys are adjacent")
        if not self.has(RESOLUTION):
            return
        resolution = self.column(RESOLUTION)
        if self.sort_by[0] != RESOLUTION or resolution.tier != "hot" or not resolution.required:
            raise ValueError(
                f"table {self.name} must be sorted by {RESOLUTION} first, a required and hot column, so that "
                "files can have one resolution each, and bounds that show it"
            )

    def _check_pending(self, pending: Pending) -> None:
        if self.sort_by[:2] != (RESOLUTION, pending.by):
            raise ValueError(
                f"table {self.name} must be sorted by {RESOLUTION} and {pending.by}, as pending rows need"
            )
        if not self.has(RECEIVED) or self.column(RECEIVED).tier != "hot":
            raise ValueError(
                f"table {self.name} must have a hot column {RECEIVED}: it says when pending rows are settled"
            )

    def _rule_of(self, name: str) -> str | None:
        merge = self.column(name).merge if self.has(name) else None
        return None if merge is None else merge.rule

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of a derived table's key. Rows that agree in all of them merge."""
        return tuple(
            column.name for column in self.columns if column.merge is not None and column.merge.rule == "key"
        )

    @property
    def is_split_by_resolution(self) -> bool:
        """Whether merged files of closed days have rows of one resolution each."""
        return self.derived is not None and self.has(RESOLUTION) and len(self.derived.resolutions) != 1

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    @cached_property
    def coded_schema(self) -> pa.Schema:
        """The schema of rows in memory, with dictionary-encoded text. Parquet files of both schemas are
        equal.
        """
        return pa.schema([(column.name, _coded_type(column)) for column in self.columns])

    @cached_property
    def write_schema(self) -> pa.Schema:
        """The schema of rows to write. Measured: a task needs 10 % less CPU if text that is
        dictionary-encoded in segments is never decoded.
        """
        few = {column.name for column in self.columns if pa.types.is_string(column.type)} & FEW_VALUES
        return pa.schema(
            [field.with_type(CODED) if field.name in few else field for field in self.coded_schema]
        )

    @property
    def sql_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not column.internal)

    @property
    def has_unowned_rows(self) -> bool:
        """Whether rows may have no tenant."""
        return not self.column(TENANT).required

    def has(self, name: str) -> bool:
        return any(column.name == name for column in self.columns)

    def partition(self, tenant: str | None, day: int | None) -> tuple[str | int | None, ...]:
        """Returns the partition values of a file. `day` counts from 1970."""
        return (tenant, day)[: len(self.partition_by)]

    def with_columns(self, *columns: Column) -> TableSpec:
        """Returns the spec with more columns, in tier order."""
        return replace(self, columns=in_tier_order([*self.columns, *columns]))

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def _coded_type(column: Column) -> pa.DataType:
    if column.type == ATTRIBUTES:  # those of records have many distinct values
        return pa.map_(CODED, pa.string() if column.name == "attributes" else CODED)
    return CODED if column.coded and pa.types.is_string(column.type) else column.type


def in_tier_order(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Sorts columns: hot, warm, cold; within a tier as declared."""
    order = {"hot": 0, "warm": 1, "cold": 2}
    return tuple(sorted(columns, key=lambda column: order[column.tier]))


def markdown(specs: Iterable[TableSpec]) -> str:
    """Returns the reference documentation: every column of every table, with its source in OTLP."""
    lines = ["# Tables", "", "Generated from `frazil.tables` by `make docs`; do not edit.", ""]
    for spec in specs:
        lines += [f"## {spec.name}", "", spec.doc, ""]
        lines += [
            " ".join(
                [
                    *_named("Partitioned by", spec.partition_by),
                    *_named("Ordered by", spec.sort_by),
                    *(f"View `{view.name}`: {view.doc}" for view in spec.views),
                    *(["Only admins can query rows without a tenant."] * spec.has_unowned_rows),
                ]
            ),
            "",
            "| column | type | source in OTLP | description |",
            "|---|---|---|---|",
        ]
        for column in spec.columns:
            lines.append(
                f"| `{column.name}` | {type_name(column.type)} | {column.source.replace('|', chr(92) + '|')} "
                f"| {column.doc} |"
            )
        lines.append("")
    return "\n".join(lines)


def _named(label: str, names: Iterable[str]) -> list[str]:
    return [f"{label} {', '.join(f'`{name}`' for name in names)}."] if names else []


def type_name(type_: pa.DataType) -> str:
    """Returns the SQL name of a type."""
    if pa.types.is_map(type_):
        return f"MAP<{type_name(type_.key_type)}, {type_name(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"LIST<{type_name(type_.value_type)}>"
    if pa.types.is_struct(type_):
        inner = ", ".join(f"{field.name} {type_name(field.type)}" for field in type_)
        return f"STRUCT<{inner}>"
    names = {
        pa.string(): "STRING",
        pa.int32(): "INT",
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.bool_(): "BOOLEAN",
        pa.binary(): "BINARY",
        TIMESTAMP: "TIMESTAMP",
    }
    return names[type_]


def within_horizon(
    time: Longs, received: Longs, *, past_micros: int, ahead_micros: int
) -> tuple[Longs, Mask]:
    """Replaces a `time` too far before or after the received time by the received time. Returns the times,
    and which of them were replaced.

    Compares with the received time, not the clock, so that a row gets the same time before and after landing.
    """
    outside: Mask = (time < received - past_micros) | (time > received + ahead_micros)
    if outside.any():
        time = np.where(outside, received, time)
    return time, outside
