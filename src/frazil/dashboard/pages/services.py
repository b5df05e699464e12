"""Services: a map of the calls between services and a list of them, or one service."""

from __future__ import annotations

from typing import Any

import streamlit as st

from frazil.dashboard.format import escape_markdown, format_ago
from frazil.dashboard.parts.navigation import keep_scroll_position
from frazil.dashboard.parts.services import ListedService, picked_node, service_list, service_map
from frazil.dashboard.services import one
from frazil.dashboard.services.connections import show_connections, show_left_out, show_notes
from frazil.dashboard.services.graph import CallGraph, Load, Node, around, drawn, matching
from frazil.dashboard.services.read import TABLES_CACHE_SECONDS, AllServices, has_spans, read_all_services
from frazil.dashboard.view import LABELS, View, show_fragment, show_how_to_send
from frazil.query.reads.services import UNNAMED
from frazil.query.reads.versions import Version

_SERVICE, _CALLER, _CALLEE, _KIND = "service", "caller", "callee", "kind"
"""Parameters of the URL: the service that is opened, or the chosen connection with the kind of
its callee.
"""
_CHANGED = "services_changed"
"""Set by a click within a fragment that changes the rest of the page."""
_LISTED_MAX = 300
_KEPT = "services_kept"
"""Keeps the filter while a service is open: Streamlit drops the state of widgets that are not drawn."""


def page(view: View) -> None:
    st.session_state.pop(_CHANGED, None)
    service = st.query_params.get(_SERVICE)
    keep_scroll_position(_SERVICE, service or "")
    if service:
        one.show(view, service, back=_back, pick=_pick, is_changed=_is_changed)
    else:
        _all(view)


def _is_changed() -> bool:
    return bool(st.session_state.pop(_CHANGED, False))


def _all(view: View) -> None:
    title, search = st.columns([3, 2], vertical_alignment="center")
    title.title("Services")
    text = search.text_input(
        LABELS["q"],
        key="find",
        bind="query-params",
        placeholder="Part of a name",
        icon=":material/search:",
        label_visibility="collapsed",
    )
    st.session_state[_KEPT] = text

    def draw(view: View) -> None:
        _draw(view, (text or "").strip())

    show_fragment(draw, view)


def _draw(view: View, text: str) -> None:
    if _is_changed():
        st.rerun()
    listed = view.api.get("tables", cache_seconds=TABLES_CACHE_SECONDS)["tables"]
    if not has_spans(listed):
        show_how_to_send(view, "traces")
        return
    found = read_all_services(view, listed)
    show_notes(found.calls)
    if not found.figures.by_service and not found.calls.graph.calls:
        st.info("No spans in this time range. Choose a longer range.", icon=":material/search_off:")
        return
    graph = matching(found.calls.graph, text)
    chosen = _chosen(graph)
    if chosen is not None:
        graph = chosen
    _show_map(found, graph, text)
    if chosen is not None:
        _show_choice(chosen)
    _show_list(found, None if chosen is None and not text else graph, text)


def _chosen(graph: CallGraph) -> CallGraph | None:
    """Returns the calls of the chosen connection, None if none is chosen."""
    callee, caller = st.query_params.get(_CALLEE), st.query_params.get(_CALLER)
    if not callee:
        return None
    node = Node(st.query_params.get(_KIND) or "service", callee)
    return around(graph, node, caller=caller or None)


def _show_map(found: AllServices, graph: CallGraph, text: str) -> None:
    if not found.calls.graph.calls:
        if not found.calls.table.note:
            st.info("No calls between services in this time range.", icon=":material/hub:")
        return
    if not graph.nodes:
        st.info("No connection matches.", icon=":material/search_off:")
        return
    shown = drawn(graph)
    service_map(shown, chosen=None, key="services_map", on_pick=_pick)
    show_left_out(shown, found.calls)


def _show_choice(graph: CallGraph) -> None:
    """Shows the figures of the chosen connection, and how to leave it."""
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        caller, callee = st.query_params.get(_CALLER), st.query_params.get(_CALLEE) or ""
        ends = f"{escape_markdown(caller)} → {escape_markdown(callee)}" if caller else escape_markdown(callee)
        st.markdown(f"##### Calls: {ends}", width="content")
        st.button("Show all services", key="services_clear", icon=":material/close:", on_click=_clear)
    show_connections(graph.calls, key="services_connections")


def _show_list(found: AllServices, graph: CallGraph | None, text: str) -> None:
    """Shows the services with the most requests first; with a graph, those in it and those that match."""
    among = None if graph is None else {node.name for node in graph.nodes if node.is_service}
    if among is not None and not st.query_params.get(_CALLEE):
        among |= {name for name in found.figures.by_service if text.lower() in name.lower()}
    names = [name for name in found.figures.by_service if among is None or name in among]
    names.sort(key=lambda name: (-found.figures.by_service[name].requests, name))
    if not names:
        st.caption("No service matches." if among is not None else "No requests in this time range.")
        return
    rows = [_listed(found, name) for name in names[:_LISTED_MAX]]
    service_list(rows, key="services_list", on_open=_open)
    if len(names) > _LISTED_MAX:
        st.caption(
            f"The {_LISTED_MAX} services with the most requests, of {len(names):,}. Search for others."
        )


def _listed(found: AllServices, name: str) -> ListedService:
    figures, version = found.figures.by_service[name], found.newest.get(name)
    seconds = found.range.seconds
    load = Load(figures.requests / seconds, figures.error_share, figures.p50_ms, figures.p99_ms)
    over_time = found.figures.over_time(name, found.range, found.buckets)
    return ListedService(
        name,
        load,
        [bucket.requests_per_second for bucket in over_time],
        "" if version is None else version.version,
        "" if version is None else one.since(version),
        "" if version is None else _ago(found, version),
        can_open=name != UNNAMED,
    )


def _ago(found: AllServices, version: Version) -> str:
    end = found.range.end_time
    return format_ago((end - version.last_time).total_seconds())


def _pick(picked: dict[str, Any]) -> None:
    """Opens a service that was clicked on the map, or chooses a connection."""
    if isinstance(given := picked.get("node"), dict) and (node := picked_node(given)) is not None:
        if node.is_service:
            _open(node.name)
        else:
            _choose(None, node)
        return
    ends = [picked_node(given) for end in ("caller", "callee") if isinstance(given := picked.get(end), dict)]
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        _choose(ends[0], ends[1])


def _choose(caller: Node | None, callee: Node) -> None:
    _clear()
    st.query_params.pop(_SERVICE, None)
    if caller is not None:
        st.query_params[_CALLER] = caller.name
    st.query_params[_CALLEE] = callee.name
    if not callee.is_service:
        st.query_params[_KIND] = callee.kind


def _clear() -> None:
    for name in (_CALLER, _CALLEE, _KIND):
        st.query_params.pop(name, None)
    st.session_state[_CHANGED] = True


def _open(service: str) -> None:
    if service != UNNAMED:
        _clear()
        st.query_params[_SERVICE] = service


def _back() -> None:
    """Returns to all services with the filter."""
    st.query_params.pop(_SERVICE, None)
    if kept := st.session_state.get(_KEPT):
        st.session_state["find"] = kept
