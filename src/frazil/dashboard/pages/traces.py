"""Traces: the search, or one trace."""

from __future__ import annotations

import datetime as dt
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.format import format_duration
from frazil.dashboard.parts.traces import trace_list
from frazil.dashboard.traces import view as trace_view
from frazil.dashboard.traces.query import (
    FILTERS,
    OPERATIONS_SECONDS,
    is_filtered,
    operations,
    parameters,
    trace_id,
)
from frazil.dashboard.view import View, show_fragment, show_how_to_send, url_multiselect
from frazil.query.reads import services

_STEP_SECONDS = 5.0
_OPERATIONS_STEP_SECONDS = 60.0
_KEPT = "traces_kept"
"""Keeps the filters while a trace is open: Streamlit drops the state of widgets that are not drawn."""
_CHANGED = "traces_changed"
"""Set by a click in the results that changes the rest of the page."""
_ORDERS = {"newest": "Newest", "slowest": "Slowest"}
_DECADES_MS = [10.0**power for power in range(-3, 8)]
_COLOURS = {"status": "By status", "service": "By service"}


def page(view: View) -> None:
    st.session_state.pop(_CHANGED, None)
    trace = st.query_params.get("trace")
    if trace:
        trace_view.show(view, trace, _back)
    else:
        _search(view)


def _search(view: View) -> None:
    st.title("Traces")
    records = _operations(view)
    _filters(records)
    filters = {name: st.session_state.get(name) for name in FILTERS}
    st.session_state[_KEPT] = filters | {name: st.session_state.get(name) for name in ("order", "colour")}

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
    url_multiselect(service, "Service", chosen.services, key="service", placeholder="Any")
    name.selectbox(
        "Operation", chosen.names, index=None, key="name", bind="query-params", accept_new_options=True,
        placeholder="Any",
    )  # fmt: skip
    attribute, least, most, errors, order = st.columns([3, 1.2, 1.2, 1.3, 2.3], vertical_alignment="bottom")
    about = "key=value of a span, its resource or one of its events; all must match."
    url_multiselect(attribute, "Attributes", [], key="attr", placeholder="http.route=/cart", help=about)
    least.text_input("Min duration", key="min", bind="query-params", placeholder="250ms")
    most.text_input("Max duration", key="max", bind="query-params", placeholder="1.5s")
    errors.toggle("Errors only", key="errors", bind="query-params")
    order.segmented_control(
        "Order", list(_ORDERS), default="newest", format_func=lambda name: _ORDERS[name],
        key="order", bind="query-params", required=True,
    )  # fmt: skip


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
    _scatter(found)
    summary, colour = st.columns([4, 1.3], vertical_alignment="center")
    summary.caption(_summary(len(found), order, is_all=response.get("complete", True)))
    colour.segmented_control(
        "Colour", list(_COLOURS), default="status", format_func=lambda name: _COLOURS[name],
        key="colour", bind="query-params", label_visibility="collapsed", required=True, width="stretch",
    )  # fmt: skip
    trace_list(found, key="trace_list", on_open=_open_listed)


def _scatter(found: list[dict[str, Any]]) -> None:
    by = st.session_state.get("colour") or "status"
    table = pd.DataFrame(
        {
            "trace_id": [trace["trace_id"] for trace in found],
            "time": pd.to_datetime([trace["start_time"] for trace in found], utc=True),
            "ms": [max(trace["duration_ms"], 0.001) for trace in found],
            "duration": [format_duration(trace["duration_ms"]) for trace in found],
            "service": [trace["root_service"] for trace in found],
            "operation": [trace["root_name"] for trace in found],
            "spans": [trace["spans"] for trace in found],
            "errors": [trace["errors"] for trace in found],
            "status": ["error" if trace["errors"] else "unset" for trace in found],
        }
    )
    if by == "service":
        scale, legend = (
            theme.colour_scale(sorted(set(table["service"]))),
            alt.Legend(title=None, orient="right"),
        )
    else:
        scale, legend = theme.colour_scale(["unset", "error"], theme.STATUS_COLOURS), None
    pick = alt.selection_point(name="pick", fields=["trace_id"], on="click", empty=False)
    chart = (
        alt.Chart(table)
        .mark_circle(size=64, opacity=0.75, cursor="pointer")
        .encode(
            x=theme.time_axis("time", *_padded(table["time"].min(), table["time"].max())),
            y=alt.Y(
                "ms:Q", title="Duration (ms)", scale=alt.Scale(type="log"), axis=alt.Axis(values=_DECADES_MS)
            ),
            color=alt.Color(f"{by}:N", scale=scale, legend=legend),
            tooltip=["operation", "service", "duration", "spans", "errors"],
        )
        .add_params(pick)
    )
    theme.show_chart(
        chart, height=190, key="trace_scatter", on_select=_open_in_scatter, selection_mode="pick"
    )


def _padded(first: pd.Timestamp, last: pd.Timestamp) -> tuple[dt.datetime, dt.datetime]:
    """Adds space at both ends, so that the outermost circles are completely visible."""
    padding = max((last - first).to_pytimedelta() * 0.02, dt.timedelta(seconds=0.5))
    return first.to_pydatetime(warn=False) - padding, last.to_pydatetime(warn=False) + padding


def _summary(count: int, order: str, *, is_all: bool) -> str:
    traces = "1 trace" if count == 1 else f"{count} traces"
    return f"{traces}: all matches" if is_all else f"The {order} {traces}; more match"


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


def _open_in_scatter() -> None:
    picked = st.session_state["trace_scatter"].selection.get("pick") or []
    _open(trace_id(picked[0].get("trace_id")) if picked else None)


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
