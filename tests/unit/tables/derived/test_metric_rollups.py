"""Rollups of metric points: the columns that each type of metric fills, and merging in any parts."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.tables.columns import ATTRIBUTES
from frazil.tables.derived.combine import combine, completed, rolled_up
from frazil.tables.derived.metric_rollups import METRIC_ROLLUPS, metric_rollup_rows
from frazil.tables.derived.sketch import sketch_codes
from frazil.tables.encoding import CODED
from frazil.tables.specs import table_spec
from tests.unit.tables.derived.reference import Row, check_same, rolled

SOURCE = pa.schema([(column.name, column.type) for column in table_spec("metrics").columns])
NAMES = METRIC_ROLLUPS.derived.columns if METRIC_ROLLUPS.derived else ()
START = datetime.datetime(2026, 3, 1, 23, 58, tzinfo=datetime.UTC)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
patient = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])

doubles = st.sampled_from([-math.inf, -2.5, 0.0, 1.0, 1.01, 300.0, math.inf, math.nan])
numbers = st.none() | doubles
counts = st.integers(0, 4)


def micros(time: datetime.datetime) -> int:
    return (time - EPOCH) // datetime.timedelta(microseconds=1)


@st.composite
def points(draw: st.DrawFn) -> Row:
    """One point of a few series; a series has one type. Times tie often, and start times may be missing."""
    type_, series = draw(st.sampled_from(sorted(VALUES))), draw(st.integers(0, 1))
    time = START + datetime.timedelta(seconds=30 * draw(st.integers(0, 12)))
    row: Row = dict.fromkeys(SOURCE.names) | {
        "tenant_id": draw(st.sampled_from(["t", "u"])),
        "time": time,
        "metric_name": f"metric.{type_}",
        "metric_type": type_,
        "unit": "ms" if series else None,
        "service_name": "shop" if series else None,
        "series_id": hash_of(type_, series),
        "flags": draw(st.sampled_from([None, 0, 0, 0, 1, 3])),
        "start_time_unix_nano": draw(st.sampled_from([None, 1_000, 2_000])),
    }
    row["time_unix_nano"] = draw(st.sampled_from([None, micros(time) * 1000, micros(time) * 1000 + 7, 5]))
    if type_ in ("sum", "histogram", "exponential_histogram"):
        row["aggregation_temporality"] = draw(st.sampled_from([0, 1, 2]))
    return row | draw(VALUES[type_])


def hash_of(type_: str, series: int) -> int:
    return 10 * sorted(VALUES).index(type_) + series - 25


@st.composite
def number_values(draw: st.DrawFn, is_sum: bool = False) -> Row:
    kind = draw(st.sampled_from(["value_double", "value_int", "none"]))
    found: Row = {"is_monotonic": draw(st.booleans())} if is_sum else {}
    if kind == "value_double":
        found[kind] = draw(doubles)
    elif kind == "value_int":
        found[kind] = draw(st.sampled_from([0, -3, 7, 2**60]))
    return found


@st.composite
def measurements(draw: st.DrawFn) -> Row:
    return {"count": draw(st.none() | counts)} | {name: draw(numbers) for name in ("sum", "min", "max")}


@st.composite
def histograms(draw: st.DrawFn) -> Row:
    bounds = draw(st.sampled_from([[], [1.0], [1.0, 5.0], [-1.0, 0.0, 5.0]]))
    size = len(bounds) + 1
    found = draw(st.lists(counts, min_size=size, max_size=size) | st.just([]))
    return draw(measurements()) | {"explicit_bounds": bounds, "bucket_counts": found}


@st.composite
def exponential_histograms(draw: st.DrawFn) -> Row:
    found = draw(measurements()) | {"scale": draw(st.integers(-1, 2))}
    found["zero_count"] = draw(st.none() | counts)
    found["zero_threshold"] = draw(st.sampled_from([None, 0.0, 0.001]))
    for side in ("positive", "negative"):
        found[f"{side}_offset"] = draw(st.none() | st.integers(-2, 2))
        found[f"{side}_bucket_counts"] = draw(st.none() | st.lists(counts, max_size=4))
    return found


@st.composite
def summaries(draw: st.DrawFn) -> Row:
    quantiles = st.lists(st.fixed_dictionaries({"quantile": st.just(0.5), "value": doubles}), max_size=2)
    return {"count": draw(counts), "sum": draw(numbers), "quantile_values": draw(quantiles)}


VALUES: dict[str, st.SearchStrategy[Row]] = {
    "gauge": number_values(),
    "sum": number_values(is_sum=True),
    "histogram": histograms(),
    "exponential_histogram": exponential_histograms(),
    "summary": summaries(),
}
batches = st.lists(st.lists(points(), max_size=12), max_size=4)


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SOURCE).select(["tenant_id", "time", *NAMES])


def derived(rows: list[Row] | pa.Table) -> pa.Table:
    return rolled_up(metric_rollup_rows(rows if isinstance(rows, pa.Table) else table(rows)), METRIC_ROLLUPS)


# The reference: each point by itself, with the column docs in mind.


def number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def expected_row(point: Row) -> Row:
    type_ = point["metric_type"]
    is_delta, is_number = point["aggregation_temporality"] == 1, type_ in ("gauge", "sum")
    is_histogram = type_ in ("histogram", "exponential_histogram")
    is_cumulative = type_ == "summary" or (type_ != "gauge" and not is_delta)
    row = {
        name: point[name]
        for name in point
        if METRIC_ROLLUPS.has(name) and name not in ("count", "bucket_counts")
    }
    row |= {"points": 1, "start_time_unix_nano": point["start_time_unix_nano"] if is_cumulative else None}
    if is_number:
        value = number(point["value_double"] if point["value_int"] is None else point["value_int"])
    else:
        value = number(point["sum"])
    if (point["flags"] or 0) & 1 or (is_number and value is None):
        return row
    exact = point["time_unix_nano"]
    own = micros(point["time"])
    time = exact if exact is not None and exact // 1000 == own else own * 1000
    row |= {
        "first_time_unix_nano": time,
        "last_time_unix_nano": time,
        "first_value": value,
        "last_value": value,
    }
    if is_number:
        row |= {"value_min": value, "value_max": value}
        if not (is_cumulative and point["is_monotonic"]):
            row |= {"value_sum": value, "count": 1}
        if not is_cumulative:
            row |= {"value_codes": [int(sketch_codes(np.array([value]))[0][0])], "value_counts": [1]}
        return row
    if is_histogram:
        row |= {"value_min": number(point["min"]), "value_max": number(point["max"])}
        bounds, found = expected_buckets(point)
        prefix = "last_" if is_cumulative else ""
        row |= {f"{prefix}bucket_bounds": bounds, f"{prefix}bucket_counts": found}
    if is_cumulative:
        row |= {"first_count": point["count"], "last_count": point["count"]}
    else:
        row |= {"count": point["count"], "value_sum": value}
    if type_ == "summary":
        row["last_quantiles"] = point["quantile_values"]
    return row


def expected_buckets(point: Row) -> tuple[list[float], list[int]] | tuple[None, None]:
    if point["metric_type"] == "histogram":
        if not point["bucket_counts"]:
            return None, None
        return [*point["explicit_bounds"], math.inf], point["bucket_counts"]
    found: Counter[float] = Counter()
    scale = point["scale"]
    for side, sign in (("positive", 1), ("negative", -1)):
        for place, count in enumerate(point[f"{side}_bucket_counts"] or []):
            index = (point[f"{side}_offset"] or 0) + place
            edges = sorted(sign * power(Fraction(each) / Fraction(2) ** scale) for each in (index, index + 1))
            if count:
                found[edges[0]] += 0
                found[edges[1]] += count
    if zeros := point["zero_count"]:
        width = point["zero_threshold"] or 0.0
        found[-width] += 0
        found[width] += zeros
    return sorted(found), [found[bound] for bound in sorted(found)]


def power(exponent: Fraction) -> float:
    """Returns 2^exponent for multiples of 1/4."""
    whole = exponent.numerator // exponent.denominator
    rest = {0: 1.0, 1: math.sqrt(math.sqrt(2)), 2: math.sqrt(2), 3: math.sqrt(2) * math.sqrt(math.sqrt(2))}
    return math.ldexp(rest[int((exponent - whole) * 4)], whole)


@patient
@given(batches)
def test_rollups_agree_with_a_reference_point_by_point(parts: list[list[Row]]) -> None:
    rows = [each for part in parts for each in part]
    expected = rolled([expected_row(each) for each in rows], METRIC_ROLLUPS)
    check_same(derived(rows), expected, METRIC_ROLLUPS)


@patient
@given(batches, st.randoms())
def test_incremental_equals_batch(parts: list[list[Row]], random: Any) -> None:
    """Whatever arrives when: parts merge in another order than that of their points."""
    shuffled = random.sample(parts, len(parts))
    cut = pa.concat_tables([derived([]), *(derived(part) for part in shuffled)])
    whole = derived([each for part in parts for each in part])
    check_same(combine(cut, METRIC_ROLLUPS), whole, METRIC_ROLLUPS)


@patient
@given(batches)
def test_encoded_rows_in_chunks_are_derived_as_plain_rows(parts: list[list[Row]]) -> None:
    rows = pa.concat_tables([table([]), *(table(part) for part in parts)])
    fields = [field.with_type(CODED) if pa.types.is_string(field.type) else field for field in rows.schema]
    coded = pa.concat_tables([table(part).cast(pa.schema(fields)) for part in parts] or [rows])
    check_same(derived(coded), derived(rows), METRIC_ROLLUPS)


def point(type_: str, second: int = 0, **values: Any) -> Row:
    time = START + datetime.timedelta(seconds=second)
    return dict.fromkeys(SOURCE.names) | {
        "tenant_id": "t",
        "time": time,
        "time_unix_nano": micros(time) * 1000,
        "metric_name": "m",
        "metric_type": type_,
        "series_id": 1,
        "flags": 0,
        **values,
    }


def rows_of(resolution: int, *rows: Row) -> list[Row]:
    found = [each for each in derived(list(rows)).to_pylist() if each["resolution"] == resolution]
    return sorted(found, key=lambda each: (each["start_time_unix_nano"] or 0, each["time"]))


def test_the_rows_have_the_declared_columns_also_of_no_points() -> None:
    expected = [(column.name, column.type) for column in METRIC_ROLLUPS.columns]
    for found in (derived([]), derived([point("gauge")])):
        assert [(field.name, field.type) for field in found.schema] == expected
    assert completed(metric_rollup_rows(table([])), METRIC_ROLLUPS).num_rows == 0


def test_a_gauge_has_values_in_all_resolutions() -> None:
    rows = [
        point("gauge", second, value_double=value) for second, value in [(70, 2.0), (10, 4.0), (130, 3.0)]
    ]
    (minute, *others) = rows_of(60, *rows)
    assert (minute["value_sum"], len(others)) == (4.0, 2)
    (first, second) = rows_of(86_400, *rows)
    assert (first["count"], first["value_sum"], second["count"], second["value_sum"]) == (2, 6.0, 1, 3.0)
    (hour, _) = rows_of(3600, *rows)
    assert (hour["first_value"], hour["last_value"], hour["value_min"]) == (4.0, 2.0, 2.0)


@pytest.mark.parametrize("values", [{"flags": 1, "value_double": 0.0}, {"value_double": math.nan}, {}])
def test_a_point_without_a_value_only_counts_as_a_point(values: Row) -> None:
    (row,) = rows_of(60, point("gauge", 1, value_double=5.0), point("gauge", 2, **values))
    assert (row["points"], row["count"]) == (2, 1)
    assert {row[f"value_{name}"] for name in ("sum", "min", "max")} == {row["last_value"]} == {5.0}
    (row,) = rows_of(60, point("gauge", **values))
    assert {name for name, value in row.items() if value is not None} == {
        "tenant_id", "resolution", "metric_name", "series_id", "time", "metric_type", "points",
    }  # fmt: skip


def increases(rows: list[Row]) -> list[float]:
    """Computes increases as the table's description says."""
    found = []
    previous: Row | None = None
    for row in rows:
        start = row["start_time_unix_nano"]
        if previous is not None and previous["start_time_unix_nano"] == start:
            step = row["last_value"] - previous["last_value"]
            found.append(step if step >= 0 or start is not None else row["last_value"])
        else:
            is_in_bucket = start is not None and start >= micros(row["time"]) * 1000
            found.append(row["last_value"] - (0 if is_in_bucket else row["first_value"]))
        previous = row
    return found


def counter(second: int, value: float, start: int | None) -> Row:
    begun = None if start is None else micros(START + datetime.timedelta(seconds=start)) * 1000
    values = {"start_time_unix_nano": begun, "aggregation_temporality": 2, "is_monotonic": True}
    return point("sum", second, value_double=value, **values)


def test_the_increase_of_a_counter_is_right_across_resets_and_late_points() -> None:
    before = [counter(second, value, -500) for second, value in [(0, 100.0), (30, 110.0), (70, 130.0)]]
    after = [counter(second, value, 80) for second, value in [(90, 4.0), (110, 9.0), (130, 12.0)]]
    found = rows_of(60, *reversed(before + after))
    # 100 to 110, to 130; then from zero to 9, to 12
    assert increases(found) == [10.0, 20.0, 9.0, 3.0]
    assert [row["value_sum"] for row in found] == [None] * 4
    parts = pa.concat_tables([derived(before[1:]), derived(after), derived(before[:1])])
    check_same(combine(parts, METRIC_ROLLUPS), derived(before + after), METRIC_ROLLUPS)


def test_a_counter_without_start_shows_a_reset_as_a_decrease() -> None:
    values = [(0, 100.0), (30, 110.0), (70, 130.0), (130, 12.0)]
    found = rows_of(60, *(counter(second, value, None) for second, value in values))
    assert [row["last_value"] for row in found] == [110.0, 130.0, 12.0]
    assert increases(found) == [10.0, 20.0, 12.0]


def test_delta_sums_add_up_and_have_no_start() -> None:
    values = {"aggregation_temporality": 1, "is_monotonic": True}
    rows = [point("sum", n, value_int=n, start_time_unix_nano=n, **values) for n in range(1, 5)]
    (row,) = rows_of(60, *rows)
    assert (row["value_sum"], row["count"], row["start_time_unix_nano"]) == (10.0, 4, None)
    assert sum(row["value_counts"]) == 4


def test_delta_histograms_of_equal_bounds_add_up() -> None:
    values = {
        "aggregation_temporality": 1,
        "explicit_bounds": [1.0, 5.0],
        "count": 4,
        "sum": 6.0,
        "min": 0.5,
        "max": 9.0,
    }
    (row,) = rows_of(60, *(point("histogram", n, bucket_counts=[1, 2, n], **values) for n in (1, 2)))
    assert (row["bucket_bounds"], row["bucket_counts"]) == ([1.0, 5.0, math.inf], [2, 4, 3])
    assert (row["count"], row["value_sum"], row["value_min"], row["value_max"]) == (8, 12.0, 0.5, 9.0)
    assert row["last_bucket_bounds"] is row["last_count"] is row["value_codes"] is None


def test_exponential_histograms_of_two_scales_have_equal_bounds_once() -> None:
    values = {"aggregation_temporality": 1, "positive_offset": 0}
    fine = point("exponential_histogram", scale=1, positive_bucket_counts=[1, 2, 4], **values)
    coarse = point("exponential_histogram", 1, scale=0, positive_bucket_counts=[8, 16], **values)
    (row,) = rows_of(60, fine, coarse)
    assert row["bucket_bounds"] == [1.0, math.sqrt(2), 2.0, 2 * math.sqrt(2), 4.0]
    assert row["bucket_counts"] == [0, 1, 10, 4, 16]


def test_a_cumulative_histogram_keeps_the_buckets_of_its_last_point() -> None:
    values = {"aggregation_temporality": 2, "explicit_bounds": [1.0], "start_time_unix_nano": 1}
    late = point("histogram", 9, bucket_counts=[3, 4], count=7, sum=1.0, **values)
    early = point("histogram", 1, bucket_counts=[1, 2], count=3, sum=None, **values)
    (row,) = rows_of(60, late, early)
    assert (row["last_bucket_counts"], row["first_count"], row["last_count"]) == ([3, 4], 3, 7)
    assert (row["first_value"], row["last_value"], row["bucket_counts"], row["count"]) == (
        None,
        1.0,
        None,
        None,
    )


def test_of_points_at_the_same_time_one_gives_all_last_values() -> None:
    values = {"aggregation_temporality": 2, "start_time_unix_nano": 1, "sum": 1.0}
    short = point("histogram", count=9, explicit_bounds=[7.0], bucket_counts=[4, 5], **values)
    long = point("histogram", count=8, explicit_bounds=[1.0, 9.0], bucket_counts=[6, 1, 1], **values)
    for rows in ((short, long), (long, short), (short, long, short)):
        (row,) = rows_of(60, *rows)
        assert row["last_count"] == sum(row["last_bucket_counts"]) == 9
        assert row["last_bucket_bounds"] == [7.0, math.inf]


def test_a_summary_keeps_the_quantiles_of_its_last_point() -> None:
    quantiles = [[{"quantile": 0.5, "value": value}] for value in (1.0, 2.0)]
    rows = [
        point("summary", n, count=n, sum=float(n), quantile_values=each) for n, each in enumerate(quantiles)
    ]
    (row,) = rows_of(60, *reversed(rows))
    assert (row["last_quantiles"], row["first_count"], row["last_count"]) == (quantiles[1], 0, 1)


def test_a_time_far_from_the_bucket_is_replaced() -> None:
    (row,) = rows_of(60, point("gauge", 3, value_int=1, time_unix_nano=12))
    assert row["first_time_unix_nano"] == (micros(START) + 3_000_000) * 1000


def test_a_type_that_is_not_known_only_counts_as_points() -> None:
    (row,) = rows_of(60, point("other", value_double=1.0))
    assert (row["points"], row["count"], row["last_value"]) == (1, None, None)


def test_attribute_maps_are_not_read() -> None:
    assert not [name for name in NAMES if SOURCE.field(name).type == ATTRIBUTES]
