"""Parses an operator's condition for the rows of one table to remove.

A condition is a WHERE clause, parsed and bound by DuckDB, so it can be tried with `frazil query` first. A
condition whose result could change over time or between files is refused: removal is permanent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson

from frazil.errors import LimitReached, QueryInvalid, QueryRefused, RequestTooLarge, StoreUnavailable
from frazil.pipeline.maintain.predicates.row_local import find_disallowed
from frazil.sql.constraint import UNCONSTRAINED, Constraints
from frazil.sql.duckdb_errors import describe_error
from frazil.sql.pushdown import Pushdown
from frazil.sql.sandbox import Sandbox, Settings, TableSource, serialized_text
from frazil.sql.statement import (
    NAMESPACE_MAIN,
    Node,
    Statement,
    characters,
    check_text,
    folded,
    nodes,
    position_of,
)
from frazil.sql.types import duckdb_type, quoted
from frazil.tables import TableSpec

NAMESPACE = "lake"
DUCKDB_ERRORS = (duckdb.Error, RuntimeError)
"""The errors that DuckDB raises."""
_BYTES_MAX = 1 << 20
_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Predicate:
    """A valid condition, from `parse_predicate`."""

    text: str
    table: str
    columns: tuple[str, ...]
    """The columns to read, in the table's order."""
    is_constant: bool
    """The condition names no column, so it matches all rows or none."""
    constraints: Constraints = field(default_factory=dict)
    """Constraints that every matching row meets, to skip files by their statistics."""

    @property
    def where(self) -> str:
        """The SQL after WHERE. The line break ends a trailing comment."""
        return f"({self.text}\n)"


def parse_predicate(text: str, spec: TableSpec) -> Predicate:
    """Parses a condition on rows of the table. Raises QueryInvalid or QueryRefused, with `position` in
    `text`.
    """
    try:
        check_text(text, _BYTES_MAX)
    except RequestTooLarge:
        reason = f"the condition has more than {_BYTES_MAX:,} bytes: split it into several conditions"
        raise QueryInvalid(reason) from None
    if not text.strip():
        raise QueryInvalid("the condition is empty; for example: service_name = 'shop'")
    with tempfile.TemporaryDirectory(prefix="frazil-predicate-") as folder:
        sandbox = Sandbox(Settings(1, _MEMORY_BYTES, _MEMORY_BYTES, folder, NAMESPACE))
        try:
            return _Parser(sandbox, text, spec).parse()
        finally:
            sandbox.close()


def as_error(
    error: Exception, sql: str, columns: Sequence[str], paths: Sequence[str] = ()
) -> QueryInvalid | QueryRefused | LimitReached | StoreUnavailable:
    """Returns DuckDB's error as an error of frazil, with `position` in `sql`."""
    explanation = describe_error(error, paths, sql, columns)
    kind, message, position = explanation["kind"], explanation["message"], explanation["position"]
    if kind == "refused":
        reason = f"a condition can only read its table: {message}"
        return QueryRefused(reason, position=position)
    if kind in ("memory", "temp"):
        reason = f"the condition exceeds the memory limit: {message.partition(chr(10))[0]}"
        return LimitReached(reason, limit="memory_bytes")
    if kind in ("store", "interrupted"):
        return StoreUnavailable(message)
    if kind == "defect":
        return QueryInvalid(f"DuckDB cannot run this: {message}", position=position)
    return QueryInvalid(message, position=position)


def _empty(spec: TableSpec) -> TableSource:
    columns = [(column.name, duckdb_type(column.type), at) for at, column in enumerate(spec.columns)]
    return TableSource(spec.name, columns, (), (), names=[spec.name])


class _Parser:
    def __init__(self, sandbox: Sandbox, text: str, spec: TableSpec) -> None:
        self._sandbox = sandbox
        self._text = text
        self._spec = spec
        self._from = f"FROM {quoted(spec.name)}"
        self._begin = f"SELECT 1 {self._from} WHERE ("
        self._sql = f"{self._begin}{text}\n)"
        self._names = {folded(column.name): column.name for column in spec.columns}

    def parse(self) -> Predicate:
        pushdown = Pushdown(self._sandbox, [_empty(self._spec)])
        statement = self._statement()
        condition = statement.root["where_clause"]
        self._check_nodes(condition)
        self._check_bound()
        named = self._columns(condition)
        is_constant = self._is_constant(named)
        named = set() if is_constant else named
        columns = tuple(column.name for column in self._spec.columns if column.name in named)
        self._check_values(columns)
        uses = pushdown.uses(self._sql).get(self._spec.name, [])
        constraints = uses[0] if len(uses) == 1 else UNCONSTRAINED
        return Predicate(self._text, self._spec.name, columns, is_constant, constraints)

    def _statement(self) -> Statement:
        """Parses the condition with and without parentheses around it. Otherwise a condition such as `a) OR
        (b` would be accepted.
        """
        bare = f"SELECT 1 {self._from} WHERE "
        self._tree(bare, f"{bare}{self._text}\n")
        tree = self._tree(self._begin, self._sql)
        try:
            return Statement(tree, NAMESPACE, [self._spec.name], self._sql)
        except (QueryInvalid, QueryRefused) as error:
            error.position = self._place(error.position, self._begin)
            raise

    def _tree(self, begin: str, sql: str) -> Node:
        try:
            tree: Node = orjson.loads(serialized_text(self._sandbox.connection, sql))
        except orjson.JSONDecodeError:
            raise QueryInvalid("the condition is nested too deeply") from None
        except DUCKDB_ERRORS as error:
            raise self._failed(error, begin, sql) from None
        if tree["error"]:
            position = tree.get("position")
            raise QueryInvalid(
                f"this is not a condition: {tree.get('error_message', 'it cannot be parsed')}",
                position=self._place(None if position is None else int(position), begin),
            )
        if len(tree["statements"]) != 1:
            raise QueryInvalid("this is not a condition: it has more than one statement")
        return tree

    def _check_nodes(self, condition: Node) -> None:
        found = find_disallowed(self._sandbox.connection, condition, self._names)
        if found is not None:
            raise QueryRefused(found.reason, position=self._place_of(found.node))
        for node in nodes(condition):
            if node.get("class") == "COLUMN_REF" and self._is_whole_row(node):
                raise QueryRefused(
                    f"{self._spec.name} is a table, not a column: use a column in the condition",
                    position=self._place_of(node),
                )

    def _is_whole_row(self, node: Node) -> bool:
        *around, last = [folded(name) for name in node["column_names"]]
        is_table = last == folded(self._spec.name) and last not in self._names
        return is_table and all(name in (NAMESPACE_MAIN, "memory") for name in around)

    def _check_bound(self) -> None:
        self._run("DESCRIBE " + self._begin, "")
        described = self._run("DESCRIBE SELECT (", self._from)
        type_ = str(described[0][1]).strip('"')
        if type_ != "BOOLEAN":
            raise QueryInvalid(
                f"the condition has the type {type_} instead of BOOLEAN: compare it with a value",
                position=0,
            )

    def _check_values(self, columns: Sequence[str]) -> None:
        """Runs the condition on a row of NULLs, to find invalid constants, such as times, before files are
        read.
        """
        types = {column.name: duckdb_type(column.type) for column in self._spec.columns}
        row = ", ".join(f"NULL::{types[name]} AS {quoted(name)}" for name in columns) or "1"
        self._run(f"WITH {quoted(self._spec.name)} AS (SELECT {row}) {self._begin}", "")

    def _is_constant(self, named: Iterable[str]) -> bool:
        if any(self._is_also_function(name) for name in named):
            return False
        try:
            self._run("DESCRIBE SELECT (", "")
        except (QueryInvalid, QueryRefused):
            return False
        return True

    def _is_also_function(self, name: str) -> bool:
        """Returns whether DuckDB knows the name without a table, as it knows `user` and `current_date`. With
        a table, its column comes first.
        """
        try:
            self._sandbox.connection.execute(f"DESCRIBE SELECT {quoted(name)}")
        except DUCKDB_ERRORS:
            return False
        return True

    def _run(self, begin: str, end: str) -> list[Any]:
        sql = f"{begin}{self._text}\n) {end}"
        try:
            return self._sandbox.connection.execute(sql).fetchall()
        except DUCKDB_ERRORS as error:
            raise self._failed(error, begin, sql) from None

    def _columns(self, condition: Node) -> set[str]:
        """Returns the named columns. May include too many: a lambda parameter may have the name of a
        column.
        """
        before = {NAMESPACE_MAIN, "memory", folded(self._spec.name)}
        found: set[str] = set()
        for node in nodes(condition):
            if node.get("class") == "COLUMN_REF":
                for word in map(folded, node["column_names"]):
                    found |= {self._names[word]} if word in self._names else set()
                    if word not in before:
                        break
        return found

    def _failed(self, error: Exception, begin: str, sql: str) -> QueryInvalid | QueryRefused:
        found = as_error(error, sql, list(self._names.values()))
        if not isinstance(found, (QueryInvalid, QueryRefused)):
            return QueryInvalid(str(found))
        found.position = self._place(found.position, begin)
        return found

    def _place_of(self, node: Node) -> int | None:
        return self._place(characters(self._sql, position_of(node)), self._begin)

    def _place(self, position: int | None, begin: str) -> int | None:
        """Converts a position in the SQL to a position in the condition."""
        return None if position is None else max(0, min(position - len(begin), len(self._text)))
