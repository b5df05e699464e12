"""Checks a query, and finds its tables and columns, from the syntax tree of DuckDB's own parser.

DuckDB runs the same tree, so no second parser can disagree. Anything that is not known to be safe is refused,
and the sandbox restricts DuckDB in addition.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from frazil.errors import QueryInvalid, QueryRefused, RequestTooLarge
from frazil.sql.functions import TABLE_FUNCTIONS, TableFunction
from frazil.tables import table_specs, view_tables

Node = Mapping[str, Any]

NAMESPACE_MAIN = "main"
_INFORMATION = frozenset({"tables", "columns", "schemata"})
_TABLE_FUNCTIONS = frozenset(
    {"range", "generate_series", "unnest", "json_each", "json_tree", "repeat", "repeat_row"}
)
_READING_FUNCTIONS = {function.name: function for function in TABLE_FUNCTIONS}
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
NON_DETERMINISTIC = frozenset(
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
    """Fold case as DuckDB does for names: only A to Z."""
    return name.translate(_LETTERS)


class Statement:
    """A checked SELECT. `tables` are the tables that it reads."""

    def __init__(self, serialized: Node, namespace: str, known: Collection[str], sql: str = "") -> None:
        """`serialized` is the result of `json_serialize_sql` for `sql`. Raises QueryInvalid or QueryRefused,
        with the position in `sql`, if the query must not run.
        """
        self.root = _only_statement(serialized)
        self.tables: set[str] = set()
        self.listed: set[str] = set()
        """Tables of which the query may show names and columns, but no rows."""
        self.names: set[str] | None = set()
        """Table names in the query: `logs`, `otel.logs`, `events`. None: it may list all tables."""
        self.columns: frozenset[str] | None = _columns(self.root)
        """Column names in the query, and other words; None: it may use all columns."""
        self.is_nondeterministic = False
        """Uses the clock, random functions or sampling, so its result must not be cached."""
        self.reads_own_clock = False
        """Uses DuckDB's clock, and not the time at which the query was planned."""
        self.scans = 0
        """How often the query reads a table."""
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
            elif node.get("class") == "COLUMN_REF" and node["column_names"][-1].lower() in NON_DETERMINISTIC:
                self.is_nondeterministic = True  # keywords such as CURRENT_DATE
            if node.get("sample") is not None:
                self.is_nondeterministic = True

    def _check_table(self, node: Node, own: Collection[str]) -> None:
        schema, name = folded(node["schema_name"]), folded(node["table_name"])
        if node.get("at_clause") is not None:
            raise QueryInvalid(
                "AT (…) is not supported: use `as_of` of the request", position=position_of(node)
            )
        if schema == "information_schema" and name in _INFORMATION and not node["catalog_name"]:
            self._name_all()
            return
        if not schema and not node["catalog_name"] and name in own:
            return
        if node["catalog_name"] or schema not in self._schemas or name not in self._known:
            raise QueryInvalid(self._no_table(node), position=position_of(node))
        self.tables.add(self._views.get(name, name))
        self.scans += 1
        if self.names is not None:
            self.names.add(name if schema in ("", NAMESPACE_MAIN) else f"{schema}.{name}")

    def _name_all(self) -> None:
        self.listed |= self._known - {*self._views}
        self.names = self.columns = None

    def _no_table(self, node: Node) -> str:
        parts = (node["catalog_name"], node["schema_name"], node["table_name"])
        name = ".".join(part for part in parts if part)
        close = difflib.get_close_matches(node["table_name"].lower(), sorted(self._known), 1, 0.6)
        hint = f"did you mean {close[0]}?" if close else f"the tables are {', '.join(sorted(self._known))}"
        return f"there is no table {name}; {hint}"

    def _check_table_function(self, node: Node) -> None:
        function = node["function"]
        name = str(function.get("function_name", "")).lower()
        reading = _READING_FUNCTIONS.get(name)
        place = (function.get("catalog") or "", function.get("schema") or "")
        if reading is not None and reading.table in self._known and place in (("", ""), ("", NAMESPACE_MAIN)):
            self._add_reading(reading)
            return
        if name not in _TABLE_FUNCTIONS or any(place):
            raise QueryRefused(
                f"{name or 'this'} cannot be used as a table: a query can only read the tables "
                f"{', '.join(sorted(self._known))}",
                position=position_of(node, function),
            )

    def _add_reading(self, function: TableFunction) -> None:
        self.tables.add(function.table)
        self.scans += 1
        if self.names is not None:
            self.names.add(function.table)
        if self.columns is not None:
            self.columns |= function.columns

    def _check_shown(self, node: Node) -> None:
        """Allow `SHOW TABLES` only. DuckDB parses `SHOW x` for a table x as a query."""
        name = str(node["table_name"]).strip('"').lower()
        if name != "tables" or node.get("schema_name") or node.get("catalog_name"):
            raise QueryInvalid(
                f"only SHOW TABLES is supported; the tables are {', '.join(sorted(self._known))}",
                position=position_of(node),
            )
        self._name_all()

    def _check_function(self, node: Node) -> None:
        name = str(node.get("function_name", "")).lower()
        if name in _FORBIDDEN_FUNCTIONS or name.startswith(("pragma_", "duckdb_", "read_", "__internal")):
            raise QueryRefused(f"{name}() is not available", position=position_of(node))
        if name in NON_DETERMINISTIC:
            self.is_nondeterministic = True
            self.reads_own_clock |= name == "age" or bool(node.get("schema") or node.get("catalog"))


def _columns(root: Node) -> frozenset[str] | None:
    """Return every word of the tree: the query can name no other column. None: all columns."""
    words: set[str] = set()
    sources: set[str] = set()
    named: set[str] = set()
    for node in nodes(root):
        if not _ALL_COLUMNS.isdisjoint(str(node.get(key)) for key in ("class", "type", "ref_type")):
            return None
        if node.get("column_name_alias"):  # l(a, b): by position, not by name
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
            raise QueryRefused("only SELECT is supported (also FROM, WITH, VALUES, DESCRIBE, SUMMARIZE)")
        position = serialized.get("position")
        raise QueryInvalid(
            str(serialized.get("error_message", "the SQL cannot be parsed")),
            position=None if position is None else int(position),
        )
    statements = serialized["statements"]
    if len(statements) != 1:
        raise QueryInvalid("the SQL has several statements: send one" if statements else "the SQL is empty")
    node: Node = statements[0]["node"]
    return node


def _nodes_with_names(root: Node) -> Iterator[tuple[Node, frozenset[str]]]:
    """Yield every node with the names of the CTEs that it can use."""
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
    """Yield every node of the tree. Not recursive: a query may be nested too deeply for Python."""
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
    """Convert a position in bytes to one in characters."""
    if position is None or not sql:
        return position
    return len(sql.encode(errors="surrogatepass")[:position].decode(errors="ignore"))


def check_text(sql: str, bytes_max: int) -> None:
    """Raise QueryInvalid or RequestTooLarge if DuckDB should not see the text."""
    if (size := utf8_bytes(sql, "the SQL")) > bytes_max:
        raise RequestTooLarge(
            f"the SQL has {size} bytes; the maximum is {bytes_max} (query.sql_bytes_max): pass long lists as "
            "parameters",
            bytes_max=bytes_max,
        )
    if "\x00" in sql:
        raise QueryInvalid("the SQL contains a NUL character", position=sql.index("\x00"))


def utf8_bytes(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise QueryInvalid(
            f"{what} contains a lone surrogate, which is not valid Unicode", position=error.start
        ) from None
