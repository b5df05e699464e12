"""The chart of the traces of the whole time range: when they started, and how long they took."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.format import format_duration
from frazil.dashboard.time_range import format_range

_KEY = "trace_durations"
_PICKED = "cell"
_LOWEST_MS = 0.0005
"""Where the first bin begins on the logarithmic axis."""
_TICKS_MS = [step * 10.0**power for power in range(-3, 7) for step in (1, 2, 5)]
_TICKS_MAX = 5
_TICK_TEXT = (
    "datum.value < 1 ? format(datum.value * 1000, '~r') + ' µs' : "
    "datum.value < 1000 ? format(datum.value, '~r') + ' ms' : format(datum.value / 1000, ',~r') + ' s'"
)


def cells(response: Mapping[str, Any]) -> pd.DataFrame:
    """Returns one row per cell of `GET /api/v1/traces/durations`. Cells end where the time range ends."""
    first = dt.datetime.fromisoformat(response["first_bucket"])
    begin, end = (dt.datetime.fromisoformat(response[name]) for name in ("from", "to"))
    width, bins = dt.timedelta(seconds=response["bucket_seconds"]), response["bins_ms"]
    rows = []
    for cell in response["cells"]:
        start = max(begin, first + cell["bucket"] * width)
        stop = min(end, first + (cell["bucket"] + 1) * width)
        low = bins[cell["bin"]]
        high = bins[cell["bin"] + 1] if cell["bin"] + 1 < len(bins) else max(cell["longest_ms"], low * 2)
        rows.append(
            {
                "start": start,
                "end": stop,
                "failed_end": start + (stop - start) * (cell["errors"] / cell["traces"]),
                "low": max(low, _LOWEST_MS),
                "high": high,
                "range": format_range(start, stop),
                "at_least": _typed(low),
                "duration": f"{format_duration(low)} to {format_duration(high)}",
                "longest": format_duration(cell["longest_ms"]),
                "traces": cell["traces"],
                "errors": cell["errors"],
            }
        )
    return pd.DataFrame(rows)


def chart(response: Mapping[str, Any]) -> alt.LayerChart:
    """Returns a heat map of the cells. The red part of a cell is the share of its traces with errors."""
    table = cells(response)
    begin, end = (dt.datetime.fromisoformat(response[name]) for name in ("from", "to"))
    lowest, highest = table["low"].min() / 1.5, table["high"].max() * 1.5
    base = alt.Chart(table).encode(
        x=theme.time_axis("start", begin, end, ticks=10),
        y=alt.Y(
            "low:Q",
            title=None,
            scale=alt.Scale(type="log", domain=[lowest, highest], nice=False),
            axis=alt.Axis(values=_ticks(lowest, highest), labelExpr=_TICK_TEXT),
        ),
        y2="high:Q",
        opacity=alt.Opacity(
            "traces:Q",
            scale=alt.Scale(type="log", domain=[1, max(10, table["traces"].max())], range=[0.35, 1]),
            legend=None,
        ),
        tooltip=[
            theme.time_tooltip("start", begin, end),
            alt.Tooltip("duration:N"),
            alt.Tooltip("traces:Q", format=","),
            alt.Tooltip("errors:Q", title="with errors", format=","),
            alt.Tooltip("longest:N"),
        ],
    )
    picked = alt.selection_point(name=_PICKED, fields=["range", "at_least"], on="click", empty=False)
    all_traces = base.mark_rect(color=theme.STATUS_COLOURS["unset"], cursor="pointer").encode(x2="end:T")
    failed = (
        base.transform_filter("datum.errors > 0")
        .mark_rect(color=theme.STATUS_COLOURS["error"], cursor="pointer", minBandSize=2)
        .encode(x2="failed_end:T")
    )
    return alt.LayerChart(layer=[all_traces.add_params(picked), failed])


def show(response: Mapping[str, Any], on_pick: Callable[[], None]) -> None:
    """Shows the chart. `on_pick` is called when the user clicks a cell, and calls `picked`."""
    theme.show_chart(chart(response), height=190, key=_KEY, on_select=on_pick, selection_mode=_PICKED)


def picked() -> tuple[str, str] | None:
    """Returns the time range and the shortest duration of the clicked cell, as the controls write them."""
    found = st.session_state[_KEY].selection.get(_PICKED) or []
    return (found[0]["range"], found[0]["at_least"]) if found else None


def _typed(ms: float) -> str:
    """Writes a duration as users type it; nothing for 0."""
    return f"{ms / 1000:g}s" if ms >= 1000 else f"{ms:g}ms" if ms else ""


def _ticks(lowest: float, highest: float) -> list[float]:
    """Returns round durations between the bounds: only powers of ten if there are many others."""
    found = [tick for tick in _TICKS_MS if lowest <= tick <= highest]
    return found if len(found) <= _TICKS_MAX else found[found.index(_first_power(found)) :: 3]


def _first_power(ticks: list[float]) -> float:
    return next(tick for tick in ticks if f"{tick:e}".startswith("1.0"))
