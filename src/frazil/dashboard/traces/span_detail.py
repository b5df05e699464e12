"""All that was sent about one span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard import format as words
from frazil.dashboard import theme as look
from frazil.dashboard.parts.attribute_table import attribute_table
from frazil.dashboard.traces.query import trace_id
from frazil.dashboard.traces.read import (
    Event,
    LogRecord,
    SpanRecord,
    Trace,
    attributes,
    events,
    links,
    moment,
)
from frazil.dashboard.traces.tree import Place, Tree
from frazil.query.reads.filters import SPAN_KINDS

_EVENTS_MAX = 50
_LINKS_MAX = 50
_STACK_TRACE = "exception.stacktrace"


def show(trace: Trace, tree: Tree, place: Place, critical_nano: int) -> None:
    span = trace.spans[place]
    _heading(trace, span, critical_nano)
    for note in tree.notes.get(place, ()):
        st.caption(f":material/info: This span {words.plain(note)}.")
    if place in tree.outliving:
        st.caption(f":material/info: {_asynchronous(span, tree.outliving[place])}")
    if span.is_error:
        message = (
            words.plain(span.status_message) or "The span ended with an error and has no status message."
        )
        st.error(message, icon=":material/error:")
    elif span.status_message:
        st.caption(words.plain(span.status_message))
    left, right = st.columns([3, 2])
    with left:
        attribute_table("Attributes", attributes(span.told), is_sought=True)
        _events(span, events(span))
        _links(span)
        _logs(trace, span)
    with right:
        attribute_table("Resource", attributes(span.resource), is_sought=True)
        _origin(span)


def _asynchronous(span: SpanRecord, parent_end_nano: int) -> str:
    if span.start_nano >= parent_end_nano:
        later = words.duration((span.start_nano - parent_end_nano) / 1e6)
        return f"Asynchronous: this span starts {later} after its parent ended."
    longer = words.duration((span.end_nano - parent_end_nano) / 1e6)
    return f"Asynchronous: this span continues for {longer} after its parent ended."


def log_table(logs: Sequence[LogRecord], start_nano: int, names: Mapping[str, str] | None, key: str) -> None:
    """`names` of spans by id: a column for them, unless all are of one span."""
    columns: dict[str, list[str]] = {
        "Time (UTC)": [words.clock(moment(log.time_nano)) for log in logs],
        "Offset": [_signed(log.time_nano - start_nano) for log in logs],
        "Level": [look.severity_level(log.severity) for log in logs],
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
        height=min(38 + 35 * len(logs), 420),
        column_config={
            "Level": st.column_config.MultiselectColumn(
                width=80, options=list(look.SEVERITY_COLOURS), color=list(look.SEVERITY_COLOURS.values())
            ),
            "Message": st.column_config.TextColumn(width="large"),
        },
    )


def _heading(trace: Trace, span: SpanRecord, critical_nano: int) -> None:
    st.markdown(f"##### {words.plain(span.name)}")
    told = [
        words.plain(span.service),
        SPAN_KINDS[span.kind],
        f"{words.clock(moment(span.start_nano))} UTC",
        f"starts at {_signed(span.start_nano - trace.start_nano)}",
        f"takes **{words.duration(span.duration_ms)}**",
    ]
    if critical_nano:
        told.append(f"{words.duration(critical_nano / 1e6)} of its own on the critical path")
    st.markdown(" · ".join(told))


def _events(span: SpanRecord, listed: Sequence[Event]) -> None:
    for event in listed[:_EVENTS_MAX]:
        _event(span, event)
    if len(listed) > _EVENTS_MAX:
        st.caption(f"{len(listed) - _EVENTS_MAX:,} more events: query them with SQL.")


def _event(span: SpanRecord, event: Event) -> None:
    stack = event.text(_STACK_TRACE)
    title = f"{words.plain(event.name)} at {_signed(event.time_nano - span.start_nano)}"
    if kind := event.text("exception.type"):
        title = f":red[{title}]: {words.plain(kind)}"
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
        said = ", ".join(f"{item.key}={item.text}" for item in link.attributes)
        st.markdown(
            f":material/link: Linked to [`{id}`]({address})" + (f": {words.plain(said)}" if said else "")
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
    if state := span.told.get("traceState"):
        lines.append(f"state   {state}")
    dropped = {
        name: span.told.get(f"dropped{name.capitalize()}Count") for name in ("attributes", "events", "links")
    }
    lines += [f"dropped {count} {name}" for name, count in dropped.items() if count]
    st.caption("Origin")
    st.code("\n".join(lines), language=None)


def _signed(nano: int) -> str:
    """A time after the start; before it, with a minus."""
    return f"−{words.duration(-nano / 1e6)}" if nano < 0 else words.duration(nano / 1e6)
