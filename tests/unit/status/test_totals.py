"""Reading counters: parsing, restarts, gaps, quantiles. Numbers are exact."""

from __future__ import annotations

import math

import pytest

from frazil.status.quantile import quantile
from frazil.status.samples import SampleReader, Samples, by_label, value
from frazil.status.totals import Totals

TEXT = """\
# HELP frazil_receive_records_total Records accepted and rejected
# TYPE frazil_receive_records_total counter
frazil_receive_records_total{signal="logs",outcome="accepted"} 120.0
frazil_receive_records_total{signal="logs",outcome="rejected"} 3.0
frazil_receive_records_total{signal="spans",outcome="accepted"} 7.0
frazil_receive_records_created{signal="spans",outcome="accepted"} 1.7e+09
frazil_land_pending_bytes{table="lo\\"gs"} 5.0
frazil_land_pending_age_seconds{table="logs"} NaN
python_info{version="3.11"} 1.0
"""
RECORDS = "frazil_receive_records_total"


def counted(number: float, name: str = RECORDS, **labels: str) -> Samples:
    return {name: {tuple(sorted(labels.items())): float(number)}}


def totals(*looks: tuple[float, Samples, float | None]) -> Totals:
    """Looks at one role: when, what it has counted, and for how long it has been running."""
    found = Totals(300)
    for at, samples, up_seconds in looks:
        found.take(at, {"a": (samples, up_seconds)})
        found.keep(at)
    return found


def test_samples_are_read_with_their_labels_and_nothing_else_is() -> None:
    samples = SampleReader().read(TEXT)
    assert set(samples) == {RECORDS, "frazil_land_pending_bytes"}
    assert value(samples, RECORDS) == 130
    assert value(samples, RECORDS, outcome="accepted") == 127
    assert value(samples, RECORDS, signal="metrics") is None
    assert by_label(samples, RECORDS, "signal", outcome="accepted") == {"logs": 120, "spans": 7}
    assert by_label(samples, "frazil_land_pending_bytes", "table") == {'lo"gs': 5}


@pytest.mark.parametrize("text", ["frazil_wal_rows_total{ 1", 'frazil_wal_rows_total{a="b"} many'])
def test_what_is_no_metrics_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        SampleReader().read(text)


def test_a_second_reading_has_the_new_numbers_and_the_same_labels() -> None:
    reader = SampleReader()
    before, after = reader.read(TEXT), reader.read(TEXT.replace(" 120.0", " 121.5"))
    assert value(after, RECORDS, signal="logs", outcome="accepted") == 121.5
    assert value(before, RECORDS, signal="logs", outcome="accepted") == 120
    assert {name: set(numbers) for name, numbers in before.items()} == {
        name: set(numbers) for name, numbers in after.items()
    }


def test_a_role_that_counts_without_end_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.status.samples.SAMPLES_MAX", 10)
    lines = [f'frazil_wal_rows_total{{signal="{number}"}} 1' for number in range(11)]
    assert len(SampleReader().read("\n".join(lines[:10]))["frazil_wal_rows_total"]) == 10
    with pytest.raises(ValueError, match="more than 10 samples"):
        SampleReader().read("\n".join(lines))


def test_a_rate_is_the_growth_over_the_time() -> None:
    found = totals((100, counted(1000), None), (110, counted(1500), None))
    span = found.span(110, 60)
    assert (span.seconds, span.rate(RECORDS)) == (10, 50)


def test_one_look_gives_no_rate_and_what_was_counted_before_it_is_not_counted() -> None:
    assert totals((100, counted(5000), None)).span(100, 60).rate(RECORDS) is None
    found = totals((100, counted(5000), None), (110, counted(5000), None))
    assert found.span(110, 60).rate(RECORDS) == 0


def test_what_appears_later_counts_from_nothing() -> None:
    refused = counted(30, signal="logs", outcome="busy")
    found = totals((100, {}, None), (110, refused, None))
    assert found.span(110, 60).rate(RECORDS, outcome="busy") == 3


def test_a_restart_counts_what_was_counted_since_and_is_never_negative() -> None:
    found = totals((100, counted(1000), None), (110, counted(40), None))
    assert found.span(110, 60).rate(RECORDS) == 4


def test_a_restart_is_known_by_its_age_also_where_more_was_counted_since() -> None:
    """Was 1,000, then a new process has counted 3,000 by itself."""
    found = totals((100, counted(1000), 500), (130, counted(3000), 20))
    assert found.span(130, 60).rate(RECORDS) == 100


def test_what_another_process_at_the_address_has_counted_is_no_growth() -> None:
    """Two receivers behind one address answer in turn."""
    looks = [
        (100 + 10 * turn, counted(9_000_000), 7000 + 10 * turn)
        if turn % 2
        else (100 + 10 * turn, counted(50), 5000 + 10 * turn)
        for turn in range(5)
    ]
    assert totals(*looks).span(140, 60).rate(RECORDS) == 0
    dropped = totals((100, counted(9_000_000), 5000), (110, counted(8_999_000), 5010))
    assert dropped.span(110, 60).rate(RECORDS) == 0


def test_what_came_while_a_role_did_not_answer_is_no_burst_afterwards() -> None:
    found = Totals(300)
    for at in range(0, 70, 10):
        found.take(at, {"a": (counted(100 * at), None)} if at in (0, 60) else {})
        found.keep(at)
    # 6,000 in 60 s, of which the last 10 s are credited with their share.
    assert found.span(60, 0).rate(RECORDS) == pytest.approx(100)


def test_roles_are_added_up_and_one_that_restarts_leaves_the_others_alone() -> None:
    found = Totals(300)
    for at, first, second in ((0, 1000, 5000), (10, 1100, 5300), (20, 50, 5600)):
        found.take(at, {"a": (counted(first), None), "b": (counted(second), None)})
        found.keep(at)
    assert found.span(10, 60).seconds == 10
    assert found.span(20, 60).rate(RECORDS) == (100 + 300 + 50 + 300) / 20


def test_a_span_begins_at_the_youngest_memory_that_is_old_enough() -> None:
    found = totals(*((at, counted(at * at), None) for at in range(0, 200, 10)))
    span = found.span(190, 60)
    assert (span.seconds, span.rate(RECORDS)) == (60, (190**2 - 130**2) / 60)
    assert found.span(190, 0).seconds == 10


def test_memory_is_bounded_by_time() -> None:
    found = totals(*((at, counted(at), None) for at in range(0, 10_000, 10)))
    assert len(found._kept) == 31


@pytest.mark.parametrize(
    ("q", "expected"),
    [(0.5, 0.1), (0.25, 0.05), (0.75, 0.15), (0.9, 0.18), (1.0, 0.2)],
)
def test_quantiles_lie_evenly_within_their_bucket(q: float, expected: float) -> None:
    assert quantile(q, {0.1: 50, 0.2: 100, math.inf: 100}) == pytest.approx(expected)


def test_a_quantile_over_the_last_bound_is_that_bound() -> None:
    assert quantile(0.99, {0.1: 10, 30.0: 50, math.inf: 100}) == 30


def test_buckets_that_nothing_fell_into_are_passed_over() -> None:
    assert quantile(0.5, {0.1: 0, 0.2: 0, 0.4: 10, 1.0: 10, math.inf: 10}) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "buckets", [{}, {math.inf: 0.0}, {0.1: 0.0, math.inf: 0.0}, {0.1: 5.0}, {math.inf: 3.0}]
)
def test_there_is_no_quantile_of_nothing(buckets: dict[float, float]) -> None:
    assert quantile(0.5, buckets) is None


def test_latency_is_of_the_span_and_not_of_all_time() -> None:
    def acks(fast: int, slow: int) -> Samples:
        bounds = {"0.1": fast, "0.2": fast + slow, "+Inf": fast + slow}
        labels = {(("le", bound),): float(number) for bound, number in bounds.items()}
        return {"frazil_receive_ack_seconds_bucket": labels}

    found = totals((0, acks(1_000_000, 0), None), (10, acks(1_000_000, 100), None))
    assert found.span(10, 60).quantile(0.5, "frazil_receive_ack_seconds") == pytest.approx(0.15)
