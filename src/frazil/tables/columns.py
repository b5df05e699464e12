"""What a table's declaration says. Creation, queries, maintenance and documentation follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pyarrow as pa

from frazil.tables.encoding import CODED, FEW_VALUES
from frazil.tables.promoted import Promoted

Signal = Literal["logs", "spans", "metrics"]
Tier = Literal["hot", "warm", "cold"]
Retained = Literal["rules", "age", "no"]
Erased = Literal["rows", "whole", "no"]
MergedAs = Literal["sorted", "stretches"]
"""How merged files are ordered: all of a file by `sort_by`, or row groups that follow each other in time,
each by `sort_by`, which keeps what happened together, such as a trace, together.
"""

TENANT, TIME, RECEIVED = "tenant_id", "time", "received_time"
PARTITIONS = (TENANT, f"day({TIME})")
ATTRIBUTES = pa.map_(pa.string(), pa.string())
TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True)
class Column:
    """One column: what it holds and which field of OTLP it comes from.

    `tier` decides the order in the file: hot columns are read by most questions, cold ones exist so that
    nothing is lost.
    """

    name: str
    type: pa.DataType
    source: str
    doc: str
    tier: Tier = "warm"
    required: bool = False
    coded: bool = False
    """Few distinct values in many rows: rows in memory hold codes."""
    internal: bool = False
    """SQL does not show it."""

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=not self.required)


@dataclass(frozen=True)
class View:
    """The rows of a table in which the column `not_null` has a value, under another name."""

    name: str
    doc: str
    not_null: str


@dataclass(frozen=True)
class TableSpec:
    """One table: its columns, how its files are partitioned and ordered, and which parts of frazil use it.

    Every table has the columns `tenant_id` and `time`. Where `tenant_id` may be NULL, SQL shows rows without
    a tenant to admins only.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    bloom_filters: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = PARTITIONS
    """`PARTITIONS`, or the first of them, or none."""
    signal: Signal | None = None
    """The OTLP signal that lands in it. Its write-ahead log is the table's tail, and `frazil verify` compares
    both. None: the table has no log.
    """
    merged_as: MergedAs | None = "sorted"
    """None: its files are neither merged nor moved to another place."""
    retained: Retained = "rules"
    """Which rows retention removes: those that `maintain.retention.rules` name, or all of some age."""
    erased: Erased = "rows"
    """What an erasure removes: the tenant's rows that match, or, if the operator says so, all rows."""
    tagged: bool = True
    """Whether a named tag pins it."""
    queried: bool = True
    """Whether SQL can read it."""
    views: tuple[View, ...] = ()
    promoted: tuple[Promoted, ...] = ()
    """Those of its columns that are copies of attributes. They can be filled again from the maps."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"table {self.name} declares {', '.join(sorted(twice))} twice")
        if missing := {TENANT, TIME, *self.sort_by, *self.bloom_filters} - {*names}:
            raise ValueError(f"table {self.name} does not declare {', '.join(sorted(missing))}")
        if self.partition_by != PARTITIONS[: len(self.partition_by)]:
            raise ValueError(f"table {self.name} cannot be partitioned by {', '.join(self.partition_by)}")
        by_day = self.retained == "rules" or self.merged_as is not None
        needed = PARTITIONS if by_day else PARTITIONS[: self.erased == "rows"]
        if len(self.partition_by) < len(needed):
            raise ValueError(f"table {self.name} must be partitioned by {', '.join(needed)}")
        if self.has_unowned_rows and (self.retained == "rules" or self.erased == "rows"):
            raise ValueError(f"table {self.name} has rows without a tenant, and removes rows by tenant")

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    @cached_property
    def coded_schema(self) -> pa.Schema:
        """The types of rows in memory: repeated text as codes. Written, both schemas are the same Parquet."""
        return pa.schema([(column.name, _coded_type(column)) for column in self.columns])

    @cached_property
    def write_schema(self) -> pa.Schema:
        """The types of rows to write. Measured: a task needs a tenth less CPU if text that segments hold as
        dictionaries is never expanded.
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
        """The values of a file's partition. The day counts from 1970."""
        return (tenant, day)[: len(self.partition_by)]

    def with_columns(self, *columns: Column) -> TableSpec:
        """The same table with more columns, in their tiers."""
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
    """Hot, then warm, then cold; within a tier as declared."""
    order = {"hot": 0, "warm": 1, "cold": 2}
    return tuple(sorted(columns, key=lambda column: order[column.tier]))


def markdown(specs: Iterable[TableSpec]) -> str:
    """The reference page: every column of every table, with its source in OTLP."""
    lines = ["# Tables", "", "Generated from `frazil.tables` by `make docs`; do not edit.", ""]
    for spec in specs:
        lines += [f"## {spec.name}", "", spec.doc, ""]
        lines += [
            " ".join(
                [
                    *_named("Partitioned by", spec.partition_by),
                    *_named("Ordered by", spec.sort_by),
                    *(f"View `{view.name}`: {view.doc}" for view in spec.views),
                    *(["SQL shows rows without a tenant to admins only."] * spec.has_unowned_rows),
                ]
            ),
            "",
            "| column | type | source in OTLP | what it holds |",
            "|---|---|---|---|",
        ]
        for column in spec.columns:
            lines.append(
                f"| `{column.name}` | {type_name(column.type)} | {column.source.replace('|', chr(92) + '|')} "
                f"| {column.doc} |"
            )
        lines.append("")
    return "\n".join(lines)


def _named(what: str, names: Iterable[str]) -> list[str]:
    return [f"{what} {', '.join(f'`{name}`' for name in names)}."] if names else []


def type_name(type_: pa.DataType) -> str:
    """A type as SQL people write it."""
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
