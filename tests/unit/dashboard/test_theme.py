"""Colours: one for each service everywhere, and different ones within a chart."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from frazil.dashboard import theme
from frazil.dashboard.pages import metrics
from frazil.dashboard.sql import chart as sql_chart
from frazil.dashboard.sql import quick_chart
from frazil.query.reads.metric_series import OTHERS, MetricRequest, MetricSeries
from frazil.query.reads.metrics import Metric
from frazil.query.reads.time_range import TimeRange

BEGIN = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def coloured(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The services that have a colour."""
    found: dict[str, str] = {}
    monkeypatch.setattr(theme, "_assigned", found)
    return found


def range_of_metric(names: list[str], by: str | None) -> list[str]:
    metric = Metric("m", "gauge", "1", "", (), False, True, 1)
    range = TimeRange.between(BEGIN, BEGIN + dt.timedelta(hours=1))
    drawn = [MetricSeries(name, ((BEGIN, 1.0),)) for name in names]
    spec = metrics._chart(drawn, MetricRequest(metric, "mean", range), "", by).to_dict()
    colours: list[str] = spec["layer"][0]["encoding"]["color"]["scale"]["range"]
    return colours


def range_of_sql(names: list[str], column: str) -> list[str]:
    table = pa.table({"x": [1.0] * len(names), "y": [2.0] * len(names), column: names})
    choice = quick_chart.Choice("points", "x", "y", column)
    spec = sql_chart._chart(table, choice, quick_chart.columns(table)).to_dict()
    colours: list[str] = spec["encoding"]["color"]["scale"]["range"]
    return colours


def test_the_first_services_differ() -> None:
    names = [f"service-{number}" for number in range(len(theme.SERVICE_COLOURS))]
    assert sorted(theme.service_colours(names).values()) == sorted(theme.SERVICE_COLOURS)


def test_a_service_has_the_same_colour_on_all_pages() -> None:
    names = [f"service-{number}" for number in range(8)]
    known = [theme.service_colours(names)[name] for name in names]
    assert range_of_metric(names, "service") == known
    assert range_of_sql(names, "service_name") == known
    assert theme.colour_scale(names).to_dict()["range"] == known


def test_only_services_are_remembered(coloured: dict[str, str]) -> None:
    names = [f"/path/{number}" for number in range(8)]
    for drawn in (range_of_metric(names, "http.route"), range_of_sql(names, "route")):
        assert len(set(drawn)) == len(names), "two lines of a chart have one colour"
        assert set(drawn) <= set(theme.SERVICE_COLOURS)
    range_of_metric(["shop.orders"], None)
    assert range_of_metric([OTHERS], "service") == [theme.QUIET]
    assert coloured == {}


def test_a_series_alone_has_the_colour_of_its_name() -> None:
    assert range_of_metric(["/a"], "http.route") == range_of_sql(["/a"], "route")


def test_more_services_than_are_remembered_have_colours_too(
    coloured: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theme, "_ASSIGNED_MAX", 3)
    first = theme.service_colours(f"service-{number}" for number in range(40))
    assert len(coloured) == 3
    assert set(first.values()) <= set(theme.SERVICE_COLOURS)
    assert len(set(first.values())) > 8
    assert theme.service_colours(first) == first
