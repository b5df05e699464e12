"""DuckDB with nothing in reach but the files and rows that were planned. Used in worker processes, and to
parse and match conditions.
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

from frazil.sql.functions import FUNCTIONS
from frazil.sql.statement import folded
from frazil.sql.types import quoted, text

_SESSION_SETTINGS = (
    "TimeZone='UTC'",
    "errors_as_json=true",
    "enable_progress_bar=true",
    "enable_progress_bar_print=false",
)


@dataclass(frozen=True)
class TableSource:
    """Where the rows of one table are. `columns` are (name, DuckDB type, Iceberg field id)."""

    name: str
    columns: Sequence[tuple[str, str, int]]
    files: Sequence[str]
    tail: Sequence[tuple[str, Sequence[tuple[int, int]]]]
    """Of files of the tenant's rows that have not landed: the path, and the ranges of rows to read (first,
    end). No ranges: all rows.
    """
    older: Sequence[Mapping[str, Any]] = ()
    """`files` from before some columns were promoted; `columns`: expressions that they have instead; `maps`:
    other columns that these expressions read.
    """
    names: Sequence[str] | None = None
    """How the question calls it and views of it. None: in every way. Measured: each view takes 2.5 ms."""

    row_number: str = ""
    """Of a column with each row's number in its file. Empty: there is none."""
    views: Mapping[str, str] = field(default_factory=dict)
    """Views of it: each has the rows in which this column is not NULL."""

    @property
    def paths(self) -> list[str]:
        older = (path for group in self.older for path in group["files"])
        return [*self.files, *older, *(path for path, *_ in self.tail)]

    def is_called(self, name: str, namespace: str | None = None) -> bool:
        """Also when it is only called so with a namespace, if none is given."""
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
    """One DuckDB instance for one question. Made ahead of it, so that nobody waits for that."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # DuckDB lets a question read this folder: it is to be empty, and of one question.
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
        # Given at the connect it is shown, and not kept to.
        self.connection.execute(f"SET max_temp_directory_size='{settings.temp_bytes}B'")
        for setting in _SESSION_SETTINGS:
            self.connection.execute(f"SET {setting}")
        for function in FUNCTIONS:
            self.connection.execute(function.sql)
        self.connection.execute(f"CREATE SCHEMA {quoted(settings.namespace)}")
        if settings.s3 is not None:
            self._reach_s3(settings.s3)

    def _reach_s3(self, s3: Mapping[str, Any]) -> None:
        self.connection.execute(f"LOAD {text(s3['extension'])}")
        options = ", ".join(f"{key} {text(value)}" for key, value in s3.items() if key != "extension")
        self.connection.execute(f"CREATE SECRET lake (TYPE s3{', ' + options if options else ''})")

    def fill(self, tables: Sequence[TableSource]) -> None:
        """Makes the tables known, then locks everything else away for good."""
        for table in tables:
            self._add(table)
        paths = [path for table in tables for path in table.paths]
        allowed = [form for path in paths for form in dict.fromkeys((path, _literal(path)))]
        self.connection.execute(f"SET allowed_paths=[{', '.join(text(path) for path in allowed)}]")
        self.connection.execute("SET enable_external_access=false")
        self.connection.execute("SET lock_configuration=true")

    def _add(self, table: TableSource) -> None:
        columns = ", ".join(quoted(name) for name, _, _ in table.columns)
        number = f", file_row_number AS {quoted(table.row_number)}" if table.row_number else ""
        parts = []
        if table.files:
            parts.append(f"SELECT {columns}{number} FROM {_files(table, table.files)}")  # noqa: S608
        for older in table.older:
            given = older["columns"]
            named = ", ".join(
                f"{given[name]} AS {quoted(name)}" if name in given else quoted(name)
                for name, _, _ in table.columns
            )
            parts.append(f"SELECT {named}{number} FROM {_files(table, older['files'], older['maps'])}")  # noqa: S608
        parts += [f"SELECT {columns} FROM {tail}" for tail in _tail(table)]  # noqa: S608
        if not parts:
            nothing = ", ".join(f"NULL::{type_} AS {quoted(name)}" for name, type_, _ in table.columns)
            parts.append(f"SELECT {nothing} WHERE false")
        self._view(table, table.name, " UNION ALL ".join(parts))
        for view, column in table.views.items():
            if table.is_called(view):
                same = f"SELECT * FROM main.{quoted(table.name)} WHERE {quoted(column)} IS NOT NULL"  # noqa: S608
                self._view(table, view, same)

    def _view(self, table: TableSource, name: str, query: str) -> None:
        self.connection.execute(f"CREATE VIEW main.{quoted(name)} AS {query}")
        namespace = self._settings.namespace
        if namespace != "main" and table.is_called(name, folded(namespace)):
            same = f"SELECT * FROM main.{quoted(name)}"  # noqa: S608
            self.connection.execute(f"CREATE VIEW {quoted(namespace)}.{quoted(name)} AS {same}")

    def close(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self.connection.close()
        shutil.rmtree(self._spill, ignore_errors=True)


def serialized(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """The syntax tree."""
    tree: dict[str, Any] = json.loads(serialized_text(connection, sql))
    return tree


def serialized_text(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The syntax tree as JSON: it may be too deep for Python."""
    found = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert found is not None  # noqa: S101
    return str(found[0])


def without_constants(sql: str) -> str:
    """The question for the audit: texts and numbers in it may be someone's data."""
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
                break  # the beginning of a text that does not end
            parts.append(part)
        is_number = kind == duckdb.token_type.numeric_const and not part[-1:].isspace()
    return " ".join("".join(parts).split())


def _files(table: TableSource, files: Sequence[str], more: Sequence[tuple[str, str, int]] = ()) -> str:
    """By field id, as Iceberg has it: files from before a column was added, or renamed, are read right."""
    schema = ", ".join(
        f"{identity}: {{name: {text(name)}, type: {text(type_)}, default_value: NULL}}"
        for name, type_, identity in (*table.columns, *more)
    )
    return f"read_parquet({_list(files)}, schema=MAP {{{schema}}}, hive_partitioning=false)"


def _tail(table: TableSource) -> Iterator[str]:
    """Whole files together; each that is read in part alone."""
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
    """A path that stands for itself: DuckDB takes names of files for patterns."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)
