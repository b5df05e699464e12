"""Charts of requests, errors and latency over time, one line for each service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.query.reads.services import BucketFigures
from frazil.query.reads.time_range import TimeRange

BucketsByService = Mapping[str, Sequence[BucketFigures]]


def show_charts(over_time: BucketsByService, time_range: TimeRange, *, key: str) -> None:
    start, end = time_range.start_time, time_range.end_time
    services = list(over_time)
    colour = alt.Color("service:N", scale=theme.colour_scale(services), legend=None)
    axis = theme.time_axis("time", start, end)
    base = alt.Chart(_rows(over_time)).encode(x=axis, color=colour)
    charts = (
        ("Requests/s", "requests", base.mark_area(opacity=0.85), ",.3~f", True),
        ("Failed", "failed", base.mark_line(), ".3~p", None),
        ("p95 latency (ms)", "p95", base.mark_line(), ",.4~r", None),
    )
    for column, (title, name, chart, form, stack) in zip(st.columns(3), charts, strict=True):
        with column.container(border=True):
            st.markdown(f"**{title}**")
            y = alt.Y(f"{name}:Q", title=None, stack=stack, axis=alt.Axis(format=form, tickCount=5))
            tooltip = [
                alt.Tooltip("service:N"),
                theme.time_tooltip("time", start, end),
                alt.Tooltip(f"{name}:Q", format=form),
            ]
            theme.show_chart(chart.encode(y=y, tooltip=tooltip), height=190, key=f"{key}-{name}")


def _rows(over_time: BucketsByService) -> pd.DataFrame:
    """Returns a row for each service and bucket. A bucket without requests has no share of errors."""
    rows = [
        {
            "time": bucket.time,
            "service": service,
            "requests": bucket.requests_per_second,
            "failed": bucket.figures.error_share if bucket.figures.requests else None,
            "p95": bucket.figures.p95_ms,
        }
        for service, buckets in over_time.items()
        for bucket in buckets
    ]
    return pd.DataFrame(rows, columns=["time", "service", "requests", "failed", "p95"])
