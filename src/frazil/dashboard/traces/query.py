"""The parameters of the trace search, from the filters of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FILTERS = ("service", "name", "min", "max", "errors", "attr", "q")
"""Parameters of the URL, and keys of the widgets."""
TRACES_MAX = 100
OPERATIONS_SECONDS = 3600.0
"""Services and operations to choose from are read from the last hour of the range only, to limit the cost."""
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Operations:
    """Services and operation names to choose from, the busiest first."""

    services: list[str]
    names: list[str]


def operations(records: list[dict[str, Any]], services: list[str]) -> Operations:
    """Returns the operation names of `services`, or of all services if none is chosen."""
    found = {record["service_name"] or "": None for record in records}
    names = {
        record["name"]: None
        for record in records
        if record["name"] and (not services or record["service_name"] in services)
    }
    return Operations([service for service in found if service], list(names))


def parameters(filters: Mapping[str, Any], order: str) -> dict[str, Any]:
    """Returns the parameters of `GET /api/v1/traces`, without the time range."""
    return filter_parameters(filters) | {"order": order, "limit": TRACES_MAX}


def filter_parameters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters that filter spans."""
    parameters = {
        "service": list(filters.get("service") or ()),
        "name": filters.get("name") or "",
        "duration_min": (filters.get("min") or "").strip(),
        "duration_max": (filters.get("max") or "").strip(),
        "status": "error" if filters.get("errors") else "",
        "attr": list(filters.get("attr") or ()),
        "q": (filters.get("q") or "").strip(),
    }
    return {name: value for name, value in parameters.items() if value}


def is_filtered(filters: Mapping[str, Any]) -> bool:
    return any(filters.get(name) for name in FILTERS)


def trace_id(text: str | None) -> str | None:
    """Parses a trace ID, also in capitals, with dashes, or in a traceparent. None if it is invalid."""
    text = (text or "").strip().lower()
    if match := re.fullmatch(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}", text):
        text = match[1]
    text = text.replace("-", "")
    return text if _TRACE_ID.fullmatch(text) and text.strip("0") else None
