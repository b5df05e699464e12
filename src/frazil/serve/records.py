"""Renders rows as JSON objects, with values in the types that their sender gave them."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.otlp.encode import value

_HIDDEN = {"tenant_id", "_segment"}
_EXACT_MAX = 2**53
"""JavaScript and others round larger integers."""


def as_json(table: pa.Table) -> list[dict[str, Any]]:
    """Return one object per row. NULL values are left out."""
    return [_object(row) for row in table.to_pylist(maps_as_pydicts="strict")]


def _object(row: Mapping[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, given in row.items():
        if given is None or name in _HIDDEN or _is_types(name, row):
            continue
        if name.endswith("attributes"):
            shown[name] = _typed(given, row.get(f"{name[:-1]}_types"))
        elif name == "body":
            shown[name] = plain(value(given, row.get("body_type")))
        elif name.endswith("_unix_nano"):
            shown[name] = str(given)
        elif name == "resource_entity_refs":
            shown[name] = orjson.loads(given)
        else:
            shown[name] = _shown(given)
    return shown


def _is_types(name: str, row: Mapping[str, Any]) -> bool:
    return name.endswith("attribute_types") and name.removesuffix("_types") + "s" in row


def _typed(pairs: Mapping[str, str | None], types: str | None) -> dict[str, Any]:
    kinds = json.loads(types) if types else {}
    return {key: plain(value(text, kinds.get(key))) for key, text in pairs.items()}


def _shown(given: Any) -> Any:
    if isinstance(given, dict):
        return _object(given)
    if isinstance(given, list):
        return [_shown(item) for item in given]
    if isinstance(given, datetime):
        return f"{given:%Y-%m-%dT%H:%M:%S.%f}Z"
    if isinstance(given, bool):
        return given
    if isinstance(given, int):
        return _integer(given)
    if isinstance(given, float):
        return _double(given)
    return b64encode(given).decode() if isinstance(given, bytes) else given


def plain(given: AnyValue) -> Any:
    """Return an attribute's value for JSON: bytes in base64, integers beyond 2^53 and NaN as text."""
    match given.WhichOneof("value"):
        case "string_value":
            return given.string_value
        case "bool_value":
            return given.bool_value
        case "int_value":
            return _integer(given.int_value)
        case "double_value":
            return _double(given.double_value)
        case "bytes_value":
            return b64encode(given.bytes_value).decode()
        case "array_value":
            return [plain(item) for item in given.array_value.values]
        case "kvlist_value":
            return {item.key: plain(item.value) for item in given.kvlist_value.values}
        case _:
            return None


def _integer(number: int) -> int | str:
    return number if abs(number) <= _EXACT_MAX else str(number)


def _double(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
