"""Overview: traffic, errors and latency by service, and the freshness of data."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import urlencode

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.derived import read_all, rollups_of
from frazil.dashboard.format import format_count, format_duration, format_elapsed
from frazil.dashboard.view import View, show_fragment, show_how_to_send
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.services import (
    UNNAMED,
    BucketFigures,
    Figures,
    ServiceFigures,
    log_errors,
    red,
    service_figures,
)
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import Buckets, TimeRange
from frazil.tables import SIGNALS

_NEWEST_CACHE_SECONDS = 1.0
"""Short, because the age of the newest data is shown: a cached result adds its own age."""
_SERVICES_SHOWN = 12
_SERVICES_IN_VIEW = 20
_CHART_PIXELS, _LINK_PIXELS = 96, 52
"""Widths of columns, so that the whole table is on a screen of 1,100 pixels."""

BucketsByService = dict[str, list[BucketFigures]]


def page(view: View) -> None:
    st.title("Overview")
    show_fragment(_draw, view)


def _draw(view: View) -> None:
    listed = view.api.get("tables", cache_seconds=_NEWEST_CACHE_SECONDS)["tables"]
    tables = {table["name"]: table for table in listed if table["name"] in SIGNALS}
    if not any((table.get("rows") or 0) + (table.get("tail_rows") or 0) for table in tables.values()):
        show_how_to_send(view)
        return
    step = view.time_range.step_seconds
    time_range = view.time_range.rounded(step)
    buckets = Buckets.of(time_range)

    def statements(rolled: Rolled | None) -> list[Statement]:
        return [red(time_range, buckets, rolled), log_errors(time_range, rolled)]

    rollups = rollups_of(listed, ("span_metrics", "log_rollups"), time_range)
    (requests, logs), rollups = read_all(view, statements, rollups, cache_seconds=step - 1)
    if rollups is not None:
        time_range, buckets = rollups.range, rollups.buckets
    spans = service_figures(requests)
    _headlines(spans.whole, logs, tables, time_range.seconds)
    if not spans.by_service:
        st.info("No spans in this time range. Choose a longer range.", icon=":material/search_off:")
        return
    theme.service_colours(spans.by_service)  # also of services outside the charts, which other pages show
    over_time = {name: spans.over_time(name, time_range, buckets) for name in spans.by_service}
    busiest = sorted(spans.by_service, key=lambda name: -spans.by_service[name].requests)[:_SERVICES_SHOWN]
    _charts({name: over_time[name] for name in busiest}, time_range)
    _services(view, spans, over_time, logs, time_range.seconds)


def _headlines(total: Figures, logs: list[dict[str, Any]], tables: dict[str, Any], seconds: float) -> None:
    requests, errors, latency, in_logs, fresh = st.columns(5)
    requests.metric("Requests", f"{format_count(total.requests / seconds)}/s", border=True)
    errors.metric("Failed", f"{total.error_share:.2%}", border=True)
    latency.metric("p95 latency", format_duration(total.p95_ms), border=True)
    in_logs.metric("Error logs", format_count(sum(row["errors"] for row in logs)), border=True)
    fresh.metric(
        "Newest data",
        f"{format_elapsed(_age_seconds(tables))} ago",
        border=True,
        help="Age of the newest record that queries see, in any table. Queries see a record as soon as it is "
        "acknowledged, before it lands.",
    )


def _age_seconds(tables: dict[str, Any]) -> float | None:
    newest = max(
        (table["newest_time"] for table in tables.values() if table.get("newest_time")), default=None
    )
    if newest is None:
        return None
    age = dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(newest)
    return max(0.0, age.total_seconds())


def _charts(over_time: BucketsByService, time_range: TimeRange) -> None:
    start, end = time_range.start_time, time_range.end_time
    services = list(over_time)
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
    data = pd.DataFrame(rows, columns=["time", "service", "requests", "failed", "p95"])
    colour = alt.Color("service:N", scale=theme.colour_scale(services), legend=None)
    axis = theme.time_axis("time", start, end)
    base = alt.Chart(data).encode(x=axis, color=colour)
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
            theme.show_chart(chart.encode(y=y, tooltip=tooltip), height=190, key=f"overview-{name}")
    theme.legend(theme.service_colours(services))


def _services(
    view: View, spans: ServiceFigures, over_time: BucketsByService, logs: list[dict[str, Any]], seconds: float
) -> None:
    """Shows one row per service, the one with the most errors first."""
    errors = {row["service_name"] or UNNAMED: row["errors"] for row in logs}
    names = sorted(
        spans.by_service, key=lambda name: (-spans.by_service[name].errors, -spans.by_service[name].requests)
    )
    st.dataframe(
        pd.DataFrame(
            {
                "service": names,
                "traffic": [[bucket.requests_per_second for bucket in over_time[name]] for name in names],
                "rate": [spans.by_service[name].requests / seconds for name in names],
                "failed": [100 * spans.by_service[name].error_share for name in names],
                "p50": [spans.by_service[name].p50_ms for name in names],
                "p95": [spans.by_service[name].p95_ms for name in names],
                "p99": [spans.by_service[name].p99_ms for name in names],
                "log_errors": [errors.get(name, 0) for name in names],
                "traces": [_link("traces", view, name) for name in names],
                "logs": [_link("logs", view, name) for name in names],
            }
        ),
        column_config={
            "service": "Service",
            "traffic": st.column_config.AreaChartColumn("Traffic", y_min=0, width=_CHART_PIXELS),
            "rate": st.column_config.NumberColumn("Requests/s", format="%.2f"),
            "failed": st.column_config.ProgressColumn(
                "Failed", format="%.2f%%", min_value=0, max_value=100, width=_CHART_PIXELS
            ),
            "p50": st.column_config.NumberColumn("p50", format="%.1f ms"),
            "p95": st.column_config.NumberColumn("p95", format="%.1f ms"),
            "p99": st.column_config.NumberColumn("p99", format="%.1f ms"),
            "log_errors": st.column_config.NumberColumn("Error logs"),
            "traces": st.column_config.LinkColumn("", display_text="traces", width=_LINK_PIXELS),
            "logs": st.column_config.LinkColumn("", display_text="logs", width=_LINK_PIXELS),
        },
        hide_index=True,
        width="stretch",
        height=theme.table_height(len(names), _SERVICES_IN_VIEW),
        key="overview-services",
    )


def _link(page: str, view: View, service: str) -> str | None:
    if service == UNNAMED:
        return None
    chosen = st.session_state.get("range")
    given = {"service": service} | ({"range": chosen} if chosen else {})
    return f"/{page}?{urlencode(given)}"
