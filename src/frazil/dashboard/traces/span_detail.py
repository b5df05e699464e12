"""The details of one span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.format import escape_markdown, format_clock, format_duration
from frazil.dashboard.parts.traces import attribute_table
from frazil.dashboard.traces.query import trace_id
from frazil.dashboard.traces.read import (
    Event,
    LogRecord,
    SpanRecord,
    Trace,
    attributes,
    events,
    links,
    to_datetime,
)
from frazil.dashboard.traces.tree import SpanIndex, Tree
from frazil.dashboard.view import address
from frazil.query.reads.filters import SPAN_KINDS

_EVENTS_MAX = 50
_LINKS_MAX = 50
_STACK_TRACE = "exception.stacktrace"


def show(trace: Trace, tree: Tree, index: SpanIndex, critical_nano: int) -> None:
    span = trace.spans[index]
    _heading(trace, span, critical_nano)
    for note in tree.notes.get(index, ()):
        st.caption(f":material/info: This span {escape_markdown(note)}.")
    if index in tree.async_spans:
        st.caption(f":material/info: {_asynchronous(span, tree.async_spans[index])}")
    if span.is_error:
        message = (
            escape_markdown(span.status_message) or "The span ended with an error and has no status message."
        )
        st.error(message, icon=":material/error:")
    elif span.status_message:
        st.caption(escape_markdown(span.status_message))
    left, right = st.columns([3, 2])
    with left:
        attribute_table("Attributes", attributes(span.otlp), has_links=True)
        _events(span, events(span))
        _links(span)
        _logs(trace, span)
    with right:
        attribute_table("Resource", attributes(span.resource), has_links=True)
        _origin(span)


def _asynchronous(span: SpanRecord, parent_end_nano: int) -> str:
    if span.start_nano >= parent_end_nano:
        later = format_duration((span.start_nano - parent_end_nano) / 1e6)
        return f"Asynchronous: this span starts {later} after its parent ended."
    longer = format_duration((span.end_nano - parent_end_nano) / 1e6)
    return f"Asynchronous: this span continues for {longer} after its parent ended."


def log_table(logs: Sequence[LogRecord], start_nano: int, names: Mapping[str, str] | None, key: str) -> None:
    """Shows logs as a table. `names`: span names by ID for a column, or None if all logs are of one span."""
    columns: dict[str, list[str]] = {
        "Time (UTC)": [format_clock(to_datetime(log.time_nano)) for log in logs],
        "Offset": [_format_offset(log.time_nano - start_nano) for log in logs],
        "Level": [theme.severity_level(log.severity) for log in logs],
        "Service": [log.service for log in logs],
        "Span": [(names or {}).get(log.span_id, log.span_id) for log in logs],
        "Message": [log.body for log in logs],
        "Attributes": [", ".join(f"{item.key}={item.text}" for item in log.attributes) for log in logs],
    }
    if names is None:
        del columns["Span"], columns["Service"]
    st.container(key=key).dataframe(
        columns,
        hide_index=True,
        height=theme.table_height(len(logs), 12),
        column_config={
            "Level": st.column_config.MultiselectColumn(
                width=80, options=list(theme.SEVERITY_COLOURS), color=list(theme.SEVERITY_COLOURS.values())
            ),
            "Message": st.column_config.TextColumn(width="large"),
        },
    )


def _heading(trace: Trace, span: SpanRecord, critical_nano: int) -> None:
    st.markdown(f"##### {escape_markdown(span.name)}")
    facts = [
        _service_link(span.service),
        SPAN_KINDS[span.kind],
        f"{format_clock(to_datetime(span.start_nano))} UTC",
        f"starts at {_format_offset(span.start_nano - trace.start_nano)}",
        f"takes **{format_duration(span.duration_ms)}**",
    ]
    if critical_nano:
        facts.append(f"{format_duration(critical_nano / 1e6)} of self time on the critical path")
    st.markdown(" · ".join(facts))


def _service_link(service: str) -> str:
    shown = escape_markdown(service)
    return f"[{shown}]({address('services', service=service)})" if service else shown


def _events(span: SpanRecord, listed: Sequence[Event]) -> None:
    for event in listed[:_EVENTS_MAX]:
        _event(span, event)
    if len(listed) > _EVENTS_MAX:
        st.caption(f"{len(listed) - _EVENTS_MAX:,} more events: query them with SQL.")


def _event(span: SpanRecord, event: Event) -> None:
    stack = event.text(_STACK_TRACE)
    title = f"{escape_markdown(event.name)} at {_format_offset(event.time_nano - span.start_nano)}"
    if kind := event.text("exception.type"):
        title = f":red[{title}]: {escape_markdown(kind)}"
    with st.expander(title, expanded=bool(stack), icon=":material/bolt:"):
        if stack:
            if message := event.text("exception.message"):
                st.text(message)
            st.code(stack, language=None, height=min(40 + 21 * stack.count("\n"), 360) + 24)
        others = [item for item in event.attributes if item.key != _STACK_TRACE]
        attribute_table("Event attributes", others)


def _links(span: SpanRecord) -> None:
    listed = links(span)
    for link in listed[:_LINKS_MAX]:
        id = trace_id(link.trace_id)
        if id is None:
            continue
        address = f"traces?{urlencode({'trace': id, 'span': link.span_id})}"
        suffix = ", ".join(f"{item.key}={item.text}" for item in link.attributes)
        st.markdown(
            f":material/link: Linked to [`{id}`]({address})"
            + (f": {escape_markdown(suffix)}" if suffix else "")
        )
    if len(listed) > _LINKS_MAX:
        st.caption(f"{len(listed) - _LINKS_MAX:,} more links: query them with SQL.")


def _logs(trace: Trace, span: SpanRecord) -> None:
    logs = [log for log in trace.logs if log.span_id == span.id]
    if logs:
        st.caption("Logs of this span")
        log_table(logs, trace.start_nano, None, key="span_logs")


def _origin(span: SpanRecord) -> None:
    scope = " ".join(str(span.scope.get(name) or "") for name in ("name", "version")).strip()
    lines = [
        f"span    {span.id or 'none'}",
        f"parent  {span.parent_id or 'none'}",
        f"scope   {scope or 'none'}",
    ]
    if state := span.otlp.get("traceState"):
        lines.append(f"state   {state}")
    dropped = {
        name: span.otlp.get(f"dropped{name.capitalize()}Count") for name in ("attributes", "events", "links")
    }
    lines += [f"dropped {count} {name}" for name, count in dropped.items() if count]
    st.caption("Origin")
    st.code("\n".join(lines), language=None, wrap_lines=True)


def _format_offset(nano: int) -> str:
    return f"−{format_duration(-nano / 1e6)}" if nano < 0 else format_duration(nano / 1e6)
