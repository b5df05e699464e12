"""The details of one log record, with the types that its sender used."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from frazil.dashboard.logs.rows import Record, body_text
from frazil.dashboard.logs.search import chip
from frazil.tables import DEFAULT_PROMOTED

_GROUPS = (
    ("Attributes", "attributes"),
    ("Resource", "resource_attributes"),
    ("Scope", "scope_attributes"),
)
_KINDS = {"kvlist": "map"}
_SHOWN_ELSEWHERE = {"time", "body", "service_name", "severity_text", *(name for _, name in _GROUPS)}
_COPIES = {promoted.column for promoted in DEFAULT_PROMOTED} - {"service_name"}
_LABELS = {
    "time_unix_nano": "Time",
    "observed_time_unix_nano": "Observed",
    "received_time": "Received",
    "severity_number": "Severity",
    "trace_id": "Trace",
    "span_id": "Span",
}
_VALUE_CHARS_MAX = 20_000


def find_stored(record: Record, candidates: Sequence[Record]) -> Record:
    """Returns the stored row of this record, or {} if there is none."""
    return next((row for row in candidates if _is_same(record, row)), {})


def _is_same(record: Record, row: Record) -> bool:
    if row.get("body_type") is None and row.get("body") != record.get("body"):
        return False
    return all(_agree(record.get(name) or {}, dict(row.get(name) or {})) for _, name in _GROUPS)


def _agree(shown: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Compares the keys, and the values that are text in both."""
    return shown.keys() == stored.keys() and all(
        not isinstance(value, str) or stored[key] == value for key, value in shown.items()
    )


def detail(key: str, record: Record, stored: Record) -> dict[str, Any]:
    """Returns the details that the list shows below an open record."""
    body = record.get("body")
    is_structured = isinstance(body, (dict, list))
    groups = [
        {"name": title, "rows": rows}
        for title, name in _GROUPS
        if (rows := _attributes(record.get(name) or {}, name, stored))
    ]
    groups.insert(1 if record.get("attributes") else 0, {"name": "Record", "rows": _fields(record)})
    return {
        "key": key,
        "body": _pretty(body) if is_structured else body_text(body),
        "body_kind": _KINDS.get(stored.get("body_type") or "", stored.get("body_type")) or kind_of(body),
        "groups": groups,
        "trace": record.get("trace_id"),
        "span": record.get("span_id"),
        "json": _pretty(dict(record)),
    }


def _fields(record: Record) -> list[dict[str, Any]]:
    """Returns the fields in the order of the table. Promoted columns are copies of attributes and omitted."""
    shown = [_row("Time", f"{record['time']}")] if "time_unix_nano" not in record else []
    for name, value in record.items():
        if name in _SHOWN_ELSEWHERE or name in _COPIES or value in (0, "", None) or value == {}:
            continue
        label = _LABELS.get(name) or name.replace("_", " ").capitalize()
        if name.endswith("_unix_nano"):
            value = format_nanos(value)
        elif name == "severity_number":
            value = f"{record['severity_text']} ({value})" if record.get("severity_text") else str(value)
        filters = f"{name}={value}" if name == "trace_id" else None
        shown.append(_row(label, value if isinstance(value, str) else body_text(value), filters=filters))
    return sorted(shown, key=lambda row: row["name"] != "Time")


def _attributes(shown: Mapping[str, Any], name: str, stored: Record) -> list[dict[str, Any]]:
    texts = dict(stored.get(name) or {})
    kinds = orjson.loads(stored.get(f"{name[:-1]}_types") or "{}") if stored else {}
    rows = []
    for key, value in sorted(shown.items()):
        kind = _kind(key, texts, kinds) if stored else kind_of(value)
        text = texts.get(key, value if isinstance(value, str) else None)
        is_filter = name != "scope_attributes" and isinstance(text, str)
        filters = chip(key, text) if is_filter and text is not None else None
        rows.append(_row(key, _value(value), kind=_KINDS.get(kind, kind), filters=filters))
    return rows


def _kind(key: str, texts: Mapping[str, str | None], kinds: Mapping[str, str]) -> str:
    return "empty" if texts.get(key) is None else kinds.get(key, "string")


def _row(name: str, value: str, *, kind: str = "", filters: str | None = None) -> dict[str, Any]:
    return {"name": name, "value": value[:_VALUE_CHARS_MAX], "kind": kind, "filter": filters}


def _value(value: Any) -> str:
    return _pretty(value) if isinstance(value, (dict, list)) and len(value) > 3 else body_text(value)


def _pretty(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def kind_of(value: Any) -> str:
    """Returns the type of a JSON value."""
    for kind, types in (("bool", bool), ("int", int), ("double", float), ("string", str), ("array", list)):
        if isinstance(value, types):
            return kind
    return "map" if isinstance(value, dict) else "empty"


def format_nanos(nanos: str) -> str:
    """Formats nanoseconds since 1970 as a time with all digits."""
    seconds, rest = divmod(int(nanos), 10**9)
    try:
        time = dt.datetime.fromtimestamp(seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return nanos
    return f"{time:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
