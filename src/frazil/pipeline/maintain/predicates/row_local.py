"""Whether an expression depends on one row and on nothing else: not on other rows, the clock, dice or DuckDB
itself. Asked of DuckDB's own list of functions, and followed into its macros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import duckdb
import orjson

from frazil.sql.sandbox import serialized_text
from frazil.sql.statement import CHANGING, Node, folded, nodes

_STABLE = "CONSISTENT"
_AGE_OF_TWO_TIMES = 2
_CLASSES = {
    "SUBQUERY": "a condition looks at one row: it cannot have a query in it (SELECT, EXISTS, ANY (…)). For a "
    "list, write IN ('a', 'b')",
    "WINDOW": "a condition looks at one row, and window functions at others",
    "PARAMETER": "a condition has no parameters: write the value itself",
    **dict.fromkeys(
        ("STAR", "POSITIONAL_REFERENCE", "DEFAULT"),
        "a condition must name its columns: *, COLUMNS(…), #1 and DEFAULT are not understood here",
    ),
}


@dataclass(frozen=True)
class Disallowed:
    """What must not be in an expression, and the node that has it, of the expression itself."""

    why: str
    node: Node


@dataclass
class _Known:
    """What is called by one name."""

    kinds: set[str] = field(default_factory=set)
    stabilities: set[str | None] = field(default_factory=set)
    macros: list[str] = field(default_factory=list)


def find_disallowed(
    connection: duckdb.DuckDBPyConnection, expression: Node, columns: Collection[str]
) -> Disallowed | None:
    """`columns` are the words that mean a column, folded."""
    for node in nodes(expression):
        if node.get("class") in _CLASSES:
            return Disallowed(_CLASSES[node["class"]], node)
    seen: set[str] = set()
    waiting = [(node, node) for node in nodes(expression)]
    while waiting:
        names = {name for node, _ in waiting if (name := _function(node)) is not None}
        known = _known(connection, names)
        for node, blamed in waiting:
            if (why := _why(node, known, columns)) is not None:
                return Disallowed(why, blamed)
        waiting = [
            (inner, blamed)
            for node, blamed in waiting
            if (name := _function(node)) is not None and name not in seen
            for macro in known[name].macros
            for inner in _parsed(connection, macro)
        ]
        seen |= names
        columns = ()  # a macro's words are its own
    return None


def _why(node: Node, known: Mapping[str, _Known], columns: Collection[str]) -> str | None:
    kind = node.get("class")
    if kind == "SUBQUERY":
        return "this function looks into other tables, which a condition must not"
    if kind == "COLUMN_REF":
        word = str(node["column_names"][-1])
        return _changes(word) if word.lower() in CHANGING and folded(word) not in columns else None
    name = _function(node)
    if name is None:
        return None
    if known[name].kinds == {"aggregate"}:
        return f"{name.removesuffix('_star')}() looks at many rows, and a condition at one"
    if name == "age":
        return None if len(node["children"]) == _AGE_OF_TWO_TIMES else _changes("age() of one time")
    if name in CHANGING or known[name].stabilities - {_STABLE, None}:
        return _changes(f"{name}()")
    return None


def _changes(name: str) -> str:
    return (
        f"{name} may say something else each time, and rows go for good by a condition. Write times out, as "
        "in time < '2026-01-31'; for ages there are settings"
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
