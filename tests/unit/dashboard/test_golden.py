"""Traffic, errors and latency by service."""

from __future__ import annotations

import datetime as dt

from frazil.dashboard import golden
from frazil.dashboard.buckets import width_seconds

AT = dt.datetime(2026, 11, 15, 12, 0, tzinfo=dt.UTC)


def row(service: str | None, step: dt.datetime | None, requests: int, errors: int = 0) -> dict[str, object]:
    quantiles = None if requests == 0 else [1_000_000, 2_000_000, 3_000_000]
    return {
        "service_name": service,
        "step": step,
        "requests": requests,
        "errors": errors,
        "quantiles": quantiles,
    }


def test_a_row_is_of_a_service_of_a_moment_or_of_everything() -> None:
    found = golden.read_spans([row("cart", AT, 4, 1), row("cart", None, 10, 2), row(None, None, 10, 2)])
    assert found.whole.requests == 10
    assert found.whole.error_share == 0.2
    assert found.by_service["cart"] == golden.Numbers(10, 2, 1.0, 2.0, 3.0)
    assert found.by_time["cart"][AT].requests == 4


def test_a_step_without_requests_is_a_zero_and_one_that_is_cut_off_counts_for_its_part() -> None:
    found = golden.read_spans([row("cart", AT, 4), row("cart", AT + dt.timedelta(minutes=2), 3)])
    start, end = AT + dt.timedelta(seconds=20), AT + dt.timedelta(minutes=2, seconds=30)
    moments = found.over_time("cart", start, end, 60)
    assert [moment.seconds for moment in moments] == [40, 60, 30]
    assert [moment.requests_per_second for moment in moments] == [0.1, 0, 0.1]
    assert [moment.numbers.p95_ms for moment in moments] == [2.0, None, 2.0]
    assert all(moment.requests_per_second == 0 for moment in found.over_time("unheard of", start, end, 60))


def test_spans_without_a_service_are_one_of_the_services() -> None:
    found = golden.read_spans(
        [row(None, None, 3), row(None, None, 13), row("cart", None, 10), row(None, AT, 3)]
    )
    assert found.whole.requests == 13
    assert {name: numbers.requests for name, numbers in found.by_service.items()} == {
        "cart": 10,
        golden.UNNAMED: 3,
    }
    assert found.by_time[golden.UNNAMED][AT].requests == 3


def test_nothing_is_nothing() -> None:
    assert golden.read_spans([]).whole == golden.Numbers(0, 0, None, None, None)
    assert golden.read_spans([row(None, None, 0)]).whole.error_share == 0


def test_steps_cover_the_range_from_before_its_start_to_before_its_end() -> None:
    start, end = AT + dt.timedelta(seconds=7), AT + dt.timedelta(seconds=30)
    assert golden.steps(start, end, 10) == [AT, AT + dt.timedelta(seconds=10), AT + dt.timedelta(seconds=20)]


def test_widths_are_numbers_that_people_read() -> None:
    assert [width_seconds(length) for length in (10, 60, 900, 3600, 86400, 30 * 86400)] == [
        1,
        1,
        15,
        60,
        1800,
        43200,
    ]
    assert width_seconds(1e9) == 7 * 86400
