"""Traces that were found, one a row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frazil.dashboard.format import clock, duration
from frazil.dashboard.parts.part import part
from frazil.dashboard.theme import service_colours

_TEXT_MAX = 200
_SERVICES_SHOWN_MAX = 4

_mount = part(__file__, '<div class="list" data-testid="trace-list"></div>')


def trace_list(found: Sequence[dict[str, Any]], *, key: str, on_open: Callable[[], None]) -> None:
    """`on_open` finds the id of the trace in `st.session_state[key].opened`."""
    _mount(key=key, data=listing(found), on_opened_change=on_open)


def listing(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    longest = max((trace["duration_ms"] for trace in found), default=0) or 1
    names = {item["name"] for trace in found for item in trace["services"]}
    colours = service_colours(names | {trace["root_service"] for trace in found})
    return [_row(trace, longest, colours) for trace in found]


def _row(trace: dict[str, Any], longest_ms: float, colours: Mapping[str, str]) -> dict[str, Any]:
    start = dt.datetime.fromisoformat(trace["start_time"])
    services = trace["services"]
    shown, others = services[:_SERVICES_SHOWN_MAX], services[_SERVICES_SHOWN_MAX:]
    return {
        "id": trace["trace_id"],
        "day": start.strftime("%d %b"),
        "clock": clock(start),
        "service": trace["root_service"][:_TEXT_MAX] or "(no service)",
        "name": trace["root_name"][:_TEXT_MAX] or "(no name)",
        "colour": colours[trace["root_service"]],
        "rootless": trace["root_missing"],
        "duration": duration(trace["duration_ms"]),
        "part": trace["duration_ms"] / longest_ms,
        "spans": trace["spans"],
        "errors": trace["errors"],
        "services": [[_named(item), colours[item["name"]], item["errors"] > 0] for item in shown],
        "more": ", ".join(_named(item) for item in others),
        "more_count": len(others),
    }


def _named(service: Mapping[str, Any]) -> str:
    return str(service["name"])[:_TEXT_MAX] or "(no service)"
