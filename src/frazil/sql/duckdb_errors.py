"""Turns DuckDB's errors into errors for users, who see the SQL and not the files."""

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
_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "name": ("metric_name", "service_name"),
    "metric": ("metric_name",),
    "service": ("service_name",),
    "operation": ("name",),
    "message": ("body",),
    "msg": ("body",),
    "timestamp": ("time",),
    "ts": ("time",),
    "level": ("severity_text", "severity_number"),
    "severity": ("severity_text", "severity_number"),
    "duration": ("duration_nano",),
    "status": ("status_code",),
    "host": ("host_name",),
    "environment": ("deployment_environment_name",),
}
"""Names that other systems use for columns."""
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
    """Return kind, message, position and unreadable files of an error. The message names no files."""
    text = str(error)
    facts: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # Arrow wraps DuckDB's errors in its own
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
        kind = "store"  # also if the file exists but is not a Parquet file
    if kind == "memory" and "max_temp_directory_size" in text:
        kind = "temp"
    message = _not_found(facts, columns) or _without_paths(message, kind, paths)
    return {
        "kind": kind,
        "message": message[:_ERROR_CHARACTERS_MAX],
        "position": _position(facts, sql),
        "files": named,
    }


def _not_found(facts: Mapping[str, Any], columns: Sequence[str]) -> str | None:
    """Describe a column or function that DuckDB did not find, with suggestions. DuckDB itself has only the
    columns that the query names.
    """
    name, subtype = facts.get("name"), facts.get("error_subtype")
    candidates = [each for each in str(facts.get("candidates") or "").split(",") if each]
    if subtype == "COLUMN_NOT_FOUND" and name:
        word = str(name).lower()
        close = [each for each in _OTHER_NAMES.get(word, ()) if each in columns]
        close = close or difflib.get_close_matches(word, columns, 2, 0.6)
        return f"there is no column {name}{_suggestion(close or candidates)}"
    if subtype == "MISSING_ENTRY" and "Function" in str(facts.get("type")):
        return f"there is no function {name}{_suggestion(candidates)}"
    return None


def _suggestion(names: Sequence[str]) -> str:
    return f"; did you mean {' or '.join(names[:2])}?" if names else ""


def _position(facts: Mapping[str, Any], sql: str) -> int | None:
    """Return the position in characters. Only the parser counts characters; other errors count bytes."""
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
