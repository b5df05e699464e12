"""Partitioning and sorting: no row is lost or duplicated, every part is sorted, and only days inside the
horizon make a part.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.pipeline.partition_sort import (
    DAY_MICROS,
    Horizon,
    PartitionedRows,
    compact_dictionaries,
    partition_and_sort,
)
from frazil.tables import TableSpec
from frazil.tables.columns import ATTRIBUTES, TIMESTAMP, Column

CODED = pa.dictionary(pa.int32(), pa.string())
CODED_MAP = pa.map_(CODED, CODED)
NOW = 20_000 * DAY_MICROS + 5_000
MINUTE = 60_000_000
HORIZON = Horizon(past_micros=30 * DAY_MICROS, ahead_micros=DAY_MICROS)
SPEC = TableSpec(
    "things",
    "",
    (
        Column("tenant_id", pa.string(), "", "", required=True),
        Column("time", TIMESTAMP, "", "", required=True),
        Column("received_time", TIMESTAMP, "", "", required=True),
        Column("service_name", pa.string(), "", ""),
        Column("severity", pa.int64(), "", ""),
        Column("resource_attributes", ATTRIBUTES, "", ""),
        Column("body", pa.string(), "", ""),
    ),
    sort_by=("service_name", "severity", "time"),
)
SCHEMA = pa.schema(
    [
        ("tenant_id", CODED),
        ("time", TIMESTAMP),
        ("received_time", TIMESTAMP),
        ("service_name", CODED),
        ("severity", pa.int64()),
        ("resource_attributes", CODED_MAP),
        ("body", pa.string()),
    ]
)
Row = dict[str, Any]


def table_of(rows: list[Row]) -> pa.Table:
    """Not by `from_pylist`: it makes no maps of dictionaries."""
    plain = pa.schema(
        [
            (
                field.name,
                ATTRIBUTES if field.type == CODED_MAP else pa.string() if field.type == CODED else field.type,
            )
            for field in SCHEMA
        ]
    )
    table = pa.Table.from_pylist(rows, schema=plain)
    columns = []
    for field in SCHEMA:
        column = table[field.name].combine_chunks()
        if field.type == CODED:
            column = column.dictionary_encode()
        elif field.type == CODED_MAP:
            column = pa.MapArray.from_arrays(
                column.offsets,
                column.keys.dictionary_encode(),
                column.items.dictionary_encode(),
                CODED_MAP,
                mask=column.is_null() if column.null_count else None,
            )
        columns.append(column)
    return pa.table(columns, schema=SCHEMA)


def row(time: int = NOW, received: int = NOW, **more: Any) -> Row:
    return {
        "tenant_id": "acme",
        "time": time,
        "received_time": received,
        "service_name": None,
        "severity": None,
        "resource_attributes": None,
        "body": None,
        **more,
    }


def plain(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    for each in rows:
        each["time"], each["received_time"] = _micros(each["time"]), _micros(each["received_time"])
    return rows


def _micros(time: datetime.datetime) -> int:
    return round(
        (time - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) / datetime.timedelta(microseconds=1)
    )


def counted(rows: list[Row], *, without: str = "") -> Counter[str]:
    return Counter(repr({key: value for key, value in each.items() if key != without}) for each in rows)


def check(arranged: PartitionedRows, rows: list[Row]) -> None:
    """What holds whatever the rows are."""
    found = [each for part in arranged.parts for each in plain(part.rows)]
    assert counted(found, without="time") == counted(rows, without="time")
    for part in arranged.parts:
        part.rows.validate(full=True)
        assert part.rows.schema == SCHEMA
        inside = plain(part.rows)
        assert inside
        assert {(each["tenant_id"], each["time"] // DAY_MICROS) for each in inside} == {
            (part.tenant, part.day)
        }
        order = [sort_key(each) for each in inside]
        assert order == sorted(order)
    assert len({(part.tenant, part.day) for part in arranged.parts}) == len(arranged.parts)
    before = Counter((each["body"], each["time"]) for each in rows)
    after = Counter((each["body"], each["time"]) for each in found)
    moved = (before - after).total()
    assert moved <= arranged.clamped
    for each in found:
        kept = before[(each["body"], each["time"])] > 0
        assert kept or each["time"] == each["received_time"]


def sort_key(each: Row) -> tuple[Any, ...]:
    """NULL first."""
    return tuple(
        (each[name] is not None, each[name] if each[name] is not None else 0) for name in SPEC.sort_by
    )


texts = st.none() | st.sampled_from(["", "a", "b", "ä", "zebra", "A"])
times = st.integers(NOW - 3 * DAY_MICROS, NOW + DAY_MICROS) | st.integers(0, 2 * NOW)
rows_of_things = st.lists(
    st.builds(
        row,
        time=times,
        received=st.integers(NOW - DAY_MICROS, NOW),
        tenant_id=st.sampled_from(["acme", "globex", "ünïcode/x"]),
        service_name=texts,
        severity=st.none() | st.integers(-2, 30),
        resource_attributes=st.none() | st.lists(st.tuples(st.sampled_from("kl"), texts), max_size=3),
        body=texts,
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows_of_things, min_size=1, max_size=4), st.data())
def test_rows_are_kept_cut_and_sorted_whatever_they_are(
    batches: list[list[Row]], data: st.DataObject
) -> None:
    tables, rows = [], []
    for batch in batches:
        first = data.draw(st.integers(0, len(batch)))
        tables.append(table_of(batch).slice(first))
        rows += plain(table_of(batch[first:]))
    check(partition_and_sort(tables, SPEC, HORIZON), rows)
    assert tables == []


def test_nothing_gives_no_parts() -> None:
    assert len(partition_and_sort([table_of([])], SPEC, HORIZON).parts) == 0
    assert partition_and_sort([table_of([row()]).slice(1), table_of([])], SPEC, HORIZON) == PartitionedRows(
        [], 0
    )


def test_rows_in_several_chunks_with_dictionaries_of_their_own_come_together() -> None:
    rows = [row(service_name=name, body=name, resource_attributes=[("k", name)]) for name in "cabba"]
    tables = [pa.concat_tables([table_of([each]) for each in rows[:3]]), table_of(rows[3:])]
    (part,) = partition_and_sort(tables, SPEC, HORIZON).parts
    assert [each["body"] for each in plain(part.rows)] == ["a", "a", "b", "b", "c"]
    assert part.rows["service_name"].chunk(0).dictionary.to_pylist() == ["c", "a", "b"]


@pytest.mark.parametrize("coded", [True, False])
def test_a_table_by_tenant_alone_has_a_part_of_rows_without_one_and_keeps_their_times(coded: bool) -> None:
    columns = tuple(dataclasses.replace(each, required=False) for each in SPEC.columns)
    kept = dataclasses.replace(SPEC, columns=columns, merged_as=None, retained="no", erased="no")
    rows = [row(0, tenant_id=name, body=str(name)) for name in ("b", None, "a", None)]
    for partition_by, wanted in (
        (("tenant_id",), [(None, 2), ("b", 1), ("a", 1)]),
        (("tenant_id", "day(time)"), [(None, 2), ("b", 1), ("a", 1)]),
        ((), [(None, 4)]),
    ):
        spec = dataclasses.replace(kept, partition_by=partition_by)
        table = table_of(rows) if coded else table_of(rows).cast(spec.arrow_schema)
        arranged = partition_and_sort([table], spec)
        assert [(part.tenant, part.rows.num_rows) for part in arranged.parts] == wanted
        assert {part.day for part in arranged.parts} == {0 if len(partition_by) == 2 else None}
        assert arranged.clamped == 0
        for part in arranged.parts if partition_by else ():
            assert {each["body"] for each in plain(part.rows)} == {str(part.tenant)}


def test_null_comes_first_in_the_order_and_stays_null() -> None:
    rows = [row(service_name=name, severity=level) for name in ("b", None, "a") for level in (1, None)]
    (part,) = partition_and_sort([table_of(rows)], SPEC, HORIZON).parts
    assert [(each["service_name"], each["severity"]) for each in plain(part.rows)] == [
        (None, None),
        (None, 1),
        ("a", None),
        ("a", 1),
        ("b", None),
        ("b", 1),
    ]


@pytest.mark.parametrize(
    ("time", "kept"),
    [
        (NOW, True),
        (NOW - 30 * DAY_MICROS, True),
        (NOW - 30 * DAY_MICROS - 1, False),
        (NOW + DAY_MICROS, True),
        (NOW + DAY_MICROS + 1, False),
        (0, False),
        (-1, False),
        (-(2**62), False),
        (2**62, False),
    ],
)
def test_a_time_outside_the_horizon_becomes_the_received_time(time: int, kept: bool) -> None:
    arranged = partition_and_sort([table_of([row(NOW), row(0)]).slice(0, 1), with_time(time)], SPEC, HORIZON)
    assert arranged.clamped == (0 if kept else 1)
    days = {part.day for part in arranged.parts}
    assert days == {NOW // DAY_MICROS, time // DAY_MICROS if kept else NOW // DAY_MICROS}


def with_time(time: int) -> pa.Table:
    """Also times that Python has no date for."""
    table = table_of([row(NOW)])
    return table.set_column(
        1, SCHEMA.field(1), pa.array([time], pa.int64()).cast(pa.timestamp("us")).cast(TIMESTAMP)
    )


def test_late_rows_land_in_the_days_they_belong_to() -> None:
    rows = [row(NOW - days * DAY_MICROS, body=str(days)) for days in range(5)]
    arranged = partition_and_sort([table_of(rows)], SPEC, HORIZON)
    assert arranged.clamped == 0
    assert [part.day for part in arranged.parts] == [20_000 - days for days in (4, 3, 2, 1, 0)]


def test_a_client_whose_clock_jumps_through_a_century_makes_parts_only_of_days_inside_the_horizon() -> None:
    """1970 to 2100, a row for each day, together with rows of a client with a correct clock."""
    broken = [row(day * DAY_MICROS, tenant_id="broken", body="x") for day in range(47_000)]
    honest = [row(NOW - days * DAY_MICROS, body=str(days)) for days in range(3) for _ in range(2)]
    arranged = partition_and_sort([table_of(broken + honest)], SPEC, HORIZON)
    assert sum(part.rows.num_rows for part in arranged.parts) == 47_006
    acme = {part.day: part.rows.num_rows for part in arranged.parts if part.tenant == "acme"}
    assert acme == {20_000: 2, 19_999: 2, 19_998: 2}
    days = [part.day for part in arranged.parts if part.tenant == "broken"]
    assert days == list(range(19_971, 20_002))
    assert arranged.clamped == 47_000 - 31


def test_parts_can_be_taken_in_any_order_and_more_than_once() -> None:
    rows = [row(NOW - days * DAY_MICROS, body=str(days)) for days in range(4)]
    parts = partition_and_sort([table_of(rows)], SPEC, HORIZON).parts
    assert [parts[number].day for number in (2, -1, 0)] == [19_999, 20_000, 19_997]
    assert [part.day for part in parts[1:3]] == [19_998, 19_999]
    assert plain(parts[3].rows) == plain(parts[-1].rows)


def test_landing_the_same_rows_again_gives_the_same_parts() -> None:
    rows = [row(day * DAY_MICROS, body=str(day)) for day in range(0, 40_000, 100)]
    one, two = (partition_and_sort([table_of(rows)], SPEC, HORIZON) for _ in range(2))
    assert [(part.day, plain(part.rows)) for part in one.parts] == [
        (part.day, plain(part.rows)) for part in two.parts
    ]


def test_a_part_carries_only_the_values_that_occur_in_it() -> None:
    rows = [
        row(
            tenant_id=tenant,
            service_name=f"service of {tenant}",
            resource_attributes=[(f"key of {tenant}", f"value of {tenant}")],
        )
        for tenant in ("acme", "globex", "initech")
    ]
    for part in partition_and_sort([table_of(rows)], SPEC, HORIZON).parts:
        maps = part.rows["resource_attributes"].chunk(0)
        assert part.rows["tenant_id"].chunk(0).dictionary.to_pylist() == [part.tenant]
        assert part.rows["service_name"].chunk(0).dictionary.to_pylist() == [f"service of {part.tenant}"]
        assert maps.keys.dictionary.to_pylist() == [f"key of {part.tenant}"]
        assert maps.items.dictionary.to_pylist() == [f"value of {part.tenant}"]


@settings(max_examples=60, deadline=None)
@given(rows_of_things, st.data())
def test_compacting_a_slice_changes_no_row(rows: list[Row], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows)))
    count = data.draw(st.integers(0, len(rows) - first))
    table = table_of(rows).slice(first, count)
    small = compact_dictionaries(table)
    small.validate(full=True)
    assert small.schema == table.schema
    assert plain(small) == plain(table)
    for name in ("tenant_id", "service_name"):
        for chunk in small[name].chunks:
            assert set(chunk.dictionary.to_pylist()) == set(chunk.to_pylist()) - {None}
