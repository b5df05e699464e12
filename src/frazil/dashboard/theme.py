"""Colours, legends and chart elements that all pages share."""

from __future__ import annotations

import datetime as dt
import html
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
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
    "#007078", "#b03068", "#30a050", "#9048b0", "#e07000", "#3888f0", "#785868", "#786000",
    "#00a0b0", "#e068a0", "#007800", "#a078f0", "#b84808", "#3060c0", "#9878a0", "#988858",
)  # fmt: skip
"""Legible on the light and the dark background, and easy to tell apart. Neighbours differ most. Red and amber
are reserved for errors and warnings.
"""
_TABLE_ROW_PIXELS, _TABLE_BORDER_PIXELS = 33, 3
"""Of Streamlit's tables, with the `theme.baseFontSize` of run.py: a row has 2.1875 rem."""
_KNOWN_MAX = 1000
_known: set[str] = set()
"""The services that any page has shown. Of two with the same colour by name, one gets another colour on all
pages.
"""
_lock = threading.Lock()


def service_colours(names: Iterable[str]) -> dict[str, str]:
    """Returns the colours of services, the same on every page and in every session. They follow from the
    names of the known services, in whatever order these were shown.
    """
    shown = frozenset(names)
    with _lock:
        if len(_known | shown) <= _KNOWN_MAX:
            _known.update(shown)
        known = shown.union(_known)
    by_name = _known_colours(known)
    return _distinct(shown, by_name.__getitem__)


def series_colours(names: Iterable[str]) -> dict[str, str]:
    """Returns colours for the series of one chart that are not services."""
    return _distinct(names, _colour_by_name)


@lru_cache(maxsize=16)
def _known_colours(names: frozenset[str]) -> dict[str, str]:
    return _distinct(names, _colour_by_name)


def _distinct(names: Iterable[str], preferred: Callable[[str], str]) -> dict[str, str]:
    """Gives each name its preferred colour. Of several names with the same one, the first in the alphabet
    keeps it, and the others get the least used colour, so that all differ if there are enough colours.
    """
    found: dict[str, str] = {}
    uses: Counter[str] = Counter()
    others = []
    for name in sorted(set(names)):
        colour = preferred(name)
        if uses[colour]:
            others.append(name)
            continue
        found[name] = colour
        uses[colour] += 1
    for name in others:
        start = SERVICE_COLOURS.index(preferred(name))
        found[name] = min(SERVICE_COLOURS[start:] + SERVICE_COLOURS[:start], key=lambda colour: uses[colour])
        uses[found[name]] += 1
    return found


def _colour_by_name(name: str) -> str:
    return SERVICE_COLOURS[zlib.crc32(name.encode()) % len(SERVICE_COLOURS)]


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


def table_height(rows: int, rows_max: int) -> int:
    """Returns the height of a table in pixels. It shows whole rows, at most `rows_max`; the others scroll."""
    return _TABLE_ROW_PIXELS * (1 + min(max(rows, 1), rows_max)) + _TABLE_BORDER_PIXELS


def show_chart(chart: alt.Chart | alt.LayerChart, *, height: int, **options: Any) -> Any:
    """Shows an Altair chart in full width. `options` are those of `st.altair_chart`."""
    return st.altair_chart(chart.properties(height=height), width="stretch", theme="streamlit", **options)


def colour_scale(names: list[str], given: dict[str, str] | None = None) -> alt.Scale:
    """Returns a scale of the `given` colours, by default those of services."""
    given = given or service_colours(names)
    return alt.Scale(domain=names, range=[given.get(name, QUIET) for name in names])


NUMBER = ",.9~r"
"""The format of numbers in tooltips."""


def time_axis(
    field: str, start: dt.datetime | None = None, end: dt.datetime | None = None, *, ticks: int = 5
) -> alt.X:
    """Returns a UTC axis. Labels have the day if it is longer than a day, and seconds if it is short."""
    length = (end - start).total_seconds() if start is not None and end is not None else 3600.0
    form = "%d %b %H:%M" if length > 86400 else "%H:%M" if length > 600 else "%H:%M:%S"
    domain = alt.Undefined if start is None or end is None else [start, end]
    return alt.X(
        f"{field}:T",
        title=None,
        scale=alt.Scale(type="utc", domain=domain),
        axis=alt.Axis(format=form, tickCount=ticks, labelOverlap=True),
    )


def number_axis(**options: Any) -> alt.Axis:
    """Returns an axis without exponents: 10, not 1e+1. `options` are those of `alt.Axis`."""
    size = "abs(datum.value)"
    return alt.Axis(
        labelExpr=f"datum.value == 0 ? '0' : {size} >= 1e5 || {size} < 1e-4 ? format(datum.value, '.4~s') "
        ": format(datum.value, ',.6~r')",
        **options,
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
