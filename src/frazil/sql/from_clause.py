"""The sources of a FROM clause and the result columns of a query, for `constraints`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from frazil.sql.conditions import Node
from frazil.sql.constants import Constraint, Constraints, Kind
from frazil.sql.statement import folded

Kinds = Mapping[str, Kind | None]
"""The kinds of columns by name. None: comparisons with the column imply no constraint."""
_NUMBERED = re.compile(r".*_\d+", re.DOTALL)


@dataclass
class Cte:
    node: Node
    scope: Mapping[str, Cte]
    is_renamed: bool = False
    """Whether the columns are renamed, as in `WITH name(a, b)`."""
    uses: list[Constraints] = field(default_factory=list)


@dataclass(eq=False)
class Source:
    """A table, view, CTE or subquery. `needed` are the constraints on the rows that the query needs."""

    alias: str
    node: Node
    columns: Kinds
    is_complete: bool
    """Whether `columns` are all columns."""
    is_open: bool = True
    """Whether conditions on the rows may be applied before the join."""
    is_visible: bool = True
    """False for the right side of SEMI and ANTI joins, which only the join condition can name."""
    needed: dict[str, Constraint] = field(default_factory=dict)


ColumnRef = tuple[Source, str]
"""A source, and the name of one of its columns."""
JoinCondition = tuple[Node, list[Source], list[Source]]
"""A condition, the sources that it can name, and those whose rows it can drop."""


@dataclass
class FromClause:
    """A FROM clause, or a part of one."""

    sources: list[Source] = field(default_factory=list)
    conditions: list[JoinCondition] = field(default_factory=list)
    equal: list[tuple[ColumnRef, ColumnRef]] = field(default_factory=list)
    merged: dict[str, Source | None] = field(default_factory=dict)
    """Columns that USING or NATURAL merges, with the source whose column is meant. None: not certain."""
    is_vague: bool = False
    """Whether further columns, which are not known, may be merged."""
    is_inner: bool = True
    """Whether every resulting row meets all conditions."""

    def visible(self) -> list[Source]:
        return [source for source in self.sources if source.is_visible]

    def names(self) -> set[str]:
        return {name for source in self.visible() for name in source.columns}

    def close(self) -> None:
        for source in self.sources:
            source.is_open = False

    def resolve(self, node: Node, candidates: Sequence[Source]) -> ColumnRef | None:
        """Return the column that an expression names; None if it is no column, or not certain."""
        if node.get("class") != "COLUMN_REF":
            return None
        names = [folded(name) for name in node["column_names"]]
        if len(names) == 1:
            return self.resolve_name(names[0], candidates)
        named = [source for source in candidates if source.alias == names[0]]
        if len(names) != 2 or len(named) != 1 or names[1] not in named[0].columns:
            return None
        return named[0], names[1]

    def resolve_name(self, name: str, candidates: Sequence[Source]) -> ColumnRef | None:
        if self.is_vague:
            return None
        holders = [source for source in candidates if name in source.columns]
        if name in self.merged:  # takes precedence
            holders = [source for source in holders if source is self.merged[name]]
        return (holders[0], name) if len(holders) == 1 else None

    def merge(self, left: FromClause, right: FromClause, names: Iterable[str]) -> None:
        """Set `merged` for a join on these columns. DuckDB takes the column of the left side."""
        self.merged = {
            name: None if name in left.merged and name in right.merged else (left.merged | right.merged)[name]
            for name in left.merged | right.merged
        }
        for name in names:
            one, other = (side.resolve_name(name, side.visible()) for side in (left, right))
            is_same = one is not None and other is not None and one[0].columns[name] == other[0].columns[name]
            self.merged[name] = one[0] if one is not None and is_same else None


@dataclass(frozen=True)
class Output:
    """A column of a query's result. `source` is the column that it copies unchanged, if any."""

    name: str
    kind: Kind | None = None
    source: ColumnRef | None = None


@dataclass(frozen=True)
class Outputs:
    columns: Sequence[Output] = ()
    is_complete: bool = False
    """Whether `columns` are all columns; otherwise more may follow."""
    is_exact: bool = False
    """Whether the positions are known: tables may have more columns than are known here."""

    def by_name(self) -> dict[str, Output]:
        """Return columns by name. Of several with the same name, the first keeps it; DuckDB numbers the
        others, which may collide with another name.
        """
        found: dict[str, Output] = {}
        for column in self.columns:
            found.setdefault(column.name, column)
        if len(found) == len(self.columns) and self.is_complete:
            return found
        return {name: column for name, column in found.items() if not _NUMBERED.fullmatch(name)}


def source_of(node: Node, outputs: Outputs) -> Source:
    alias = folded(node.get("alias") or node.get("table_name") or "")
    if node.get("column_name_alias"):
        return Source(alias, node, {}, is_complete=False, is_open=False)
    columns = {name: column.kind for name, column in outputs.by_name().items()}
    is_complete = outputs.is_complete and len(columns) == len(outputs.columns)
    return Source(alias, node, columns, is_complete)


def common_kind(kinds: set[Kind | None]) -> Kind | None:
    return next(iter(kinds)) if len(kinds) == 1 else None


def union_by_name(sides: Sequence[Outputs]) -> Outputs:
    """Return the columns of UNION BY NAME. A side that lacks a column has NULL there."""
    if not all(side.is_complete for side in sides):
        return Outputs()
    kinds: dict[str, set[Kind | None]] = {}
    for side in sides:
        for column in side.columns:
            kinds.setdefault(column.name, set()).add(column.kind)
    return Outputs([Output(name, common_kind(each)) for name, each in kinds.items()], is_complete=True)


def star_sources(star: Node, source: FromClause) -> list[Source] | None:
    """Return the sources whose columns a plain `*` selects, in order; None for other stars."""
    known = ("class", "type", "alias", "query_location", "relation_name")
    if any(value for key, value in star.items() if key not in known):
        return None
    relation = folded(star.get("relation_name") or "")
    if not relation:
        return source.visible()
    named = [each for each in source.visible() if each.alias == relation]
    return named if len(named) == 1 else None


def star_columns(each: Source, source: FromClause) -> Iterator[Output]:
    for name, kind in each.columns.items():
        is_certain = name not in source.merged or source.merged[name] is not None
        yield Output(name, kind if is_certain else None, (each, name) if is_certain else None)
