"""The Metrics page reads points for short ranges and rollups for long ones, and shows the same of both."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pandas as pd
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from streamlit.testing.v1 import AppTest

from frazil.dashboard.time_range import format_range
from tests.support.query.engine_api import EngineApi
from tests.support.query.read_telemetry import BEGIN, pairs
from tests.unit.dashboard.pages.conftest import Open

HOURS = 3
MINUTES = HOURS * 60
QUERIES_MAX = 3
END = dt.datetime.fromtimestamp(BEGIN // 300 * 300, dt.UTC)


def range_(hours: float = HOURS) -> str:
    return format_range(END - dt.timedelta(hours=hours), END)


def requests() -> ExportMetricsServiceRequest:
    """A counter and a histogram of two regions, with a point in the last second of each minute."""
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    resource.resource.attributes.extend(pairs({"service.name": "cart"}))
    scope = resource.scope_metrics.add()
    counter = scope.metrics.add(name="orders", unit="1", description="Orders placed")
    counter.sum.aggregation_temporality, counter.sum.is_monotonic = 2, True
    durations = scope.metrics.add(name="took", unit="s")
    durations.histogram.aggregation_temporality = 2
    began = (int(END.timestamp()) - (MINUTES + 30) * 60) * 10**9
    for number, region in enumerate(("eu", "us"), 1):
        for minute in range(1, MINUTES + 45):
            times = {"time_unix_nano": began + (minute * 60 - 1) * 10**9, "start_time_unix_nano": began}
            attributes = pairs({"region": region})
            counter.sum.data_points.add(**times, attributes=attributes, as_int=minute * 60 * number)
            counts = [minute * number * 8, minute * number * 2, 0]
            durations.histogram.data_points.add(
                **times,
                attributes=attributes,
                count=sum(counts),
                bucket_counts=counts,
                explicit_bounds=[1.0, 2.0],
                sum=sum(counts) * 0.8,
            )
    return request


@pytest.fixture
def shop(api: EngineApi) -> EngineApi:
    api.engine.add("metrics", requests())
    return api


def table(app: AppTest) -> dict[str, dict[str, float]]:
    """The table below the chart, by series."""
    assert not app.exception
    assert not app.error
    frame: pd.DataFrame = next(each.value for each in app.dataframe if "mean" in each.value.columns)
    found: dict[str, dict[str, float]] = frame.set_index(frame.columns[0]).T.to_dict()
    return found


@pytest.mark.parametrize(
    "chosen",
    [
        {"metric": "orders"},
        {"metric": "orders", "by": "region", "as": "increase"},
        {"metric": "orders", "attr": "region=us", "service": "cart"},
        {"metric": "took"},
        {"metric": "took", "by": "region", "as": "p95"},
        {"metric": "took", "as": "mean"},
    ],
    ids=str,
)
def test_rollups_and_points_show_the_same(chosen: dict[str, Any], shop: EngineApi, opened: Open) -> None:
    found = {}
    for state in ("ok", "off"):
        shop.asked.clear()
        shop.facts = {} if state == "ok" else {"series": {"enabled": False}}
        app = opened("metric", range=range_(), **chosen)
        found[state] = table(app)
        assert any("metric_steps" in asked for asked in shop.queries) == (state == "ok")
        assert any("FROM metrics" in asked for asked in shop.queries) == (state == "off")
        assert len(shop.queries) <= QUERIES_MAX
    if chosen.get("as") == "increase":  # by bucket, whose widths differ
        found = {state: {name: {} for name in rows} for state, rows in found.items()}
    assert found["ok"].keys() == found["off"].keys()
    for name, values in found["ok"].items():
        assert values == pytest.approx(found["off"][name], rel=0.05), name


def test_points_are_read_for_an_hour_and_where_rollups_lack_rows(shop: EngineApi, opened: Open) -> None:
    for hours, facts, missing in (
        (1, {}, ()),
        (HOURS, {"metric_rollups": {"days_left": 1}}, ()),
        (HOURS, {"metric_rollups": {"lag_seconds": None}}, ()),
        (HOURS, {}, ("rows since 10:00 are late",)),
    ):
        shop.asked.clear()
        shop.facts, shop.missing = dict(facts), missing
        shown = table(opened("metric", range=range_(hours), metric="orders"))
        assert shown["orders"]["mean"] == pytest.approx(3.0, rel=0.05)
        assert "FROM metrics" in shop.queries[-1]


def test_metrics_and_attributes_to_choose_from_come_from_rollups(shop: EngineApi, opened: Open) -> None:
    app = opened("metric", range=range_(), metric="orders")
    assert list(app.selectbox(key="metric").options) == ["orders", "took"]
    assert set(app.selectbox(key="by").options) >= {"service", "region"}
    assert "region=eu" in app.multiselect(key="attr").options
    assert any("Orders placed" in caption.value for caption in app.caption)
