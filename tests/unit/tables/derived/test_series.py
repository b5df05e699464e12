"""Series of each day: one row for each, however many points there are and in which parts they arrive."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.tables.columns import ATTRIBUTES
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.series import SERIES, series_rows
from frazil.tables.encoding import CODED
from frazil.tables.specs import table_spec
from tests.unit.tables.derived.reference import Row, check_same, floor, merged

SOURCE = pa.schema([(column.name, column.type) for column in table_spec("metrics").columns])
NAMES = SERIES.derived.columns if SERIES.derived else ()
MIDNIGHT = datetime.datetime(2026, 3, 2, tzinfo=datetime.UTC)
patient = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def point(series: int = 0, hours: float = 0, **values: Any) -> Row:
    is_plain = series % 2 == 0
    return dict.fromkeys(SOURCE.names) | {
        "tenant_id": "t",
        "time": MIDNIGHT + datetime.timedelta(hours=hours),
        "series_id": series,
        "metric_name": f"metric.{series}",
        "metric_type": "sum",
        "unit": None if is_plain else "By",
        "service_name": None if is_plain else "shop",
        "aggregation_temporality": 2,
        "is_monotonic": is_plain,
        "description": None if is_plain else "What it measures",
        "attributes": [] if is_plain else [("host", f"h{series}"), ("empty", None)],
        "attribute_types": None if is_plain else '{"empty":null}',
        "resource_attributes": [("service.name", f"s{series}")],
        "scope_name": f"scope {series}",
        **values,
    }


points = st.builds(
    point,
    st.integers(-2, 3),
    st.integers(-60, 60),
    tenant_id=st.sampled_from(["t", "u"]),
)
batches = st.lists(st.lists(points, max_size=10), max_size=4)


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SOURCE).select(["tenant_id", "time", *NAMES])


def derived(rows: list[Row]) -> pa.Table:
    return rolled_up(series_rows(table(rows)), SERIES)


def expected(rows: list[Row]) -> list[Row]:
    """Merges the points themselves."""
    times = [
        {"time": floor(row["time"], 86_400), "first_time": row["time"], "last_time": row["time"]}
        for row in rows
    ]
    return merged([row | time for row, time in zip(rows, times, strict=True)], SERIES)


@patient
@given(batches)
def test_series_agree_with_merging_point_by_point(parts: list[list[Row]]) -> None:
    rows = [each for part in parts for each in part]
    check_same(derived(rows), expected(rows), SERIES)


@patient
@given(batches)
def test_incremental_equals_batch(parts: list[list[Row]]) -> None:
    cut = pa.concat_tables([derived([]), *(derived(part) for part in parts)])
    check_same(combine(cut, SERIES), derived([each for part in parts for each in part]), SERIES)


@patient
@given(batches)
def test_encoded_rows_in_chunks_are_derived_as_plain_rows(parts: list[list[Row]]) -> None:
    coded = pa.schema([(field.name, _coded(field.type)) for field in table([]).schema])
    rows = pa.concat_tables([table([]).cast(coded), *(table(part).cast(coded) for part in parts)])
    plain = [each for part in parts for each in part]
    check_same(rolled_up(series_rows(rows), SERIES), expected(plain), SERIES)


def _coded(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return CODED
    return pa.map_(CODED, CODED) if type_ == ATTRIBUTES else type_


def test_a_series_has_one_row_for_each_day_with_its_first_and_last_time() -> None:
    found = derived([point(3, 23), point(3, 1), point(3, 24), point(3, 7)]).to_pylist()
    day, next_day = sorted(found, key=lambda row: row["time"])
    hours = [MIDNIGHT + datetime.timedelta(hours=hour) for hour in (0, 1, 23, 24)]
    assert [day["time"], day["first_time"], day["last_time"], next_day["time"]] == hours
    assert (day["attributes"], day["resource_attributes"]) == (
        [("host", "h3"), ("empty", None)],
        [("service.name", "s3")],
    )


def test_derived_rows_are_few_before_they_are_merged() -> None:
    """Maps are the cost: they are not copied for each point."""
    assert (
        series_rows(table([point(series, hour) for series in range(3) for hour in range(20)])).num_rows == 3
    )


def test_a_changed_temporality_is_one_series_with_either() -> None:
    (row,) = derived([point(1, 1, aggregation_temporality=1), point(1, 2)]).to_pylist()
    assert row["aggregation_temporality"] in (1, 2)


def test_the_rows_have_the_declared_columns_also_of_no_points() -> None:
    types = [(column.name, column.type) for column in SERIES.columns]
    for found in (derived([]), derived([point()])):
        assert [(field.name, field.type) for field in found.schema] == types


def test_series_are_kept_forever_and_written_once_an_hour() -> None:
    assert SERIES.derived is not None
    assert (SERIES.derived.kept_days, SERIES.derived.once_per_seconds) == (((0, None),), 3600)
