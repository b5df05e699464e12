"""What a role reports of its own counters: rates over windows, and quantiles of them. Numbers are exact."""

from __future__ import annotations

import math

import pytest

from frazil.health import Health
from frazil.role_status import RoleReport, parse
from frazil.status.rates import Rates, by_label, samples_of, value
from tests.support.status_roles import Speaker

RECORDS = "frazil_receive_records_total"
TEXT = """\
frazil_receive_records_total{signal="logs",outcome="accepted"} 120.0
frazil_receive_records_total{signal="logs",outcome="rejected"} 3.0
frazil_receive_records_total{signal="spans",outcome="accepted"} 7.0
frazil_receive_records_created{signal="spans",outcome="accepted"} 1.7e+09
frazil_land_pending_bytes{table="lo\\"gs"} 5.0
frazil_land_pending_age_seconds{table="logs"} NaN
frazil_land_seconds_bucket{le="+Inf"} 4
python_info{version="3.11"} 1.0
"""


def counted(*looks: tuple[float, float]) -> RoleReport:
    """The last report of a role that was asked at these times, with what it had counted by then."""
    speaker = Speaker("receiver")
    return [speaker.report(at, f'{RECORDS}{{signal="logs"}} {number}') for at, number in looks][-1]


def rate(report: RoleReport, seconds: int) -> float | None:
    return Rates.of([report], seconds).rate(RECORDS)


def test_a_report_has_frazils_own_numbers_with_their_labels() -> None:
    samples = samples_of(Speaker("receiver").report(0, TEXT).values)
    assert set(samples) == {RECORDS, "frazil_land_pending_bytes"}
    assert value(samples, RECORDS) == 130
    assert value(samples, RECORDS, outcome="accepted") == 127
    assert value(samples, RECORDS, signal="metrics") is None
    assert by_label(samples, RECORDS, "signal", outcome="accepted") == {"logs": 120, "spans": 7}
    assert by_label(samples, "frazil_land_pending_bytes", "table") == {'lo"gs': 5}


def test_a_report_survives_the_wire_and_has_the_health_and_the_use_of_its_role() -> None:
    speaker = Speaker("pipeline")
    speaker.report(0, TEXT)
    speaker.now = 10.0
    report = speaker.status.report(Health("pipeline", failing={"logs": "no room"}))
    assert parse(report.model_dump_json().encode()) == report
    assert (report.ok, report.reasons()) == (False, ["logs: no room"])
    assert report.memory_bytes is not None
    assert report.memory_bytes > 1e6
    assert report.started_at is not None
    assert parse(b"<html>") is None
    assert parse(b'{"ok": true, "problems": {}}') is None


def test_a_rate_is_the_growth_over_the_time() -> None:
    assert rate(counted((100, 1000), (110, 1500)), 60) == 50


def test_one_request_gives_no_rate_and_what_was_counted_before_it_is_not_counted() -> None:
    assert rate(counted((100, 5000)), 60) is None
    assert rate(counted((100, 5000), (110, 5000)), 60) == 0


def test_what_is_counted_for_the_first_time_grew_from_nothing() -> None:
    speaker = Speaker("receiver")
    speaker.report(100, "")
    report = speaker.report(110, f'{RECORDS}{{outcome="busy"}} 30')
    assert Rates.of([report], 60).rate(RECORDS, outcome="busy") == 3


def test_a_window_begins_at_the_request_that_is_nearest_to_it() -> None:
    report = counted(*((at, at * at) for at in range(0, 400, 10)))
    assert rate(report, 60) == (390**2 - 330**2) / 60
    assert rate(report, 10) == (390**2 - 380**2) / 10
    assert rate(report, 300) == (390**2 - 90**2) / 300


def test_an_earlier_request_of_long_ago_is_forgotten() -> None:
    assert rate(counted((0, 0), (3600, 5000)), 60) is None
    assert rate(counted((0, 0), (3600, 5000), (3601, 5010)), 60) == 10


def test_a_role_that_is_asked_every_ten_minutes_has_rates() -> None:
    assert rate(counted((0, 0), (600, 6000), (1200, 9000)), 300) == 5


def test_memory_is_bounded_however_often_it_is_asked() -> None:
    speaker = Speaker("receiver")
    for at in range(1_000):
        speaker.report(at, f"{RECORDS} {at}")
    assert len(speaker.status._marks) <= 330 / 4 + 1


def test_rates_of_several_roles_are_added_up_and_one_that_restarts_leaves_the_others_alone() -> None:
    reports = [counted((0, 0), (10, 100)), counted((0, 5000), (10, 5300)), counted((10, 50))]
    assert Rates.of(reports, 60).rate(RECORDS) == 40


def acks(buckets: dict[float, float]) -> Rates:
    labels = {(("le", str(bound).replace("inf", "+Inf")),): number for bound, number in buckets.items()}
    return Rates(True, {"acks_bucket": labels})


@pytest.mark.parametrize(("q", "expected"), [(0.5, 0.1), (0.25, 0.05), (0.75, 0.15), (0.9, 0.18), (1.0, 0.2)])
def test_quantiles_lie_evenly_within_their_bucket(q: float, expected: float) -> None:
    assert acks({0.1: 50, 0.2: 100, math.inf: 100}).quantile(q, "acks") == pytest.approx(expected)


def test_a_quantile_over_the_last_bound_is_that_bound() -> None:
    assert acks({0.1: 10, 30.0: 50, math.inf: 100}).quantile(0.99, "acks") == 30


def test_buckets_that_nothing_fell_into_are_passed_over() -> None:
    found = acks({0.1: 0, 0.2: 0, 0.4: 10, 1.0: 10, math.inf: 10}).quantile(0.5, "acks")
    assert found == pytest.approx(0.3)


@pytest.mark.parametrize(
    "buckets", [{}, {math.inf: 0.0}, {0.1: 0.0, math.inf: 0.0}, {0.1: 5.0}, {math.inf: 3.0}]
)
def test_there_is_no_quantile_of_nothing(buckets: dict[float, float]) -> None:
    assert acks(buckets).quantile(0.5, "acks") is None
