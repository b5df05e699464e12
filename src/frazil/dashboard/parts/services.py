"""Components of the Services page: the map, which draws the graph of calls as SVG, and the list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard.format import format_duration, format_rate
from frazil.dashboard.parts.component import component
from frazil.dashboard.services.graph import Call, CallGraph, Load, Node
from frazil.dashboard.services.layout import NODE_HEIGHT, NODE_WIDTH, Layout, layout
from frazil.dashboard.theme import QUIET, service_colours
from frazil.query.reads.edges import SERVICE

_TEXT_MAX = 200
_LABELLED_MAX = 30
"""Up to this number, all calls have their figures beside them; of more, only those of the node that is
pointed at.
"""
_LABELLED_GAP_PIXELS, _GAP_PIXELS = 150, 64
"""Between two layers of the map."""
_LINE_PIXELS_MIN, _LINE_PIXELS_MAX = 1.2, 6.0
KINDS = {"service": "service", "database": "database", "messaging": "queue", "external": "external host"}

_map = component("service_map", '<div class="frame" data-testid="service-map"></div>')
_list = component("service_list", '<div class="frame" data-testid="service-list"></div>')


def service_map(
    graph: CallGraph, *, chosen: Node | None, key: str, on_pick: Callable[[dict[str, Any]], None]
) -> None:
    """Draws the graph. `on_pick` receives what the user clicks: `{"node": {"kind", "name"}}`, or
    `{"caller": …, "callee": …}` of a call.
    """

    def pick() -> None:
        picked = st.session_state[key].get("picked")
        if isinstance(picked, dict):
            on_pick(picked)

    gap = _LABELLED_GAP_PIXELS if _is_labelled(graph) else _GAP_PIXELS
    placed = layout(list(graph.nodes), [(call.caller, call.callee) for call in graph.calls], gap)
    data = map_data(graph, placed, chosen=chosen, range_=st.session_state.get("range"))
    _map(key=key, data=data, on_picked_change=pick)


def map_data(graph: CallGraph, placed: Layout, *, chosen: Node | None, range_: str | None) -> dict[str, Any]:
    """Returns the nodes and calls for the browser. Names are text there, never markup."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    colours = service_colours(node.name for node in graph.nodes if node.is_service)
    most = max((call.calls for call in graph.calls), default=1)
    return {
        "width": placed.width,
        "height": placed.height,
        "node": [NODE_WIDTH, NODE_HEIGHT],
        "labelled": _is_labelled(graph),
        "nodes": [
            {
                **_named(node),
                "at": placed.centres[node],
                "colour": colours.get(node.name, QUIET) if node.is_service else QUIET,
                "level": "ok" if load is None else load.level,
                "figures": "" if load is None else _figures(load),
                "failed": "" if load is None else _failed(load),
                "title": _node_title(node, load),
                "chosen": node == chosen,
                "address": _address(node, range_),
            }
            for node, load in graph.nodes.items()
        ],
        "calls": [
            {
                "ends": [numbers[call.caller], numbers[call.callee]],
                "line": placed.lines.get((call.caller, call.callee)),
                "pixels": _pixels(call.calls, most),
                "level": call.load.level,
                "message": call.connection == "messaging",
                "figures": _figures(call.load),
                "failed": _failed(call.load),
                "title": _title(call),
            }
            for call in graph.calls
        ],
    }


@dataclass(frozen=True)
class ListedService:
    name: str
    load: Load
    traffic: Sequence[float]
    """Requests per second over time."""
    version: str
    version_title: str
    last_seen: str
    can_open: bool = True


def service_list(services: Sequence[ListedService], *, key: str, on_open: Callable[[str], None]) -> None:
    """Shows one row for each service. `on_open` receives the name of the one that the user clicks."""

    def open_() -> None:
        name = st.session_state[key].get("opened")
        if isinstance(name, str):
            on_open(name)

    _list(key=key, data=list_data(services, st.session_state.get("range")), on_opened_change=open_)


def list_data(services: Sequence[ListedService], range_: str | None) -> list[dict[str, Any]]:
    colours = service_colours(service.name for service in services)
    return [
        {
            "name": service.name,
            "colour": colours[service.name],
            "traffic": [round(each, 4) for each in service.traffic],
            "level": service.load.level,
            # What is shown, and what rows are sorted by.
            "rate": [format_rate(service.load.per_second), service.load.per_second],
            "failed": [format_share(service.load.error_share), service.load.error_share],
            "p50": [format_duration(service.load.p50_ms), service.load.p50_ms],
            "p99": [format_duration(service.load.p99_ms), service.load.p99_ms],
            "version": service.version[:_TEXT_MAX],
            "version_title": service.version_title,
            "seen": service.last_seen,
            "address": _address(Node(SERVICE, service.name), range_) if service.can_open else None,
        }
        for service in services
    ]


def _named(node: Node) -> dict[str, str]:
    return {"kind": node.kind, "name": node.name}


def _is_labelled(graph: CallGraph) -> bool:
    return len(graph.calls) <= _LABELLED_MAX


def _address(node: Node, range_: str | None) -> str | None:
    """Returns the address of a service's page, None for other nodes."""
    if not node.is_service:
        return None
    return f"services?{urlencode({'service': node.name} | ({'range': range_} if range_ else {}))}"


def _figures(load: Load) -> str:
    rate = format_rate(load.per_second)
    return rate if load.p99_ms is None else f"{rate} · {format_duration(load.p99_ms)}"


def _failed(load: Load) -> str:
    return "" if load.error_share == 0 else format_share(load.error_share)


def format_share(share: float) -> str:
    """Formats a share of failed calls. One above 0 is never shown as 0."""
    if share == 0:
        return "0%"
    return "<0.1%" if share < 0.001 else f"{share:.1%}"


def _sentence(load: Load) -> str:
    latency = (
        ""
        if load.p99_ms is None
        else f", p50 {format_duration(load.p50_ms)}, p99 {format_duration(load.p99_ms)}"
    )
    return f"{format_rate(load.per_second)}, {format_share(load.error_share)} failed{latency}"


def _node_title(node: Node, load: Load | None) -> str:
    about = "only calls others" if load is None else _sentence(load)
    return f"{node.name[:_TEXT_MAX]} ({KINDS.get(node.kind, node.kind)}): {about}"


def _title(call: Call) -> str:
    protocols = f" ({', '.join(call.protocols)})" if call.protocols else ""
    ends = f"{call.caller.name[:_TEXT_MAX]} → {call.callee.name[:_TEXT_MAX]}"
    return f"{ends}{protocols}: {_sentence(call.load)}"


def _pixels(calls: int, most: int) -> float:
    """Returns the width of a line: logarithmic, because numbers of calls differ by orders of magnitude."""
    share = math.log1p(calls) / math.log1p(max(most, 1))
    return round(_LINE_PIXELS_MIN + share**2 * (_LINE_PIXELS_MAX - _LINE_PIXELS_MIN), 1)


def picked_node(given: Mapping[str, Any]) -> Node | None:
    """Reads a node of what the browser sent."""
    kind, name = given.get("kind"), given.get("name")
    return Node(kind, name) if isinstance(kind, str) and isinstance(name, str) else None
