"""Charts of all pages, as they are sent to the browser: times are in UTC, wherever it is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import altair as alt
import pyarrow as pa
import pytest

from frazil.dashboard import theme
from frazil.dashboard.pages import metrics, pipeline
from frazil.dashboard.services.charts import show_charts
from frazil.dashboard.sql import chart as sql_chart
from frazil.dashboard.sql import quick_chart
from frazil.dashboard.traces import durations
from frazil.query.reads.metric_series import MetricRequest, MetricSeries
from frazil.query.reads.metrics import Metric
from frazil.query.reads.services import BucketFigures, Figures
from frazil.query.reads.time_range import TimeRange

BEGIN = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
Spec = dict[str, Any]


def tooltips(spec: Any) -> Iterator[Spec]:
    """Of a chart and of all its layers."""
    if isinstance(spec, dict):
        yield from spec.get("encoding", {}).get("tooltip", ())
        for within in spec.values():
            yield from tooltips(within)
    elif isinstance(spec, list):
        for within in spec:
            yield from tooltips(within)


def times(chart: alt.Chart | alt.LayerChart) -> list[Spec]:
    return [tip for tip in tooltips(chart.to_dict()) if tip["type"] == "temporal"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[alt.Chart]:
    """What pages draw."""
    charts: list[alt.Chart] = []
    monkeypatch.setattr(theme, "show_chart", lambda chart, **_: charts.append(chart))
    return charts


def draw_services(length: dt.timedelta = HOUR) -> None:
    figures = Figures(10, 1, 1.0, 2.0, 3.0)
    moments = [BucketFigures(time, figures, 60.0) for time in (BEGIN, BEGIN + length / 2)]
    show_charts({"cart": moments}, TimeRange.between(BEGIN, BEGIN + length), key="test")


def draw_pipeline() -> None:
    at = [BEGIN.timestamp(), BEGIN.timestamp() + 10]
    series = [{"name": name, "of": "logs", "values": [1.0, 2.0]} for name, _, _ in pipeline._CHARTS]
    pipeline._charts({"history": {"times": at, "series": series}})


def draw_traces() -> None:
    cell = {"bucket": 0, "bin": 1, "traces": 2, "errors": 1, "longest_ms": 4.0}
    times = {"from": BEGIN.isoformat(), "to": (BEGIN + HOUR).isoformat(), "first_bucket": BEGIN.isoformat()}
    durations.show(times | {"bucket_seconds": 60, "bins_ms": [0, 1, 5], "cells": [cell]}, on_pick=list)


def metric_chart(length: dt.timedelta = HOUR) -> alt.LayerChart:
    metric = Metric("m", "gauge", "1", "", ("cart",), False, True, 1)
    drawn = [MetricSeries("cart", ((BEGIN, 1.0), (BEGIN + length / 2, 2.0)))]
    request = MetricRequest(metric, "mean", TimeRange.between(BEGIN, BEGIN + length))
    return metrics._chart(drawn, request, "", "service")


def sql_chart_of(column: pa.Array) -> alt.Chart:
    table = pa.table({"at": column, "rows": list(range(len(column)))})
    choice = quick_chart.Choice("line", "at", "rows")
    return sql_chart._chart(table, choice, quick_chart.columns(table))


def test_times_in_tooltips_are_in_utc_on_all_pages(shown: list[alt.Chart]) -> None:
    for draw, timed in ((draw_services, 3), (draw_pipeline, 6), (draw_traces, 2)):
        shown.clear()
        draw()
        found = [tip for chart in shown for tip in times(chart)]
        assert len(found) == timed
        assert all(tip.get("timeUnit", "").startswith("binnedutc") for tip in found), draw
    for chart in (metric_chart(), sql_chart_of(pa.array([BEGIN, BEGIN + HOUR]))):
        (tip,) = times(chart)
        assert tip["timeUnit"].startswith("binnedutc")


@pytest.mark.parametrize(
    ("seconds", "form"),
    [(5, "%H:%M:%S.%L"), (3600, "%H:%M:%S"), (86400, "%H:%M:%S"), (86401, "%Y-%m-%d %H:%M:%S")],
)
def test_a_tooltip_has_the_day_where_there_are_several_and_milliseconds_within_one_minute(
    seconds: float, form: str
) -> None:
    end = BEGIN + dt.timedelta(seconds=seconds)
    assert theme.time_tooltip("time", BEGIN, end).to_dict()["format"] == form


def test_a_tooltip_says_all_where_nothing_is_known_of_the_range() -> None:
    assert theme.time_tooltip("time").to_dict()["format"] == "%Y-%m-%d %H:%M:%S.%L"


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("s"), pa.date32()])
def test_times_of_no_zone_are_drawn_as_utc(kind: pa.DataType) -> None:
    """Streamlit's page would take them for the browser's own."""
    column = pa.array([BEGIN.replace(tzinfo=None), BEGIN.replace(tzinfo=None) + DAY], pa.timestamp("us"))
    frame = sql_chart_of(column.cast(kind, safe=False)).data
    assert str(frame["x"].dt.tz) == "UTC"
    assert frame["x"][0] == (BEGIN if kind != pa.date32() else BEGIN.replace(hour=0))
