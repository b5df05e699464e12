"""What DuckDB says went wrong, for people who see the SQL and not the files."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from frazil.sql.statement import characters

_ERROR_CHARACTERS_MAX = 2000
_KINDS = {
    "INTERRUPT": "interrupted",
    "Out of Memory": "memory",
    "Permission": "refused",
    "HTTP": "store",
    "IO": "store",
    "INTERNAL": "defect",
    "FATAL": "defect",
}


def describe_error(
    error: Exception, paths: Sequence[str], sql: str, columns: Sequence[str] = ()
) -> dict[str, Any]:
    """What DuckDB says, with the place in the SQL, and without the names of files."""
    text = str(error)
    facts: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # Arrow hands on DuckDB's errors as its own
        facts = json.loads(text[text.index("{") :])
    type_ = str(facts.get("exception_type") or text.partition(" Error: ")[0])
    kind = _KINDS.get(type_, "invalid")
    if isinstance(error, duckdb.InterruptException):
        kind = "interrupted"
    elif not isinstance(error, (duckdb.Error, pa.ArrowException, RuntimeError, OSError)):
        kind, text = "defect", type(error).__name__
    message = str(facts.get("exception_message") or text)
    named = [path for path in paths if path in message] if kind in ("store", "invalid") else []
    if named:
        kind = "store"  # also when it is there, and is no Parquet file
    if kind == "memory" and "max_temp_directory_size" in text:
        kind = "temp"
    return {
        "kind": kind,
        "message": (_named(facts, columns) or _without_paths(message, kind, paths))[:_ERROR_CHARACTERS_MAX],
        "position": _position(facts, sql),
        "files": named,
    }


def _named(facts: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """What DuckDB looked for and did not find, and what may have been meant. It knows only the columns that
    the question names.
    """
    name, subtype = facts.get("name"), facts.get("error_subtype")
    near = [each for each in str(facts.get("candidates") or "").split(",") if each]
    if subtype == "COLUMN_NOT_FOUND" and name:
        close = difflib.get_close_matches(str(name).lower(), columns, 2, 0.6)
        return f"there is no column {name}{_meant(close or near)}"
    if subtype == "MISSING_ENTRY" and "Function" in str(facts.get("type")):
        return f"there is no function {name}{_meant(near)}"
    return None


def _meant(near: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(near[:2])}?" if near else ""


def _position(facts: Mapping[str, Any], sql: str) -> int | None:
    """In characters. The parser counts those already; all others count bytes."""
    found = str(facts.get("position", ""))
    if not found.isdigit():
        return None
    return int(found) if facts.get("exception_type") == "Parser" else characters(sql, int(found))


def _without_paths(message: str, kind: str, paths: Sequence[str]) -> str:
    for path in paths:
        message = message.replace(path, "a data file")
    if kind in ("store", "defect"):
        message = message.partition("\n")[0]  # the rest is a stack trace
        message = re.sub(r"(\w+://|(?<![\w/])/)[^\s'\"]+", "a file", message)
    message = re.sub(r"\n+(?=Candidate bindings|Did you mean)", "; ", message)
    return re.sub(r"\n\nLINE \d+:.*", "", message, flags=re.DOTALL)
