"""What a question asks for, read from the syntax tree that DuckDB itself makes of it.

The tree is the one that will be run, so there is no second parser to disagree with. Nothing here trusts it:
what is not known to be harmless is refused, and DuckDB is locked up besides.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from frazil.errors import QueryInvalid, QueryRefused, RequestTooLarge
from frazil.tables import table_specs, view_tables

Node = Mapping[str, Any]

NAMESPACE_MAIN = "main"
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
        "current_query_id",
        "current_setting",
        "current_transaction_id",
        "currval",
        "get_block_size",
        "getenv",
        "getvariable",
        "json_execute_serialized_sql",
        "json_serialize_plan",
        "nextval",
        "parse_duckdb_log_message",
        "pg_get_constraintdef",
        "pg_get_viewdef",
        "pg_sleep",
        "setseed",
        "sleep_ms",
        "stats",
        "txid_current",
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
        "pg_conf_load_time",
        "pg_postmaster_start_time",
        "random",
        "today",
        "transaction_timestamp",
        "uuid",
        "uuidv4",
        "uuidv7",
    }
)
_ALL_COLUMNS = frozenset({"STAR", "NATURAL", "PIVOT", "SHOW_REF", "POSITIONAL_REFERENCE"})
_NOWHERE = 2**64 - 1
_LETTERS = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(name: str) -> str:
    """As DuckDB compares names: other letters than A to Z are never the same as their small ones."""
    return name.translate(_LETTERS)


class Statement:
    """One SELECT that may be run. `tables` are those of the lake that it names."""

    def __init__(self, serialized: Node, namespace: str, known: Collection[str], sql: str = "") -> None:
        """`serialized` is what `json_serialize_sql` gave of `sql`. QueryInvalid or QueryRefused if it may not
        run; they say where in `sql`.
        """
        self.root = _only_statement(serialized)
        self.tables: set[str] = set()
        self.listed: set[str] = set()
        """Tables of which it may show names and columns, but no rows."""
        self.names: set[str] | None = set()
        """How it calls them: `logs`, `otel.logs`, `events`. None: it may look at all that there are."""
        self.columns: frozenset[str] | None = _columns(self.root)
        """Columns that it names, and other words; None: it may use all that there are."""
        self.is_changing = False
        """Asked again of the same rows it may answer something else: it looks at the clock or throws dice."""
        self._schemas = {"", NAMESPACE_MAIN, folded(namespace)}
        self._views = view_tables()
        self._known = {folded(name) for name in known} | {*self._views}
        try:
            self._check(self.root)
        except (QueryInvalid, QueryRefused) as error:
            error.position = characters(sql, error.position)
            raise

    def _check(self, root: Node) -> None:
        for node, own in _nodes_with_names(root):
            kind = node.get("type")
            if kind == "BASE_TABLE":
                self._check_table(node, own)
            elif kind == "TABLE_FUNCTION":
                self._check_table_function(node)
            elif kind == "SHOW_REF" and node.get("query") is None:
                self._check_shown(node)
            elif node.get("class") in ("FUNCTION", "WINDOW"):
                self._check_function(node)
            elif node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() in CHANGING:
                self.is_changing = True  # CURRENT_DATE is written without parentheses
            if node.get("sample") is not None:
                self.is_changing = True

    def _check_table(self, node: Node, own: Collection[str]) -> None:
        schema, name = folded(node["schema_name"]), folded(node["table_name"])
        if node.get("at_clause") is not None:
            raise QueryInvalid(
                "AT (…) is not understood here: give `as_of` with the question", position=position_of(node)
            )
        if schema == "information_schema" and name in _INFORMATION and not node["catalog_name"]:
            self._name_all()
            return
        if not schema and not node["catalog_name"] and name in own:
            return
        if node["catalog_name"] or schema not in self._schemas or name not in self._known:
            raise QueryInvalid(self._no_table(node), position=position_of(node))
        self.tables.add(self._views.get(name, name))
        if self.names is not None:
            self.names.add(name if schema in ("", NAMESPACE_MAIN) else f"{schema}.{name}")

    def _name_all(self) -> None:
        self.listed |= self._known - {*self._views}
        self.names = self.columns = None

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
                position=position_of(node, function),
            )

    def _check_shown(self, node: Node) -> None:
        """`SHOW TABLES`, or another of DuckDB's own lists. `SHOW x` of a table comes as a query."""
        name = str(node["table_name"]).strip('"').lower()
        if name != "tables" or node.get("schema_name") or node.get("catalog_name"):
            raise QueryInvalid(
                f"of lists there is SHOW TABLES alone; there are the tables {', '.join(sorted(self._known))}",
                position=position_of(node),
            )
        self._name_all()

    def _check_function(self, node: Node) -> None:
        name = str(node.get("function_name", "")).lower()
        if name in _FORBIDDEN_FUNCTIONS or name.startswith(("pragma_", "duckdb_", "read_", "__internal")):
            raise QueryRefused(f"{name}() is not available here", position=position_of(node))
        if name in CHANGING:
            self.is_changing = True


def _columns(root: Node) -> frozenset[str] | None:
    """Every word of the tree: whatever is not in it cannot be asked for by its name."""
    words: set[str] = set()
    sources: set[str] = set()
    named: set[str] = set()
    for node in nodes(root):
        if not _ALL_COLUMNS.isdisjoint(str(node.get(key)) for key in ("class", "type", "ref_type")):
            return None
        if node.get("column_name_alias"):  # l(a, b): by place, not by name
            return None
        words.update(folded(value) for value in node.values() if isinstance(value, str))
        for value in node.values():
            if isinstance(value, list):
                words.update(folded(each) for each in value if isinstance(each, str))
        if "table_name" in node or node.get("type") == "SUBQUERY":
            sources |= {folded(str(node.get(key) or "")) for key in ("alias", "table_name")}
        if node.get("class") == "COLUMN_REF":
            named.add(folded(node["column_names"][-1]))
    views = (view for spec in table_specs().values() for view in spec.views)
    words.update(view.not_null for view in views if view.name in words)
    # `SELECT logs FROM logs` is a whole row.
    return None if named & sources else frozenset(words)


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


def _nodes_with_names(root: Node) -> Iterator[tuple[Node, frozenset[str]]]:
    """Every node, with the names of the WITH clauses that it can use: those around it that come before it."""
    waiting: list[tuple[Any, frozenset[str]]] = [(root, frozenset())]
    while waiting:
        found, own = waiting.pop()
        if isinstance(found, list):
            waiting.extend((each, own) for each in found)
        elif isinstance(found, dict):
            for entry in (found.get("cte_map") or {}).get("map", []):
                waiting.append((entry["value"], own))
                own |= {folded(entry["key"])}
            yield found, own
            inner = own | {folded(found["cte_name"])} if found.get("type") == "RECURSIVE_CTE_NODE" else own
            for key, value in found.items():
                if key != "cte_map":
                    waiting.append((value, inner if key == "right" else own))


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


def position_of(*nodes: Node) -> int | None:
    for node in nodes:
        at = node.get("query_location")
        if isinstance(at, int) and at != _NOWHERE:
            return at
    return None


def characters(sql: str, position: int | None) -> int | None:
    """A position in characters. DuckDB counts bytes, except in what its parser says."""
    if position is None or not sql:
        return position
    return len(sql.encode(errors="surrogatepass")[:position].decode(errors="ignore"))


def check_text(sql: str, bytes_max: int) -> None:
    """Raise QueryInvalid or RequestTooLarge if DuckDB should not see the text."""
    if (size := utf8_bytes(sql, "the SQL")) > bytes_max:
        raise RequestTooLarge(
            f"the SQL has {size} bytes, and {bytes_max} is the most (query.sql_bytes_max): give long "
            "lists as parameters",
            bytes_max=bytes_max,
        )
    if "\x00" in sql:
        raise QueryInvalid("the SQL has a NUL character in it", position=sql.index("\x00"))


def utf8_bytes(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise QueryInvalid(
            f"{what} has half a character in it (a lone surrogate)", position=error.start
        ) from None
