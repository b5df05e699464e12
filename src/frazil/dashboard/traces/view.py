"""One trace: its waterfall, and below it the selected span, the critical path and the logs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.format import escape_markdown, format_clock, format_duration
from frazil.dashboard.parts.traces import waterfall, waterfall_data
from frazil.dashboard.time_range import format_range
from frazil.dashboard.traces import span_detail
from frazil.dashboard.traces.critical_path import CriticalInterval, critical_path, shares
from frazil.dashboard.traces.query import trace_id
from frazil.dashboard.traces.read import Trace, read_trace, to_datetime
from frazil.dashboard.traces.tree import Tree, build_tree, trace_notes
from frazil.dashboard.view import View

_CACHE_SECONDS = 20.0  # more spans of the trace may arrive
_OPENED = "trace_opened"
_STYLE = """<style>
.facts{display:flex;flex-wrap:wrap;gap:.4rem 2rem;font-size:1.15rem;font-variant-numeric:tabular-nums}
.facts small{display:block;font-size:.8rem;opacity:.7}
@media (max-width:640px){.facts{gap:.3rem 1.2rem;font-size:.95rem}}
</style>"""
_TABS = {"span": "Span", "critical": "Critical path", "logs": "Logs"}


@dataclass(frozen=True)
class OpenTrace:
    """A trace with its tree, critical path and waterfall. Kept while the response is the same, because
    computing them for 20,000 spans takes time.
    """

    response: dict[str, Any]
    trace: Trace
    tree: Tree
    path: list[CriticalInterval]
    waterfall: dict[str, Any]


def show(view: View, text: str, back: Callable[[], None]) -> None:
    id = trace_id(text)
    if id is None:
        _back_button(back)
        st.warning("Invalid trace ID: a trace ID has 32 hexadecimal digits.", icon=":material/error:")
        return
    try:
        response = view.api.get(f"traces/{id}", {"logs": "true"}, cache_seconds=_CACHE_SECONDS)
    except ApiError as error:
        if error.code != "not_found":
            raise
        _back_button(back)
        _show_unknown(id)
        return
    opened = _open(id, response)
    _header(opened, back)
    st.fragment(_body)(opened)


def _open(id: str, response: dict[str, Any]) -> OpenTrace:
    held = st.session_state.get(_OPENED)
    if isinstance(held, OpenTrace) and held.response is response:
        return held
    trace = read_trace(id, response)
    tree = build_tree(trace.spans)
    path = [] if tree.main is None else critical_path(tree, tree.main)
    opened = OpenTrace(response, trace, tree, path, waterfall_data(trace, tree, path))
    st.session_state[_OPENED] = opened
    return opened


def _show_unknown(id: str) -> None:
    st.title("Trace not found")
    st.code(id, language=None)
    st.write("The trace may have been sampled out, may have expired, or may not have arrived yet.")
    st.button("Try again", key="trace_again", icon=":material/refresh:")


def _back_button(back: Callable[[], None]) -> None:
    st.button("All traces", key="trace_back", icon=":material/arrow_back:", type="tertiary", on_click=back)


def _header(opened: OpenTrace, back: Callable[[], None]) -> None:
    trace, tree = opened.trace, opened.tree
    main = None if tree.main is None else trace.spans[tree.main]
    with st.container(horizontal=True, vertical_alignment="center"):
        _back_button(back)
        st.title("Logs without spans" if main is None else escape_markdown(main.name), width="stretch")
    if notes := trace_notes(trace, tree):
        st.caption(f":material/info: {' '.join(notes)}")


def _body(opened: OpenTrace) -> None:
    """Draws the trace as a fragment, which is redrawn alone when a span is selected."""
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        _facts(opened.trace)
        is_critical = bool(opened.trace.spans) and st.toggle(
            "Critical path", value=True, key="critical", bind="query-params"
        )
        _share(opened.trace)
    if opened.trace.spans:
        data = opened.waterfall | {"critical": is_critical}
        waterfall(data, key=f"waterfall_{opened.trace.id}", on_pick=lambda: _pick(opened))
        st.caption(_legend(opened.tree))
    tab = st.segmented_control(
        "Below", list(_TABS), default="span" if opened.trace.spans else "logs",
        format_func=_TABS.__getitem__,
        key="tab", bind="query-params", label_visibility="collapsed", required=True,
    )  # fmt: skip
    if tab == "logs":
        _logs(opened)
    elif tab == "critical":
        _critical(opened)
    else:
        _span(opened)


def _facts(trace: Trace) -> None:
    start = to_datetime(trace.start_nano)
    facts = {
        "Started (UTC)": f"{start:%Y-%m-%d} {format_clock(start)}",
        "Duration": format_duration((trace.end_nano - trace.start_nano) / 1e6),
        "Services": f"{len(trace.services())}",
        "Spans": f"{len(trace.spans):,}",
        "Errors": f"{trace.errors:,}",
        "Logs": f"{len(trace.logs):,}",
    }
    shown = "".join(f"<div><small>{label}</small>{value}</div>" for label, value in facts.items())
    st.html(f'{_STYLE}<div class="facts" data-testid="trace-facts">{shown}</div>')


def _share(trace: Trace) -> None:
    with st.popover("Share", icon=":material/link:"):
        st.caption("Link to this trace. If API keys are configured, other users need their own key.")
        st.code(_link(trace.id, st.query_params.get("span")), language=None, wrap_lines=True)
        st.caption("Trace ID")
        st.code(trace.id, language=None)


def _legend(tree: Tree) -> str:
    parts = ["Click a span for details. Ticks are events, dots are logs."]
    if tree.async_spans:
        parts.append("Hatched and marked async: work after the parent span ended.")
    return " ".join(parts)


def _pick(opened: OpenTrace) -> None:
    picked = st.session_state[f"waterfall_{opened.trace.id}"].picked
    if isinstance(picked, str) and any(span.handle == picked for span in opened.trace.spans):
        st.query_params["span"] = picked
        st.session_state.tab = "span"


def _span(opened: OpenTrace) -> None:
    handle = st.query_params.get("span")
    indexes = {span.handle: index for index, span in enumerate(opened.trace.spans)}
    if not indexes:
        st.caption("This trace has no spans.")
        return
    index = indexes.get(handle or "", opened.tree.main or 0)
    critical = sum(
        interval.end_nano - interval.start_nano for interval in opened.path if interval.index == index
    )
    span_detail.show(opened.trace, opened.tree, index, critical)


def _critical(opened: OpenTrace) -> None:
    listed = shares(opened.tree, opened.path)
    if not listed:
        st.caption("The root span has no duration, so there is no critical path.")
        return
    st.caption(
        "The time of each operation that delayed the end of the root span. Parallel work is not counted. A "
        "span that ends after its parent counts only until its parent ends."
    )
    st.container(key="critical_table").dataframe(
        {
            "Service": [share.service for share in listed],
            "Operation": [share.name for share in listed],
            "Share": [share.part * 100 for share in listed],
            "Time": [format_duration(share.nano / 1e6) for share in listed],
            "Spans": [share.spans for share in listed],
        },
        hide_index=True,
        height=theme.table_height(len(listed), 12),
        column_config={
            "Share": st.column_config.ProgressColumn(min_value=0, max_value=100, format="%.1f%%"),
            "Operation": st.column_config.TextColumn(width="large"),
        },
    )


def _logs(opened: OpenTrace) -> None:
    trace = opened.trace
    names = {span.id: span.name for span in reversed(trace.spans)}
    if not trace.logs:
        st.caption("No logs for this trace. Logs are matched by trace ID.")
        return
    left, right = st.columns([5, 1.4], vertical_alignment="center")
    left.caption("All logs of the trace, oldest first.")
    right.link_button("Open in Logs", _logs_address(trace), icon=":material/subject:", width="stretch")
    span_detail.log_table(trace.logs, trace.start_nano, names, key="trace_logs")


def _logs_address(trace: Trace) -> str:
    times = [trace.start_nano, trace.end_nano, *(log.time_nano for log in trace.logs if log.time_nano)]
    around = dt.timedelta(minutes=1)
    time_range = format_range(to_datetime(min(times)) - around, to_datetime(max(times)) + around)
    return f"logs?{urlencode({'trace': trace.id, 'range': time_range})}"


def _link(id: str, span: str | None) -> str:
    """Returns a link to the trace and its selected span, without the search that led to it."""
    parameters = {"trace": id} | ({} if span is None else {"span": span})
    return f"{(st.context.url or '').split('?')[0]}?{urlencode(parameters)}"
