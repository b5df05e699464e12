"""Every derived table is the same however its source was cut into landings, in whatever order and however
late rows arrived, and whatever ran or was killed meanwhile."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from frazil.sql.merging import merging_select
from frazil.tables.derived.rules import PENDING_RESOLUTIONS
from frazil.tables.specs import derived_specs
from tests.support.calls import DAY, HOUR, MICROS, SERVER, Key, Span, expected_edges, hex16
from tests.support.random_telemetry import RandomLake

EDGES = "service_edges"


def single_pass(lake: RandomLake, table: str) -> tuple[list[Any], list[Any]]:
    """The rows of the table, and those of a single pass over all rows of its source."""
    return comparable(table, lake.merged(table)), comparable(table, lake.expected(table))


def comparable(table: str, rows: list[tuple[Any, ...]]) -> list[Any]:
    """A series is written once per hour: its times are right to the hour. PyIceberg reads a list of structs
    that is NULL as an empty one."""

    def of_value(value: Any) -> Any:
        if table == "series" and isinstance(value, datetime.datetime):
            return value.replace(minute=0, second=0, microsecond=0)
        return None if value == [] else value

    return [tuple(of_value(value) for value in row) for row in rows]


def edges_of_view(rows: pa.Table, now: float) -> dict[Key, tuple[Any, ...]]:
    """The edges as the merging view shows them in DuckDB at a time."""
    spec = next(spec for spec in derived_specs() if spec.name == EDGES)
    view = merging_select(spec, "duckdb", "stored").replace(
        "now()", f"make_timestamptz({round(now * MICROS)})"
    )
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        engine.register("stored", rows)
        found = (
            engine.execute(f"SELECT *, epoch(time)::BIGINT AS at FROM ({view})").to_arrow_table().to_pylist()
        )
    edges = {}
    for row in found:
        counts: Counter[int] = Counter()
        for code, count in zip(row["duration_codes"] or (), row["duration_counts"] or (), strict=True):
            counts[code] += count
        numbers = (row["calls"], row["errors"], row["duration_nano_sum"])
        key = (
            row["tenant_id"],
            row["resolution"],
            row["caller"],
            row["callee"],
            row["connection"],
            row["protocol"],
        )
        edges[(*key, row["at"])] = (
            *numbers,
            row["duration_nano_min"],
            row["duration_nano_max"],
            dict(counts),
        )
    return edges


def pending_times(lake: RandomLake) -> list[int]:
    """The seconds of the day of each pending row."""
    rows = lake.table(EDGES).scan(selected_fields=("resolution", "time")).to_arrow()
    return [
        int(time.timestamp() % DAY)
        for resolution, time in zip(rows["resolution"].to_pylist(), rows["time"].to_pylist(), strict=True)
        if resolution in PENDING_RESOLUTIONS
    ]


@pytest.mark.parametrize("seed", range(2))
def test_tables_equal_a_single_pass_after_random_landings_merges_days_and_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with contextlib.closing(RandomLake(tmp_path, seed)) as lake:
        for _ in range(50):
            lake.step(monkeypatch)
        lake.finish()
        tables = [spec.name for spec in derived_specs()]
        assert len(tables) >= 8
        for is_merged in (False, True):
            for table in tables:
                if table != EDGES:
                    found, expected = single_pass(lake, table)
                    assert found == expected, (table, is_merged)
                    assert found, table
            now = lake.now + lake.chance.choice([0, 301])
            stored = lake.table(EDGES).scan().to_arrow()
            assert edges_of_view(stored, now) == expected_edges(lake.spans, now), is_merged
            lake.now += 4 * DAY
            for table in tables:
                lake.merge_files(table)


def test_halves_are_settled_once_a_day_has_ended_and_only_those_near_midnight_stay(tmp_path: Path) -> None:
    with contextlib.closing(RandomLake(tmp_path, 1)) as lake:
        lake.now += 9 * HOUR  # noon
        for _ in range(12):
            lake.make()
            lake.land_some(lambda _: lake.chance.random() < 0.5)
            lake.derive("spans")
        lake.finish()
        expected = expected_edges(lake.spans, lake.now + DAY)
        assert any(HOUR <= time < 23 * HOUR for time in pending_times(lake))
        lake.now += 3 * DAY
        lake.merge_files(EDGES)
        assert all(time < HOUR or time >= 23 * HOUR for time in pending_times(lake))
        assert edges_of_view(lake.table(EDGES).scan().to_arrow(), lake.now) == expected


def test_a_day_is_derived_again_without_the_day_on_which_its_calls_end(tmp_path: Path) -> None:
    """Both sides of a call land together, shortly before and after midnight."""
    with contextlib.closing(RandomLake(tmp_path, 1)) as lake:
        midnight = lake.now // DAY * DAY
        client = Span(hex16(1), at=midnight - 10)
        server = Span(hex16(2), hex16(1), SERVER, "cart", at=midnight + 5)
        for span in (client, server):
            lake.add_span(span)
        lake.land_some(lambda _: True)
        lake.derive("spans")
        expected = expected_edges([client, server], lake.now)
        assert {key[3] for key in expected} == {"cart"}
        for day in (midnight // DAY - 1, midnight // DAY):
            lake.deriver("spans").rederive([EDGES], {int(day)})
            assert edges_of_view(lake.table(EDGES).scan().to_arrow(), lake.now + HOUR) == expected
