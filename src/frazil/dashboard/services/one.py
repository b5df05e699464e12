"""One service: its operations, dependencies, recent errors and versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.format import escape_markdown, format_duration, format_rate, rate_unit
from frazil.dashboard.parts.services import service_map
from frazil.dashboard.parts.traces import trace_list
from frazil.dashboard.services.charts import show_charts
from frazil.dashboard.services.connections import show_connections, show_left_out, show_notes
from frazil.dashboard.services.graph import Node, around, drawn
from frazil.dashboard.services.read import (
    TABLES_CACHE_SECONDS,
    Service,
    has_spans,
    read_service,
    read_versions,
    versions_table,
)
from frazil.dashboard.time_range import DEFAULT
from frazil.dashboard.traces.query import trace_id
from frazil.dashboard.view import View, address, show_fragment, show_how_to_send
from frazil.query.reads.edges import SERVICE
from frazil.query.reads.filters import SPAN_KINDS
from frazil.query.reads.services import OPERATIONS_MAX, UNNAMED, Operation
from frazil.query.reads.versions import HISTORY_DAYS, Version

_OPERATIONS_IN_VIEW, _VERSIONS_IN_VIEW = 12, 12
_LINK_PIXELS, _SHARE_PIXELS = 60, 96
_ERRORS_MAX = 15
_ERRORS_SECONDS_MAX = 86_400
"""Recent errors are those of the end of the time range: spans of weeks are not searched for them."""
_ERRORS_STEP_SECONDS = 15.0
_TRACE = "services_trace"
_TABS = {"errors": "Recent errors", "versions": "Versions"}


def show(
    view: View,
    service: str,
    *,
    back: Callable[[], None],
    pick: Callable[[dict[str, Any]], None],
    is_changed: Callable[[], bool],
) -> None:
    """Shows a service. `pick` receives what the user clicks on the map; then `is_changed` is true, and the
    whole page is drawn again.
    """
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            "All services",
            key="service_back",
            icon=":material/arrow_back:",
            type="tertiary",
            on_click=back,
        )
        st.title(escape_markdown(service), width="stretch")
        _links(view, service)

    def draw(view: View) -> None:
        if is_changed():
            st.rerun()
        _draw(view, service, pick)

    def below(view: View) -> None:
        _below(view, service)

    show_fragment(draw, view)
    show_fragment(below, view, is_main=False)


def _links(view: View, service: str) -> None:
    chosen = st.session_state.get("range")
    kept = {"range": chosen} if chosen and chosen != DEFAULT else {}
    with st.container(horizontal=True, key="service_links", width="content"):
        for page, label, more in (
            ("traces", "Traces", {}),
            ("logs", "Logs", {}),
            ("logs", "Error logs", {"severity": "error"}),
        ):
            st.page_link(view.pages[page], label=label, query_params={"service": service} | more | kept)


def _draw(view: View, service: str, pick: Callable[[dict[str, Any]], None]) -> None:
    listed = view.api.get("tables", cache_seconds=TABLES_CACHE_SECONDS)["tables"]
    if not has_spans(listed):
        show_how_to_send(view, "traces")
        return
    found = read_service(view, listed, service)
    if found.figures.whole.requests:
        _headlines(found)
        over_time = found.figures.over_time(found.range, found.buckets)
        show_charts({service: over_time}, found.range, key="service")
        _operations(service, found)
    else:
        st.info("No requests of this service in this time range.", icon=":material/search_off:")
    _dependencies(service, found, pick)


def _headlines(found: Service) -> None:
    whole = found.figures.whole
    for column, (title, value) in zip(
        st.columns(5),
        (
            ("Requests", format_rate(whole.requests / found.range.seconds)),
            ("Failed", f"{whole.error_share:.2%}"),
            ("p50 latency", format_duration(whole.p50_ms)),
            ("p95 latency", format_duration(whole.p95_ms)),
            ("p99 latency", format_duration(whole.p99_ms)),
        ),
        strict=True,
    ):
        column.metric(title, value, border=True)


def _operations(service: str, found: Service) -> None:
    listed = found.figures.operations
    st.subheader("Operations")
    number = st.column_config.NumberColumn
    unit, seconds = rate_unit(listed[0].figures.requests / found.range.seconds if listed else 0)
    st.dataframe(
        pd.DataFrame(
            {
                "operation": [each.name for each in listed],
                "kind": [_kind(each.kind) for each in listed],
                "rate": [each.figures.requests / found.range.seconds * seconds for each in listed],
                "failed": [100 * each.figures.error_share for each in listed],
                "p50": [each.figures.p50_ms for each in listed],
                "p95": [each.figures.p95_ms for each in listed],
                "p99": [each.figures.p99_ms for each in listed],
                "traces": [_traces_of(service, each) for each in listed],
            }
        ),
        column_config={
            "operation": st.column_config.TextColumn("Operation", width="medium"),
            "kind": "Kind",
            "rate": number(f"Requests/{unit}", format="%.3g"),
            "failed": st.column_config.ProgressColumn(
                "Failed", format="%.2f%%", min_value=0, max_value=100, width=_SHARE_PIXELS
            ),
            "p50": number("p50", format="%.1f ms"),
            "p95": number("p95", format="%.1f ms"),
            "p99": number("p99", format="%.1f ms"),
            "traces": st.column_config.LinkColumn("", display_text="traces", width=_LINK_PIXELS),
        },
        hide_index=True,
        width="stretch",
        height=theme.table_height(len(listed), _OPERATIONS_IN_VIEW),
        key="service_operations",
    )
    if len(listed) >= OPERATIONS_MAX:
        st.caption(f"The {OPERATIONS_MAX} operations with the most requests.")


def _kind(kind: int | None) -> str:
    return SPAN_KINDS[kind] if kind is not None and 0 <= kind < len(SPAN_KINDS) else ""


def _traces_of(service: str, operation: Operation) -> str:
    named = {} if operation.name == UNNAMED else {"name": operation.name}
    return address("traces", service=service, **named)


def _dependencies(service: str, found: Service, pick: Callable[[dict[str, Any]], None]) -> None:
    st.subheader("Dependencies")
    show_notes(found.calls)
    node = Node(SERVICE, service)
    graph = around(found.calls.graph, node)
    if not graph.calls:
        if not found.calls.table.note:
            st.caption("No calls from or to this service in this time range.")
        return
    shown = drawn(graph, kept=[node])
    service_map(shown, chosen=node, key="service_map", on_pick=pick)
    show_left_out(shown, found.calls)
    show_connections(graph.calls, key="service_connections")


def _below(view: View, service: str) -> None:
    if (trace := st.session_state.pop(_TRACE, None)) is not None:
        chosen = st.session_state.get("range")
        kept = {"range": chosen} if chosen and chosen != DEFAULT else {}
        st.switch_page(view.pages["traces"], query_params={"trace": trace} | kept)
    tab = st.segmented_control(
        "Below", list(_TABS), default="errors", format_func=_TABS.__getitem__,
        key="tab", bind="query-params", label_visibility="collapsed", required=True,
    )  # fmt: skip
    if tab == "versions":
        _versions(view, service)
    else:
        _errors(view, service)


def _errors(view: View, service: str) -> None:
    step = max(_ERRORS_STEP_SECONDS, view.time_range.step_seconds)
    last = view.time_range.rounded(step).last(_ERRORS_SECONDS_MAX)
    given = {"service": [service], "status": "error", "order": "newest", "limit": _ERRORS_MAX}
    given |= {"from": last.start_time.isoformat(), "to": last.end_time.isoformat()}
    found = view.api.get("traces", given, cache_seconds=step - 1)["traces"]
    within = (
        "in the last 24 hours of the time range"
        if last.seconds >= _ERRORS_SECONDS_MAX
        else "in this time range"
    )
    if not found:
        st.caption(f"No errors of this service {within}.")
        return
    count = "The trace" if len(found) == 1 else f"The newest {len(found)} traces"
    st.caption(f"{count} with an error of this service {within}.")
    trace_list(found, key="service_errors", on_open=_open_trace)


def _open_trace() -> None:
    """Remembers the trace: a callback cannot go to another page."""
    if (id := trace_id(st.session_state["service_errors"].opened)) is not None:
        st.session_state[_TRACE] = id


def _versions(view: View, service: str) -> None:
    listed = view.api.get("tables", cache_seconds=TABLES_CACHE_SECONDS)["tables"]
    found = read_versions(view, service)
    if note := versions_table(listed).note:
        st.info(note, icon=":material/hourglass:")
    if not found:
        st.caption("No versions of this service in this time range.")
        return
    st.caption(
        "Versions that sent spans in the hours of the time range, the newest first. The first time is looked "
        f"for in the {HISTORY_DAYS} days before it, too."
    )
    st.dataframe(
        version_rows(found),
        column_config={
            "version": "Version",
            "environment": "Environment",
            "first": "First seen (UTC)",
            "last": "Last seen (UTC)",
            "share": st.column_config.ProgressColumn(
                "Share of requests", format="%.1f%%", min_value=0, max_value=100
            ),
            "failed": st.column_config.ProgressColumn(
                "Failed", format="%.2f%%", min_value=0, max_value=100, width=_SHARE_PIXELS
            ),
        },
        hide_index=True,
        width="stretch",
        height=theme.table_height(len(found), _VERSIONS_IN_VIEW),
        key="service_versions",
    )


def version_rows(found: Sequence[Version]) -> pd.DataFrame:
    total = sum(each.requests for each in found)
    return pd.DataFrame(
        {
            "version": [each.version or "(not sent)" for each in found],
            "environment": [each.environment for each in found],
            "first": [
                f"{each.first_time:%Y-%m-%d %H:%M}" + ("" if each.is_first_known else " or earlier")
                for each in found
            ],
            "last": [f"{each.last_time:%Y-%m-%d %H:%M}" for each in found],
            "share": [100 * each.requests / total if total else 0.0 for each in found],
            "failed": [100 * each.error_share for each in found],
        }
    )


def since(version: Version) -> str:
    """Returns a sentence about how long a version is known, for a tooltip."""
    first = f"{version.first_time:%Y-%m-%d %H:%M} UTC"
    return f"First seen {first}" if version.is_first_known else f"First seen {first} or earlier"
