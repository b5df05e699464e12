"""Overview: traffic, errors and latency by service, and the freshness of data."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.derived import read_all, rollups_of
from frazil.dashboard.format import format_count, format_duration, format_elapsed
from frazil.dashboard.services.charts import BucketsByService, show_charts
from frazil.dashboard.view import View, address, show_fragment, show_how_to_send
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.services import (
    UNNAMED,
    Figures,
    ServiceFigures,
    log_errors,
    red,
    service_figures,
)
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import Buckets
from frazil.tables import SIGNALS

_NEWEST_CACHE_SECONDS = 1.0
"""Short, because the age of the newest data is shown: a cached result adds its own age."""
_SERVICES_SHOWN = 12
_SERVICES_IN_VIEW = 20
_CHART_PIXELS, _SHARE_PIXELS, _LINK_PIXELS = 64, 84, 50
"""Widths of columns, so that the whole table is on a screen of 1,100 pixels."""


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

    rollups = rollups_of(listed, ("span_metrics", "log_rollups"), time_range, view.now_micros)
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
    show_charts({name: over_time[name] for name in busiest}, time_range, key="overview")
    theme.legend(theme.service_colours(busiest))
    _services(spans, over_time, logs, time_range.seconds)


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


def _services(
    spans: ServiceFigures, over_time: BucketsByService, logs: list[dict[str, Any]], seconds: float
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
                "details": [_link("services", name) for name in names],
                "traces": [_link("traces", name) for name in names],
                "logs": [_link("logs", name) for name in names],
            }
        ),
        column_config={
            "service": "Service",
            "traffic": st.column_config.AreaChartColumn("Traffic", y_min=0, width=_CHART_PIXELS),
            "rate": st.column_config.NumberColumn("Requests/s", format="%.2f"),
            "failed": st.column_config.ProgressColumn(
                "Failed", format="%.2f%%", min_value=0, max_value=100, width=_SHARE_PIXELS
            ),
            "p50": st.column_config.NumberColumn("p50", format="%.1f ms"),
            "p95": st.column_config.NumberColumn("p95", format="%.1f ms"),
            "p99": st.column_config.NumberColumn("p99", format="%.1f ms"),
            "log_errors": st.column_config.NumberColumn("Error logs"),
            "details": st.column_config.LinkColumn("", display_text="details", width=_LINK_PIXELS),
            "traces": st.column_config.LinkColumn("", display_text="traces", width=_LINK_PIXELS),
            "logs": st.column_config.LinkColumn("", display_text="logs", width=_LINK_PIXELS),
        },
        hide_index=True,
        width="stretch",
        height=theme.table_height(len(names), _SERVICES_IN_VIEW),
        key="overview-services",
    )


def _link(page: str, service: str) -> str | None:
    return None if service == UNNAMED else address(page, service=service)
