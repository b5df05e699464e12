"""Traces: the search, or one trace."""

from __future__ import annotations

from typing import Any

import streamlit as st

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.parts.navigation import keep_scroll_position
from frazil.dashboard.parts.traces import trace_list
from frazil.dashboard.traces import durations
from frazil.dashboard.traces import view as trace_view
from frazil.dashboard.traces.query import (
    FILTERS,
    OPERATIONS_SECONDS,
    filter_parameters,
    is_filtered,
    operations,
    parameters,
    trace_id,
)
from frazil.dashboard.view import LABELS, View, show_fragment, show_how_to_send, url_multiselect
from frazil.query.reads import services

_STEP_SECONDS = 5.0
_OPERATIONS_STEP_SECONDS = 60.0
_KEPT = "traces_kept"
"""Keeps the filters while a trace is open: Streamlit drops the state of widgets that are not drawn."""
_CHANGED = "traces_changed"
"""Set by a click in the results that changes the rest of the page."""
_ORDERS = {"newest": "Newest", "slowest": "Slowest"}
_BUCKETS = 60
_CHART_STEP_SECONDS_MAX = 60.0


def page(view: View) -> None:
    st.session_state.pop(_CHANGED, None)
    trace = st.query_params.get("trace")
    keep_scroll_position("trace", trace or "")
    if trace:
        trace_view.show(view, trace, _back)
    else:
        _search(view)


def _search(view: View) -> None:
    st.title("Traces")
    records = _operations(view)
    _filters(records)
    filters = {name: st.session_state.get(name) for name in FILTERS}
    st.session_state[_KEPT] = filters | {"order": st.session_state.get("order")}

    def draw(view: View) -> None:
        _results(view, filters, bool(records))

    show_fragment(draw, view)


def _operations(view: View) -> list[dict[str, Any]]:
    """Returns operations to choose from. If the query fails, users can still type a name."""
    time_range = view.time_range.rounded(_OPERATIONS_STEP_SECONDS).last(OPERATIONS_SECONDS)
    try:
        return view.api.read(services.operations(time_range), cache_seconds=_OPERATIONS_STEP_SECONDS)
    except ApiError as error:
        if error.is_auth_error or error.code == "unreachable":
            raise
        return []


def _filters(records: list[dict[str, Any]]) -> None:
    chosen = operations(records, st.session_state.get("service") or [])
    search, service, name = st.columns([3, 3, 3])
    search.text_input(
        "Search words or trace ID",
        key="q",
        bind="query-params",
        placeholder="timeout, or 5b8efff7…",
        help="Words in a span's name, status message or events, such as the message of an exception. A trace "
        "ID opens that trace.",
        on_change=_open_typed,
    )
    url_multiselect(service, LABELS["service"], chosen.services, key="service", placeholder="Any")
    name.selectbox(
        LABELS["name"], chosen.names, index=None, key="name", bind="query-params", accept_new_options=True,
        placeholder="Any",
    )  # fmt: skip
    about = "key=value of a span, its resource or one of its events; all must match."
    row = st.container(horizontal=True, vertical_alignment="bottom")
    url_multiselect(
        row, LABELS["attr"], [], key="attr", placeholder="http.route=/cart", help=about, width=240
    )
    with row:
        st.text_input(LABELS["duration_min"], key="min", bind="query-params", placeholder="250ms", width=96)
        st.text_input(LABELS["duration_max"], key="max", bind="query-params", placeholder="1.5s", width=96)
        st.segmented_control(
            "Order", list(_ORDERS), default="newest", format_func=lambda name: _ORDERS[name],
            key="order", bind="query-params", required=True,
        )  # fmt: skip
        st.toggle("Errors only", key="errors", bind="query-params")


def _results(view: View, filters: dict[str, Any], is_any: bool) -> None:
    if st.session_state.pop(_CHANGED, False):
        st.rerun()
    order = st.session_state.get("order") or "newest"
    given = parameters(filters, order) | view.time_range.parameters(_STEP_SECONDS)
    response = view.api.get("traces", given, cache_seconds=_STEP_SECONDS)
    found = response["traces"]
    if not found:
        _show_nothing(view, filters, is_any)
        return
    total = _durations(view, filters)
    st.caption(_summary(len(found), order, total, is_all=response.get("complete", True)))
    trace_list(found, key="trace_list", on_open=_open_listed)


def _durations(view: View, filters: dict[str, Any]) -> int | None:
    """Shows the chart of the whole time range. Returns the number of traces, None if a limit was reached."""
    step = min(
        max(_STEP_SECONDS, view.time_range.rounded(1).bucket_seconds(_BUCKETS)), _CHART_STEP_SECONDS_MAX
    )
    given = filter_parameters(filters) | view.time_range.parameters(step) | {"buckets": _BUCKETS}
    try:
        response = view.api.get("traces/durations", given, cache_seconds=step)
    except ApiError as error:
        if error.code != "limit_reached":
            raise
        st.caption("The chart of durations reached a query limit. Choose a shorter time range, or filter.")
        return None
    if response["cells"]:
        durations.show(response, on_pick=_narrow)
    return int(response["total"])


def _summary(count: int, order: str, total: int | None, *, is_all: bool) -> str:
    traces = "1 trace" if count == 1 else f"{count} traces"
    if is_all:
        return f"{traces}: all matches"
    return (
        f"The {order} {traces}; more match" if total is None else f"The {order} {count} of {total:,} traces"
    )


def _show_nothing(view: View, filters: dict[str, Any], is_any: bool) -> None:
    if is_filtered(filters):
        st.info("No traces match these filters in this time range.", icon=":material/search_off:")
        st.button("Clear filters", key="clear_filters", icon=":material/filter_alt_off:", on_click=_clear)
    elif is_any or len(view.api.sql("SELECT 1 FROM spans LIMIT 1", cache_seconds=_STEP_SECONDS).table):
        st.info("No traces in this time range. There are traces at other times.", icon=":material/schedule:")
        st.button("Show last 24 hours", key="widen", on_click=_widen)
    else:
        show_how_to_send(view, "traces")


def _open(id: str | None) -> None:
    if id is not None:
        st.query_params["trace"] = id
        st.session_state[_CHANGED] = True


def _open_typed() -> None:
    """Opens the trace if a trace ID was typed into the search."""
    id = trace_id(st.session_state.get("q"))
    if id is not None:
        st.session_state.q = ""
        _open(id)


def _open_listed() -> None:
    _open(trace_id(st.session_state["trace_list"].opened))


def _narrow() -> None:
    """Lists the traces of the clicked cell of the chart, and slower ones of the same time."""
    if (cell := durations.picked()) is not None:
        st.session_state["range"], st.session_state["min"] = cell
        st.session_state[_CHANGED] = True


def _clear() -> None:
    for name in FILTERS:
        st.session_state[name] = {"service": [], "attr": [], "errors": False, "name": None}.get(name, "")
    st.session_state[_CHANGED] = True


def _widen() -> None:
    st.session_state["range"] = "24h"
    st.session_state[_CHANGED] = True


def _back() -> None:
    """Returns to the search with its filters."""
    for name in ("trace", "span"):
        if name in st.query_params:
            del st.query_params[name]
    for name, held in st.session_state.get(_KEPT, {}).items():
        if held is not None:
            st.session_state[name] = held
