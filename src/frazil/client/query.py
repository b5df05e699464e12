"""Parses the parts of a query from user input, and encodes queries for the API."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from frazil.errors import RequestInvalid
from frazil.query.model import AsOf, Query
from frazil.times import iso, micros_of

AsOfLike = str | dt.datetime | Mapping[str, Any] | AsOf | None
_AS_OF_FORMS = "a time like 2026-11-15T10:00:00Z (UTC if it has no offset), snapshot:ID or tag:NAME"


def parse_as_of(value: AsOfLike) -> AsOf | None:
    """Parse a time, `snapshot:ID` or `tag:NAME`. Raises RequestInvalid for other values."""
    if value is None or isinstance(value, AsOf):
        return value
    if isinstance(value, dt.datetime):
        return AsOf(time=micros_of(value))
    if isinstance(value, Mapping):
        value = ":".join(str(part) for pair in value.items() for part in pair)
    kind, _, name = value.strip().partition(":")
    if kind == "tag" and name:
        return AsOf(tag=name)
    if kind == "snapshot" and name.removeprefix("-").isdecimal():
        return AsOf(snapshot_id=int(name))
    try:
        return AsOf(time=micros_of(dt.datetime.fromisoformat(value.strip())))
    except (ValueError, OverflowError):
        raise RequestInvalid(f"{value!r} is not a valid as-of value: use {_AS_OF_FORMS}") from None


def describe_as_of(as_of: AsOf) -> str:
    """Format a value in a form that `parse_as_of` accepts."""
    if as_of.tag is not None:
        return f"tag:{as_of.tag}"
    if as_of.snapshot_id is not None:
        return f"snapshot:{as_of.snapshot_id}"
    return iso(as_of.time or 0, "auto")


def parse_params(values: Sequence[Any]) -> list[Any]:
    """Convert parameters to JSON values. Times become ISO text, which SQL casts in comparisons."""
    return [_param(number, value) for number, value in enumerate(values, start=1)]


def param_from_text(text: str) -> Any:
    """Parse JSON (`5`, `true`, `null`, `"5"`). Everything else, including JSON objects, is text."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def request_body(query: Query) -> bytes:
    """Return the body for `POST /api/v1/sql`. It has no tenant: the API key determines it."""
    body: dict[str, Any] = {"sql": query.sql, "id": query.id}
    if query.params:
        body["params"] = list(query.params)
    if query.as_of is not None:
        body["as_of"] = _json_as_of(query.as_of)
    if query.seconds_max is not None:
        body["seconds_max"] = query.seconds_max
    if query.rows_max is not None:
        body["rows_max"] = query.rows_max
    if query.partial:
        body["partial"] = True
    return json.dumps(body).encode()


def _json_as_of(as_of: AsOf) -> str | dict[str, Any]:
    if as_of.tag is not None:
        return {"tag": as_of.tag}
    if as_of.snapshot_id is not None:
        return {"snapshot": as_of.snapshot_id}
    return iso(as_of.time or 0, "auto")


def _param(number: int, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, list | tuple):
        return [_param(number, item) for item in value]
    raise RequestInvalid(
        f"parameter {number} has an unsupported type: {value!r} is not text, a finite number, a boolean, "
        "a time, a list or None"
    )


def _no_constant(name: str) -> Any:
    raise ValueError(name)
