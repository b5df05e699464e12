"""`metric_steps` over rollups gives what the points give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.sql.metric_steps import READ_BEFORE_SECONDS
from frazil.tables.derived.rules import RESOLUTIONS
from tests.support.query.metric_steps import BEGIN, SECOND, Row, point, query, steps

patient = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HOUR, DAY = 3600, 86_400


# The reference: each point by itself, in the order of time.


@dataclass(frozen=True)
class Counted:
    """What was counted in the points of a series, by step."""

    by_step: dict[int, float]
    hidden: bool
    """Whether a reset inside of a row of the rollup cannot be seen in it, or is one of several."""


def resolution_of(step: int) -> int:
    return max(each for each in RESOLUTIONS if step % each == 0)


def counted(points: Sequence[Row], step: int, begin: int, end: int) -> Counted:
    resolution = resolution_of(step)
    first_step, until = begin // step * step, -(-end // step) * step
    read_from = first_step - max(resolution, READ_BEFORE_SECONDS)
    by_start: dict[int | None, list[tuple[float, float]]] = defaultdict(list)
    for row in points:
        seconds = row["time"] / SECOND - BEGIN
        if read_from <= seconds < until:
            by_start[row["start_time_unix_nano"]].append((seconds, row["value_double"]))
    found: dict[int, float] = defaultdict(float)
    rows: dict[tuple[int | None, int], list[float]] = defaultdict(list)
    for start, values in by_start.items():
        before: float | None = None
        for seconds, value in sorted(values):
            if before is not None:
                new = value - before if value >= before else value
            elif start is not None and BEGIN + read_from <= start / 1e9 < BEGIN + seconds:
                new = value
            else:
                new = 0.0
            before = value
            rows[start, int(seconds // resolution)].append(value)
            if seconds >= first_step:
                found[int(seconds // step * step)] += new
    return Counted(dict(found), any(map(_hides_a_reset, rows.values())))


def _hides_a_reset(values: Sequence[float]) -> bool:
    resets = sum(after < before for before, after in pairwise(values))
    return resets > 1 or (resets == 1 and max(values) <= values[-1])


@st.composite
def series(draw: st.DrawFn, starts: Sequence[str]) -> list[Row]:
    """The points of a counter: its source may restart, pause, or send a start that is unknown."""
    rows: list[Row] = []
    number, now = draw(st.integers(1, 3)), draw(st.integers(-7200, 1800))
    for _ in range(draw(st.integers(1, 4))):
        kind, value = draw(st.sampled_from(starts)), 0
        start, now = now, now + draw(st.sampled_from([1, 20, 400]))
        for at in range(draw(st.integers(0, 8))):
            value += draw(st.integers(0, 9))
            began = {"known": start, "unknown": now if at == 0 else rows[-1].get("began"), "none": None}[kind]
            rows.append({**point(now, float(value), began=began, series_id=number), "began": began})
            now += draw(st.sampled_from([10, 60, 60, 75, 3600]))
    return rows


landing = st.integers(0, 3)
ranges = st.tuples(
    st.sampled_from([60, 300, 900, 1800, HOUR, 2 * HOUR, DAY]),
    st.integers(-2 * HOUR, 2 * HOUR),
    st.integers(1, 6 * HOUR),
)


def increases(
    points: Sequence[Row], cuts: Sequence[int], step: int, begin: int, end: int
) -> dict[int, float]:
    """The increase by step, of points that landed in this order."""
    landings: list[list[Row]] = [[] for _ in range(4)]
    for row, cut in zip(points, cuts, strict=True):
        landings[cut].append(row)
    found: dict[int, float] = defaultdict(float)
    for row in steps(*(each for each in landings if each), step=step, begin=begin, end=end):
        assert row["rate"] == pytest.approx(row["increase"] / step)
        found[row["time"]] += row["increase"]
    return dict(found)


@patient
@given(points=series(["known", "unknown"]), range_=ranges, data=st.data())
def test_the_increase_of_counters_with_starts_is_that_of_the_points(
    points: list[Row], range_: tuple[int, int, int], data: st.DataObject
) -> None:
    step, begin, length = range_
    cuts = data.draw(st.lists(landing, min_size=len(points), max_size=len(points)))
    expected = counted(points, step, begin, begin + length)
    assert increases(points, cuts, step, begin, begin + length) == pytest.approx(expected.by_step)


@patient
@given(points=series(["none"]), range_=ranges, data=st.data())
def test_without_starts_only_resets_that_a_row_hides_are_lost(
    points: list[Row], range_: tuple[int, int, int], data: st.DataObject
) -> None:
    step, begin, length = range_
    cuts = data.draw(st.lists(landing, min_size=len(points), max_size=len(points)))
    expected = counted(points, step, begin, begin + length)
    found = increases(points, cuts, step, begin, begin + length)
    if not expected.hidden:
        assert found == pytest.approx(expected.by_step)
    assert found.keys() == expected.by_step.keys()
    assert all(found[time] <= expected.by_step[time] + 1e-6 for time in found)


BOUNDS = (1.0, 5.0)


def histogram(seconds: float, *counts: int, **given: object) -> Row:
    """A point of a cumulative histogram. Each measurement is the upper bound of its bucket, or 10."""
    total = sum(each * value for each, value in zip(counts, (*BOUNDS, 10.0), strict=True))
    facts = {"count": sum(counts), "sum": total, "explicit_bounds": BOUNDS, "bucket_counts": counts}
    return point(seconds, **{"metric_type": "histogram", "is_monotonic": None, **facts, **given})


def in_buckets(row: Row) -> dict[float, int]:
    found: dict[float, int] = defaultdict(int)
    for bound, count in zip(row["bucket_bounds"] or (), row["bucket_counts"] or (), strict=True):
        found[bound] += count
    return {bound: count for bound, count in found.items() if count}


@st.composite
def histograms(draw: st.DrawFn) -> list[Row]:
    """A cumulative histogram from its start, with restarts."""
    rows, now = [], draw(st.integers(0, 1800))
    for _ in range(draw(st.integers(1, 3))):
        start, now = now, now + draw(st.sampled_from([1, 20]))
        counts = [0, 0, 0]
        for _ in range(draw(st.integers(1, 8))):
            counts = [each + draw(st.integers(0, 3)) for each in counts]
            rows.append(histogram(now, *counts, began=start))
            now += draw(st.sampled_from([10, 60, 75, 3600]))
    return rows


@patient
@given(points=histograms(), step=st.sampled_from([60, 300, 900, HOUR, 2 * HOUR, DAY]), data=st.data())
def test_the_buckets_of_a_histogram_are_what_was_measured_in_the_step(
    points: list[Row], step: int, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(landing, min_size=len(points), max_size=len(points)))
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    before: Row | None = None
    for row in points:
        is_first = before is None or before["start_time_unix_nano"] != row["start_time_unix_nano"]
        counts = (0, 0, 0) if is_first or before is None else before["bucket_counts"]
        at = int((row["time"] / SECOND - BEGIN) // step * step)
        for bucket in range(3):
            expected[at][bucket] += row["bucket_counts"][bucket] - counts[bucket]
        before = row
    landings = [[row for row, cut in zip(points, cuts, strict=True) if cut == each] for each in range(4)]
    for row in steps(*landings, step=step, end=DAY):
        counts = expected.pop(row["time"])
        bounds = (*BOUNDS, float("inf"))
        assert in_buckets(row) == {b: n for b, n in zip(bounds, counts, strict=True) if n}
        assert (row["count"], row["increase"]) == (sum(counts), sum(counts))
        assert row["sum"] == sum(n * v for n, v in zip(counts, (1.0, 5.0, 10.0), strict=True))
    assert not expected


def test_the_first_row_that_is_read_of_an_older_histogram_has_no_known_buckets() -> None:
    points = [
        histogram(60, 1, 1, 1),
        histogram(90, 2, 1, 1),
        histogram(120, 2, 2, 1),
        histogram(180, 2, 2, 3),
    ]
    found = steps(points, step=60)
    assert [(row["time"], row["increase"], in_buckets(row)) for row in found] == [
        (60, 1.0, {}),
        (120, 1.0, {5.0: 1}),
        (180, 2.0, {float("inf"): 2}),
    ]
    [hour] = steps(points, step=HOUR, begin=60)
    assert (hour["increase"], in_buckets(hour)) == (4.0, {})
    [quarter] = steps(points, step=900, begin=60)
    assert (quarter["increase"], in_buckets(quarter)) == (4.0, {})
    later = steps([*points, histogram(400, 5, 2, 3)], step=900)
    assert [(row["increase"], in_buckets(row)) for row in later] == [(7.0, {1.0: 3})]


def test_buckets_of_a_histogram_count_in_full_after_a_reset_without_a_start() -> None:
    points = [histogram(0, 1, 1, 1), histogram(60, 2, 1, 1), histogram(120, 1, 0, 0), histogram(180, 1, 1, 0)]
    found = [(row["time"], row["increase"], in_buckets(row)) for row in steps(points)]
    assert found == [(0, 0.0, {}), (60, 1.0, {1.0: 1}), (120, 1.0, {1.0: 1}), (180, 1.0, {5.0: 1})]


def test_exponential_histograms_of_changing_scale_keep_their_count_and_quantiles() -> None:
    def exponential(seconds: int, scale: int, offset: int, *counts: int) -> Row:
        facts = {"scale": scale, "positive_offset": offset, "positive_bucket_counts": counts, "zero_count": 0}
        more = {"count": sum(counts), "sum": None, "is_monotonic": None}
        return point(seconds, **{"metric_type": "exponential_histogram", "began": -10, **facts, **more})

    fine = exponential(0, 1, 4, 3, 1)  # between 4 and 8
    points = [fine, exponential(60, 0, 2, 4, 6), exponential(120, 0, 2, 4, 9)]
    first, second, third = steps(points)
    assert [row["increase"] for row in (first, second, third)] == [4.0, 6.0, 3.0]
    assert in_buckets(third) == {16.0: 3}
    landings = [[each] for each in points]
    sql = (
        "SELECT merged_histogram_quantile(bucket_bounds, bucket_counts, 0.5) AS median FROM metric_steps("
        f"'orders', INTERVAL 5 MINUTE, to_timestamp({BEGIN}), to_timestamp({BEGIN + 300}))"
    )
    [row] = query(sql, *landings)
    assert row["median"] == pytest.approx(8 + 8 * 2.5 / 9)


def test_deltas_add_up_and_gauges_have_no_increase() -> None:
    deltas = [point(at, value, aggregation_temporality=1) for at, value in ((5, 2.0), (50, 3.0), (70, 4.0))]
    found = [(row["time"], row["increase"], row["rate"], row["count"], row["sum"]) for row in steps(deltas)]
    assert found == [(0, 5.0, 5 / 60, 2, 5.0), (60, 4.0, 4 / 60, 1, 4.0)]
    assert [row["last"] for row in steps(deltas)] == [None, None]
    of_gauge = {"metric_type": "gauge", "aggregation_temporality": None, "is_monotonic": None}
    gauges = [point(at, value, **of_gauge) for at, value in ((5, 2.0), (50, 4.0), (40, 9.0))]
    [row] = steps(gauges)
    assert (row["count"], row["sum"], row["avg"], row["min"], row["max"], row["last"]) == (3, 15, 5, 2, 9, 4)
    assert (row["increase"], row["rate"]) == (None, None)
    assert sorted(row["value_counts"]) == [1, 1, 1]
    levels = [point(at, value, is_monotonic=False) for at, value in ((5, 2.0), (50, 4.0))]
    [row] = steps(levels)
    assert (row["avg"], row["last"], row["increase"]) == (3.0, 4.0, None)


def test_delta_histograms_and_summaries_count_their_measurements() -> None:
    deltas = [histogram(at, 1, 2, 0, aggregation_temporality=1) for at in (5, 50)]
    [row] = steps(deltas)
    assert (row["increase"], row["count"], row["sum"], row["avg"]) == (6.0, 6, 22.0, 22 / 6)
    assert in_buckets(row) == {1.0: 2, 5.0: 4}
    facts = {"metric_type": "summary", "aggregation_temporality": None, "is_monotonic": None}
    quantiles = [{"quantile": 0.99, "value": 7.0}]
    summaries = [
        point(at, count=count, sum=total, quantile_values=quantiles, **facts)
        for at, count, total in ((5, 10, 100.0), (65, 12, 130.0))
    ]
    first, second = steps(summaries)
    assert (first["increase"], second["increase"], second["avg"]) == (0.0, 2.0, 15.0)
    assert second["last_quantiles"] == quantiles


def test_a_start_that_the_source_computes_inexactly_is_no_restart() -> None:
    points = [point(60 * at, 100.0 + at, began=at * 0.01) for at in range(1, 10)]
    assert [row["increase"] for row in steps(points)] == [101.0, *[1.0] * 8]


def test_sources_that_share_a_series_count_by_their_own_starts() -> None:
    one = [point(60 * at, 1000.0 + at, began=-9000) for at in range(10)]
    other = [point(60 * at + 20, 10.0 * at, began=-100) for at in range(10)]
    found = steps([*one, *other])
    assert sum(row["increase"] for row in found) == 9 + 90


def test_rows_without_a_value_break_no_increase() -> None:
    points = [point(0, 5.0), point(60, 7.0, flags=1), point(120, 9.0), point(130, float("inf"))]
    found = [(row["time"], row["points"], row["increase"]) for row in steps(points)]
    assert found[:2] == [(0, 1, 0.0), (60, 1, None)]
    assert found[2] == (120, 2, None)


def test_steps_are_whole_and_begin_like_time_buckets() -> None:
    deltas = [point(HOUR * at, 1.0, aggregation_temporality=1) for at in range(24 * 21)]
    sql = "SELECT time, increase, time_bucket(INTERVAL {step}, time) AS same FROM metric_steps('orders', "
    for step in ("7 HOUR", "1 WEEK", "2 DAY"):
        call = (
            f"INTERVAL {step}, to_timestamp({BEGIN + 10 * DAY + 60}), to_timestamp({BEGIN + 10 * DAY + 70}))"
        )
        [row] = query(sql.format(step=step) + call, deltas)
        assert row["time"] == row["same"]
        hours = {"7 HOUR": 7, "1 WEEK": 168, "2 DAY": 48}[step]
        assert row["increase"] == hours


@pytest.mark.parametrize(
    "step", ["INTERVAL 90 SECOND", "INTERVAL 1 MONTH", "INTERVAL 0 MINUTE", "NULL", "'-1 hour'"]
)
def test_a_step_that_rollups_cannot_answer_is_refused(step: str) -> None:
    with pytest.raises(duckdb.InvalidInputException, match="must be whole minutes"):
        query(f"SELECT * FROM metric_steps('orders', {step}, '2026-11-10', '2026-11-11')")
