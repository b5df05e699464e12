"""Which rows of each table a question can need at most, taken from its WHERE and ON clauses.

Conditions are followed through joins, subqueries, WITH clauses and UNION where dropping the rows that fail
them cannot change the answer. Every conclusion is that a row *cannot* matter; where anything is unclear, all
rows may.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.query.constants import DAY, Constants, Kind, Range
from frazil.query.model import Constraint, Constraints, Value
from frazil.query.sql import VIEWS, nodes

Node = Mapping[str, Any]
_DEPTH_MAX = 60
_VALUES_MAX = 1000
_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
}
_PREFIX_FUNCTIONS = frozenset({"starts_with", "^@", "prefix"})
_LAST_CHARACTER = "\U0010ffff"
ANYTHING: Constraints = {}


def both(one: Constraint, other: Constraint) -> Constraint:
    """What meets both."""
    lowers = [bound for bound in (one.lower, other.lower) if bound is not None]
    uppers = [bound for bound in (one.upper, other.upper) if bound is not None]
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = one.values & other.values
    return Constraint(max(lowers, default=None), min(uppers, default=None), values)


def either(one: Constraint, other: Constraint) -> Constraint:
    """What meets one of them."""
    if one.values is not None and other.values is not None and _no_bounds(one) and _no_bounds(other):
        return Constraint(values=one.values | other.values)
    one, other = _as_bounds(one), _as_bounds(other)
    lower = None if one.lower is None or other.lower is None else min(one.lower, other.lower)
    upper = None if one.upper is None or other.upper is None else max(one.upper, other.upper)
    return Constraint(lower, upper)


def _no_bounds(constraint: Constraint) -> bool:
    return constraint.lower is None and constraint.upper is None


def _as_bounds(constraint: Constraint) -> Constraint:
    if not constraint.values:
        return Constraint(constraint.lower, constraint.upper)
    return both(
        Constraint(constraint.lower, constraint.upper),
        Constraint(min(constraint.values), max(constraint.values)),
    )


def either_all(alternatives: Sequence[Constraints]) -> Constraints:
    """What meets one of several: only columns that all of them speak of say anything."""
    if not alternatives:
        return ANYTHING
    common = set(alternatives[0]).intersection(*alternatives[1:])
    merged: dict[str, Constraint] = {}
    for column in common:
        merged[column] = alternatives[0][column]
        for other in alternatives[1:]:
            merged[column] = either(merged[column], other[column])
    return merged


def _add(constraints: dict[str, Constraint], column: str, more: Constraint) -> None:
    constraints[column] = both(constraints[column], more) if column in constraints else more


def wanted_rows(
    root: Node, kinds: Mapping[str, Mapping[str, Kind]], constants: Constants
) -> dict[str, list[Constraints]]:
    """For each table, what each of its uses in the question needs. `kinds` are the tables' columns."""
    reader = _Reader(kinds, constants)
    reader.query(root, ANYTHING, {}, 0)
    for node in nodes(root):
        if node.get("type") == "BASE_TABLE" and id(node) not in reader.seen:
            # In a place that was not looked at.
            name = node["table_name"].lower()
            reader.uses.setdefault(VIEWS.get(name, name), []).append(ANYTHING)
    return reader.uses


@dataclass
class _Cte:
    node: Node
    scope: Mapping[str, _Cte]
    uses: list[Constraints] = field(default_factory=list)


@dataclass
class _Source:
    """One thing in a FROM clause. `wanted` is what the question needs of it."""

    alias: str
    node: Node
    columns: frozenset[str] | None
    """None: not known."""
    kinds: Mapping[str, Kind]
    open: bool = True
    """Whether conditions of the WHERE clause may be used for it."""
    wanted: dict[str, Constraint] = field(default_factory=dict)


class _Reader:
    def __init__(self, kinds: Mapping[str, Mapping[str, Kind]], constants: Constants) -> None:
        self._kinds = kinds
        self._constants = constants
        self.uses: dict[str, list[Constraints]] = {}
        self.seen: set[int] = set()

    # Queries

    def query(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        """`wanted` is by the names of the query's own columns."""
        if depth > _DEPTH_MAX:
            self._everything()
            return
        here = dict(ctes)
        own: list[_Cte] = []
        for entry in (node.get("cte_map") or {}).get("map", []):
            cte = _Cte(entry["value"]["query"]["node"], dict(here))
            here[entry["key"].lower()] = cte
            own.append(cte)
        kind = node.get("type")
        if kind == "SELECT_NODE":
            self._select(node, wanted, here, depth)
        elif kind == "SET_OPERATION_NODE":
            self._set_operation(node, wanted, here, depth)
        elif kind == "RECURSIVE_CTE_NODE":
            inner = {**here, node["cte_name"].lower(): _Cte({"type": "OPAQUE"}, {})}
            self.query(node["left"], ANYTHING, here, depth + 1)
            self.query(node["right"], ANYTHING, inner, depth + 1)
        elif kind != "OPAQUE":
            self._everything()
        for cte in reversed(own):  # a later one may use an earlier one
            self.query(cte.node, either_all(cte.uses), cte.scope, depth + 1)

    def _everything(self) -> None:
        """Something that this does not understand: every table may be needed whole."""
        for table in self._kinds:
            self.uses.setdefault(table, []).append(ANYTHING)

    def _set_operation(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        sides = node.get("children") or [node["left"], node["right"]]
        inner: list[Constraints] = [ANYTHING for _ in sides]
        if wanted and node["setop_type"] == "UNION_BY_NAME" and not _is_cut(node):
            inner = [wanted for _ in sides]
        elif wanted and node["setop_type"] == "UNION" and not _is_cut(node):
            names = _output_names(sides[0])
            for number, side in enumerate(sides):
                others = _output_names(side)
                if names is None or others is None or len(names) != len(others):
                    continue
                inner[number] = {
                    other: wanted[name] for name, other in zip(names, others, strict=True) if name in wanted
                }
        for side, needed in zip(sides, inner, strict=True):
            self.query(side, needed, ctes, depth + 1)

    def _select(self, node: Node, wanted: Constraints, ctes: Mapping[str, _Cte], depth: int) -> None:
        sources: list[_Source] = []
        conditions: list[tuple[Node, tuple[_Source, ...] | None]] = []
        equal: list[tuple[_Source, _Source, str]] = []
        self._from(node["from_table"], ctes, sources, conditions, equal, depth)
        if node.get("sample") is not None:  # is taken before the WHERE clause
            for source in sources:
                source.open = False
        if (where := node.get("where_clause")) is not None:
            conditions.append((where, None))
        for condition, only in conditions:
            for term in _conjuncts(condition):
                allowed = [source for source in (sources if only is None else only) if only or source.open]
                self._apply(term, sources, allowed)
        for name, constraint in _through(node, wanted).items():
            found = _resolve([name[0]] if name[1] is None else [name[1], name[0]], sources)
            if found is not None and found.open and _fits(found.kinds.get(name[0]), constraint):
                _add(found.wanted, name[0], constraint)
        self._spread(node, conditions, sources, equal)
        for source in sources:
            self._need(source, ctes, depth)
        for expression in _expressions(node):
            for subquery in _subqueries(expression):
                self.query(subquery, ANYTHING, ctes, depth + 1)

    def _need(self, source: _Source, ctes: Mapping[str, _Cte], depth: int) -> None:
        node = source.node
        if node["type"] == "SUBQUERY":
            self.query(node["subquery"]["node"], source.wanted, ctes, depth + 1)
        elif node["type"] == "BASE_TABLE":
            self.seen.add(id(node))
            name = node["table_name"].lower()
            if not node["schema_name"] and name in ctes:
                ctes[name].uses.append(source.wanted)
                return
            table = VIEWS.get(name, name)
            if table in self._kinds:
                self.uses.setdefault(table, []).append(source.wanted)

    # FROM

    def _from(
        self,
        node: Node,
        ctes: Mapping[str, _Cte],
        sources: list[_Source],
        conditions: list[tuple[Node, tuple[_Source, ...] | None]],
        equal: list[tuple[_Source, _Source, str]],
        depth: int,
    ) -> None:
        if depth > _DEPTH_MAX:
            self._everything()
            return
        kind = node["type"]
        if kind == "JOIN":
            self._join(node, ctes, sources, conditions, equal, depth)
        elif kind == "BASE_TABLE":
            sources.append(self._table_source(node, ctes))
        elif kind == "SUBQUERY":
            names = _output_names(node["subquery"]["node"])
            renamed = bool(node.get("column_name_alias"))
            columns = None if names is None or renamed else frozenset(names)
            sources.append(_Source(node["alias"].lower(), node, columns, {}, open=not renamed))
        elif kind == "SHOW_REF":
            if node.get("query") is not None:
                self.query(node["query"], ANYTHING, ctes, depth + 1)
            else:
                self._everything()
        elif kind in ("TABLE_FUNCTION", "EXPRESSION_LIST"):
            sources.append(_Source(str(node.get("alias", "")).lower(), node, None, {}, open=False))
            for subquery in _subqueries(node):
                self.query(subquery, ANYTHING, ctes, depth + 1)
        elif kind not in ("EMPTY", "EMPTY_FROM"):
            self._everything()

    def _table_source(self, node: Node, ctes: Mapping[str, _Cte]) -> _Source:
        name = node["table_name"].lower()
        alias = (node["alias"] or node["table_name"]).lower()
        is_open = not node.get("column_name_alias") and node.get("sample") is None
        if not node["schema_name"] and name in ctes:
            names = _output_names(ctes[name].node)
            return _Source(alias, node, None if names is None else frozenset(names), {}, open=is_open)
        kinds = self._kinds.get(VIEWS.get(name, name), {})
        return _Source(alias, node, frozenset(kinds) or None, kinds, open=is_open)

    def _join(
        self,
        node: Node,
        ctes: Mapping[str, _Cte],
        sources: list[_Source],
        conditions: list[tuple[Node, tuple[_Source, ...] | None]],
        equal: list[tuple[_Source, _Source, str]],
        depth: int,
    ) -> None:
        left: list[_Source] = []
        right: list[_Source] = []
        self._from(node["left"], ctes, left, conditions, equal, depth + 1)
        self._from(node["right"], ctes, right, conditions, equal, depth + 1)
        join, how = node["join_type"], node["ref_type"]
        sources.extend((*left, *right))
        if how not in ("REGULAR", "CROSS", "ASOF", "NATURAL"):
            for source in (*left, *right):
                source.open = False
            return
        if how == "ASOF":
            # Each row takes the nearest of the right: without some of those it would take another.
            for source in right:
                source.open = False
        condition = node.get("condition")
        # A row of this side that fails the condition is not joined, and is not kept without a partner either.
        lost_left = join in ("INNER", "RIGHT", "SEMI")
        lost_right = join in ("INNER", "LEFT", "SEMI", "ANTI")
        if condition is not None and how != "ASOF":
            allowed = (*(left if lost_left else ()), *(right if lost_right else ()))
            conditions.append((condition, tuple(source for source in allowed if source.open)))
        merged = [name.lower() for name in node.get("using_columns") or []]
        if join not in ("INNER", "LEFT", "SEMI", "ANTI") and (merged or how == "NATURAL"):
            # A column of both sides then has no side of its own.
            for source in (*left, *right):
                source.open = False
        if join == "INNER" and how == "REGULAR" and len(left) == 1 and len(right) == 1:
            equal.extend((left[0], right[0], name) for name in merged)

    # Conditions

    def _apply(self, term: Node, sources: Sequence[_Source], allowed: Sequence[_Source]) -> None:
        for source, column, constraint in self._of_term(term, sources, 0):
            if any(source is each for each in allowed):
                _add(source.wanted, column, constraint)

    def _of_term(
        self, term: Node, sources: Sequence[_Source], depth: int
    ) -> Iterator[tuple[_Source, str, Constraint]]:
        kind, type_ = term.get("class"), term.get("type")
        if depth > _DEPTH_MAX:
            return
        if kind == "CONJUNCTION" and type_ == "CONJUNCTION_AND":
            for child in term["children"]:
                yield from self._of_term(child, sources, depth + 1)
        elif kind == "CONJUNCTION" and type_ == "CONJUNCTION_OR":
            yield from self._of_alternatives(term["children"], sources, depth)
        elif kind == "COMPARISON" and type_ in _FLIPPED:
            yield from self._of_comparison(type_, term["left"], term["right"], sources)
            yield from self._of_comparison(_FLIPPED[type_], term["right"], term["left"], sources)
        elif kind == "BETWEEN" and type_ == "COMPARE_BETWEEN":
            yield from self._of_comparison(
                "COMPARE_GREATERTHANOREQUALTO", term["input"], term["lower"], sources
            )
            yield from self._of_comparison("COMPARE_LESSTHANOREQUALTO", term["input"], term["upper"], sources)
        elif kind == "OPERATOR" and type_ == "COMPARE_IN":
            yield from self._of_list(term["children"][0], term["children"][1:], sources)
        elif kind == "OPERATOR" and type_ == "OPERATOR_IS_NOT_NULL":
            found = _column(term["children"][0], sources)
            if found is not None:
                yield (*found, Constraint())
        elif kind == "FUNCTION":
            yield from self._of_function(term, sources)

    def _of_alternatives(
        self, children: Sequence[Node], sources: Sequence[_Source], depth: int
    ) -> Iterator[tuple[_Source, str, Constraint]]:
        alternatives: list[dict[tuple[int, str], Constraint]] = []
        for child in children:
            one: dict[tuple[int, str], Constraint] = {}
            for source, column, constraint in self._of_term(child, sources, depth + 1):
                key = (next(n for n, each in enumerate(sources) if each is source), column)
                one[key] = both(one[key], constraint) if key in one else constraint
            alternatives.append(one)
        for key in set(alternatives[0]).intersection(*alternatives[1:]):
            merged = alternatives[0][key]
            for other in alternatives[1:]:
                merged = either(merged, other[key])
            yield sources[key[0]], key[1], merged

    def _of_comparison(
        self, type_: str, left: Node, right: Node, sources: Sequence[_Source]
    ) -> Iterator[tuple[_Source, str, Constraint]]:
        day = 0
        if left.get("class") == "CAST" and left["cast_type"]["id"] == "DATE":
            left, day = left["child"], DAY  # a day of a time begins up to a day before it
        found = _column(left, sources)
        if found is None:
            return
        source, column = found
        for kind in self._kinds_of(source, column):
            if day and kind != "time":
                return
            value = self._constants.value(right, kind)
            if value is not None:
                yield source, column, _compared(type_, value, day)

    def _of_list(
        self, left: Node, items: Sequence[Node], sources: Sequence[_Source]
    ) -> Iterator[tuple[_Source, str, Constraint]]:
        found = _column(left, sources)
        if found is None or len(items) > _VALUES_MAX:
            return
        source, column = found
        for kind in self._kinds_of(source, column):
            ranges = [self._constants.value(item, kind) for item in items]
            known = [each for each in ranges if each is not None]
            if not known or len(known) < len(ranges):
                return
            merged = _compared("COMPARE_EQUAL", known[0], 0)
            for each in known[1:]:
                merged = either(merged, _compared("COMPARE_EQUAL", each, 0))
            yield source, column, merged

    def _of_function(
        self, term: Node, sources: Sequence[_Source]
    ) -> Iterator[tuple[_Source, str, Constraint]]:
        name, children = term["function_name"].lower(), term["children"]
        if len(children) != 2 or name not in {*_PREFIX_FUNCTIONS, "~~"}:
            return
        found = _column(children[0], sources)
        if found is None or "text" not in self._kinds_of(*found):
            return
        value = self._constants.value(children[1], "text")
        if value is None or not isinstance(value.low, str):
            return
        start = value.low
        if name == "~~":
            if "\\" in start:
                return
            start = min(start.partition("%")[0], start.partition("_")[0], key=len)
        yield (*found, Constraint(start, start + _LAST_CHARACTER) if start else Constraint())

    def _kinds_of(self, source: _Source, column: str) -> list[Kind]:
        """Of a table's column its own. What a subquery's column is shows only where it comes from; then each
        reading of the constant is kept by the table's columns of that kind, and lost by the others.
        """
        if column in source.kinds:
            return [source.kinds[column]]
        return [] if source.node["type"] == "BASE_TABLE" and source.kinds else self._kinds_by_name(column)

    def _kinds_by_name(self, column: str) -> list[Kind]:
        """Columns that keep their name through a subquery keep their kind."""
        found = {kinds[column] for kinds in self._kinds.values() if column in kinds}
        return list(found) if len(found) == 1 else []

    def _spread(
        self,
        node: Node,
        conditions: Sequence[tuple[Node, tuple[_Source, ...] | None]],
        sources: Sequence[_Source],
        equal: Sequence[tuple[_Source, _Source, str]],
    ) -> None:
        """Where two columns must be equal in all rows, what one needs the other needs too."""
        if not _joins_are_inner(node["from_table"]):
            return
        pairs = [((left, name), (right, name)) for left, right, name in equal]
        for condition, _ in conditions:
            for term in _conjuncts(condition):
                if term.get("type") == "COMPARE_EQUAL" and term.get("class") == "COMPARISON":
                    one, other = _column(term["left"], sources), _column(term["right"], sources)
                    if one is not None and other is not None:
                        pairs.append((one, other))
        for _ in range(2):
            for (first, name), (second, second_name) in pairs:
                if not (first.open and second.open) or not self._same_kind(first, name, second, second_name):
                    continue
                if name in first.wanted:
                    _add(second.wanted, second_name, first.wanted[name])
                if second_name in second.wanted:
                    _add(first.wanted, name, second.wanted[second_name])

    def _same_kind(self, one: _Source, name: str, other: _Source, other_name: str) -> bool:
        kinds = self._kinds_of(one, name)
        return len(kinds) == 1 and kinds == self._kinds_of(other, other_name) and kinds[0] != "real"


def _compared(type_: str, value: Range, day: int) -> Constraint:
    high: Value = value.high + day if day else value.high  # type: ignore[operator]
    if type_ == "COMPARE_EQUAL":
        if value.low == high:
            return Constraint(values=frozenset({value.low}))
        return Constraint(value.low, high)
    if type_ in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
        return Constraint(lower=value.low)
    return Constraint(upper=high)


def _fits(kind: Kind | None, constraint: Constraint) -> bool:
    """A column that got another's name may be of another kind, and its constants were read by the name."""
    values = (constraint.lower, constraint.upper, *(constraint.values or ()))
    return kind is None or all(
        isinstance(value, str) == (kind == "text") for value in values if value is not None
    )


def _conjuncts(condition: Node) -> Iterator[Node]:
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if node.get("class") == "CONJUNCTION" and node.get("type") == "CONJUNCTION_AND":
            waiting.extend(node["children"])
        else:
            yield node


def _column(node: Node, sources: Sequence[_Source]) -> tuple[_Source, str] | None:
    if node.get("class") != "COLUMN_REF":
        return None
    names = [name.lower() for name in node["column_names"]]
    source = _resolve(names, sources)
    return None if source is None else (source, names[-1])


def _resolve(names: Sequence[str], sources: Sequence[_Source]) -> _Source | None:
    """The source that a name is of; None where it is not certain."""
    if len(names) == 2:
        found = [source for source in sources if source.alias == names[0]]
        found = [source for source in found if source.columns is None or names[1] in source.columns]
    elif len(names) == 1:
        if any(source.columns is None and len(sources) > 1 for source in sources):
            known = [
                source for source in sources if source.columns is not None and names[0] in source.columns
            ]
            return known[0] if len(known) == 1 else None
        found = [source for source in sources if source.columns is None or names[0] in source.columns]
        # In a join with USING both have it, and DuckDB means the left one.
        return found[0] if found else None
    else:
        return None
    return found[0] if len(found) == 1 else None


def _is_cut(node: Node) -> bool:
    """Whether which rows come out depends on which others go in."""
    for modifier in node.get("modifiers") or []:
        if modifier["type"] in ("LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"):
            return True
        if modifier["type"] == "DISTINCT_MODIFIER" and modifier.get("distinct_on_targets"):
            return True
    return False


def _through(node: Node, wanted: Constraints) -> dict[tuple[str, str | None], Constraint]:
    """What is wanted of a SELECT's results, as conditions on the columns that it selects from: by column and
    the alias it is written with.
    """
    if not wanted or _is_cut(node) or node.get("sample") is not None or node.get("qualify") is not None:
        return {}
    if len(node.get("group_sets") or []) > 1:
        return {}
    items = node["select_list"]
    if any(_has_window(item) for item in items):
        return {}
    grouped = bool(node.get("group_expressions")) or node.get("aggregate_handling") == "FORCE_AGGREGATES"
    found: dict[tuple[str, str | None], Constraint] = {}
    stars = [item for item in items if item.get("class") == "STAR"]
    named = [_output_name(item) for item in items]
    for name, item in zip(named, items, strict=True):
        # Of two columns with one name, or one that a star may have too, it is not certain which is meant.
        if name is None or name not in wanted or stars or named.count(name) > 1:
            continue
        if item.get("class") == "COLUMN_REF" and len(item["column_names"]) <= 2:
            names = [each.lower() for each in item["column_names"]]
            found[(names[-1], names[0] if len(names) == 2 else None)] = wanted[name]
    if len(stars) == 1 and not grouped and _is_plain_star(stars[0]):
        alias = stars[0].get("relation_name") or None
        for name, constraint in wanted.items():
            if name not in named:
                found[(name, alias.lower() if alias else None)] = constraint
    return found


def _is_plain_star(star: Node) -> bool:
    return not any(
        value
        for key, value in star.items()
        if key not in ("class", "type", "alias", "query_location", "relation_name")
    )


def _output_name(item: Node) -> str | None:
    if item.get("alias"):
        return str(item["alias"]).lower()
    if item.get("class") == "COLUMN_REF":
        return str(item["column_names"][-1]).lower()
    return None


def _output_names(node: Node) -> list[str] | None:
    """The names of a query's columns; None if they do not show in its text."""
    if node.get("type") == "SET_OPERATION_NODE":
        return None if node["setop_type"] == "UNION_BY_NAME" else _output_names(_first_side(node))
    if node.get("type") != "SELECT_NODE":
        return None
    names = [_output_name(item) for item in node["select_list"]]
    if any(item.get("class") == "STAR" for item in node["select_list"]):
        return None
    return [name or "" for name in names]


def _first_side(node: Node) -> Node:
    side: Node = (node.get("children") or [node.get("left")])[0]
    return side


def _has_window(item: Any) -> bool:
    waiting = [item]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("class") == "WINDOW" or node.get("function_name") == "unnest":
                return True
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return False


def _joins_are_inner(node: Node) -> bool:
    if node["type"] != "JOIN":
        return True
    inner = node["join_type"] == "INNER" and node["ref_type"] in ("REGULAR", "CROSS")
    return inner and _joins_are_inner(node["left"]) and _joins_are_inner(node["right"])


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


def _subqueries(expression: Any) -> Iterator[Node]:
    waiting = [expression]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if found.get("class") == "SUBQUERY":
                yield found["subquery"]["node"]
                waiting.append(found.get("child"))
            else:
                waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
