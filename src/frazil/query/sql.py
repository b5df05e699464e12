"""What a question asks for, read from the syntax tree that DuckDB itself makes of it.

The tree is the one that will be run, so there is no second parser to disagree with. Nothing here trusts it:
what is not known to be harmless is refused, and DuckDB is locked up besides.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from frazil.errors import QueryInvalid, QueryRefused

Node = Mapping[str, Any]

NAMESPACE_MAIN = "main"
VIEWS: Mapping[str, str] = {"events": "logs"}
"""Views, and the tables that they are of. Their columns have the same names."""
_INFORMATION = frozenset({"tables", "columns", "schemata"})
_TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row"}
)
_FORBIDDEN_FUNCTIONS = frozenset(
    {
        "add_parquet_key",
        "all_profiling_output",
        "current_connection_id",
        "current_query",
        "current_setting",
        "currval",
        "getenv",
        "getvariable",
        "json_execute_serialized_sql",
        "json_serialize_plan",
        "nextval",
        "parse_duckdb_log_message",
        "pg_sleep",
        "setseed",
        "sleep_ms",
        "write_log",
    }
)
CHANGING = frozenset(
    {
        "age",
        "ago",
        "current_date",
        "current_localtime",
        "current_localtimestamp",
        "current_time",
        "current_timestamp",
        "gen_random_uuid",
        "get_current_time",
        "get_current_timestamp",
        "localtime",
        "localtimestamp",
        "now",
        "random",
        "today",
        "transaction_timestamp",
        "uuid",
        "uuidv4",
        "uuidv7",
    }
)
_NOWHERE = 2**64 - 1


class Statement:
    """One SELECT that may be run. `tables` are those of the lake that it names."""

    def __init__(self, serialized: Node, namespace: str, known: Collection[str]) -> None:
        """`serialized` is what `json_serialize_sql` gave. QueryInvalid or QueryRefused if it may not run."""
        self.root = _only_statement(serialized)
        self.tables: set[str] = set()
        self.is_changing = False
        """Asked again of the same rows it may answer something else: it looks at the clock or throws dice."""
        self._schemas = {"", NAMESPACE_MAIN, namespace.lower()}
        self._known = {name.lower() for name in known} | set(VIEWS)
        self._check(self.root)

    def _check(self, root: Node) -> None:
        own = {name.lower() for name in _named_parts(root)}
        for node in nodes(root):
            kind = node.get("type")
            if kind == "BASE_TABLE":
                self._check_table(node, own)
            elif kind == "TABLE_FUNCTION":
                self._check_table_function(node)
            elif kind == "SHOW_REF" and node.get("query") is None and node.get("table_name"):
                self._check_shown(node)
            elif node.get("class") in ("FUNCTION", "WINDOW"):
                self._check_function(node)
            elif node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() in CHANGING:
                self.is_changing = True  # CURRENT_DATE is written without parentheses
            if node.get("sample") is not None:
                self.is_changing = True

    def _check_table(self, node: Node, own: Collection[str]) -> None:
        schema, name = node["schema_name"].lower(), node["table_name"].lower()
        if node.get("at_clause") is not None:
            raise QueryInvalid(
                "AT (…) is not understood here: give `as_of` with the question", position=_position(node)
            )
        if schema == "information_schema" and name in _INFORMATION and not node["catalog_name"]:
            self.tables |= self._known - set(VIEWS)
            return
        if not schema and name in own:
            if name in self._known:  # the WITH clause itself may be made from the table
                self.tables.add(VIEWS.get(name, name))
            return
        if node["catalog_name"] or schema not in self._schemas or name not in self._known:
            raise QueryInvalid(self._no_table(node), position=_position(node))
        self.tables.add(VIEWS.get(name, name))

    def _no_table(self, node: Node) -> str:
        parts = (node["catalog_name"], node["schema_name"], node["table_name"])
        name = ".".join(part for part in parts if part)
        near = difflib.get_close_matches(node["table_name"].lower(), sorted(self._known), 1, 0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(self._known))}"
        return f"there is no table {name}; {hint}"

    def _check_table_function(self, node: Node) -> None:
        function = node["function"]
        name = str(function.get("function_name", "")).lower()
        if name not in _TABLE_FUNCTIONS or function.get("schema") or function.get("catalog"):
            raise QueryRefused(
                f"{name or 'this'} cannot be used as a table: a question can read the tables "
                f"{', '.join(sorted(self._known))} and nothing else",
                position=_position(node, function),
            )

    def _check_shown(self, node: Node) -> None:
        """`SHOW x` and `DESCRIBE x` name a table, or one of DuckDB's own lists."""
        name = str(node["table_name"]).strip('"').lower()
        if name not in self._known and name not in ("tables",):
            raise QueryInvalid(
                f"there is nothing called {name} to show; there are {', '.join(sorted(self._known))}",
                position=_position(node),
            )
        self.tables |= {VIEWS.get(name, name)} if name in self._known else self._known - set(VIEWS)

    def _check_function(self, node: Node) -> None:
        name = str(node.get("function_name", "")).lower()
        if name in _FORBIDDEN_FUNCTIONS or name.startswith(("pragma_", "duckdb_", "read_", "__internal")):
            raise QueryRefused(f"{name}() is not available here", position=_position(node))
        if name in CHANGING:
            self.is_changing = True


def _only_statement(serialized: Node) -> Node:
    if serialized.get("error"):
        if serialized.get("error_type") == "not implemented":
            raise QueryRefused("only SELECT can be asked here (also FROM, WITH, VALUES, DESCRIBE, SUMMARIZE)")
        position = serialized.get("position")
        raise QueryInvalid(
            str(serialized.get("error_message", "this cannot be parsed")),
            position=None if position is None else int(position),
        )
    statements = serialized["statements"]
    if len(statements) != 1:
        many = "there is nothing to ask" if not statements else "one question at a time: this has several"
        raise QueryInvalid(many)
    node: Node = statements[0]["node"]
    return node


def _named_parts(root: Node) -> Iterator[str]:
    """The names of all WITH clauses, wherever they are. A table of the same name is then taken for one, which
    at worst means that it is not there when the question is run.
    """
    for node in nodes(root):
        for entry in (node.get("cte_map") or {}).get("map", []):
            yield entry["key"]
        if node.get("type") == "RECURSIVE_CTE_NODE":
            yield node["cte_name"]


def nodes(root: Any) -> Iterator[Node]:
    """Every node of the tree, without recursion: questions come from strangers."""
    waiting = [root]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


def _position(*nodes: Node) -> int | None:
    for node in nodes:
        at = node.get("query_location")
        if isinstance(at, int) and at != _NOWHERE:
            return at
    return None
