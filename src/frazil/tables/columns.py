"""The shape of a table's declaration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import pyarrow as pa

from frazil.tables.promoted import Promoted

Signal = Literal["logs", "spans", "metrics"]
Tier = Literal["hot", "warm", "cold"]
MergedAs = Literal["sorted", "stretches"]
"""How merged files are ordered: all of a file by `sort_by`, or row groups that follow each other in time,
each by `sort_by`, which keeps what happened together, such as a trace, together.
"""

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

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=not self.required)


@dataclass(frozen=True)
class TableSpec:
    """One table: its columns, and how its files are cut and ordered."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    sort_by: tuple[str, ...]
    bloom_filters: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ("tenant_id", "day(time)")
    merged_as: MergedAs = "sorted"
    promoted: tuple[Promoted, ...] = ()
    """Those of its columns that are copies of attributes."""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"table {self.name} declares {', '.join(sorted(twice))} twice")

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        return pa.schema([column.field for column in self.columns])

    def with_columns(self, *columns: Column) -> TableSpec:
        """The same table with more columns, in their tiers."""
        return replace(self, columns=in_tier_order([*self.columns, *columns]))

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


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
            " ".join([*_named("Partitioned by", spec.partition_by), *_named("Ordered by", spec.sort_by)]),
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
