"""The same colours, words and numbers on every page."""

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
"""All of them to be read on the light and the dark ground; red and amber mean errors and warnings alone."""
_COLOURED_MAX = 1000
_coloured: dict[str, str] = {}
_colouring = threading.Lock()


def service_colour(name: str) -> str:
    """A service has one colour on every page and in every session, as long as the dashboard runs: the one its
    name stands for, or the next that fewer have where that is taken. Only names of services belong here: what
    is remembered is bounded.
    """
    with _colouring:
        if name not in _coloured:
            if len(_coloured) >= _COLOURED_MAX:
                return _free_colour(name, ())
            _coloured[name] = _free_colour(name, _coloured.values())
        return _coloured[name]


def service_colours(names: Iterable[str]) -> dict[str, str]:
    return {name: service_colour(name) for name in sorted(set(names))}


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """Of one chart's lines that are no services: nothing is remembered of them."""
    found: dict[str, str] = {}
    for name in sorted(set(names)):
        found[name] = _free_colour(name, found.values())
    return found


def _free_colour(name: str, taken: Iterable[str]) -> str:
    """The one that the name stands for, or the next that fewer have."""
    start = zlib.crc32(name.encode()) % len(SERVICE_COLOURS)
    turned = SERVICE_COLOURS[start:] + SERVICE_COLOURS[:start]
    times = Counter(taken)
    return min(turned, key=lambda colour: times[colour])


def legend(colours: Mapping[str, str]) -> None:
    """One for several charts."""
    marks = "".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:.7em;height:.7em;'
        f'border-radius:2px;background:{colour};margin-right:.4em"></span>{html.escape(name)}</span>'
        for name, colour in colours.items()
    )
    st.html(f'<div style="display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem">{marks}</div>')


def severity_level(number: int | None) -> str:
    """The level of OTLP's severity number: four numbers each, from 1."""
    if number is None or not 1 <= number <= 24:
        return "unset"
    return SEVERITIES[(number - 1) // 4]


def link(label: str, address: str) -> None:
    """To a page of this dashboard, in the same tab; Streamlit's own buttons open another."""
    st.html(
        f'<a href="{html.escape(address, quote=True)}" target="_self" style="display:block;text-align:center;'
        "padding:.4rem .8rem;border:1px solid rgba(128,150,165,.45);border-radius:.5rem;text-decoration:none;"
        f'color:inherit">{html.escape(label)}</a>'
    )


def chart(made: alt.Chart | alt.LayerChart, *, height: int | None = None, **given: Any) -> Any:
    """An Altair chart that follows the theme, as wide as its place. `given` goes to `st.altair_chart`."""
    if height is not None:
        made = made.properties(height=height)
    return st.altair_chart(made, width="stretch", theme="streamlit", **given)


def colours(names: list[str], given: dict[str, str] | None = None) -> alt.Scale:
    """A scale for `names`: those of `given`, else of services."""
    given = given or service_colours(names)
    return alt.Scale(domain=names, range=[given.get(name, QUIET) for name in names])


def time_axis(field: str, start: dt.datetime | None = None, end: dt.datetime | None = None) -> alt.X:
    """In UTC, by the 24-hour clock; with the day where there are several, with seconds within few minutes."""
    length = (end - start).total_seconds() if start is not None and end is not None else 3600.0
    form = "%d %b %H:%M" if length > 86400 else "%H:%M" if length > 600 else "%H:%M:%S"
    domain = alt.Undefined if start is None or end is None else [start, end]
    return alt.X(
        f"{field}:T",
        title=None,
        scale=alt.Scale(type="utc", domain=domain),
        axis=alt.Axis(format=form, tickCount=5, labelOverlap=True),
    )


def time_tip(
    field: str, start: dt.datetime | None = None, end: dt.datetime | None = None, *, title: str = "time (UTC)"
) -> alt.Tooltip:
    """In UTC, as the axis is. With the day where there are several, with milliseconds within a minute; with
    both where the range is not known.

    Vega writes times of tooltips in the browser's zone, but for a unit that says UTC. One that is "binned"
    leaves the time as it is: others would cut it to whole seconds.
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
