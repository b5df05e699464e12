from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from frazil.dashboard.metric_kinds import Metric, axis_unit
from frazil.dashboard.metric_lines import OTHERS, Line, lines

BEGIN = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)


def at(seconds: int) -> dt.datetime:
    return BEGIN + dt.timedelta(seconds=seconds)


def test_lines_come_by_size_and_all_others_last() -> None:
    rows = [
        {"time": at(10), "series": "small", "value": 1.0},
        {"time": at(10), "series": None, "value": 50.0},
        {"time": at(0), "series": "big", "value": 8.0},
        {"time": at(10), "series": "big", "value": 4.0},
        {"time": at(20), "series": "big", "value": None},
    ]
    found = lines(rows, "m", "rate")
    assert [line.name for line in found] == ["big", "small", OTHERS]
    assert found[0].summary == {"latest": 4.0, "lowest": 4.0, "mean": 6.0, "highest": 8.0}


def test_a_line_alone_has_the_name_of_its_metric() -> None:
    (line,) = lines([{"time": at(0), "series": "", "value": 1.0}], "shop.orders", "rate")
    assert line.name == "shop.orders"


def test_quantiles_are_a_line_each() -> None:
    rows = [{"time": at(0), "series": "", "p50": 1.0, "p95": 2.0, "p99": None}]
    assert lines(rows, "m", "quantiles") == [Line("p50", ((at(0), 1.0),)), Line("p95", ((at(0), 2.0),))]


def test_a_line_is_broken_where_a_bucket_is_missing() -> None:
    line = Line("a", ((at(0), 1.0), (at(10), 2.0), (at(40), 3.0)))
    assert line.drawn(10) == [(at(0), 1.0), (at(10), 2.0), (at(20), None), (at(40), 3.0)]


@pytest.mark.parametrize(
    ("type", "unit", "how", "expected"),
    [
        ("sum", "{order}", "rate", "order/s"),
        ("sum", "{order}", "increase", "order per 5 min"),
        ("sum", "By", "total", "bytes"),
        ("gauge", "1", "average", ""),
        ("sum", "", "rate", "per second"),
        ("sum", "", "increase", "per 5 min"),
        ("histogram", "ms", "p95", "ms"),
        ("histogram", "ms", "rate", "measurements/s"),
    ],
)
def test_the_axis_says_the_unit(type: str, unit: str, how: Any, expected: str) -> None:
    assert axis_unit(Metric("m", type, unit, "", (), True, True, 1), how, 300) == expected
