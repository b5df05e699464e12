"""The built SQL is run in DuckDB over small tables: every expected value can be worked out by hand."""

from __future__ import annotations

import datetime as dt
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from frazil.query.reads.metric_series import (
    OTHERS,
    SERIES_MAX,
    MetricRequest,
    MetricSeries,
    metric_series,
    read_series,
)
from frazil.query.reads.metrics import Metric, metric_attributes, metric_list, metrics
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import TimeRange
from frazil.tables import table_spec

BEGIN = dt.datetime(2026, 11, 15, 10, 0, tzinfo=dt.UTC)
DELTA, CUMULATIVE = 1, 2
CONNECTION = duckdb.connect(config={"threads": 1})
SCHEMA = table_spec("metrics").arrow_schema


def at(seconds: float) -> dt.datetime:
    return BEGIN + dt.timedelta(seconds=seconds)


def nano(seconds: float) -> int:
    return round(at(seconds).timestamp()) * 10**9


def point(seconds: float, value: float | None = None, **given: Any) -> dict[str, Any]:
    """A point of a counter that began long before, unless it says otherwise."""
    began = given.pop("began", -100_000)
    row = {
        "tenant_id": "default",
        "time": at(seconds),
        "metric_name": "shop.orders",
        "metric_type": "sum",
        "unit": "{order}",
        "series_id": 1,
        "value_double": value,
        "service_name": "checkout",
        "aggregation_temporality": CUMULATIVE,
        "is_monotonic": True,
        "attributes": [],
        "resource_attributes": [],
        "start_time_unix_nano": None if began is None else nano(began),
        "flags": 0,
        **given,
    }
    if isinstance(row["attributes"], dict):
        row["attributes"] = list(row["attributes"].items())
    return row


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.table(
        {name: pa.array([row.get(name) for row in rows], SCHEMA.field(name).type) for name in SCHEMA.names}
    )


def run(statement: Statement, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with CONNECTION.cursor() as cursor:
        cursor.register("metrics", table(rows))
        answer: list[dict[str, Any]] = (
            cursor.execute(statement.sql, list(statement.params)).to_arrow_table().to_pylist()
        )
    return answer


def metric(rows: list[dict[str, Any]]) -> Metric:
    listed = run(metric_list(TimeRange.between(at(-3600), at(7200))), rows)
    (found,) = metrics(listed).values()
    return found


def values(rows: list[dict[str, Any]], how: Any, **given: Any) -> dict[Any, Any]:
    """Seconds since BEGIN, and the series if there are several, to the value."""
    range = TimeRange.between(given.pop("start", at(0)), given.pop("end", at(60)))
    request = MetricRequest(metric(rows), how, range, **{"width_seconds": 10, **given})
    answer = run(metric_series(request), rows)
    return {
        _place(row, "by" in given): pytest.approx(row["value"])
        if row.get("value") is not None
        else tuple(row[name] for name in ("p50", "p95", "p99"))
        for row in answer
    }


def _place(row: dict[str, Any], is_grouped: bool) -> Any:
    seconds = (row["time"] - BEGIN).total_seconds()
    return (seconds, row["series"]) if is_grouped else seconds


# --- counters


def test_a_cumulative_counter_is_the_difference_of_its_points() -> None:
    rows = [point(0, 100), point(10, 120), point(20, 120), point(30, 150)]
    assert values(rows, "rate") == {0: 2.0, 10: 0.0, 20: 3.0}
    assert values(rows, "increase") == {0: 20.0, 10: 0.0, 20: 30.0}


def test_a_step_is_shared_out_over_the_buckets_that_it_overlaps() -> None:
    rows = [point(-5, 0), point(15, 40)]  # two a second from -5 to 15
    assert values(rows, "increase") == {0: 20.0, 10: 10.0}


def test_the_step_that_crosses_the_end_of_the_range_counts_up_to_it() -> None:
    rows = [point(50, 0), point(70, 20)]
    assert values(rows, "increase") == {50: 10.0}


def test_a_decrease_is_a_reset_and_counts_from_zero() -> None:
    rows = [point(0, 100), point(10, 110), point(20, 4), point(30, 10)]
    assert values(rows, "increase") == {0: 10.0, 10: 4.0, 20: 6.0}


def test_a_later_start_is_a_reset_even_if_the_value_is_higher() -> None:
    rows = [point(0, 100), point(10, 110, began=-50), point(20, 150, began=15), point(30, 152, began=15)]
    # 150 were counted between 15 and 20, all of them in the bucket at 10
    assert values(rows, "increase") == {0: 10.0, 10: 150.0, 20: 2.0}


def test_a_start_that_trembles_is_no_reset() -> None:
    """Some clients compute it anew from their uptime for each point."""
    rows = [point(0, 100, began=-50), point(10, 110, began=-49), point(20, 120, began=-48)]
    assert values(rows, "increase") == {0: 10.0, 10: 10.0}


def test_a_counter_that_began_within_the_range_counts_from_its_start() -> None:
    rows = [point(20, 30, began=10), point(30, 40, began=10)]
    assert values(rows, "increase") == {10: 30.0, 20: 10.0}


def test_the_first_point_of_an_older_counter_is_where_counting_starts() -> None:
    assert values([point(20, 1_000_000), point(30, 1_000_005)], "increase") == {20: 5.0}
    assert values([point(20, 1_000_000)], "increase") == {}


def test_a_point_that_counts_since_its_own_time_has_an_unknown_start() -> None:
    rows = [
        point(0, 500, began=0),
        point(10, 510, began=0),
        point(20, 9_000, began=20),
        point(30, 9_005, began=20),
    ]
    assert values(rows, "increase") == {0: 10.0, 20: 5.0}


def test_points_without_a_start_are_compared_by_value_alone() -> None:
    rows = [point(0, 7, began=None), point(10, 9, began=None), point(20, 1, began=None)]
    assert values(rows, "increase") == {0: 2.0, 10: 1.0}


def test_a_gap_is_filled_with_its_average() -> None:
    rows = [point(0, 0), point(10, 10), point(50, 50)]
    assert values(rows, "rate") == {0: 1.0, 10: 1.0, 20: 1.0, 30: 1.0, 40: 1.0}


def test_late_points_are_counted_where_they_belong() -> None:
    rows = [point(0, 0), point(30, 30), point(10, 25), point(20, 27)]  # as they arrived
    assert values(rows, "increase") == {0: 25.0, 10: 2.0, 20: 3.0}


def test_points_of_the_same_moment_are_no_reset() -> None:
    rows = [point(0, 0), point(10, 10), point(10, 10), point(20, 15)]
    assert values(rows, "increase") == {0: 10.0, 10: 5.0}


def test_delta_points_are_counted_from_their_start_to_their_time() -> None:
    given = {"aggregation_temporality": DELTA}
    rows = [point(10, 20, began=0, **given), point(20, 5, began=10, **given), point(40, 8, began=20, **given)]
    assert values(rows, "rate") == {0: 2.0, 10: 0.5, 20: 0.4, 30: 0.4}


def test_a_delta_point_without_a_start_is_counted_where_it_is() -> None:
    rows = [point(15, 7, began=None, aggregation_temporality=DELTA)]
    assert values(rows, "increase") == {10: 7.0}


def test_delta_and_cumulative_points_add_up_even_within_a_series() -> None:
    rows = [
        point(0, 100),
        point(10, 110),
        point(10, 3, began=0, aggregation_temporality=DELTA),
        point(10, 4, began=0, aggregation_temporality=DELTA, series_id=2),
    ]
    assert values(rows, "increase") == {0: 17.0}


def test_series_are_never_compared_with_each_other() -> None:
    rows = [point(0, 1_000, series_id=1), point(1, 5, series_id=2), point(10, 1_010, series_id=1)]
    rows += [point(11, 25, series_id=2)]
    # the second's 20 lie between 1 and 11: 18 of them before 10
    assert values(rows, "increase") == {0: 28.0, 10: 2.0}


def test_integers_count_as_doubles_do_and_points_without_a_value_not_at_all() -> None:
    rows = [point(0, value_int=10), point(5, 0.0, flags=1), point(10, value_int=14), point(20, float("nan"))]
    assert values(rows, "increase") == {0: 4.0}


def test_the_total_of_a_counter_is_what_it_stands_at() -> None:
    rows = [point(0, 100), point(10, 120), point(0, 7, series_id=2), point(10, 8, series_id=2)]
    assert values(rows, "total", end=at(20)) == {0: 107.0, 10: 128.0}


def test_buckets_that_are_not_complete_yet_are_left_out_of_a_range_that_ends_now() -> None:
    rows = [point(s, s) for s in (0, 10, 20, 25)]  # up to 25: the bucket at 20 is half done
    rows += [point(s, s, series_id=2) for s in (0, 10, 20)]
    assert values(rows, "rate", now=at(26)) == {0: 2.0, 10: 2.0}
    assert values(rows, "rate", now=at(200)) == {0: 2.0, 10: 2.0, 20: 0.5}
    assert values(rows, "rate") == {0: 2.0, 10: 2.0, 20: 0.5}


def test_a_series_that_has_ended_does_not_hold_the_others_back() -> None:
    rows = [point(s, s) for s in (0, 10, 20, 30, 40)]
    rows += [point(s, s, series_id=2) for s in (0, 10)]
    assert values(rows, "rate", now=at(41)) == {0: 2.0, 10: 1.0, 20: 1.0, 30: 1.0}


# --- levels


def gauge(seconds: float, value: float, **given: Any) -> dict[str, Any]:
    other = {"metric_type": "gauge", "aggregation_temporality": None, "is_monotonic": None, "unit": "1"}
    return point(seconds, value, **{**other, **given})


def test_a_gauge_is_reduced_within_its_bucket() -> None:
    rows = [gauge(0, 1), gauge(4, 6), gauge(9, 2)]
    expected = {"average": 3.0, "min": 1.0, "max": 6.0, "latest": 2.0, "total": 2.0}
    assert {how: values(rows, how, end=at(10))[0] for how in expected} == expected


def test_several_series_weigh_the_same_however_often_they_report() -> None:
    rows = [gauge(0, 10), gauge(1, 20, series_id=2), gauge(2, 20, series_id=2), gauge(3, 20, series_id=2)]
    assert values(rows, "average", end=at(10)) == {0: 15.0}
    assert values(rows, "latest", end=at(10)) == {0: 15.0}
    assert values(rows, "total", end=at(10)) == {0: 30.0}


def test_a_value_holds_until_the_next_and_two_minutes_at_most() -> None:
    rows = [gauge(0, 5), gauge(30, 7)]
    held = dict.fromkeys(range(30, 150, 10), 7.0)
    assert values(rows, "total", end=at(200)) == {0: 5.0, 10: 5.0, 20: 5.0, **held}


def test_a_value_from_before_the_range_still_holds_in_it() -> None:
    assert values([gauge(-15, 5)], "average", end=at(20)) == {0: 5.0, 10: 5.0}


def test_a_total_does_not_dip_where_one_of_its_series_reports_less_often() -> None:
    rows = [gauge(s, 1) for s in range(0, 60, 10)] + [gauge(0, 100, series_id=2), gauge(55, 200, series_id=2)]
    assert values(rows, "total") == {0: 101.0, 10: 101.0, 20: 101.0, 30: 101.0, 40: 101.0, 50: 201.0}


def test_a_sum_that_goes_up_and_down_is_a_level() -> None:
    rows = [point(0, 5, is_monotonic=False), point(10, 3, is_monotonic=False)]
    assert metric(rows).kind == "level"
    assert values(rows, "total", end=at(20)) == {0: 5.0, 10: 3.0}


def test_differences_of_such_a_sum_are_changes() -> None:
    given = {"is_monotonic": False, "aggregation_temporality": DELTA}
    rows = [point(10, 5, began=0, **given), point(20, -8, began=10, **given)]
    assert metric(rows).kind == "changes"
    assert values(rows, "increase") == {0: 5.0, 10: -8.0}


# --- filters and groups


def test_only_what_is_asked_for_is_counted() -> None:
    def both(value: float, **given: Any) -> list[dict[str, Any]]:
        return [point(0, 0, **given), point(10, value, **given)]

    rows = both(1, series_id=1, service_name="a", attributes={"code": "200"})
    rows += both(2, series_id=2, service_name="a", attributes={"code": "500"})
    rows += both(4, series_id=3, service_name="b", resource_attributes=[("code", "500")])
    assert values(rows, "increase") == {0: 7.0}
    assert values(rows, "increase", services=["a"]) == {0: 3.0}
    assert values(rows, "increase", services=["a", "b"], attributes=[("code", "500")]) == {0: 6.0}
    assert values(rows, "increase", by="service") == {(0, "a"): 3.0, (0, "b"): 4.0}
    assert values(rows, "increase", by="code") == {(0, "200"): 1.0, (0, "500"): 6.0}
    assert values(rows, "increase", by="missing") == {(0, "(none)"): 7.0}


def test_all_but_the_largest_series_are_one() -> None:
    rows = []
    for number in range(SERIES_MAX + 3):
        given = {"series_id": number, "service_name": f"s{number:02}"}
        rows += [point(0, 0, **given), point(10, number + 1, **given)]
    found = values(rows, "increase", by="service")
    assert found[(0, None)] == 1 + 2 + 3
    assert found[(0, "s12")] == 13
    assert len(found) == SERIES_MAX + 1


def test_hostile_names_are_text_and_nothing_else() -> None:
    name = "it's'; DROP TABLE metrics; -- $1 ? {x}"
    rows = [point(t, t, service_name=name, metric_name=name, attributes={name: name}) for t in (0, 10)]
    range = TimeRange.between(at(0), at(60))
    request = MetricRequest(metric(rows), "increase", range, [name], [(name, name)], name, 10)
    statement = metric_series(request)
    expected = [{"time": at(0), "series": name, "value": 10.0}]
    assert run(statement, rows) == expected
    assert run(Statement(statement.inlined()), rows) == expected


# --- histograms


def histogram(seconds: float, counts: list[int], total: float = 0.0, **given: Any) -> dict[str, Any]:
    other = {
        "metric_type": "histogram",
        "unit": "s",
        "is_monotonic": None,
        "count": sum(counts),
        "sum": total,
        "bucket_counts": counts,
        "explicit_bounds": [1.0, 2.0, 4.0],
    }
    return point(seconds, None, **{**other, **given})


def test_a_histogram_has_a_rate_and_a_mean_of_what_was_measured_since_the_point_before() -> None:
    rows = [histogram(0, [5, 5, 0, 0], 9.0), histogram(10, [5, 25, 0, 0], 49.0)]
    assert values(rows, "rate") == {0: 2.0}
    assert values(rows, "mean") == {0: 2.0}


def test_a_quantile_lies_on_a_straight_line_within_its_bucket() -> None:
    rows = [histogram(0, [100, 0, 0, 7]), histogram(10, [150, 30, 20, 7])]
    # 100 new ones: 50 up to 1, 30 up to 2, 20 up to 4
    assert values(rows, "p50") == {0: 1.0}
    assert values(rows, "p95") == {0: 2 + 2 * (95 - 80) / 20}
    assert values(rows, "quantiles") == {0: (1.0, 3.5, pytest.approx(3.9))}


def test_beyond_the_last_bound_a_quantile_is_that_bound() -> None:
    assert values([histogram(0, [0, 0, 0, 0]), histogram(10, [0, 0, 0, 3])], "p50") == {0: 4.0}


def test_a_first_bucket_that_ends_below_zero_is_its_bound() -> None:
    bounds = {"explicit_bounds": [-1.0, 2.0, 4.0]}
    rows = [histogram(0, [0, 0, 0, 0], **bounds), histogram(10, [8, 0, 0, 0], **bounds)]
    assert values(rows, "p50") == {0: -1.0}


def test_after_a_restart_the_buckets_count_from_zero() -> None:
    rows = [histogram(0, [100, 0, 0, 0]), histogram(10, [0, 0, 10, 0], began=5)]
    assert values(rows, "p50") == {0: 3.0}
    assert values(rows, "rate") == {0: 1.0}


def test_delta_histograms_and_several_series_add_up() -> None:
    rows = [
        histogram(10, [10, 0, 0, 0], 5.0, began=0, aggregation_temporality=DELTA),
        histogram(0, [0, 0, 0, 0], series_id=2),
        histogram(10, [0, 0, 10, 0], 35.0, series_id=2),
    ]
    assert values(rows, "p50") == {0: 1.0}
    assert values(rows, "p95") == {0: 2 + 2 * 9 / 10}
    assert values(rows, "mean") == {0: 2.0}


def test_a_histogram_without_buckets_has_no_quantiles_but_a_mean() -> None:
    given = {"explicit_bounds": []}
    rows = [histogram(0, [4], 1.0, **given), histogram(10, [8], 9.0, **given)]
    assert values(rows, "p95") == {}
    assert values(rows, "mean") == {0: 2.0}


def test_sums_that_were_not_recorded_do_not_lower_the_mean() -> None:
    rows = [histogram(0, [0, 0, 0, 0], 0.0), histogram(10, [2, 0, 0, 0], 6.0)]
    rows += [histogram(0, [0], series_id=2, sum=None), histogram(10, [50], series_id=2, sum=None)]
    assert values(rows, "mean") == {0: 3.0}


def exponential(seconds: float, above: list[int], **given: Any) -> dict[str, Any]:
    other = {
        "metric_type": "exponential_histogram",
        "unit": "s",
        "is_monotonic": None,
        "count": sum(above) + given.get("zero_count", 0) + sum(given.get("negative_bucket_counts", [])),
        "sum": 0.0,
        "scale": 0,
        "zero_count": 0,
        "zero_threshold": 0.0,
        "positive_offset": 0,
        "positive_bucket_counts": above,
        "negative_offset": 0,
        "negative_bucket_counts": [],
    }
    return point(seconds, None, **{**other, **given})


def test_an_exponential_histogram_has_quantiles_too() -> None:
    # scale 0: the buckets are 1 to 2, 2 to 4, 4 to 8
    rows = [exponential(0, [10, 0, 0]), exponential(10, [10, 10, 10])]
    assert values(rows, "p50") == {0: 4.0}
    assert values(rows, "p95") == {0: 4 + 4 * (19 - 10) / 10}


def test_points_of_different_scale_are_compared_at_the_coarser() -> None:
    # scale 1, from index 2: 2 to 2.83 and 2.83 to 4, which are one bucket at scale 0
    rows = [exponential(0, [3, 4], scale=1, positive_offset=2), exponential(10, [0, 7, 6], scale=0)]
    assert values(rows, "p50") == {0: 6.0}
    assert values(rows, "rate") == {0: 0.6}


def test_an_offset_that_moved_is_the_same_bucket() -> None:
    rows = [exponential(0, [5], positive_offset=2), exponential(10, [4, 0, 5], positive_offset=0)]
    assert values(rows, "p50") == {0: 1.5}


def test_zeros_and_negative_measurements_have_their_place() -> None:
    given = {"negative_bucket_counts": [4], "negative_offset": 1, "zero_count": 4, "zero_threshold": 0.5}
    rows = [exponential(10, [4], began=0, aggregation_temporality=DELTA, **given)]
    # four each in -4 to -2, 0 to 0.5, and 1 to 2
    assert values(rows, "p50") == {0: 0.25}
    assert values(rows, "p99") == {0: pytest.approx(1 + (0.99 * 12 - 8) / 4)}


def test_a_summary_shows_what_its_client_computed() -> None:
    def summary(seconds: float, count: int, total: float, p95: float, series: int = 1) -> dict[str, Any]:
        sent = [{"quantile": 0.5, "value": 1.0}, {"quantile": 0.95, "value": p95}]
        other = {"metric_type": "summary", "is_monotonic": None, "aggregation_temporality": None}
        return point(seconds, None, **other, count=count, sum=total, quantile_values=sent, series_id=series)

    rows = [summary(0, 10, 5.0, 3.0), summary(10, 30, 45.0, 4.0), summary(10, 7, 1.0, 9.0, 2)]
    assert values(rows, "mean") == {0: 2.0}
    assert values(rows, "rate") == {0: 2.0}
    assert values(rows, "p95", end=at(20)) == {0: 3.0, 10: 9.0}


# --- the lists


def test_a_name_with_two_units_is_two_metrics() -> None:
    rows = [point(0, 1), point(0, 1, unit="s", metric_type="gauge"), point(0, 1, metric_name="other")]
    listed = metrics(run(metric_list(TimeRange.between(at(-60), at(60))), rows))
    assert list(listed) == ["other", "shop.orders (gauge, s)", "shop.orders (sum, {order})"]


def test_attributes_are_listed_with_their_values_those_of_points_first() -> None:
    rows = [
        point(0, 1, attributes={"code": "200"}, resource_attributes=[("a.host", "h1")]),
        point(9, 2, attributes={"code": "200"}, resource_attributes=[("a.host", "h1")]),
        point(0, 1, series_id=2, attributes={"code": "500"}, resource_attributes=[("a.host", "h1")]),
    ]
    answer = run(metric_attributes(metric(rows), TimeRange.between(at(-60), at(60))), rows)
    assert [(row["key"], row["value"], row["is_of_point"], row["series"]) for row in answer] == [
        ("code", "200", True, 1),
        ("code", "500", True, 1),
        ("a.host", "h1", False, 2),
    ]


# --- the result


def series(rows: list[dict[str, Any]], aggregation: Any) -> list[MetricSeries]:
    found = Metric("shop.orders", "sum", "", "", (), True, True, 1)
    return read_series(rows, MetricRequest(found, aggregation, TimeRange.between(at(0), at(60))))


def test_series_come_by_size_and_all_others_last() -> None:
    rows = [
        {"time": at(10), "series": "small", "value": 1.0},
        {"time": at(10), "series": None, "value": 50.0},
        {"time": at(0), "series": "big", "value": 8.0},
        {"time": at(10), "series": "big", "value": 4.0},
        {"time": at(20), "series": "big", "value": None},
    ]
    found = series(rows, "rate")
    assert [one.name for one in found] == ["big", "small", OTHERS]
    assert found[0].summary == {"latest": 4.0, "lowest": 4.0, "mean": 6.0, "highest": 8.0}


def test_a_series_alone_has_the_name_of_its_metric() -> None:
    (alone,) = series([{"time": at(0), "series": "", "value": 1.0}], "rate")
    assert alone.name == "shop.orders"


def test_quantiles_are_a_series_each() -> None:
    rows = [{"time": at(0), "series": "", "p50": 1.0, "p95": 2.0, "p99": None}]
    assert series(rows, "quantiles") == [
        MetricSeries("p50", ((at(0), 1.0),)),
        MetricSeries("p95", ((at(0), 2.0),)),
    ]


def test_a_series_has_a_gap_where_a_bucket_is_missing() -> None:
    broken = MetricSeries("a", ((at(0), 1.0), (at(10), 2.0), (at(40), 3.0)))
    assert broken.with_gaps(10) == [(at(0), 1.0), (at(10), 2.0), (at(20), None), (at(40), 3.0)]
