"""Which rows of each table a question can need at most, taken from its WHERE and ON clauses.

Conditions are followed through joins, subqueries, WITH clauses and UNION where dropping the rows that fail
them cannot change the answer. Every conclusion is that a row *cannot* matter; where anything is unclear, all
rows may.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.sql.conditions import ANYTHING, Conditions, add, conjuncts, either_all
from frazil.sql.constants import KEYWORDS, Constants, Constraint, Constraints, Kind
from frazil.sql.statement import folded, nodes
from frazil.tables import view_tables

__all__ = ["ANYTHING", "either_all", "wanted_rows"]

Node = Mapping[str, Any]
Kinds = Mapping[str, Kind | None]
"""Columns by name. None: nothing can be concluded from comparing it."""
_DEPTH_MAX = 60
_NUMBERED = re.compile(r".*_\d+", re.DOTALL)


def wanted_rows(
    root: Node, kinds: Mapping[str, Kinds], constants: Constants
) -> dict[str, list[dict[str, Constraint]]]:
    """For each table, what each of its uses in the question needs. `kinds` are all of the tables' columns."""
    keywords = frozenset(name for name in KEYWORDS if not _is_claimed(name, root, kinds))
    reader = _Reader(kinds, dataclasses.replace(constants, keywords=keywords))
    reader.query(root, ANYTHING, {}, 0)
    if any(node.get("type") == "BASE_TABLE" and id(node) not in reader.seen for node in nodes(root)):
        reader.everything()  # one, or a WITH clause made from one, is in a place that was not looked at
    return reader.uses


def _is_claimed(keyword: str, root: Node, kinds: Mapping[str, Kinds]) -> bool:
    """Whether something in the question may be a column of that name: then it means the column."""
    if any(keyword in columns for columns in kinds.values()):
        return True
    for node in nodes(root):
        if node.get("type") == "PIVOT":
            return True
        if node.get("class") == "COLUMN_REF":
            if len(node["column_names"]) > 1 and node["column_names"][-1].lower() == keyword:
                return True
            if keyword in node["alias"].lower():
                return True
        elif any(keyword in text.lower() for text in _texts(node)):
            return True
        for each in nodes(node.get("select_list")):
            if each.get("class") == "COLUMN_REF" and each["column_names"][-1].lower() == keyword:
                return True
    return False


def _texts(node: Node) -> Iterator[str]:
    for value in node.values():
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, str):
                yield each


@dataclass
class _Cte:
    node: Node
    scope: Mapping[str, _Cte]
    is_renamed: bool = False
    """`WITH name(a, b)`: its columns have other names than its query's."""
    uses: list[Constraints] = field(default_factory=list)


@dataclass(eq=False)
class _Source:
    """One thing in a FROM clause. `wanted` is what the question needs of it."""

    alias: str
    node: Node
    columns: Kinds
    is_complete: bool
    """Whether it has no other columns."""
    is_open: bool = True
    """Whether conditions on its rows may be applied before it is joined."""
    is_visible: bool = True
    """The right side of SEMI and ANTI joins is not, outside of the join's own condition."""
    wanted: dict[str, Constraint] = field(default_factory=dict)


_Place = tuple[_Source, str]
"""A column of a source."""


@dataclass
class _From:
    """A FROM clause, or a part of one."""

    sources: list[_Source] = field(default_factory=list)
    conditions: list[tuple[Node, list[_Source], list[_Source]]] = field(default_factory=list)
    """Of ON clauses: the condition, the sources that it can name, and those whose rows it may drop."""
    equal: list[tuple[_Place, _Place]] = field(default_factory=list)
    merged: dict[str, _Source | None] = field(default_factory=dict)
    """Columns that are one for both sides of a join, and whose they are. None: not certain."""
    is_vague: bool = False
    """Whether others may be merged that are not known."""
    is_inner: bool = True
    """Whether no row comes out of it that has not met all conditions."""

    def visible(self) -> list[_Source]:
        return [source for source in self.sources if source.is_visible]

    def names(self) -> set[str]:
        return {name for source in self.visible() for name in source.columns}

    def close(self) -> None:
        for source in self.sources:
            source.is_open = False

    def place(self, node: Node, among: Sequence[_Source]) -> _Place | None:
        """The column that an expression is; None where it is not certain."""
        if node.get("class") != "COLUMN_REF":
            return None
        names = [folded(name) for name in node["column_names"]]
        if len(names) == 1:
            return self.unqualified(names[0], among)
        named = [source for source in among if source.alias == names[0]]
        if len(names) != 2 or len(named) != 1 or names[1] not in named[0].columns:
            return None
        return named[0], names[1]

    def unqualified(self, name: str, among: Sequence[_Source]) -> _Place | None:
        if self.is_vague:
            return None
        holders = [source for source in among if name in source.columns]
        if name in self.merged:  # is meant before all others
            holders = [source for source in holders if source is self.merged[name]]
        return (holders[0], name) if len(holders) == 1 else None

    def merge(self, left: _From, right: _From, names: Iterable[str]) -> None:
        """For a join of the two in which these columns must be equal. DuckDB means the left one's."""
        self.merged = {
            name: None if name in left.merged and name in right.merged else (left.merged | right.merged)[name]
            for name in left.merged | right.merged
        }
        for name in names:
            one, other = (side.unqualified(name, side.visible()) for side in (left, right))
            is_same = one is not None and other is not None and one[0].columns[name] == other[0].columns[name]
            self.merged[name] = one[0] if one is not None and is_same else None


@dataclass(frozen=True)
class _Output:
    """A column of a query's result. `place` is the column that it is unchanged, if it is one."""

    name: str
    kind: Kind | None = None
    place: _Place | None = None


@dataclass(frozen=True)
class _Outputs:
    columns: Sequence[_Output] = ()
    is_complete: bool = False
    """Otherwise there may be more after these."""
    is_exact: bool = False
    """Whether they are at these places: tables may have more columns than are known here."""

    def by_name(self) -> dict[str, _Output]:
        """Of several with one name the first keeps it. Others get a number, which may be another's name."""
        found: dict[str, _Output] = {}
        for column in self.columns:
            found.setdefault(column.name, column)
        if len(found) == len(self.columns) and self.is_complete:
            return found
        return {name: column for name, column in found.items() if not _NUMBERED.fullmatch(name)}


class _Reader:
    def __init__(self, kinds: Mapping[str, Kinds], constants: Constants) -> None:
        self._kinds = kinds
        self._views = view_tables()
        self._conditions = Conditions(constants)
        self._known_outputs: dict[int, _Outputs] = {}
        self.uses: dict[str, list[dict[str, Constraint]]] = {}
        self.seen: set[int] = set()

    # Queries

    def query(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        """`wanted` is by the names of the query's own columns."""
        if depth > _DEPTH_MAX:
            self.everything()
            return
        here, own = _with_clause(node, ctes)
        kind = node.get("type")
        if kind == "SELECT_NODE":
            self._select(node, wanted, here, depth)
        elif kind == "SET_OPERATION_NODE":
            self._set_operation(node, wanted, here, depth)
        elif kind == "RECURSIVE_CTE_NODE":
            inner = {**here, folded(node["cte_name"]): _Cte({"type": "OPAQUE"}, {})}
            self.query(node["left"], ANYTHING, here, depth + 1)
            self.query(node["right"], ANYTHING, inner, depth + 1)
        else:
            self.everything()
        for cte in reversed(own):  # a later one may use an earlier one
            self.query(cte.node, either_all(cte.uses), cte.scope, depth + 1)

    def everything(self) -> None:
        """Something that this does not understand: every table may be needed whole."""
        for table in self._kinds:
            self.uses.setdefault(table, []).append({})

    def _set_operation(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        sides = _sides(node)
        inner: list[Constraints] = [ANYTHING for _ in sides]
        if wanted and not _is_cut(node) and node["setop_type"] == "UNION_BY_NAME":
            inner = [wanted for _ in sides]
        elif wanted and not _is_cut(node) and node["setop_type"] == "UNION":
            names = list(self._outputs(node, ctes, depth).by_name())
            outputs = [self._outputs(side, ctes, depth) for side in sides]
            if all(each.is_exact and len(each.columns) == len(names) for each in outputs):
                inner = [
                    {
                        column.name: wanted[name]
                        for name, column in zip(names, each.columns, strict=True)
                        if name in wanted and each.by_name().get(column.name) is column
                    }
                    for each in outputs
                ]
        for side, needed in zip(sides, inner, strict=True):
            self.query(side, needed, ctes, depth + 1)

    def _select(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        source = self._from(node["from_table"], ctes, depth)
        if node.get("sample") is not None:  # is taken before the WHERE clause
            source.close()
        conditions = list(source.conditions)
        if (where := node.get("where_clause")) is not None:
            conditions.append((where, source.visible(), source.visible()))
        for condition, among, losing in conditions:
            for (each, name), constraint in self._said(condition, source, among).items():
                if each.is_open and any(each is one for one in losing):
                    add(each.wanted, name, constraint)
        if wanted and _passes_conditions(node):
            outputs = self._select_outputs(node, source).by_name()
            for name, constraint in wanted.items():
                place = outputs[name].place if name in outputs else None
                if place is not None and place[0].is_open:
                    add(place[0].wanted, place[1], constraint)
        self._spread(source, conditions)
        for each in source.sources:
            self._need(each, ctes, depth)
        for expression in _expressions(node):
            self._subqueries(expression, ctes, depth)

    def _said(self, condition: Node, source: _From, among: Sequence[_Source]) -> dict[_Place, Constraint]:
        def column(node: Node) -> tuple[_Place, Kind] | None:
            place = source.place(node, among)
            kind = None if place is None else place[0].columns[place[1]]
            return None if place is None or kind is None else (place, kind)

        return self._conditions.read(condition, column)

    def _spread(self, source: _From, conditions: Sequence[tuple[Node, list[_Source], list[_Source]]]) -> None:
        """Where two columns must be equal in all rows, what one needs the other needs too."""
        if not source.is_inner:
            return
        pairs = list(source.equal)
        for condition, among, _ in conditions:
            for term in conjuncts(condition):
                if term.get("type") == "COMPARE_EQUAL" and term.get("class") == "COMPARISON":
                    one, other = (source.place(term[side], among) for side in ("left", "right"))
                    if one is not None and other is not None:
                        pairs.append((one, other))
        for _ in range(2):
            for one, other in pairs:
                kind = one[0].columns[one[1]]
                is_sure = one[0].is_open and other[0].is_open and kind == other[0].columns[other[1]]
                if not is_sure or kind in (None, "real"):
                    continue
                for (first, name), (second, second_name) in ((one, other), (other, one)):
                    if name in first.wanted:
                        add(second.wanted, second_name, first.wanted[name])

    def _need(self, source: _Source, ctes: Mapping[str, _Cte], depth: int) -> None:
        node = source.node
        kind = node["type"]
        if kind == "SUBQUERY":
            self.query(node["subquery"]["node"], source.wanted, ctes, depth + 1)
        elif kind == "BASE_TABLE":
            self.seen.add(id(node))
            name = folded(node["table_name"])
            if not node["schema_name"] and name in ctes:
                ctes[name].uses.append(source.wanted)
            elif (table := self._views.get(name, name)) in self._kinds:
                self.uses.setdefault(table, []).append(source.wanted)
        elif kind == "SHOW_REF" and node.get("query") is not None:
            self.query(node["query"], ANYTHING, ctes, depth + 1)
        elif kind in ("TABLE_FUNCTION", "EXPRESSION_LIST"):
            self._subqueries(node, ctes, depth)
        else:
            self.everything()

    def _subqueries(self, expression: Any, ctes: Mapping[str, _Cte], depth: int) -> None:
        waiting = [expression]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                if found.get("class") == "SUBQUERY":
                    self.query(found["subquery"]["node"], ANYTHING, ctes, depth + 1)
                    waiting.append(found.get("child"))
                else:
                    waiting.extend(found.values())
            elif isinstance(found, list):
                waiting.extend(found)

    # FROM

    def _from(self, node: Node, ctes: Mapping[str, _Cte], depth: int) -> _From:
        kind = node["type"]
        if depth > _DEPTH_MAX:
            return _From([_Source("", {"type": "TOO_DEEP"}, {}, is_complete=False, is_open=False)])
        if kind == "JOIN":
            found = self._join(node, ctes, depth)
        elif kind == "BASE_TABLE":
            found = _From([self._table(node, ctes, depth)])
        elif kind == "SUBQUERY":
            outputs = self._outputs(node["subquery"]["node"], ctes, depth + 1)
            found = _From([_source_of(node, outputs)])
        elif kind in ("EMPTY", "EMPTY_FROM"):
            found = _From()
        else:
            alias = folded(node.get("alias") or "")
            found = _From([_Source(alias, node, {}, is_complete=False, is_open=False)])
        if node.get("sample") is not None:
            found.close()
        return found

    def _table(self, node: Node, ctes: Mapping[str, _Cte], depth: int) -> _Source:
        name = folded(node["table_name"])
        cte = ctes.get(name) if not node["schema_name"] else None
        if cte is not None:
            outputs = self._outputs(cte.node, cte.scope, depth + 1)
            return _source_of(node, _Outputs() if cte.is_renamed else outputs)
        kinds = self._kinds.get(self._views.get(name, name))
        columns = [_Output(column, kind) for column, kind in (kinds or {}).items()]
        return _source_of(node, _Outputs(columns, is_complete=kinds is not None))

    def _join(self, node: Node, ctes: Mapping[str, _Cte], depth: int) -> _From:
        left = self._from(node["left"], ctes, depth + 1)
        right = self._from(node["right"], ctes, depth + 1)
        join, how = node["join_type"], node["ref_type"]
        using = {folded(name) for name in node.get("using_columns") or []}
        found = _From(
            [*left.sources, *right.sources],
            [*left.conditions, *right.conditions],
            [*left.equal, *right.equal],
            is_vague=left.is_vague or right.is_vague,
            is_inner=left.is_inner and right.is_inner and join == "INNER" and how in ("REGULAR", "CROSS"),
        )
        if how == "NATURAL":
            using = left.names() & right.names()
            found.is_vague |= not all(source.is_complete for source in found.visible())
        found.merge(left, right, using)
        if how not in ("REGULAR", "CROSS", "ASOF", "NATURAL"):
            found.close()
            return found
        if how == "ASOF":
            # Each row takes the nearest of the right: without some of those it would take another.
            right.close()
        elif (condition := node.get("condition")) is not None:
            # A row that fails the condition is not joined, and on these sides not kept without a partner.
            losing = [
                *(left.visible() if join in ("INNER", "RIGHT", "SEMI") else ()),
                *(right.visible() if join in ("INNER", "LEFT", "SEMI", "ANTI") else ()),
            ]
            open_ = [source for source in losing if source.is_open]
            found.conditions.append((condition, found.visible(), open_))
        if join not in ("INNER", "LEFT", "SEMI", "ANTI") and (using or how == "NATURAL"):
            # A column of both sides then has no side of its own.
            found.close()
        if join == "INNER" and how == "REGULAR" and len(left.sources) == len(right.sources) == 1:
            one, other = left.sources[0], right.sources[0]
            both_have = [name for name in using if name in one.columns and name in other.columns]
            found.equal.extend(((one, name), (other, name)) for name in both_have)
        if join in ("SEMI", "ANTI"):
            for source in right.sources:
                source.is_visible = False
        return found

    # The columns of queries

    def _outputs(self, node: Node, ctes: Mapping[str, _Cte], depth: int) -> _Outputs:
        if id(node) not in self._known_outputs:
            self._known_outputs[id(node)] = self._find_outputs(node, ctes, depth)
        return self._known_outputs[id(node)]

    def _find_outputs(self, node: Node, ctes: Mapping[str, _Cte], depth: int) -> _Outputs:
        if depth > _DEPTH_MAX:
            return _Outputs()
        here, _ = _with_clause(node, ctes)
        if node.get("type") == "SELECT_NODE":
            return self._select_outputs(node, self._from(node["from_table"], here, depth))
        if node.get("type") != "SET_OPERATION_NODE":
            return _Outputs()
        sides = [self._outputs(side, here, depth + 1) for side in _sides(node)]
        if node["setop_type"] == "UNION_BY_NAME":
            return _by_name(sides)
        if not all(side.is_exact and len(side.columns) == len(sides[0].columns) for side in sides):
            return _Outputs()
        columns = [
            _Output(same[0].name, _common({column.kind for column in same}))
            for same in zip(*(side.columns for side in sides), strict=True)
        ]
        return _Outputs(columns, is_complete=True, is_exact=True)

    def _select_outputs(self, node: Node, source: _From) -> _Outputs:
        columns: list[_Output] = []
        is_exact = True
        for item in node["select_list"]:
            kind = item.get("class")
            if kind == "STAR":
                is_exact = False
                of = _starred(item, source)
                for each in of or ():
                    columns.extend(_starred_columns(each, source))
                    if not each.is_complete:
                        return _Outputs(columns)
                if of is None:
                    return _Outputs(columns)
            elif kind == "COLUMN_REF":
                place = source.place(item, source.visible())
                name = folded(item["alias"] or item["column_names"][-1])
                columns.append(_Output(name, None if place is None else place[0].columns[place[1]], place))
            elif item.get("alias"):
                columns.append(_Output(folded(item["alias"])))
            elif kind == "POSITIONAL_REFERENCE" or _has(item, "unnest"):
                return _Outputs(columns)  # has the name of something else, or is several
            else:
                # Is called like its own text, which is no column's name.
                columns.append(_Output(f"\0{len(columns)}"))
        return _Outputs(columns, is_complete=True, is_exact=is_exact)


def _source_of(node: Node, outputs: _Outputs) -> _Source:
    alias = folded(node.get("alias") or node.get("table_name") or "")
    if node.get("column_name_alias"):
        return _Source(alias, node, {}, is_complete=False, is_open=False)
    columns = {name: column.kind for name, column in outputs.by_name().items()}
    is_complete = outputs.is_complete and len(columns) == len(outputs.columns)
    return _Source(alias, node, columns, is_complete)


def _with_clause(node: Node, ctes: Mapping[str, _Cte]) -> tuple[dict[str, _Cte], list[_Cte]]:
    """What can be named below the node, and those that it adds itself, in their order."""
    here = dict(ctes)
    own: list[_Cte] = []
    for entry in (node.get("cte_map") or {}).get("map", []):
        value = entry["value"]
        cte = _Cte(value["query"]["node"], dict(here), is_renamed=bool(value.get("aliases")))
        here[folded(entry["key"])] = cte
        own.append(cte)
    return here, own


def _sides(node: Node) -> list[Node]:
    return list(node.get("children") or [node["left"], node["right"]])


def _common(kinds: set[Kind | None]) -> Kind | None:
    return next(iter(kinds)) if len(kinds) == 1 else None


def _by_name(sides: Sequence[_Outputs]) -> _Outputs:
    """Of UNION BY NAME. A side without a column has NULLs there."""
    if not all(side.is_complete for side in sides):
        return _Outputs()
    kinds: dict[str, set[Kind | None]] = {}
    for side in sides:
        for column in side.columns:
            kinds.setdefault(column.name, set()).add(column.kind)
    return _Outputs([_Output(name, _common(each)) for name, each in kinds.items()], is_complete=True)


def _starred(star: Node, source: _From) -> list[_Source] | None:
    """The sources whose columns a plain star stands for, in their order."""
    known = ("class", "type", "alias", "query_location", "relation_name")
    if any(value for key, value in star.items() if key not in known):
        return None
    relation = folded(star.get("relation_name") or "")
    if not relation:
        return source.visible()
    named = [each for each in source.visible() if each.alias == relation]
    return named if len(named) == 1 else None


def _starred_columns(each: _Source, source: _From) -> Iterator[_Output]:
    for name, kind in each.columns.items():
        is_certain = name not in source.merged or source.merged[name] is not None
        yield _Output(name, kind if is_certain else None, (each, name) if is_certain else None)


def _is_cut(node: Node) -> bool:
    """Whether which rows come out depends on which others go in."""
    for modifier in node.get("modifiers") or []:
        if modifier["type"] in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
            return True
        if modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
            return True
    return False


def _passes_conditions(node: Node) -> bool:
    """Whether a condition on a SELECT's columns can as well be applied to what it selects from."""
    if _is_cut(node) or node.get("sample") is not None or node.get("qualify") is not None:
        return False
    is_grouped = bool(node.get("group_expressions")) or node.get("aggregate_handling") == "FORCE_AGGREGATES"
    has_star = any(item.get("class") == "STAR" for item in node["select_list"])
    if len(node.get("group_sets") or []) > 1 or (is_grouped and has_star):
        return False
    return not _has(node["select_list"], "unnest") and not _has_window(node["select_list"])


def _has(item: Any, function: str) -> bool:
    return any(node.get("function_name") == function for node in nodes(item))


def _has_window(item: Any) -> bool:
    return any(node.get("class") == "WINDOW" for node in nodes(item))


def _expressions(node: Node) -> Iterator[Any]:
    """Everything of a SELECT in which a subquery can stand, except its FROM clause's tables."""
    for key in ("select_list", "where_clause", "group_expressions", "having", "qualify", "modifiers"):
        yield node.get(key)
    waiting = [node["from_table"]]
    while waiting:
        table = waiting.pop()
        if table["type"] == "JOIN":
            yield table.get("condition")
            waiting.extend((table["left"], table["right"]))
