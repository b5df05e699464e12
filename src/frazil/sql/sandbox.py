"""A DuckDB instance that can open only the planned files. Used in worker processes, and by maintenance to
parse and evaluate conditions.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from frazil.sql.functions import CLOCK, FUNCTIONS, TABLE_FUNCTIONS, set_clock
from frazil.sql.merging import select_merged, with_completed
from frazil.sql.statement import folded
from frazil.sql.types import quoted, text
from frazil.sql.utc_functions import macros_for
from frazil.tables.columns import TIME

_SESSION_SETTINGS = (
    "TimeZone='UTC'",
    "errors_as_json=true",
    "enable_progress_bar=true",
    "enable_progress_bar_print=false",
)


@dataclass(frozen=True)
class TableSource:
    """The files that hold the rows of one table. `columns` are (name, DuckDB type, Iceberg field id)."""

    name: str
    columns: Sequence[tuple[str, str, int]]
    files: Sequence[str]
    tail: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Tail files: path, and ranges of rows to read (first, end). No ranges: all rows."""
    older: Sequence[Mapping[str, Any]] = ()
    """Groups of `files` that lack promoted columns; `columns`: expressions to use instead; `maps`: other
    columns that these expressions read.
    """
    names: Sequence[str] | None = None
    """The names of the table and its views in the query; None: any. Measured: a view takes 2.5 ms."""

    row_number: str = ""
    """Name of a column with each row's number in its file. Empty: no such column."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Views of the table by name: each has the rows in which this column is not NULL."""
    times: tuple[int | None, int | None] = (None, None)
    """The first and last `time` of the rows that the query needs, in microseconds since 1970; None: any."""
    merged: Mapping[str, str] | None = None
    """For a derived table, the expressions that merge its partial rows, by column. Rows with equal values in
    the other columns, the key, become one row. None: the rows are used as they are.
    """
    hidden: Sequence[str] = ()
    """The columns that queries do not see. `completed` reads them."""
    completed: str = ""
    """For a derived table with pending rows, a SELECT of the rows that follow from them. It reads them from
    `partial_rows`.
    """

    @property
    def visible(self) -> list[tuple[str, str, int]]:
        return [column for column in self.columns if column[0] not in self.hidden]

    @property
    def paths(self) -> list[str]:
        older = (path for group in self.older for path in group["files"])
        return [*self.files, *older, *(path for path, *_ in self.tail)]

    def is_named(self, name: str, namespace: str | None = None) -> bool:
        """Return whether the query uses this name, in this namespace if one is given."""
        if self.names is None:
            return True
        ends = f".{name}"
        if namespace is None:
            return any(each == name or each.endswith(ends) for each in self.names)
        return namespace + ends in self.names


@dataclass(frozen=True)
class Settings:
    threads: int
    memory_bytes: int
    temp_bytes: int
    temp_dir: str
    namespace: str
    s3: Mapping[str, Any] | None = None
    """`extension` is the path of httpfs; the rest are options of a DuckDB secret."""


class Sandbox:
    """A DuckDB instance for one query. Created before the query arrives, to save that time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # DuckDB lets a query read this folder: it must be empty, and belong to one query.
        self._spill = tempfile.mkdtemp(dir=settings.temp_dir)
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "allow_community_extensions": "false",
                "allow_persistent_secrets": "false",
                "python_enable_replacements": "false",
                "python_scan_all_frames": "false",
                "memory_limit": f"{settings.memory_bytes}B",
                "threads": str(settings.threads),
                "temp_directory": self._spill,
                "preserve_insertion_order": "false",
            },
        )
        # As a connect option, DuckDB shows the limit but does not enforce it.
        self.connection.execute(f"SET max_temp_directory_size='{settings.temp_bytes}B'")
        for setting in _SESSION_SETTINGS:
            self.connection.execute(f"SET {setting}")
        self.connection.execute(";".join((*(function.sql for function in FUNCTIONS), *CLOCK)))
        self.connection.execute(f"CREATE SCHEMA {quoted(settings.namespace)}")
        if settings.s3 is not None:
            self._reach_s3(settings.s3)

    def _reach_s3(self, s3: Mapping[str, Any]) -> None:
        self.connection.execute(f"LOAD {text(s3['extension'])}")
        options = ", ".join(f"{key} {text(value)}" for key, value in s3.items() if key != "extension")
        self.connection.execute(f"CREATE SECRET lake (TYPE s3{', ' + options if options else ''})")

    def fill(self, tables: Sequence[TableSource], now: int = 0, sql: str = "") -> None:
        """Create views for the tables, then disable access to all other files and lock the configuration.
        `now` is the time of the query `sql`, in microseconds since 1970.
        """
        macros = macros_for(sql)
        self.connection.execute(";".join((set_clock(now), *macros)))
        for table in tables:
            # DuckDB cannot derive a range of time from a condition on a macro, or on a merged time.
            needs_range = macros or (table.merged is not None and TIME in table.merged)
            self._add(table, _where(table) if needs_range else "")
        self._add_functions(tables, sql.lower())
        self._lock([path for table in tables for path in table.paths])

    def declare(self, tables: Sequence[TableSource]) -> None:
        """Create empty tables, to plan queries that are not run, then lock the configuration. Derived tables
        are tables too: so the conditions on their columns are found, also on merged ones.
        """
        for table in tables:
            self._declare(table)
        self._add_functions(tables)
        self._lock(())

    def declare_again(self, table: TableSource) -> None:
        """Create one more empty table, in place of an earlier one of its name."""
        namespace = self._settings.namespace
        if namespace != "main":
            self.connection.execute(f"DROP VIEW IF EXISTS {quoted(namespace)}.{quoted(table.name)}")
        self.connection.execute(f"DROP TABLE IF EXISTS main.{quoted(table.name)}")
        self._declare(table)

    def _declare(self, table: TableSource) -> None:
        columns = ", ".join(f"{quoted(name)} {type_}" for name, type_, _ in table.visible)
        self.connection.execute(f"CREATE TABLE main.{quoted(table.name)} ({columns})")
        self._add_views(table)

    def _add_functions(self, tables: Sequence[TableSource], sql: str | None = None) -> None:
        """Create the functions that read these tables. With `sql`, in lower case: those that it may call."""
        known = {table.name: {name for name, _, _ in table.visible} for table in tables}
        for function in TABLE_FUNCTIONS:
            has_columns = function.columns <= known.get(function.table, set())
            if has_columns and (sql is None or function.name in sql):
                self.connection.execute(function.sql)

    def _lock(self, paths: Sequence[str]) -> None:
        allowed = [form for path in paths for form in dict.fromkeys((path, _literal(path)))]
        self.connection.execute(f"SET allowed_paths=[{', '.join(text(path) for path in allowed)}]")
        self.connection.execute("SET enable_external_access=false")
        self.connection.execute("SET lock_configuration=true")

    def _add(self, table: TableSource, where: str) -> None:
        columns = ", ".join(quoted(name) for name, _, _ in table.columns)
        number = f", file_row_number AS {quoted(table.row_number)}" if table.row_number else ""
        parts = []
        if table.files:
            parts.append(f"SELECT {columns}{number} FROM {_files(table, table.files)}{where}")  # noqa: S608
        for older in table.older:
            given = older["columns"]
            named = ", ".join(
                f"{given[name]} AS {quoted(name)}" if name in given else quoted(name)
                for name, _, _ in table.columns
            )
            source = _files(table, older["files"], older["maps"])
            parts.append(f"SELECT {named}{number} FROM {source}{where}")  # noqa: S608
        parts += [f"SELECT {columns} FROM {tail}" for tail in _tail(table)]  # noqa: S608
        if not parts:
            nothing = ", ".join(f"NULL::{type_} AS {quoted(name)}" for name, type_, _ in table.columns)
            parts.append(f"SELECT {nothing} WHERE false")
        rows = " UNION ALL ".join(parts)
        if table.merged is not None:
            # The partial rows have no name outside of the view, so that no query can read them.
            names = [name for name, _, _ in table.visible]
            if table.completed and table.paths:
                rows = _with_completed(table, names, rows)
            rows = select_merged(names, table.merged, f"({rows})")
        self.connection.execute(f"CREATE VIEW main.{quoted(table.name)} AS {rows}")
        self._add_views(table)

    def _add_views(self, table: TableSource) -> None:
        """Create the views of a table, and all its names in the namespace."""
        self._name(table, table.name)
        for view, column in table.views.items():
            if table.is_named(view):
                same = f"SELECT * FROM main.{quoted(table.name)} WHERE {quoted(column)} IS NOT NULL"  # noqa: S608
                self.connection.execute(f"CREATE VIEW main.{quoted(view)} AS {same}")
                self._name(table, view)

    def _name(self, table: TableSource, name: str) -> None:
        namespace = self._settings.namespace
        if namespace != "main" and table.is_named(name, folded(namespace)):
            same = f"SELECT * FROM main.{quoted(name)}"  # noqa: S608
            self.connection.execute(f"CREATE VIEW {quoted(namespace)}.{quoted(name)} AS {same}")

    def close(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self.connection.close()
        shutil.rmtree(self._spill, ignore_errors=True)


def serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Return the syntax tree."""
    tree: dict[str, Any] = json.loads(serialized_text(connection, sql))
    return tree


def serialized_text(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the syntax tree as JSON text: it may be nested too deeply for Python."""
    found = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert found is not None  # noqa: S101
    return str(found[0])


def without_constants(sql: str) -> str:
    """Return the SQL for the audit log, without text and numbers, which may be personal data."""
    try:
        tokens = duckdb.tokenize(sql)
    except (duckdb.Error, RuntimeError):
        return ""
    data = sql.encode()  # positions count bytes
    parts = []
    is_number = False
    for number, (start, kind) in enumerate(tokens):
        end = tokens[number + 1][0] if number + 1 < len(tokens) else len(data)
        part = data[start:end].decode(errors="replace")
        if kind in (duckdb.token_type.string_const, duckdb.token_type.numeric_const):
            parts.append("? ")
        elif kind != duckdb.token_type.comment and not (is_number and part[:1].isalnum()):
            if "'" in part and not part.startswith('"'):
                break  # an unterminated string
            parts.append(part)
        is_number = kind == duckdb.token_type.numeric_const and not part[-1:].isspace()
    return " ".join("".join(parts).split())


def _files(table: TableSource, files: Sequence[str], more: Sequence[tuple[str, str, int]] = ()) -> str:
    """Read files by Iceberg field id, so that columns that were added or renamed later are read correctly."""
    schema = ", ".join(
        f"{identity}: {{name: {text(name)}, type: {text(type_)}, default_value: NULL}}"
        for name, type_, identity in (*table.columns, *more)
    )
    return f"read_parquet({_list(files)}, schema=MAP {{{schema}}}, hive_partitioning=false)"


def _where(table: TableSource) -> str:
    """Return the condition that lets DuckDB skip parts of files."""
    conditions = [
        f"time {operator} make_timestamptz({bound})"
        for operator, bound in zip((">=", "<="), table.times, strict=True)
        if bound is not None and any(name == TIME for name, _, _ in table.columns)
    ]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _with_completed(table: TableSource, names: Sequence[str], rows: str) -> str:
    """Add the rows that follow from pending ones. A common table expression that is not materialized is
    planned once for each use, so that conditions on `resolution` and `time` reach the files in both.
    """
    return (
        f"WITH every_row AS NOT MATERIALIZED ({rows}), "  # noqa: S608
        f"partial_rows AS NOT MATERIALIZED (SELECT * FROM every_row{_where(table)}) "
        + with_completed(names, "every_row", table.completed)
    )


def _tail(table: TableSource) -> Iterator[str]:
    """Yield one source for all files read whole, and one for each file read in part."""
    whole = [path for path, ranges in table.tail if not ranges]
    if whole:
        yield f"read_parquet({_list(whole)}, hive_partitioning=false)"
    for path, ranges in table.tail:
        if ranges:
            inside = (f"file_row_number >= {int(a)} AND file_row_number < {int(b)}" for a, b in ranges)
            yield (
                f"read_parquet({text(_literal(path))}, hive_partitioning=false, file_row_number=true) "
                f"WHERE {' OR '.join(inside)}"
            )


def _list(paths: Sequence[str]) -> str:
    return f"[{', '.join(text(_literal(path)) for path in paths)}]"


def _literal(path: str) -> str:
    """Escape a path: DuckDB takes file names as glob patterns."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)
