"""Components of the Traces page: list of traces, waterfall and attribute tables."""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard.format import format_clock, format_duration
from frazil.dashboard.parts.component import component
from frazil.dashboard.theme import SEVERITY_COLOURS, service_colours, severity_level
from frazil.dashboard.traces.critical_path import CriticalInterval
from frazil.dashboard.traces.read import Attribute, LogRecord, Trace, event_times
from frazil.dashboard.traces.tree import Row, Tree, rows
from frazil.query.reads.filters import SPAN_KINDS

_TEXT_MAX = 200
_SPAN_TEXT_MAX = 160
_SERVICES_SHOWN_MAX = 4
_MARKS_MAX = 40
"""Events, logs and intervals drawn on one bar: more of them are not legible."""
_VALUE_CHARS_MAX = 4_000
_LINKED_CHARS_MAX = 200
_LINKED_TYPES = ("string", "int", "bool")

_trace_list = component("trace_list", '<div class="list" data-testid="trace-list"></div>')
_waterfall = component("waterfall", '<div class="waterfall" data-testid="waterfall"></div>')


def trace_list(found: Sequence[dict[str, Any]], *, key: str, on_open: Callable[[], None]) -> None:
    """Shows the found traces. `on_open` reads the trace ID from `st.session_state[key].opened`."""
    _trace_list(key=key, data=trace_rows(found), on_opened_change=on_open)


def trace_rows(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    longest = max((trace["duration_ms"] for trace in found), default=0) or 1
    names = {item["name"] for trace in found for item in trace["services"]}
    colours = service_colours(names | {trace["root_service"] for trace in found})
    return [_trace_row(trace, longest, colours) for trace in found]


def _trace_row(trace: dict[str, Any], longest_ms: float, colours: Mapping[str, str]) -> dict[str, Any]:
    start = dt.datetime.fromisoformat(trace["start_time"])
    services = trace["services"]
    shown, others = services[:_SERVICES_SHOWN_MAX], services[_SERVICES_SHOWN_MAX:]
    return {
        "id": trace["trace_id"],
        "day": start.strftime("%d %b"),
        "clock": format_clock(start),
        "service": trace["root_service"][:_TEXT_MAX] or "(no service)",
        "name": trace["root_name"][:_TEXT_MAX] or "(no name)",
        "colour": colours[trace["root_service"]],
        "rootless": trace["root_missing"],
        "duration": format_duration(trace["duration_ms"]),
        "part": trace["duration_ms"] / longest_ms,
        "spans": trace["spans"],
        "errors": trace["errors"],
        "services": [[_named(item), colours[item["name"]], item["errors"] > 0] for item in shown],
        "more": ", ".join(_named(item) for item in others),
        "more_count": len(others),
    }


def _named(service: Mapping[str, Any]) -> str:
    return str(service["name"])[:_TEXT_MAX] or "(no service)"


def waterfall(data: dict[str, Any], *, key: str, on_pick: Callable[[], None]) -> None:
    """Draws `waterfall_data`. `on_pick` reads the span's handle from `st.session_state[key].picked`."""
    _waterfall(key=key, data=data, on_picked_change=on_pick)


def waterfall_data(trace: Trace, tree: Tree, path: Sequence[CriticalInterval]) -> dict[str, Any]:
    """Returns the rows for the browser. Times are microseconds from the trace's start."""
    start = trace.start_nano
    end = max(trace.end_nano, start + 1)
    services = list(trace.services())
    colours = service_colours(services)
    numbers = {name: number for number, name in enumerate(services)}
    critical: dict[int, list[list[float]]] = {}
    for interval in path:
        marks = critical.setdefault(interval.index, [])
        own_start = interval.start_nano - interval.shift_nano  # by the clock of the span, like its bar
        marks.append([_micros(own_start, start), _micros(interval.end_nano, interval.start_nano)])
    logs: dict[str, list[LogRecord]] = {}
    for log in trace.logs:
        logs.setdefault(log.span_id, []).append(log)
    return {
        "length": _micros(end, start),
        "services": [[name[:_SPAN_TEXT_MAX], colours[name]] for name in services],
        "kinds": list(SPAN_KINDS),
        "rows": [_span_row(tree, row, start, numbers, critical, logs) for row in rows(tree)],
    }


def _span_row(
    tree: Tree,
    row: Row,
    start: int,
    services: dict[str, int],
    critical: dict[int, list[list[float]]],
    logs: dict[str, list[LogRecord]],
) -> dict[str, Any]:
    """Returns a row of the waterfall: short names, no empty values, because a trace can have 20,000 rows."""
    if row.index is None:
        group = [tree.spans[index] for index in tree.orphans[row.missing]]
        first, last = min(span.start_nano for span in group), max(span.end_nano for span in group)
        data: dict[str, Any] = {
            "n": f"missing parent {row.missing[:_SPAN_TEXT_MAX]}",
            "s": _micros(first, start),
            "l": _micros(last, first),
        }
    else:
        span = tree.spans[row.index]
        data = {
            "h": span.handle,
            "n": span.name[:_SPAN_TEXT_MAX],
            "v": services[span.service],
            "k": span.kind,
            "s": _micros(span.start_nano, start),
            "l": _micros(span.end_nano, span.start_nano),
            "e": span.is_error,
            "c": critical.get(row.index, [])[:_MARKS_MAX],
            "t": [
                [_micros(time, start), is_exception] for time, is_exception in event_times(span)[:_MARKS_MAX]
            ],
            "g": [
                [_micros(log.time_nano, start), SEVERITY_COLOURS[severity_level(log.severity)]]
                for log in (logs.get(span.id, []) if span.handle == span.id else [])[:_MARKS_MAX]
            ],
            "o": "; ".join(tree.notes.get(row.index, ())),
        }
        if row.index in tree.async_spans:
            data["a"] = _micros(tree.async_spans[row.index], start)
    data = {name: value for name, value in data.items() if value or name in ("s", "l", "v", "n", "a")}
    return data | {"d": row.depth, "b": row.below}


def _micros(nano: int, start_nano: int) -> float:
    return (nano - start_nano) / 1_000


_STYLE = """<style>
table.attributes{width:100%;table-layout:fixed;border-collapse:collapse;font-size:.82rem;margin:0}
table.attributes td{border:0;border-bottom:1px solid rgba(128,140,150,.22);padding:.22rem .5rem .22rem 0;
  vertical-align:top;overflow-wrap:anywhere}
table.attributes td:nth-child(1){width:36%;opacity:.75}
table.attributes td:nth-child(2){white-space:pre-wrap}
table.attributes td:nth-child(3){width:4.2rem;opacity:.55;text-align:right;padding-right:0}
table.attributes a{text-decoration:none;opacity:.0;margin-left:.4rem}
table.attributes tr:hover a,table.attributes a:focus{opacity:1}
</style>"""


def attribute_table(title: str, listed: Sequence[Attribute], *, has_links: bool = False) -> None:
    """Shows attributes. With `has_links`, each attribute links to the traces that have the same value."""
    if not listed:
        st.caption(f"{title}: none")
        return
    st.caption(title)
    rows = attribute_rows(listed, has_links=has_links)
    st.html(f'{_STYLE}<table class="attributes" data-testid="attributes"><tbody>{rows}</tbody></table>')


def attribute_rows(listed: Sequence[Attribute], *, has_links: bool) -> str:
    """Returns HTML in which all telemetry is escaped."""
    return "".join(_attribute_row(item, has_links) for item in listed)


def _attribute_row(item: Attribute, has_links: bool) -> str:
    value = html.escape(item.text[:_VALUE_CHARS_MAX])
    if len(item.text) > _VALUE_CHARS_MAX:
        value += f" … ({len(item.text):,} characters)"
    link = _link(item) if has_links else ""
    key = html.escape(item.key).replace(".", ".<wbr>")  # a narrow column breaks lines between words
    return f"<tr><td>{key}</td><td>{value}{link}</td><td>{item.type}</td></tr>"


def _link(item: Attribute) -> str:
    if (
        item.type not in _LINKED_TYPES
        or not 0 < len(item.text) <= _LINKED_CHARS_MAX
        or set(item.key) & {"=", ":"}
    ):
        return ""  # the API ends the key at the first = or :
    address = html.escape(f"traces?{urlencode({'attr': f'{item.key}={item.text}'})}")
    return f'<a href="{address}" target="_self" title="Find traces with this attribute">⌕</a>'
