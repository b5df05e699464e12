"""The chart of a query result: `quick_chart` proposes it, the user may change it."""

from __future__ import annotations

from typing import Any

import altair as alt
import pyarrow as pa
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.sql import quick_chart

_SERVICES = ("service_name", "service", "service.name")
"""Columns whose values are names of services."""


def show_result_chart(table: pa.Table, choice: quick_chart.Choice) -> None:
    found = quick_chart.columns(table)
    controls = st.columns(4)
    with controls[0]:
        kind = st.segmented_control("Chart", quick_chart.KINDS, default=choice.kind, key="sql_chart_kind")
    with controls[1]:
        x = st.selectbox("X axis", found.all, index=found.all.index(choice.x), key="sql_chart_x")
    with controls[2]:
        y = st.selectbox("Y axis", found.numbers, index=found.numbers.index(choice.y), key="sql_chart_y")
    with controls[3]:
        options = (None, *found.texts)
        series = st.selectbox(
            "Series",
            options,
            index=options.index(choice.series),
            format_func=lambda name: "none" if name is None else name,
            key="sql_chart_series",
        )
    chosen = {"kind": kind, "x": x, "y": y, "series": series}
    final = quick_chart.apply_choices(choice, chosen, found)
    rows, note = quick_chart.rows_to_draw(table, final)
    theme.show_chart(_chart(rows, final, found), height=340, key="sql_chart")
    if note:
        st.caption(note)


def _chart(rows: pa.Table, choice: quick_chart.Choice, found: quick_chart.Columns) -> alt.Chart:
    """Renames columns, because Vega reads dots and brackets in names as paths."""
    short = {choice.x: "x", choice.y: "y"}
    if choice.series is not None and choice.series not in short:
        short[choice.series] = "series"
    rows = _in_utc(rows, found).rename_columns([short[name] for name in rows.column_names])
    frame = rows.to_pandas()
    if choice.x == choice.y:
        frame["y"] = frame["x"]
    ends = (
        (frame["x"].min(), frame["x"].max()) if choice.x in found.times and frame["x"].nunique() > 1 else ()
    )
    x = _x_axis(choice, found, ends)
    y = alt.Y("y:Q", title=choice.y, axis=theme.number_axis())
    tooltip: list[Any] = [_tooltip("x", choice.x, found), _tooltip("y", choice.y, found)]
    base = alt.Chart(frame)
    match choice.kind:
        case "line":
            marks = base.mark_line(strokeWidth=2, point=rows.num_rows <= 60)
        case "bar":
            marks = base.mark_bar(cornerRadiusEnd=2)
        case "points":
            marks = base.mark_circle(size=45, opacity=0.7)
    encoded: dict[str, Any] = {"x": x, "y": y}
    if choice.kind == "bar" and choice.x in found.texts:
        encoded = {
            "x": alt.X("y:Q", title=choice.y, axis=theme.number_axis()),
            "y": alt.Y("x:N", title=None, sort="-x", axis=alt.Axis(labelLimit=260)),
        }
    if choice.series is not None and choice.series in short and short[choice.series] == "series":
        names = sorted({str(name) for name in frame["series"].dropna()})
        tooltip.append(alt.Tooltip("series:N", title=choice.series))
        colours_of = theme.service_colours if choice.series in _SERVICES else theme.series_colours
        encoded["color"] = alt.Color(
            "series:N", title=choice.series, scale=theme.colour_scale(names, colours_of(names))
        )
    else:
        encoded["color"] = alt.value(theme.SERVICE_COLOURS[0])
    chart: alt.Chart = marks.encode(**encoded, tooltip=tooltip)
    return chart


def _in_utc(rows: pa.Table, found: quick_chart.Columns) -> pa.Table:
    """Sets UTC on times without a zone: Streamlit would show them in the browser's zone."""
    for index, name in enumerate(rows.column_names):
        if name in found.times:
            times = rows[name].cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("us", "UTC"))
            rows = rows.set_column(index, name, times)
    return rows


def _x_axis(
    choice: quick_chart.Choice, found: quick_chart.Columns, ends: tuple[Any, Any] | tuple[()]
) -> alt.X:
    if choice.x in found.times:
        return theme.time_axis("x", *ends)
    if choice.x in found.numbers:
        return alt.X("x:Q", title=choice.x, axis=theme.number_axis())
    return alt.X("x:N", title=choice.x)


def _tooltip(name: str, title: str, found: quick_chart.Columns) -> alt.Tooltip:
    if title in found.times:
        return theme.time_tooltip(name, title=title)
    if title in found.numbers:
        return alt.Tooltip(f"{name}:Q", title=title, format=theme.NUMBER)
    return alt.Tooltip(f"{name}:N", title=title)
