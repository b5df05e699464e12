"""A condition on the rows of one table, as an operator gives it to say which of them are to go.

It is the WHERE of a question, parsed and bound by DuckDB, so that it can be tried in `frazil query` before.
Whatever might mean something else tomorrow, or on another file, is refused: rows go for good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import orjson

from frazil.errors import LimitReached, QueryInvalid, QueryRefused, RequestTooLarge, StoreUnavailable
from frazil.pipeline.maintain.predicates.row_local import find_disallowed
from frazil.sql.constants import Constants, Constraints
from frazil.sql.constraints import ANYTHING, wanted_rows
from frazil.sql.explain import explained
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
from frazil.sql.types import duckdb_type, kind_of, quoted
from frazil.tables import TableSpec

NAMESPACE = "lake"
DUCKDB_ERRORS = (duckdb.Error, RuntimeError)
"""What DuckDB raises."""
_BYTES_MAX = 1 << 20
_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True)
class Predicate:
    """A condition that `parse_predicate` has found to be one."""

    text: str
    table: str
    columns: tuple[str, ...]
    """Those that must be read, in the table's order."""
    is_constant: bool
    """It names no column, so it holds for all rows or for none."""
    constraints: Constraints = field(default_factory=dict)
    """What every row that matches has, for leaving out files by their statistics."""

    @property
    def where(self) -> str:
        """To be put after WHERE. The line's end ends a comment."""
        return f"({self.text}\n)"


def parse_predicate(text: str, spec: TableSpec) -> Predicate:
    """QueryInvalid or QueryRefused if it is no condition on a row of the table; `position` is in `text`."""
    try:
        check_text(text, _BYTES_MAX)
    except RequestTooLarge:
        reason = f"the condition has more than {_BYTES_MAX:,} bytes: split it into several"
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
    """What DuckDB said of a condition, as an error of ours. `position` is in `sql`."""
    said = explained(error, paths, sql, columns)
    kind, message, position = said["kind"], said["message"], said["position"]
    if kind == "refused":
        reason = f"a condition can read the table and nothing else: {message}"
        return QueryRefused(reason, position=position)
    if kind in ("memory", "temp"):
        reason = f"the condition needs more memory than it may have: {message.partition(chr(10))[0]}"
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
        self._sandbox.fill([_empty(self._spec)])
        statement = self._statement()
        condition = statement.root["where_clause"]
        self._check_nodes(condition)
        self._check_bound()
        is_constant = self._is_constant()
        named = set() if is_constant else self._columns(condition)
        columns = tuple(column.name for column in self._spec.columns if column.name in named)
        self._check_values(columns)
        constraints = self._constraints(statement.root)
        return Predicate(self._text, self._spec.name, columns, is_constant, constraints)

    def _statement(self) -> Statement:
        """Without the parentheses around it, it must parse as well: then it does not close the one before it
        to open another at its end.
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
                f"this is no condition: {tree.get('error_message', 'it cannot be parsed')}",
                position=self._place(None if position is None else int(position), begin),
            )
        if len(tree["statements"]) != 1:
            raise QueryInvalid("this is no condition: there is more than one statement in it")
        return tree

    def _check_nodes(self, condition: Node) -> None:
        found = find_disallowed(self._sandbox.connection, condition, self._names)
        if found is not None:
            raise QueryRefused(found.why, position=self._place_of(found.node))
        for node in nodes(condition):
            if node.get("class") == "COLUMN_REF" and self._is_whole_row(node):
                raise QueryRefused(
                    f"{self._spec.name} is the table: a condition must name its columns",
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
                f"the condition comes to a value of the type {type_}, not to TRUE or FALSE: compare it with "
                "something",
                position=0,
            )

    def _check_values(self, columns: Sequence[str]) -> None:
        """On a row of NULLs, so that a text that is no time or number comes out now and not on some file."""
        types = {column.name: duckdb_type(column.type) for column in self._spec.columns}
        row = ", ".join(f"NULL::{types[name]} AS {quoted(name)}" for name in columns) or "1"
        self._run(f"WITH {quoted(self._spec.name)} AS (SELECT {row}) {self._begin}", "")

    def _is_constant(self) -> bool:
        try:
            self._run("DESCRIBE SELECT (", "")
        except (QueryInvalid, QueryRefused):
            return False
        return True

    def _run(self, begin: str, end: str) -> list[Any]:
        sql = f"{begin}{self._text}\n) {end}"
        try:
            return self._sandbox.connection.execute(sql).fetchall()
        except DUCKDB_ERRORS as error:
            raise self._failed(error, begin, sql) from None

    def _columns(self, condition: Node) -> set[str]:
        """At least those that it needs: a lambda's word may be called like a column."""
        before = {NAMESPACE_MAIN, "memory", folded(self._spec.name)}
        found: set[str] = set()
        for node in nodes(condition):
            if node.get("class") == "COLUMN_REF":
                for word in map(folded, node["column_names"]):
                    found |= {self._names[word]} if word in self._names else set()
                    if word not in before:
                        break
        return found

    def _constraints(self, root: Node) -> Constraints:
        kinds = {self._spec.name: {column.name: kind_of(column.type) for column in self._spec.columns}}
        uses = wanted_rows(root, kinds, Constants.of(0, ())).get(self._spec.name, [])
        return uses[0] if len(uses) == 1 else ANYTHING

    def _failed(self, error: Exception, begin: str, sql: str) -> QueryInvalid | QueryRefused:
        found = as_error(error, sql, list(self._names.values()))
        if not isinstance(found, (QueryInvalid, QueryRefused)):
            return QueryInvalid(str(found))
        found.position = self._place(found.position, begin)
        return found

    def _place_of(self, node: Node) -> int | None:
        return self._place(characters(self._sql, position_of(node)), self._begin)

    def _place(self, position: int | None, begin: str) -> int | None:
        """From a place in the SQL to the place in the condition."""
        return None if position is None else max(0, min(position - len(begin), len(self._text)))
