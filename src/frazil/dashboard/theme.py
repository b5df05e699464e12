"""Colours, legends and chart elements that all pages share."""

from __future__ import annotations

import datetime as dt
import html
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import altair as alt
import streamlit as st

from frazil.query.reads.filters import SEVERITIES

SEVERITY_COLOURS = {
    "unset": "#94a3b8",
    "trace": "#a3b3c2",
    "debug": "#7f9db5",
    "info": "#38a3c7",
    "warn": "#e5a50a",
    "error": "#e5484d",
    "fatal": "#a8274f",
}
STATUS_COLOURS = {"unset": "#38a3c7", "ok": "#30a46c", "error": "#e5484d"}
GOOD, CAUTION, BAD, QUIET = "#30a46c", "#e5a50a", "#e5484d", "#94a3b8"
SERVICE_COLOURS = (
    "#0e93b5", "#8e6bd8", "#30a46c", "#e07b39", "#d6589f", "#5b7bd5", "#a38b1f", "#1fb5a0",
    "#b5654a", "#7c8d2e", "#b04fc4", "#4d9de0", "#c77d9b", "#5f8f6b", "#8c7bb0", "#c99a5b",
)  # fmt: skip
"""Legible on the light and the dark background. Red and amber are reserved for errors and warnings."""
_ASSIGNED_MAX = 1000
_assigned: dict[str, str] = {}
_lock = threading.Lock()


def service_colour(name: str) -> str:
    """Returns the service's colour, the same on every page and in every session while the dashboard runs. Use
    it only for services: the number of assigned colours is bounded.
    """
    with _lock:
        if name not in _assigned:
            if len(_assigned) >= _ASSIGNED_MAX:
                return _free_colour(name, ())
            _assigned[name] = _free_colour(name, _assigned.values())
        return _assigned[name]


def service_colours(names: Iterable[str]) -> dict[str, str]:
    return {name: service_colour(name) for name in sorted(set(names))}


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """Returns colours for the series of one chart that are not services."""
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        found[name] = _free_colour(name, found.values())
    return found


def _free_colour(name: str, taken: Iterable[str]) -> str:
    """Returns the least used colour. Among equals, the hash of the name decides."""
    start = zlib.crc32(name.encode()) % len(SERVICE_COLOURS)
    rotated = SERVICE_COLOURS[start:] + SERVICE_COLOURS[:start]
    uses = Counter(taken)
    return min(rotated, key=lambda colour: uses[colour])


def legend(colours: Mapping[str, str]) -> None:
    """Shows one legend for several charts."""
    marks = "".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:.7em;height:.7em;'
        f'border-radius:2px;background:{colour};margin-right:.4em"></span>{html.escape(name)}</span>'
        for name, colour in colours.items()
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem">{marks}</div>')


def severity_level(number: int | None) -> str:
    """Returns the level of an OTLP severity number. Each level has four numbers, from 1."""
    if number is None or not 1 <= number <= 24:
        return "unset"
    return SEVERITIES[(number - 1) // 4]


def link(label: str, address: str) -> None:
    """Shows a link to a page of this dashboard, in the same tab. Streamlit's link buttons open another."""
    st.html(
        f'<a href="{html.escape(address, quote=True)}" target="_self" style="display:block;text-align:center;'
        "padding:.4rem .8rem;border:1px solid rgba(128,150,165,.45);border-radius:.5rem;text-decoration:none;"
        f'color:inherit">{html.escape(label)}</a>'
    )


def show_chart(chart: alt.Chart | alt.LayerChart, *, height: int, **options: Any) -> Any:
    """Shows an Altair chart in full width. `options` are those of `st.altair_chart`."""
    return st.altair_chart(chart.properties(height=height), width="stretch", theme="streamlit", **options)


def colour_scale(names: list[str], given: dict[str, str] | None = None) -> alt.Scale:
    """Returns a scale of the `given` colours, by default those of services."""
    given = given or service_colours(names)
    return alt.Scale(domain=names, range=[given.get(name, QUIET) for name in names])


def time_axis(field: str, start: dt.datetime | None = None, end: dt.datetime | None = None) -> alt.X:
    """Returns a UTC axis. Labels have the day if it is longer than a day, and seconds if it is short."""
    length = (end - start).total_seconds() if start is not None and end is not None else 3600.0
    form = "%d %b %H:%M" if length > 86400 else "%H:%M" if length > 600 else "%H:%M:%S"
    domain = alt.Undefined if start is None or end is None else [start, end]
    return alt.X(
        f"{field}:T",
        title=None,
        scale=alt.Scale(type="utc", domain=domain),
        axis=alt.Axis(format=form, tickCount=5, labelOverlap=True),
    )


def time_tooltip(
    field: str, start: dt.datetime | None = None, end: dt.datetime | None = None, *, title: str = "time (UTC)"
) -> alt.Tooltip:
    """Returns a tooltip in UTC: with the day if the range is longer than a day, with milliseconds if it is
    within a minute, with both if it is unknown.

    Vega shows tooltip times in the browser's time zone unless the time unit is a UTC unit. A "binned" unit
    does not truncate the time to whole seconds.
    """
    length = None if start is None or end is None else (end - start).total_seconds()
    day = "%Y-%m-%d " if length is None or length > 86400 else ""
    fraction = ".%L" if length is None or length <= 60 else ""
    return alt.Tooltip(
        f"{field}:T",
        timeUnit="binnedutcyearmonthdatehoursminutesseconds",
        title=title,
        format=f"{day}%H:%M:%S{fraction}",
    )
