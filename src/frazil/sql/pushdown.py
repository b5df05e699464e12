"""Reads from DuckDB's own plan of a query which rows of each table the query can need at most.

The query is planned over empty copies of the tables, and nothing is executed. The conditions that DuckDB
pushes down to the scan of a table hold for all rows that the query needs. If anything is unclear, all rows
are needed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import duckdb
import orjson

from frazil.sql.constraint import Constraint, Value, intersection, union
from frazil.sql.functions import set_clock
from frazil.sql.sandbox import Sandbox, TableSource, serialized_text
from frazil.sql.statement import Node, nodes
from frazil.sql.types import text

Uses = dict[str, list[dict[str, Constraint]]]
"""The constraints of each use of each table. A table without an entry: all rows are needed."""

Range = tuple[Value, Value]
DAY = 86_400_000_000
_OPTIMIZERS = frozenset(
    {
        "cte_filter_pusher",
        "cte_inlining",
        "expression_rewriter",
        "filter_pullup",
        "filter_pushdown",
        "in_clause",
        "regex_range",
    }
)
"""Those that move conditions to scans. Others use statistics, which an empty table does not have, or make
plans that DuckDB cannot serialize.
"""
_PARAMETER = re.compile(rb"[$?](\d*)")
_SCAN = "LOGICAL_GET"
_PLAN_BYTES_MAX = 16 << 20
_MICROS_MAX = 2**62
"""Far beyond any time that DuckDB supports. Infinite times are outside."""
_FLOAT_MAX = 1e300
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
_PREFIX_FUNCTIONS = frozenset({"starts_with", "^@", "prefix"})
_INTEGERS = frozenset({"INTEGER", "BIGINT", "HUGEINT"})
_MONOTONIC_CASTS: Mapping[str, frozenset[str]] = {
    "TIMESTAMP WITH TIME ZONE": frozenset({"DATE", "TIMESTAMP"}),
    **dict.fromkeys(("INTEGER", "BIGINT"), _INTEGERS | {"DECIMAL", "DOUBLE"}),
}
"""Casts of columns that keep the order of values. The session's time zone is UTC."""
_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
}


def packed(uses: Uses) -> Any:
    """Return the constraints in a form that JSON keeps."""
    return {
        table: [
            {
                name: (each.lower, each.upper, None if each.values is None else [*each.values])
                for name, each in use.items()
            }
            for use in found
        ]
        for table, found in uses.items()
    }


def unpacked(uses: Any) -> Uses:
    return {
        table: [
            {
                name: Constraint(lower, upper, None if values is None else frozenset(values))
                for name, (lower, upper, values) in use.items()
            }
            for use in found
        ]
        for table, found in uses.items()
    }


class Pushdown:
    """Plans queries over empty tables, in a sandbox without access to files."""

    def __init__(self, sandbox: Sandbox, tables: Sequence[TableSource]) -> None:
        self.connection = sandbox.connection
        self._sandbox = sandbox
        self._tables = {table.name: table for table in tables}
        names = [name for (name,) in self.connection.execute("FROM duckdb_optimizers()").fetchall()]
        others = ",".join(name for name in names if name not in _OPTIMIZERS)
        self.connection.execute(f"SET disabled_optimizers={text(others)}")
        sandbox.declare(tables)

    def declare(self, tables: Sequence[TableSource]) -> None:
        """Create or replace the tables that are new or have changed."""
        for table in tables:
            if self._tables.get(table.name) != table:
                self._sandbox.declare_again(table)
                self._tables[table.name] = table

    def uses(self, sql: str, params: Sequence[Any] = (), now: int = 0) -> Uses:
        """Return the constraints of a query that runs at the time `now`, in microseconds since 1970."""
        try:
            self.connection.execute(set_clock(now))
            bound = _bind(self.connection, sql, params) if params else sql
            return {} if bound is None else self._plan(bound)
        except (duckdb.Error, RuntimeError, LookupError, TypeError, ValueError):
            # An invalid query fails when it runs, with a better message. A plan of an unknown form, or one
            # that is nested too deeply, excludes nothing.
            return {}

    def _plan(self, sql: str) -> Uses:
        planned = "SELECT json_serialize_plan(?::VARCHAR, optimize := true)"
        (plan,) = self.connection.execute(planned, [sql]).fetchall()[0]
        if len(plan) > _PLAN_BYTES_MAX:
            return {}
        uses: Uses = {}
        for node in nodes(orjson.loads(plan)):
            table = (node.get("function_data") or {}).get("table") if node.get("type") == _SCAN else None
            if table in self._tables:
                uses.setdefault(table, []).append(dict(_scan_constraints(node)))
        return uses


def _bind(connection: duckdb.DuckDBPyConnection, sql: str, params: Sequence[Any]) -> str | None:
    """Return the query with constants in place of its parameters; None if that is not the same query."""
    literals = [f"({_literal(value)})" for value in params]
    bound = _replace_parameters(sql, literals)
    listed = f"SELECT {', '.join(literals)}"
    query, expected, items = (_statement(connection, each) for each in (bound, sql, listed))
    if query is None or expected is None or items is None:
        return None
    for node in nodes(expected):
        if node.get("class") == "PARAMETER":
            constant = {**items["select_list"][int(node["identifier"]) - 1], "alias": node["alias"]}
            cast(dict[str, Any], node).clear()
            cast(dict[str, Any], node).update(constant)
    return bound if _is_same(query, expected) else None


def _statement(connection: duckdb.DuckDBPyConnection, sql: str) -> Node | None:
    tree = orjson.loads(serialized_text(connection, sql))
    return None if tree["error"] else tree["statements"][0]["node"]


def _replace_parameters(sql: str, literals: Sequence[str]) -> str:
    data = sql.encode()
    parts, end, count = [], 0, 0
    for start, kind in duckdb.tokenize(sql):
        match = _PARAMETER.match(data, start) if kind == duckdb.token_type.operator else None
        if match is not None:
            count += 1
            parts += [data[end:start], literals[int(match[1] or count) - 1].encode()]
            end = match.end()
    return b"".join((*parts, data[end:])).decode()


def _literal(value: Any) -> str:
    """Return SQL that DuckDB treats as a parameter with this value."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}::{'INTEGER' if -(2**31) <= value < 2**31 else 'BIGINT'}"
    if isinstance(value, float):
        return f"{text(repr(value))}::DOUBLE"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{text(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    return f"[{', '.join(_literal(each) for each in value)}]"


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two syntax trees are equal, except for positions in the text."""
    waiting = [(one, other)]
    while waiting:
        left, right = waiting.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            keys = left.keys() - {"query_location"}
            if keys != right.keys() - {"query_location"}:
                return False
            waiting.extend((left[key], right[key]) for key in keys)
        elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
            waiting.extend(zip(left, right, strict=True))
        elif left != right:
            return False
    return True


def _scan_constraints(scan: Node) -> Iterator[tuple[str, Constraint]]:
    for entry in scan["table_filters"]["filters"]:
        constraint = _of_filter(entry["value"])
        if constraint is not None:
            yield scan["names"][entry["key"]], constraint


def _of_filter(filter_: Node) -> Constraint | None:
    """Return the constraint of a filter on one column; None if it implies none."""
    match filter_["filter_type"]:
        case "CONSTANT_COMPARISON":
            return _compared(filter_["comparison_type"], _range(filter_["constant"]))
        case "IN_FILTER":
            return _any([_compared("COMPARE_EQUAL", _range(each)) for each in filter_["values"]])
        case "IS_NOT_NULL":
            return Constraint()
        case "OPTIONAL_FILTER":
            return _of_filter(filter_["child_filter"]) if filter_.get("child_filter") else None
        case "CONJUNCTION_AND":
            return _all([_of_filter(each) for each in filter_["child_filters"]])
        case "CONJUNCTION_OR":
            return _any([_of_filter(each) for each in filter_["child_filters"]])
        case "EXPRESSION_FILTER":
            return _of_expression(filter_["expr"])
    return None


def _of_expression(node: Node) -> Constraint | None:
    """Return the constraint of a boolean expression on one column."""
    type_ = node["type"]
    match node["expression_class"]:
        case "BOUND_REF":
            return Constraint(values=frozenset({True}))
        case "BOUND_CONJUNCTION":
            children = [_of_expression(each) for each in node["children"]]
            return _all(children) if type_ == "CONJUNCTION_AND" else _any(children)
        case "BOUND_COMPARISON" if type_ in _FLIPPED:
            sides = ((type_, "left", "right"), (_FLIPPED[type_], "right", "left"))
            return _all([_of_comparison(each, node[one], node[other]) for each, one, other in sides])
        case "BOUND_BETWEEN":
            bounds = (("COMPARE_GREATERTHANOREQUALTO", "lower"), ("COMPARE_LESSTHANOREQUALTO", "upper"))
            return _all([_of_comparison(each, node["input"], node[side]) for each, side in bounds])
        case "BOUND_OPERATOR" if type_ == "OPERATOR_IS_NOT_NULL" and _is_column(node["children"][0]):
            return Constraint()
        case "BOUND_OPERATOR" if type_ == "COMPARE_IN":
            column, *items = node["children"]
            return _any([_of_comparison("COMPARE_EQUAL", column, item) for item in items])
        case "BOUND_FUNCTION" if node["name"] in _PREFIX_FUNCTIONS and _is_column(node["children"][0]):
            start = _range_of(node["children"][1])
            return None if start is None or not isinstance(start[0], str) else _beginning_with(start[0])
    return None


def _of_comparison(type_: str, column: Node, constant: Node) -> Constraint | None:
    is_monotonic_cast = (
        column["expression_class"] == "BOUND_CAST"
        and _is_column(column["child"])
        and column["return_type"]["id"] in _MONOTONIC_CASTS.get(column["child"]["return_type"]["id"], ())
    )
    return _compared(type_, _range_of(constant)) if is_monotonic_cast or _is_column(column) else None


def _is_column(node: Node) -> bool:
    return bool(node["expression_class"] == "BOUND_REF")


def _range_of(constant: Node) -> Range | None:
    return _range(constant["value"]) if constant["expression_class"] == "BOUND_CONSTANT" else None


def _range(constant: Node) -> Range | None:
    """Return the first and the last value of a column that may be equal to a constant: a column is compared
    as a date or a double if the constant is one.
    """
    type_, value = constant["type"]["id"], constant.get("value")
    if isinstance(value, dict) and {*value} == {"upper", "lower"}:  # more than 64 bits
        value = value["upper"] * 2**64 + value["lower"]
    if constant["is_null"]:
        return None
    if type_ == "VARCHAR" and isinstance(value, str):
        return value, value
    if type_ == "BOOLEAN" and isinstance(value, bool):
        return value, value
    if type_ in ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP") and isinstance(value, int):
        return (value, value) if abs(value) < _MICROS_MAX else None
    if type_ == "DATE" and isinstance(value, int):
        return (value * DAY, value * DAY + DAY) if abs(value * DAY) < _MICROS_MAX else None
    if type_ in _INTEGERS and isinstance(value, int):
        return (value, value) if -(2**63) <= value < 2**63 else None
    if type_ == "DECIMAL" and isinstance(value, int):
        return _near(value / 10 ** constant["type"]["type_info"]["scale"])
    if type_ == "DOUBLE" and isinstance(value, float):
        return _near(value)
    return None


def _near(value: float) -> Range | None:
    """Return a range around a value: the comparison of integers with doubles is not exact."""
    slack = abs(value) * 1e-12
    return (value - slack, value + slack) if abs(value) < _FLOAT_MAX else None


def _compared(type_: str, value: Range | None) -> Constraint | None:
    if value is None or type_ not in _FLIPPED:
        return None
    low, high = value
    if type_ == "COMPARE_EQUAL":
        return Constraint(values=frozenset({low})) if low == high else Constraint(low, high)
    return Constraint(lower=low) if type_.startswith("COMPARE_GREATERTHAN") else Constraint(upper=high)


def _beginning_with(start: str) -> Constraint:
    """Return the range of text that begins with `start`."""
    kept = start.rstrip(_LAST_CHARACTER)
    upper: Value | None = None
    if kept:
        following = ord(kept[-1]) + 1
        upper = kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
    return Constraint(start or None, upper)


def _all(constraints: Sequence[Constraint | None]) -> Constraint | None:
    known = [each for each in constraints if each is not None]
    return functools.reduce(intersection, known) if known else None


def _any(constraints: Sequence[Constraint | None]) -> Constraint | None:
    known = [each for each in constraints if each is not None]
    return union(known) if known and len(known) == len(constraints) else None
