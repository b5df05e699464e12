"""Derives from the WHERE and ON clauses of a query which rows of each table it can need at most.

Conditions are pushed down through joins, subqueries, WITH clauses and UNION where dropping the rows that fail
them cannot change the result. If anything is unclear, all rows are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from frazil.sql.conditions import UNCONSTRAINED, Conditions, Node, add, conjuncts, union_all
from frazil.sql.constants import KEYWORDS, Constants, Constraint, Constraints, Kind
from frazil.sql.from_clause import (
    ColumnRef,
    Cte,
    FromClause,
    JoinCondition,
    Kinds,
    Output,
    Outputs,
    Source,
    common_kind,
    source_of,
    star_columns,
    star_sources,
    union_by_name,
)
from frazil.sql.statement import folded, nodes
from frazil.tables import view_tables

__all__ = ["UNCONSTRAINED", "row_constraints", "union_all"]

_DEPTH_MAX = 60


def row_constraints(
    root: Node, kinds: Mapping[str, Kinds], constants: Constants
) -> dict[str, list[dict[str, Constraint]]]:
    """Return the constraints of each use of each table. `kinds` has all columns of all tables."""
    keywords = frozenset(name for name in KEYWORDS if not _may_be_column(name, root, kinds))
    collector = _Collector(kinds, dataclasses.replace(constants, keywords=keywords))
    collector.query(root, UNCONSTRAINED, {}, 0)
    if any(node.get("type") == "BASE_TABLE" and id(node) not in collector.seen for node in nodes(root)):
        collector.need_all_rows()  # a table occurs in a part of the tree that was not visited
    return collector.uses


def _may_be_column(keyword: str, root: Node, kinds: Mapping[str, Kinds]) -> bool:
    """Return whether the query may have a column of that name: a column takes precedence over the keyword."""
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


class _Collector:
    """Walks a query from the outside in, and collects the constraints of each use of a table."""

    def __init__(self, kinds: Mapping[str, Kinds], constants: Constants) -> None:
        self._kinds = kinds
        self._views = view_tables()
        self._conditions = Conditions(constants)
        self._known_outputs: dict[int, Outputs] = {}
        self.uses: dict[str, list[dict[str, Constraint]]] = {}
        self.seen: set[int] = set()

    # Queries

    def query(self, node: Node, needed: Constraints, ctes: Mapping[str, Cte], depth: int) -> None:
        """Collect the constraints of a query. `needed` has constraints on its own result columns."""
        if depth > _DEPTH_MAX:
            self.need_all_rows()
            return
        here, own = _with_clause(node, ctes)
        kind = node.get("type")
        if kind == "SELECT_NODE":
            self._select(node, needed, here, depth)
        elif kind == "SET_OPERATION_NODE":
            self._set_operation(node, needed, here, depth)
        elif kind == "RECURSIVE_CTE_NODE":
            inner = {**here, folded(node["cte_name"]): Cte({"type": "OPAQUE"}, {})}
            self.query(node["left"], UNCONSTRAINED, here, depth + 1)
            self.query(node["right"], UNCONSTRAINED, inner, depth + 1)
        else:
            self.need_all_rows()
        for cte in reversed(own):  # a later CTE may use an earlier one
            self.query(cte.node, union_all(cte.uses), cte.scope, depth + 1)

    def need_all_rows(self) -> None:
        """Give up: the query may need all rows of every table."""
        for table in self._kinds:
            self.uses.setdefault(table, []).append({})

    def _set_operation(self, node: Node, needed: Constraints, ctes: Mapping[str, Cte], depth: int) -> None:
        sides = _sides(node)
        inner: list[Constraints] = [UNCONSTRAINED for _ in sides]
        if needed and not _limits_rows(node) and node["setop_type"] == "UNION_BY_NAME":
            inner = [needed for _ in sides]
        elif needed and not _limits_rows(node) and node["setop_type"] == "UNION":
            names = list(self._outputs(node, ctes, depth).by_name())
            outputs = [self._outputs(side, ctes, depth) for side in sides]
            if all(each.is_exact and len(each.columns) == len(names) for each in outputs):
                inner = [
                    {
                        column.name: needed[name]
                        for name, column in zip(names, each.columns, strict=True)
                        if name in needed and each.by_name().get(column.name) is column
                    }
                    for each in outputs
                ]
        for side, constraints in zip(sides, inner, strict=True):
            self.query(side, constraints, ctes, depth + 1)

    def _select(self, node: Node, needed: Constraints, ctes: Mapping[str, Cte], depth: int) -> None:
        source = self._from(node["from_table"], ctes, depth)
        if node.get("sample") is not None:  # applied before the WHERE clause
            source.close()
        conditions = list(source.conditions)
        if (where := node.get("where_clause")) is not None:
            conditions.append((where, source.visible(), source.visible()))
        for condition, candidates, filtered in conditions:
            for (each, name), constraint in self._implied(condition, source, candidates).items():
                if each.is_open and any(each is one for one in filtered):
                    add(each.needed, name, constraint)
        if needed and _passes_conditions(node):
            outputs = self._select_outputs(node, source).by_name()
            for name, constraint in needed.items():
                column = outputs[name].source if name in outputs else None
                if column is not None and column[0].is_open:
                    add(column[0].needed, column[1], constraint)
        self._propagate(source, conditions)
        for each in source.sources:
            self._add_use(each, ctes, depth)
        for expression in _expressions(node):
            self._subqueries(expression, ctes, depth)

    def _implied(
        self, condition: Node, source: FromClause, candidates: Sequence[Source]
    ) -> dict[ColumnRef, Constraint]:
        def find(node: Node) -> tuple[ColumnRef, Kind] | None:
            column = source.resolve(node, candidates)
            kind = None if column is None else column[0].columns[column[1]]
            return None if column is None or kind is None else (column, kind)

        return self._conditions.read(condition, find)

    def _propagate(self, source: FromClause, conditions: Sequence[JoinCondition]) -> None:
        """Apply the constraints of each column to the columns that must be equal to it in all rows."""
        if not source.is_inner:
            return
        pairs = list(source.equal)
        for condition, candidates, _ in conditions:
            for term in conjuncts(condition):
                if term.get("type") == "COMPARE_EQUAL" and term.get("class") == "COMPARISON":
                    one, other = (source.resolve(term[side], candidates) for side in ("left", "right"))
                    if one is not None and other is not None:
                        pairs.append((one, other))
        for _ in range(2):
            for one, other in pairs:
                kind = one[0].columns[one[1]]
                is_sure = one[0].is_open and other[0].is_open and kind == other[0].columns[other[1]]
                if not is_sure or kind in (None, "real"):
                    continue
                for (first, name), (second, second_name) in ((one, other), (other, one)):
                    if name in first.needed:
                        add(second.needed, second_name, first.needed[name])

    def _add_use(self, source: Source, ctes: Mapping[str, Cte], depth: int) -> None:
        node = source.node
        kind = node["type"]
        if kind == "SUBQUERY":
            self.query(node["subquery"]["node"], source.needed, ctes, depth + 1)
        elif kind == "BASE_TABLE":
            self.seen.add(id(node))
            name = folded(node["table_name"])
            if not node["schema_name"] and name in ctes:
                ctes[name].uses.append(source.needed)
            elif (table := self._views.get(name, name)) in self._kinds:
                self.uses.setdefault(table, []).append(source.needed)
        elif kind == "SHOW_REF" and node.get("query") is not None:
            self.query(node["query"], UNCONSTRAINED, ctes, depth + 1)
        elif kind in ("TABLE_FUNCTION", "EXPRESSION_LIST"):
            self._subqueries(node, ctes, depth)
        else:
            self.need_all_rows()

    def _subqueries(self, expression: Any, ctes: Mapping[str, Cte], depth: int) -> None:
        waiting = [expression]
        while waiting:
            found = waiting.pop()
            if isinstance(found, dict):
                if found.get("class") == "SUBQUERY":
                    self.query(found["subquery"]["node"], UNCONSTRAINED, ctes, depth + 1)
                    waiting.append(found.get("child"))
                else:
                    waiting.extend(found.values())
            elif isinstance(found, list):
                waiting.extend(found)

    # FROM

    def _from(self, node: Node, ctes: Mapping[str, Cte], depth: int) -> FromClause:
        kind = node["type"]
        if depth > _DEPTH_MAX:
            return FromClause([Source("", {"type": "TOO_DEEP"}, {}, is_complete=False, is_open=False)])
        if kind == "JOIN":
            found = self._join(node, ctes, depth)
        elif kind == "BASE_TABLE":
            found = FromClause([self._table(node, ctes, depth)])
        elif kind == "SUBQUERY":
            outputs = self._outputs(node["subquery"]["node"], ctes, depth + 1)
            found = FromClause([source_of(node, outputs)])
        elif kind in ("EMPTY", "EMPTY_FROM"):
            found = FromClause()
        else:
            alias = folded(node.get("alias") or "")
            found = FromClause([Source(alias, node, {}, is_complete=False, is_open=False)])
        if node.get("sample") is not None:
            found.close()
        return found

    def _table(self, node: Node, ctes: Mapping[str, Cte], depth: int) -> Source:
        name = folded(node["table_name"])
        cte = ctes.get(name) if not node["schema_name"] else None
        if cte is not None:
            outputs = self._outputs(cte.node, cte.scope, depth + 1)
            return source_of(node, Outputs() if cte.is_renamed else outputs)
        kinds = self._kinds.get(self._views.get(name, name))
        columns = [Output(column, kind) for column, kind in (kinds or {}).items()]
        return source_of(node, Outputs(columns, is_complete=kinds is not None))

    def _join(self, node: Node, ctes: Mapping[str, Cte], depth: int) -> FromClause:
        left = self._from(node["left"], ctes, depth + 1)
        right = self._from(node["right"], ctes, depth + 1)
        join, how = node["join_type"], node["ref_type"]
        using = {folded(name) for name in node.get("using_columns") or []}
        found = FromClause(
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
            # Each row joins the nearest row of the right side, so no row of that side may be dropped.
            right.close()
        elif (condition := node.get("condition")) is not None:
            # On these sides, a row that fails the condition is in no result row.
            filtered = [
                *(left.visible() if join in ("INNER", "RIGHT", "SEMI") else ()),
                *(right.visible() if join in ("INNER", "LEFT", "SEMI", "ANTI") else ()),
            ]
            open_ = [source for source in filtered if source.is_open]
            found.conditions.append((condition, found.visible(), open_))
        if join not in ("INNER", "LEFT", "SEMI", "ANTI") and (using or how == "NATURAL"):
            # The merged column may come from either side.
            found.close()
        if join == "INNER" and how == "REGULAR" and len(left.sources) == len(right.sources) == 1:
            one, other = left.sources[0], right.sources[0]
            both_have = [name for name in using if name in one.columns and name in other.columns]
            found.equal.extend(((one, name), (other, name)) for name in both_have)
        if join in ("SEMI", "ANTI"):
            for source in right.sources:
                source.is_visible = False
        return found

    # Result columns

    def _outputs(self, node: Node, ctes: Mapping[str, Cte], depth: int) -> Outputs:
        if id(node) not in self._known_outputs:
            self._known_outputs[id(node)] = self._find_outputs(node, ctes, depth)
        return self._known_outputs[id(node)]

    def _find_outputs(self, node: Node, ctes: Mapping[str, Cte], depth: int) -> Outputs:
        if depth > _DEPTH_MAX:
            return Outputs()
        here, _ = _with_clause(node, ctes)
        if node.get("type") == "SELECT_NODE":
            return self._select_outputs(node, self._from(node["from_table"], here, depth))
        if node.get("type") != "SET_OPERATION_NODE":
            return Outputs()
        sides = [self._outputs(side, here, depth + 1) for side in _sides(node)]
        if node["setop_type"] == "UNION_BY_NAME":
            return union_by_name(sides)
        if not all(side.is_exact and len(side.columns) == len(sides[0].columns) for side in sides):
            return Outputs()
        columns = [
            Output(same[0].name, common_kind({column.kind for column in same}))
            for same in zip(*(side.columns for side in sides), strict=True)
        ]
        return Outputs(columns, is_complete=True, is_exact=True)

    def _select_outputs(self, node: Node, source: FromClause) -> Outputs:
        columns: list[Output] = []
        is_exact = True
        for item in node["select_list"]:
            kind = item.get("class")
            if kind == "STAR":
                is_exact = False
                of = star_sources(item, source)
                for each in of or ():
                    columns.extend(star_columns(each, source))
                    if not each.is_complete:
                        return Outputs(columns)
                if of is None:
                    return Outputs(columns)
            elif kind == "COLUMN_REF":
                column = source.resolve(item, source.visible())
                name = folded(item["alias"] or item["column_names"][-1])
                columns.append(Output(name, None if column is None else column[0].columns[column[1]], column))
            elif item.get("alias"):
                columns.append(Output(folded(item["alias"])))
            elif kind == "POSITIONAL_REFERENCE" or _has(item, "unnest"):
                return Outputs(columns)  # its name or its number of columns is not known
            else:
                # DuckDB names it after its own text, which is no column's name.
                columns.append(Output(f"\0{len(columns)}"))
        return Outputs(columns, is_complete=True, is_exact=is_exact)


def _with_clause(node: Node, ctes: Mapping[str, Cte]) -> tuple[dict[str, Cte], list[Cte]]:
    """Return all CTEs that can be named below the node, and those that the node adds, in order."""
    here = dict(ctes)
    own: list[Cte] = []
    for entry in (node.get("cte_map") or {}).get("map", []):
        value = entry["value"]
        cte = Cte(value["query"]["node"], dict(here), is_renamed=bool(value.get("aliases")))
        here[folded(entry["key"])] = cte
        own.append(cte)
    return here, own


def _sides(node: Node) -> list[Node]:
    return list(node.get("children") or [node["left"], node["right"]])


def _limits_rows(node: Node) -> bool:
    """Return whether a row's presence in the result depends on other rows: LIMIT or DISTINCT ON."""
    for modifier in node.get("modifiers") or []:
        if modifier["type"] in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
            return True
        if modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
            return True
    return False


def _passes_conditions(node: Node) -> bool:
    """Return whether a condition on the result of a SELECT can be applied to its sources instead."""
    if _limits_rows(node) or node.get("sample") is not None or node.get("qualify") is not None:
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
    """Yield all parts of a SELECT that may contain subqueries, except the tables of its FROM clause."""
    for key in ("select_list", "where_clause", "group_expressions", "having", "qualify", "modifiers"):
        yield node.get(key)
    waiting = [node["from_table"]]
    while waiting:
        table = waiting.pop()
        if table["type"] == "JOIN":
            yield table.get("condition")
            waiting.extend((table["left"], table["right"]))
