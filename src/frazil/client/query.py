"""A question's parts, from what people and programs write to what the service takes."""

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
    """What `as_of` means; RequestInvalid when it means nothing."""
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
        raise RequestInvalid(f"{value!r} is not a moment in time: write {_AS_OF_FORMS}") from None


def describe_as_of(as_of: AsOf) -> str:
    """As `parse_as_of` reads it."""
    if as_of.tag is not None:
        return f"tag:{as_of.tag}"
    if as_of.snapshot_id is not None:
        return f"snapshot:{as_of.snapshot_id}"
    return iso(as_of.time or 0, "auto")


def parse_params(values: Sequence[Any]) -> list[Any]:
    """Parameters as JSON can carry them. Times become ISO text, which SQL casts where it compares."""
    return [_param(place, value) for place, value in enumerate(values, start=1)]


def param_from_text(text: str) -> Any:
    """`5` is a number, `true` a boolean, `null` NULL and `"5"` text; what is not JSON is text as it is."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def wire_body(query: Query) -> bytes:
    """The question as `POST /api/v1/sql` takes it. The tenant is the API key's."""
    body: dict[str, Any] = {"sql": query.sql, "id": query.id}
    if query.params:
        body["params"] = list(query.params)
    if query.as_of is not None:
        body["as_of"] = _wire_as_of(query.as_of)
    if query.seconds_max is not None:
        body["seconds_max"] = query.seconds_max
    if query.rows_max is not None:
        body["rows_max"] = query.rows_max
    if query.partial:
        body["partial"] = True
    return json.dumps(body).encode()


def _wire_as_of(as_of: AsOf) -> str | dict[str, Any]:
    if as_of.tag is not None:
        return {"tag": as_of.tag}
    if as_of.snapshot_id is not None:
        return {"snapshot": as_of.snapshot_id}
    return iso(as_of.time or 0, "auto")


def _param(place: int, value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if isinstance(value, list | tuple):
        return [_param(place, item) for item in value]
    raise RequestInvalid(
        f"parameter {place} cannot be sent: {value!r} is no text, finite number, boolean, time, list or None"
    )


def _no_constant(name: str) -> Any:
    raise ValueError(name)
