"""Metrics: one metric over time, by service or attribute.

The URL has all choices: metric, service, attr, by, as.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.derived import read_all, rollups_of
from frazil.dashboard.format import axis_unit, escape_markdown, format_count
from frazil.dashboard.sql import text as sql_text
from frazil.dashboard.view import LABELS, View, show_fragment, show_how_to_send, url_multiselect
from frazil.query.reads.metric_series import (
    HOLD_SECONDS,
    OTHERS,
    MetricRequest,
    MetricSeries,
    metric_series,
    read_series,
)
from frazil.query.reads.metric_steps import (
    rolled_metric_attributes,
    rolled_metric_list,
    rolled_metric_series,
)
from frazil.query.reads.metrics import (
    AGGREGATIONS,
    Aggregation,
    Kind,
    Metric,
    metric_attributes,
    metric_list,
    metrics,
)
from frazil.query.reads.rolled import POINTS_MIN, RAW_SECONDS_MAX, Rolled
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import TimeRange

_LIST_CACHE_SECONDS = 60
_SERIES_CACHE_SECONDS = 4
_KEYS_SECONDS_MAX = 3600
"""Attributes to choose from are read from the last hour of the range only, to limit the cost."""
_LIST_POINTS_MIN = 6
"""How many buckets of a rollup the range must have, to list the metrics in it: few, so that it is quick."""
_FIRST = "http.server.request.duration"
"""Shown first if it exists: most users look for it."""
_SERVICE = "service"
_SERIES_IN_VIEW = 8
_KINDS: dict[Kind, str] = {
    "gauge": "gauge",
    "level": "non-monotonic sum",
    "counter": "counter",
    "changes": "non-monotonic sum (delta)",
    "histogram": "histogram",
    "exponential_histogram": "exponential histogram",
    "summary": "summary",
}
_QUANTILE_COLOURS = dict(zip(("p50", "p95", "p99"), theme.SERVICE_COLOURS, strict=False))


@dataclass(frozen=True)
class _Keys:
    """The attributes of a metric: those of its points first, then those of its resources."""

    names: tuple[str, ...]
    pairs: tuple[str, ...]


def page(view: View) -> None:
    st.title("Metrics")
    listed = _listed(view)
    if not listed:
        _show_nothing(view)
        return
    requested = st.query_params.get("metric")
    left, right = st.columns([5, 6])
    with left:
        metric = _chosen_metric(listed)
    with right:
        aggregation = _chosen_aggregation(metric)
    st.caption(_about(metric))
    if requested is not None and requested not in listed:
        st.info(f"**{escape_markdown(requested)}** has no data in this time range.", icon=":material/info:")
    keys = _keys(view, metric)
    services, attributes, by = _chosen_filters(metric, keys)
    if aggregation == "quantiles" and by is not None:
        aggregation = "p95"
        st.caption("Groups are shown with p95 only.")

    def draw(view: View) -> None:
        _draw(view, metric, aggregation, services, attributes, by)

    show_fragment(draw, view)


def _rollups(view: View, range: TimeRange, points_min: int = POINTS_MIN) -> Rolled | None:
    """Returns which rows of rollups to read in place of points."""
    if range.seconds <= RAW_SECONDS_MAX:
        return None
    tables = view.api.get("tables", cache_seconds=_LIST_CACHE_SECONDS)["tables"]
    return rollups_of(tables, ("metric_rollups", "series"), range, view.now_micros, points_min)


def _listed(view: View) -> dict[str, Metric]:
    range = view.time_range.rounded(_LIST_CACHE_SECONDS)

    def statements(rolled: Rolled | None) -> list[Statement]:
        return [metric_list(range) if rolled is None else rolled_metric_list(rolled)]

    rollups = _rollups(view, range, _LIST_POINTS_MIN)
    ((rows,), _) = read_all(view, statements, rollups, cache_seconds=_LIST_CACHE_SECONDS)
    return metrics(rows)


def _show_nothing(view: View) -> None:
    tables = view.api.get("tables", cache_seconds=_LIST_CACHE_SECONDS)["tables"]
    rows = next((table for table in tables if table["name"] == "metrics"), {"rows": 0, "tail_rows": 0})
    if (rows["rows"] or 0) + (rows["tail_rows"] or 0):
        st.info(
            "No metrics in this time range. Choose a longer range in the sidebar.", icon=":material/info:"
        )
    else:
        show_how_to_send(view, "metrics")


def _chosen_metric(listed: dict[str, Metric]) -> Metric:
    labels = list(listed)
    first = next((label for label in labels if label.startswith(_FIRST)), labels[0])
    name, browse = st.columns([6, 1], vertical_alignment="bottom")
    if "metric" not in st.session_state and st.query_params.get("metric") not in listed:
        # Set explicitly: a default is not written to the URL, and it differs by time range.
        st.session_state["metric"] = first
    chosen = name.selectbox(
        "Metric",
        labels,
        index=None,
        placeholder=first,
        key="metric",
        bind="query-params",
        on_change=_reset_filters,
    )
    with browse.popover(
        "", icon=":material/list:", help="All metrics in this time range", key="metric_browse"
    ):
        _show_all(listed)
    return listed.get(chosen or "", listed[first])


def _show_all(listed: dict[str, Metric]) -> None:
    """Shows a searchable table of all metrics."""
    labels = list(listed)
    rows = [
        {
            "metric": label,
            "kind": _KINDS[metric.kind],
            "unit": metric.unit,
            "description": metric.description,
            "services": ", ".join(metric.services),
        }
        for label, metric in listed.items()
    ]

    def choose() -> None:
        selected = st.session_state["metric_all"].selection.rows
        if selected:
            st.session_state["metric"] = labels[selected[0]]
            _reset_filters()

    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        width=820,
        height=theme.table_height(len(rows), 12),
        on_select=choose,
        selection_mode="single-row",
        key="metric_all",
    )


def _reset_filters() -> None:
    """Clears the choices that were made for another metric."""
    st.session_state["attr"], st.session_state["by"] = [], None
    st.session_state.pop("as", None)


def _about(metric: Metric) -> str:
    unit = f" in {metric.unit}" if metric.unit not in ("", "1") else ""
    services = f"{len(metric.services)} service{'' if len(metric.services) == 1 else 's'}"
    sent = f"{format_count(metric.points)} points from {services} in this time range"
    return " · ".join(
        escape_markdown(part)
        for part in (metric.description, _KINDS[metric.kind].capitalize() + unit, sent)
        if part
    )


def _keys(view: View, metric: Metric) -> _Keys:
    range = view.time_range.rounded(_LIST_CACHE_SECONDS)
    last = range.last(_KEYS_SECONDS_MAX)

    def statements(rolled: Rolled | None) -> list[Statement]:
        return [(metric_attributes if rolled is None else rolled_metric_attributes)(metric, last)]

    ((rows,), _) = read_all(view, statements, _rollups(view, range), cache_seconds=_LIST_CACHE_SECONDS)
    return _Keys(
        tuple(dict.fromkeys(row["key"] for row in rows)),
        tuple(dict.fromkeys(f"{row['key']}={row['value']}" for row in rows)),
    )


def _chosen_filters(metric: Metric, keys: _Keys) -> tuple[list[str], list[tuple[str, str]], str | None]:
    left, middle, right = st.columns([2, 3, 2])
    services = url_multiselect(
        left, LABELS["service"], metric.services, key="service", placeholder="All services"
    )
    pairs = url_multiselect(
        middle, LABELS["attr"], keys.pairs, key="attr", placeholder="key=value (all must match)"
    )
    by = right.selectbox(
        "Group by",
        (_SERVICE, *(key for key in keys.names if key != "service.name")),
        index=None,
        key="by",
        bind="query-params",
        placeholder="None",
        accept_new_options=True,
    )
    split = [pair.partition("=") for pair in pairs]
    if invalid := [pair for pair, (_, sign, _) in zip(pairs, split, strict=True) if not sign]:
        st.warning(
            f"Write an attribute as key=value, not {escape_markdown(invalid[0])}.", icon=":material/warning:"
        )
    return services, [(key, value) for key, sign, value in split if sign], by


def _chosen_aggregation(metric: Metric) -> Aggregation:
    offered = AGGREGATIONS[metric.kind]
    if st.session_state.get("as", offered[0]) not in offered:
        st.session_state["as"] = offered[0]  # was chosen for a metric of another kind
    chosen = st.segmented_control(
        "Show",
        offered,
        default=None if "as" in st.session_state else offered[0],
        required=True,
        key="as",
        bind="query-params",
        help=_help(metric),
    )
    return chosen or offered[0]


def _help(metric: Metric) -> str:
    match metric.kind:
        case "counter" | "changes":
            return (
                "Counter resets do not cause dips. Up to an hour, the increase between two points is spread "
                "evenly over the time between them; in longer ranges it counts at the second point."
            )
        case "histogram" | "exponential_histogram":
            return "Quantiles are estimated by linear interpolation within the buckets that the client sent."
        case "summary":
            return "Quantiles as sent by the client. For several series, the highest is shown."
        case _:
            return (
                f"A value is held until the next point, for at most {HOLD_SECONDS // 60} minutes, in ranges "
                "of up to an hour. Average: over all series. Total: the sum of each series' latest value."
            )


def _draw(
    view: View,
    metric: Metric,
    aggregation: Aggregation,
    services: Sequence[str],
    attributes: Sequence[tuple[str, str]],
    by: str | None,
) -> None:
    def request(rolled: Rolled | None) -> MetricRequest:
        width = MetricRequest(metric, aggregation, TimeRange.between(*view.time_range.bounds())).width
        range = view.time_range.rounded(width)  # aligned with buckets, so that results can be cached
        if rolled is not None:
            width, range = rolled.buckets.seconds, rolled.range
        now = range.end_time if view.time_range.is_relative else None
        return MetricRequest(metric, aggregation, range, services, attributes, by, width, now)

    def statement(rolled: Rolled | None) -> Statement:
        return (metric_series if rolled is None else rolled_metric_series)(request(rolled))

    step = view.time_range.step_seconds
    rollups = _rollups(view, view.time_range.rounded(step))
    cache_seconds = _SERIES_CACHE_SECONDS if rollups is None else step - 1
    ((rows,), read) = read_all(view, lambda rolled: [statement(rolled)], rollups, cache_seconds=cache_seconds)
    series = read_series(rows, request(read))
    _show(view, request(read), statement(read), series)


def _show(view: View, request: MetricRequest, statement: Statement, series: Sequence[MetricSeries]) -> None:
    metric, aggregation, by = request.metric, request.aggregation, request.by
    if not series:
        _show_no_series(metric, aggregation, bool(request.services or request.attributes))
        _show_as_sql(view, statement)
        return
    unit = axis_unit(metric, aggregation, request.width)
    theme.show_chart(_chart(series, request, unit, by), height=330, key="metric_chart")
    _show_table(series, by, unit)
    _show_as_sql(view, statement)


def _show_no_series(metric: Metric, aggregation: Aggregation, is_filtered: bool) -> None:
    if metric.kind in ("histogram", "exponential_histogram", "summary") and aggregation not in (
        "rate",
        "mean",
    ):
        st.info(
            "No quantiles: nothing was measured in this time range, or the metric has no buckets. Try mean "
            "or rate.",
            icon=":material/info:",
        )
    elif is_filtered:
        st.info("No data matches these filters in this time range.", icon=":material/filter_alt_off:")
        st.button("Clear filters", on_click=_clear_filters, key="metric_clear")
    else:
        st.info(
            "Not enough data: a rate needs two points of a series, or a start time.", icon=":material/info:"
        )


def _clear_filters() -> None:
    st.session_state["service"], st.session_state["attr"] = [], []


def _chart(
    series: Sequence[MetricSeries], request: MetricRequest, unit: str, by: str | None
) -> alt.LayerChart:
    frame = pd.DataFrame(
        [(time, line.name, value) for line in series for time, value in line.with_gaps(request.width)],
        columns=["time", "series", "value"],
    )
    names = [line.name for line in series]
    hover = alt.selection_point(
        fields=["time"], nearest=True, on="pointerover", clear="pointerout", empty=False, name="hover"
    )
    base = alt.Chart(frame).encode(
        x=theme.time_axis("time", request.range.start_time, request.range.end_time),
        y=alt.Y(
            "value:Q",
            title=unit or None,
            axis=alt.Axis(format="~s") if unit.startswith("byte") else theme.number_axis(),
        ),
        color=alt.Color(
            "series:N",
            title=None if by is None else by,
            scale=alt.Scale(domain=names, range=_colours(names, by)),
            legend=None if len(names) == 1 else alt.Legend(labelLimit=220, rowPadding=0),
        ),
    )
    tooltip = [
        theme.time_tooltip("time", request.range.start_time, request.range.end_time),
        alt.Tooltip("series:N", title=by or "series"),
        alt.Tooltip("value:Q", title=unit or "value", format=theme.NUMBER),
    ]
    # A point is visible near the pointer, or if its series has no other point.
    alone = {line.name for line in series if len(line.points) == 1}
    visible = alt.condition(hover, alt.value(1), alt.value(0))
    dots = base.mark_circle(size=60).encode(opacity=visible, tooltip=tooltip).add_params(hover)
    layers: list[alt.Chart] = [base.mark_line(strokeWidth=2), dots]
    if alone:
        layers.append(
            base.transform_filter(alt.FieldOneOfPredicate("series", sorted(alone))).mark_circle(size=60)
        )
    chart: alt.LayerChart = alt.LayerChart(layer=layers)
    return chart


def _colours(names: Sequence[str], by: str | None) -> list[str]:
    colours_of = theme.service_colours if by == _SERVICE else theme.series_colours
    fixed = {OTHERS: theme.QUIET} | ({} if by else _QUANTILE_COLOURS)
    known = colours_of(name for name in names if name not in fixed) | fixed
    return [known[name] for name in names]


def _show_table(series: Sequence[MetricSeries], by: str | None, unit: str) -> None:
    number = st.column_config.NumberColumn(format="bytes" if unit.startswith("byte") else "%.4g")
    rows: list[dict[str, Any]] = [{by or "series": line.name, **line.summary} for line in series]
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        height=theme.table_height(len(rows), _SERIES_IN_VIEW),
        column_config=dict.fromkeys(("latest", "lowest", "mean", "highest"), number),
        key="metric_table",
    )


def _show_as_sql(view: View, statement: Statement) -> None:
    sql = statement.inlined()
    if sql_text.can_be_shared(sql):
        with st.container(key="metric_sql"):
            query = {"q": sql, "run": "1"}
            st.page_link(view.pages["sql"], label="Open as SQL", query_params=query)
    else:
        with st.expander("SQL"):
            st.code(sql, language="sql")
