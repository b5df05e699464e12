"""What the Metrics page reads from rollups is what it reads from points."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pytest

from frazil.query.reads.metric_series import OTHERS, MetricRequest, MetricSeries, metric_series, read_series
from frazil.query.reads.metric_steps import (
    rolled_metric_attributes,
    rolled_metric_list,
    rolled_metric_series,
)
from frazil.query.reads.metrics import (
    AGGREGATIONS,
    Aggregation,
    Metric,
    metric_attributes,
    metric_list,
    metrics,
)
from frazil.query.reads.rolled import Rolled, rolled
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import MICRO, TimeRange
from tests.support.query.metric_steps import BEGIN, Landed, Row, over, point

HOUR = 3600
HOURS = 3
RANGE = TimeRange(BEGIN * MICRO, (BEGIN + HOURS * HOUR) * MICRO)
NOW = RANGE.end + 86_400 * MICRO
BOUNDS = (0.1, 0.5, 1.0, 5.0)
SHARDS = ("a", "b", "c")


def points(make: Callable[[int, int], Row], **facts: Any) -> list[Row]:
    """Each minute of the range, and some before and after it, of two services with some shards each. A point
    is in the last second of its minute, so that what is counted between two points is nearly all in the
    minute of the second one.
    """
    return [
        point(
            minute * 60 + 59,
            series_id=number,
            service_name="cart" if number % 2 else "web",
            attributes=[("shard", SHARDS[number % 3])],
            resource_attributes=[("service.name", "cart" if number % 2 else "web"), ("zone", "z1")],
            unit="1",
            description="For the test",
            **{"metric_name": "m", **facts, **make(number, minute)},
        )
        for number in range(4)
        for minute in range(-20, HOURS * 60 + 10)
    ]


def bucket_counts(number: int, minute: int) -> list[int]:
    """Counts since the start, which differ by series and time."""
    since = minute + 31
    return [since * (1 + number), since * 2, since + minute // 60, since // 3, since // 50]


def cumulative_histogram(number: int, minute: int) -> Row:
    counts = bucket_counts(number, minute)
    return {"bucket_counts": counts, "count": sum(counts), "sum": float(sum(counts) * 2)}


def delta_histogram(number: int, minute: int) -> Row:
    now, before = bucket_counts(number, minute), bucket_counts(number, minute - 1)
    counts = [one - other for one, other in zip(now, before, strict=True)]
    return {
        "bucket_counts": counts,
        "count": sum(counts),
        "sum": sum(counts) * 2.0,
        "began": minute * 60 - 1,
    }


def exponential(number: int, minute: int) -> Row:
    counts = bucket_counts(number, minute)
    return {
        "scale": 1,
        "zero_count": minute + 31,
        "positive_offset": -3,
        "positive_bucket_counts": counts,
        "count": sum(counts) + minute + 31,
        "sum": float(sum(counts)),
    }


def restarting(number: int, minute: int) -> Row:
    """Restarts at minutes 77 and 151, between two points."""
    lives = (-31, 77, 151)
    start = max(each for each in lives if each < minute)
    return {"value_double": float((minute - start) * (number + 1)), "began": start * 60 + 60}


BEFORE = -31 * 60 + 59
POINTS: dict[str, list[Row]] = {
    "gauge": points(
        lambda number, minute: {"value_double": math.sin(minute / 50) * 9 + number},
        metric_type="gauge",
        aggregation_temporality=None,
        is_monotonic=None,
    ),
    "level": points(
        lambda number, minute: {"value_int": minute % 90 + number}, is_monotonic=False, began=BEFORE
    ),
    "counter": points(restarting),
    "delta counter": points(
        lambda number, minute: {"value_int": 1 + number, "began": minute * 60 - 1},
        aggregation_temporality=1,
    ),
    "histogram": points(
        cumulative_histogram, metric_type="histogram", explicit_bounds=BOUNDS, is_monotonic=None, began=BEFORE
    ),
    "delta histogram": points(
        delta_histogram,
        metric_type="histogram",
        explicit_bounds=BOUNDS,
        is_monotonic=None,
        aggregation_temporality=1,
    ),
    "exponential": points(exponential, metric_type="exponential_histogram", is_monotonic=None, began=BEFORE),
    "summary": points(
        lambda number, minute: {
            "count": minute + 31,
            "sum": (minute + 31) * 2.5,
            "quantile_values": [{"quantile": each, "value": each + number} for each in (0.5, 0.95, 0.99)],
        },
        metric_type="summary",
        aggregation_temporality=None,
        is_monotonic=None,
        began=BEFORE,
    ),
}


def run(statement: Statement, rows: list[Row]) -> list[Row]:
    return over(statement.sql, landed(rows), params=statement.params)


_LANDED: dict[int, Landed] = {}


def landed(rows: list[Row]) -> Landed:
    """Both halves as a landing each, the later one first."""
    half = len(rows) // 2
    if id(rows) not in _LANDED:
        _LANDED[id(rows)] = Landed.of(rows[half:], rows[:half])
    return _LANDED[id(rows)]


def read_from() -> Rolled:
    found = rolled(RANGE, "metric_rollups", NOW)
    assert found is not None
    return found


def listed(rows: list[Row]) -> Metric:
    (found,) = metrics(run(rolled_metric_list(read_from()), rows)).values()
    return found


def both(rows: list[Row], how: Aggregation, **given: Any) -> tuple[list[MetricSeries], list[MetricSeries]]:
    """What is read from points, and what is read from rollups, in the same buckets."""
    read = read_from()
    request = MetricRequest(listed(rows), how, read.range, width_seconds=read.buckets.seconds, **given)
    statements = metric_series(request), rolled_metric_series(request)
    raw, rolled_up = (read_series(run(each, rows), request) for each in statements)
    return raw, rolled_up


def values(series: list[MetricSeries]) -> dict[tuple[str, dt.datetime], Any]:
    return {(each.name, time): value for each in series for time, value in each.points}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize(
    "given",
    [{}, {"by": "shard", "services": ("cart",)}, {"by": "service", "attributes": (("shard", "b"),)}],
    ids=str,
)
def test_every_aggregation_has_the_same_values(name: str, given: dict[str, Any]) -> None:
    rows = POINTS[name]
    for how in AGGREGATIONS[listed(rows).kind]:
        if how == "quantiles" and "by" in given:
            continue
        raw, found = (values(each) for each in both(rows, how, **given))
        assert found == pytest.approx(raw, rel=0.05, abs=0.001), how


def test_the_list_of_metrics_is_the_same() -> None:
    kinds = (("a", "gauge", "By"), ("a", "counter", None), ("b", "summary", "s"))
    rows = [
        {**row, "metric_name": name, "unit": unit, "series_id": row["series_id"] + 100 * at}
        for at, (name, key, unit) in enumerate(kinds)
        for row in POINTS[key]
    ]
    found = metrics(run(rolled_metric_list(read_from()), rows))
    assert found == metrics(run(metric_list(RANGE), rows))
    assert [metric.description for metric in found.values()] == ["For the test"] * 3


def test_metrics_whose_series_are_not_listed_have_no_description() -> None:
    rows = POINTS["gauge"]
    tables = {
        name: each.slice(0, 0 if "series" in name else None) for name, each in landed(rows).tables.items()
    }
    statement = rolled_metric_list(read_from())
    (found,) = metrics(over(statement.sql, Landed(tables), statement.params)).values()
    assert (found.name, found.description, found.services) == ("m", "", ("cart", "web"))
    request = MetricRequest(found, "average", read_from().range, by="shard", width_seconds=300)
    statement = rolled_metric_series(request)
    by_shard = read_series(over(statement.sql, Landed(tables), statement.params), request)
    assert [series.name for series in by_shard] == ["(none)"]


def test_the_attributes_to_choose_from_are_the_same() -> None:
    rows = POINTS["counter"]
    last = RANGE.last(HOUR)
    metric = listed(rows)
    found = run(rolled_metric_attributes(metric, last), rows)
    assert found == run(metric_attributes(metric, last), rows)
    assert {row["key"] for row in found} == {"shard", "service.name", "zone"}
    later = TimeRange(RANGE.end + 3 * HOUR * MICRO, RANGE.end + 4 * HOUR * MICRO)
    assert run(rolled_metric_attributes(metric, later), rows) == []


def test_a_step_that_has_not_ended_has_the_rate_of_its_part_and_no_increase() -> None:
    rows = POINTS["counter"]
    read = read_from()
    now = dt.datetime.fromtimestamp(BEGIN + HOUR + 150, dt.UTC)
    kept = [row for row in rows if row["time"] < (BEGIN + HOUR + 150) * MICRO]
    rates, increases = (
        read_series(run(rolled_metric_series(request), kept), request)[0].points
        for request in (
            MetricRequest(listed(rows), how, read.range, width_seconds=300, now=now)
            for how in ("rate", "increase")
        )
    )
    assert len(rates) == len(increases) + 1 == 13
    assert rates[-1][1] == pytest.approx(20 / 150)
    assert rates[-2][1] == pytest.approx(50 / 300)
    early = MetricRequest(
        listed(rows), "rate", read.range, width_seconds=300, now=now - dt.timedelta(seconds=40)
    )
    assert len(read_series(run(rolled_metric_series(early), kept), early)[0].points) == 12


def test_all_but_the_largest_groups_are_one() -> None:
    rows = [
        point(
            minute * 60,
            series_id=number,
            attributes=[("user", f"u{number}")],
            value_double=float(minute * number),
            began=-HOUR,
        )
        for number in range(1, 15)
        for minute in range(180)
    ]
    raw, found = both([{**row, "metric_name": "m", "unit": "1"} for row in rows], "rate", by="user")
    names = [series.name for series in found]
    assert (
        names == [series.name for series in raw] == [*(f"u{number}" for number in range(14, 4, -1)), OTHERS]
    )
    hostile = "it's \"x\" $1 ' OR 1=1"
    assert both(
        [{**row, "metric_name": "m", "unit": "1"} for row in rows],
        "rate",
        by=hostile,
        attributes=((hostile, hostile),),
    ) == ([], [])


def test_the_statement_can_be_shared_with_its_values_inlined() -> None:
    rows = POINTS["histogram"]
    request = MetricRequest(listed(rows), "p99", read_from().range, by="shard", width_seconds=300)
    statement = rolled_metric_series(request)
    assert over(statement.inlined(), landed(rows)) == run(statement, rows)
