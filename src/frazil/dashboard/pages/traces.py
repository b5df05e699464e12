"""Traces: the search, and the way to one of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import format as words
from frazil.dashboard import theme as look
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.empty_state import show_how_to_send
from frazil.dashboard.fragment import present
from frazil.dashboard.parts.trace_list import trace_list
from frazil.dashboard.traces import view as trace_view
from frazil.dashboard.traces.query import (
    FILTERS,
    OPERATIONS_SECONDS,
    is_filtered,
    operations,
    parameters,
    trace_id,
)
from frazil.dashboard.view import View
from frazil.query.reads import services
from frazil.query.reads.time_range import TimeRange

_STEP_SECONDS = 5.0
_OPERATIONS_STEP_SECONDS = 60.0
_KEPT = "traces_kept"
"""Where the filters are while a trace is open: Streamlit forgets widgets that it does not draw."""
_CHANGED = "traces_changed"
"""A click among the results changed what is outside them: the whole page is to be drawn again."""
_ORDERS = {"newest": "Newest", "slowest": "Slowest"}
_DECADES_MS = [10.0**power for power in range(-3, 8)]
_COLOURS = {"status": "By status", "service": "By service"}


def page(view: View) -> None:
    st.session_state.pop(_CHANGED, None)
    asked = st.query_params.get("trace")
    if asked:
        trace_view.show(view, asked, _back)
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

    present(draw, view)


def _operations(view: View) -> list[dict[str, Any]]:
    """Only to choose from: without them one can still write a name."""
    range = TimeRange.between(*view.span.steady(_OPERATIONS_STEP_SECONDS)).last(OPERATIONS_SECONDS)
    try:
        return view.api.read(services.operations(range), fresh_seconds=_OPERATIONS_STEP_SECONDS)
    except ApiError as trouble:
        if trouble.is_about_the_key or trouble.code == "unreachable":
            raise
        return []


def _filters(records: list[dict[str, Any]]) -> None:
    chosen = operations(records, st.session_state.get("service") or [])
    words, service, name = st.columns([3, 3, 3])
    words.text_input(
        "Search words or trace ID",
        key="q",
        bind="query-params",
        placeholder="timeout, or 5b8efff7…",
        help="Words in a span's name, status message or events, such as the message of an exception. A trace ID "
        "opens that trace.",
        on_change=_open_written,
    )
    service.multiselect(
        "Service", chosen.services, key="service", bind="query-params", accept_new_options=True,
        placeholder="Any",
    )  # fmt: skip
    name.selectbox(
        "Operation", chosen.names, index=None, key="name", bind="query-params", accept_new_options=True,
        placeholder="Any",
    )  # fmt: skip
    attribute, least, most, errors, order = st.columns([3, 1.2, 1.2, 1.3, 2.3], vertical_alignment="bottom")
    attribute.multiselect(
        "Attributes", [], key="attr", bind="query-params", accept_new_options=True,
        placeholder="http.route=/cart",
        help="key=value of a span, its resource or one of its events; all must match.",
    )  # fmt: skip
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
    asked = parameters(filters, order) | view.span.parameters(_STEP_SECONDS)
    answer = view.api.get("traces", asked, fresh_seconds=_STEP_SECONDS)
    found = answer["traces"]
    if not found:
        _show_nothing(view, filters, is_any)
        return
    _scatter(found)
    told, colour = st.columns([4, 1.3], vertical_alignment="center")
    told.caption(_extent(len(found), order, is_all=answer.get("complete", True)))
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
            "duration": [words.duration(trace["duration_ms"]) for trace in found],
            "service": [trace["root_service"] for trace in found],
            "operation": [trace["root_name"] for trace in found],
            "spans": [trace["spans"] for trace in found],
            "errors": [trace["errors"] for trace in found],
            "status": ["error" if trace["errors"] else "unset" for trace in found],
        }
    )
    if by == "service":
        scale, legend = look.colours(sorted(set(table["service"]))), alt.Legend(title=None, orient="right")
    else:
        scale, legend = look.colours(["unset", "error"], look.STATUS_COLOURS), None
    pick = alt.selection_point(name="pick", fields=["trace_id"], on="click", empty=False)
    drawn = (
        alt.Chart(table)
        .mark_circle(size=64, opacity=0.75, cursor="pointer")
        .encode(
            x=look.time_axis("time", *_around(table["time"].min(), table["time"].max())),
            y=alt.Y(
                "ms:Q", title="Duration (ms)", scale=alt.Scale(type="log"), axis=alt.Axis(values=_DECADES_MS)
            ),
            color=alt.Color(f"{by}:N", scale=scale, legend=legend),
            tooltip=["operation", "service", "duration", "spans", "errors"],
        )
        .add_params(pick)
    )
    look.chart(drawn, height=190, key="trace_scatter", on_select=_open_in_scatter, selection_mode="pick")


def _around(first: pd.Timestamp, last: pd.Timestamp) -> tuple[dt.datetime, dt.datetime]:
    """With some room beside the outermost: half a circle would be hidden."""
    room = max((last - first).to_pytimedelta() * 0.02, dt.timedelta(seconds=0.5))
    return first.to_pydatetime(warn=False) - room, last.to_pydatetime(warn=False) + room


def _extent(count: int, order: str, *, is_all: bool) -> str:
    traces = "1 trace" if count == 1 else f"{count} traces"
    return f"{traces}: all matches" if is_all else f"The {order} {traces}; more match"


def _show_nothing(view: View, filters: dict[str, Any], is_any: bool) -> None:
    if is_filtered(filters):
        st.info("No traces match these filters in this time range.", icon=":material/search_off:")
        st.button("Clear filters", key="clear_filters", icon=":material/filter_alt_off:", on_click=_clear)
    elif is_any or len(view.api.sql("SELECT 1 FROM spans LIMIT 1", fresh_seconds=_STEP_SECONDS).table):
        st.info("No traces in this time range. There are traces at other times.", icon=":material/schedule:")
        st.button("Show last 24 hours", key="widen", on_click=_widen)
    else:
        show_how_to_send(view, "traces")


def _open(id: str | None) -> None:
    if id is not None:
        st.query_params["trace"] = id
        st.session_state[_CHANGED] = True


def _open_written() -> None:
    """A trace's id among the words: who writes one wants to see it."""
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
    """To the search as it was."""
    for name in ("trace", "span"):
        if name in st.query_params:
            del st.query_params[name]
    for name, held in st.session_state.get(_KEPT, {}).items():
        if held is not None:
            st.session_state[name] = held
