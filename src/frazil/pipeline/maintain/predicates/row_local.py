"""Checks that an expression depends on one row only: not on other rows, the clock, random numbers or DuckDB's
state. Uses DuckDB's list of functions, including the bodies of macros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import duckdb
import orjson

from frazil.sql.sandbox import serialized_text
from frazil.sql.statement import NON_DETERMINISTIC, Node, folded, nodes

_STABLE = "CONSISTENT"
_AGE_OF_TWO_TIMES = 2
_CLASSES = {
    "SUBQUERY": "a condition cannot contain a query (SELECT, EXISTS, ANY (…)). For a list, use IN ('a', 'b')",
    "WINDOW": "a condition cannot use window functions: it must depend on one row only",
    "PARAMETER": "a condition has no parameters: use the value itself",
    **dict.fromkeys(
        ("STAR", "POSITIONAL_REFERENCE", "DEFAULT"),
        "a condition must name its columns: *, COLUMNS(…), #1 and DEFAULT are not supported",
    ),
}


@dataclass(frozen=True)
class Disallowed:
    """Why an expression is not allowed, and the node of the expression that causes it."""

    reason: str
    node: Node


@dataclass
class _Known:
    """The functions and macros of one name."""

    kinds: set[str] = field(default_factory=set)
    stabilities: set[str | None] = field(default_factory=set)
    macros: list[str] = field(default_factory=list)


def find_disallowed(
    connection: duckdb.DuckDBPyConnection, expression: Node, columns: Collection[str]
) -> Disallowed | None:
    """Returns the first disallowed part of the expression, or None. `columns` are folded column names."""
    for node in nodes(expression):
        if node.get("class") in _CLASSES:
            return Disallowed(_CLASSES[node["class"]], node)
    seen: set[str] = set()
    waiting = [(node, node) for node in nodes(expression)]
    while waiting:
        names = {name for node, _ in waiting if (name := _function(node)) is not None}
        known = _known(connection, names)
        for node, origin in waiting:
            if (reason := _reason(node, known, columns)) is not None:
                return Disallowed(reason, origin)
        waiting = [
            (inner, origin)
            for node, origin in waiting
            if (name := _function(node)) is not None and name not in seen
            for macro in known[name].macros
            for inner in _parsed(connection, macro)
        ]
        seen |= names
        columns = ()  # names in a macro are its parameters
    return None


def _reason(node: Node, known: Mapping[str, _Known], columns: Collection[str]) -> str | None:
    kind = node.get("class")
    if kind == "SUBQUERY":
        return "this function reads other tables: a condition must depend on one row only"
    if kind == "COLUMN_REF":
        word = str(node["column_names"][-1])
        return _changes(word) if word.lower() in NON_DETERMINISTIC and folded(word) not in columns else None
    name = _function(node)
    if name is None:
        return None
    if known[name].kinds == {"aggregate"}:
        return f"{name.removesuffix('_star')}() is an aggregate: a condition must depend on one row only"
    if name == "age":
        return None if len(node["children"]) == _AGE_OF_TWO_TIMES else _changes("age() of one time")
    if name in NON_DETERMINISTIC or known[name].stabilities - {_STABLE, None}:
        return _changes(f"{name}()")
    return None


def _changes(name: str) -> str:
    return (
        f"{name} may return different values each time, but removal is permanent. Use constants, such as "
        "time < '2026-01-31'; for ages there are settings"
    )


def _function(node: Node) -> str | None:
    return str(node["function_name"]).lower() if node.get("class") == "FUNCTION" else None


def _known(connection: duckdb.DuckDBPyConnection, names: Collection[str]) -> dict[str, _Known]:
    known = {name: _Known() for name in names}
    if not names:
        return known
    rows = connection.execute(
        "SELECT lower(function_name), function_type, stability, macro_definition FROM duckdb_functions() "
        "WHERE lower(function_name) IN (SELECT unnest($1))",
        [list(names)],
    ).fetchall()
    for name, kind, stability, macro in rows:
        found = known.setdefault(name, _Known())
        found.kinds.add(kind)
        found.stabilities.add(stability)
        if macro is not None and kind == "macro":
            found.macros.append(macro)
    return known


def _parsed(connection: duckdb.DuckDBPyConnection, macro: str) -> Iterable[Node]:
    tree = orjson.loads(serialized_text(connection, f"SELECT {macro}"))
    return () if tree["error"] else nodes(tree["statements"][0]["node"]["select_list"])
