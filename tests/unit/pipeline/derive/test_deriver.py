"""Derived tables follow their source through landings, merges, erasures and lost snapshots: each row
counts once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from frazil.lake.upkeep.expire import expire
from frazil.pipeline.derive.days import days_left
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.tables import declared, table_specs
from tests.support.derived_lake import Crash, DerivedLake, crashing_at
from tests.support.known_lake import DAY

TABLE = "log_rollups"
MIB = 2**20


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        yield made


def rows(*names: str, days: float = 0.0, tenant: str = "acme") -> list[tuple[str, str, int, float]]:
    return [(tenant, f"u1 {name} said something", 9, days) for name in names]


def assert_equal_to_a_single_pass(lake: DerivedLake, table: str = TABLE) -> None:
    found = lake.merged(table)
    assert found == lake.expected(table)
    assert found


def compact(lake: DerivedLake, table: str = "logs") -> int:
    compacting = {"fan_in": 2, "file_cost_bytes": 64 * MIB}
    maintain = lake.config.maintain
    settings = maintain.model_copy(update={"compact": maintain.compact.model_copy(update=compacting)})
    config = lake.config.model_copy(update={"maintain": settings})
    maintainer = Maintainer(config, lake.catalog, lake.runner, MaintainMetrics(CollectorRegistry()))
    return maintainer.run("compact", table).files_in


def forget_snapshots(lake: DerivedLake, table: str = "logs") -> None:
    """As expiry does after half an hour."""
    loaded = lake.table(table)
    kept = {ref.snapshot_id for ref in loaded.metadata.refs.values()}
    ids = [each.snapshot_id for each in loaded.metadata.snapshots if each.snapshot_id not in kept]
    expire(lake.catalog, loaded, ids)


def test_rows_are_derived_after_each_landing(lake: DerivedLake) -> None:
    lake.fill(rows("cart", "cart", "web"))
    assert lake.deriver().round() == "derived"
    assert_equal_to_a_single_pass(lake)
    lake.fill(rows("cart"), rows("web", tenant="globex"))
    assert lake.deriver().round() == "derived"
    assert_equal_to_a_single_pass(lake)
    assert lake.deriver().round() == "idle"


@pytest.mark.parametrize("bytes_max", [1, 2**12, 2**30])
def test_chunks_of_a_task_are_merged_and_written_in_parts(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch, bytes_max: int
) -> None:
    monkeypatch.setattr("frazil.pipeline.derive.task._CHUNK_ROWS", 1)
    monkeypatch.setattr("frazil.pipeline.derive.task._PARTIAL_BYTES_MAX", bytes_max)
    lake.fill(rows("cart", "web"), rows("cart", tenant="globex"), rows("cart"), rows("search"))
    lake.derive()
    assert_equal_to_a_single_pass(lake)


def test_nothing_is_done_before_the_source_exists(lake: DerivedLake) -> None:
    assert lake.deriver().round() == "idle"
    assert lake.deriver().day() is False


def test_files_that_were_merged_before_they_were_read_count_once(lake: DerivedLake) -> None:
    lake.fill(rows("cart"), rows("web"))
    lake.derive()
    lake.fill(rows("cart"), rows("cart", "gate"))
    assert compact(lake) == 4
    lake.fill(rows("late", days=2))
    assert compact(lake) <= 4
    lake.derive()
    assert_equal_to_a_single_pass(lake)


def test_rows_count_once_after_the_snapshots_of_the_position_have_expired(lake: DerivedLake) -> None:
    lake.fill(rows("cart"), rows("web"))
    lake.derive()
    lake.fill(rows("cart"), rows("gate"))
    compact(lake)
    forget_snapshots(lake)
    before = lake.position(TABLE).snapshot_id
    assert lake.table().metadata.snapshot_by_id(before) is None, "the position's snapshot is gone"
    lake.restart()
    lake.derive()
    assert_equal_to_a_single_pass(lake)


def test_rows_that_were_erased_before_they_were_derived_are_not_derived(lake: DerivedLake) -> None:
    lake.fill(rows("cart"), rows("web"))
    lake.derive()
    lake.fill(rows("secret", "gate"), rows("secret"))
    erasure = lake.erase("service_name = 'secret'", drop_tags=True)
    assert erasure.rows_removed == 2
    lake.derive()
    assert_equal_to_a_single_pass(lake)
    assert "secret" not in str(lake.merged(TABLE))


def test_retention_of_the_source_leaves_derived_rows(tmp_path: Path) -> None:
    rule = {"table": "logs", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill(rows("old", days=10), rows("new"))
        lake.derive()
        before = lake.merged(TABLE)
        assert lake.retain(confirmed=True).rows_removed == 1
        lake.fill(rows("newer"))
        lake.derive()
        after = lake.merged(TABLE)
        assert {row[2] for row in after} == {"old", "new", "newer"}
        assert [row for row in after if row[2] != "newer"] == before


def test_a_source_that_is_large_when_derivation_begins_is_derived_by_day_newest_first(tmp_path: Path) -> None:
    with contextlib.closing(DerivedLake(tmp_path)) as lake:
        lake.fill(*(rows("cart", "web", days=day) for day in (0, 1, 2, 3)))
        with_small_batches(lake, batch_bytes_max=1)
        deriver = lake.deriver()
        assert deriver.round() == "more"
        left = days_left(lake.table(TABLE).metadata)
        assert len(left) == 4
        assert lake.table(TABLE).scan().to_arrow().num_rows == 0
        lake.fill(rows("fresh"))
        assert deriver.round() == "derived"
        assert {row[2] for row in lake.merged(TABLE)} == {"fresh"}, "new rows do not wait for past days"
        assert deriver.day()
        assert days_left(lake.table(TABLE).metadata) == left[1:], "newest first"
        lake.restart()
        lake.derive()
        assert days_left(lake.table(TABLE).metadata) == []
        assert_equal_to_a_single_pass(lake)


def with_small_batches(lake: DerivedLake, **settings: int) -> None:
    derive = lake.config.derive.model_copy(update=settings)
    lake.config = lake.config.model_copy(update={"derive": derive})


def test_a_backlog_is_derived_in_batches_of_whole_snapshots(lake: DerivedLake) -> None:
    lake.fill(rows("cart"))
    lake.derive()
    lake.fill(*(rows("cart", str(number)) for number in range(5)))
    with_small_batches(lake, batch_bytes_max=1)
    deriver = lake.restart()
    outcomes = []
    while (outcome := deriver.round()) != "idle":
        outcomes.append(outcome)
    assert outcomes == ["more"] * 4 + ["derived"]
    assert_equal_to_a_single_pass(lake)


def test_a_day_that_is_derived_again_keeps_rows_that_are_derived_at_the_same_time(lake: DerivedLake) -> None:
    lake.fill(rows("cart", "web"), rows("web", tenant="globex"))
    lake.derive()
    today = int(lake.now // DAY)
    other = lake.restart()
    run_job = lake.runner.run_job

    def and_land_meanwhile(work: Callable[[Any], Any], items: Any) -> Any:
        lake.runner.run_job = run_job  # type: ignore[method-assign]
        lake.fill(rows("meanwhile"))
        assert other.round() == "derived"
        return run_job(work, items)

    deriver = lake.restart()
    lake.runner.run_job = and_land_meanwhile  # type: ignore[method-assign]
    deriver.rederive([TABLE], {today})
    assert_equal_to_a_single_pass(lake)
    assert {row[2] for row in lake.merged(TABLE)} == {"cart", "web", "meanwhile"}


def test_of_two_derivers_each_row_is_derived_by_one(lake: DerivedLake) -> None:
    lake.fill(rows("cart"))
    lake.derive()
    lake.fill(rows("web"))
    zombie, run_job = lake.restart(), lake.runner.run_job
    successor = lake.restart()

    def overtaken(work: Callable[[Any], Any], items: Any) -> Any:
        results = run_job(work, items)
        lake.runner.run_job = run_job  # type: ignore[method-assign]
        assert successor.round() == "derived"
        return results

    lake.runner.run_job = overtaken  # type: ignore[method-assign]
    zombie.round()
    assert_equal_to_a_single_pass(lake)
    zombie.round()
    assert_equal_to_a_single_pass(lake)


def broken(rows: pa.Table) -> pa.Table:
    raise ValueError(f"cannot derive {rows.num_rows} rows")


def test_a_table_that_cannot_be_derived_does_not_stop_the_others(lake: DerivedLake) -> None:
    spec = table_specs()[TABLE]
    assert spec.derived is not None
    failing = dataclasses.replace(
        spec, name="broken_rollups", derived=dataclasses.replace(spec.derived, derive=broken)
    )
    with declared(failing):
        now = [lake.now]
        deriver = lake.restart(clock=lambda: now[0])
        lake.fill(rows("cart"))
        assert deriver.round() == "derived"
        assert_equal_to_a_single_pass(lake)
        assert lake.registry.get_sample_value("frazil_derive_failing", {"table": "broken_rollups"}) == 1
        jobs = lake.runner.items
        assert deriver.round() == "idle", "it is tried again later"
        assert lake.runner.items == jobs
    mended = dataclasses.replace(failing, derived=spec.derived)
    with declared(mended):
        lake.restart()
        lake.fill(rows("web"))
        lake.derive()
        assert lake.merged("broken_rollups") == lake.expected("broken_rollups")
        assert_equal_to_a_single_pass(lake)


def test_a_disabled_table_gets_what_it_missed_when_it_is_enabled_again(tmp_path: Path) -> None:
    with contextlib.closing(DerivedLake(tmp_path)) as lake:
        lake.fill(rows("cart"))
        lake.derive()
        enabled = lake.config
        disabled = enabled.derive.model_copy(update={"disabled_tables": (TABLE,)})
        lake.config = enabled.model_copy(update={"derive": disabled})
        lake.restart()
        lake.fill(rows("web"))
        lake.derive()
        assert {row[2] for row in lake.merged(TABLE)} == {"cart"}
        lake.config = enabled
        lake.restart()
        lake.derive()
        assert_equal_to_a_single_pass(lake)


@pytest.mark.parametrize("seed", range(6))
def test_random_landings_merges_expiries_and_restarts_are_equal_to_a_single_pass(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with contextlib.closing(DerivedLake(tmp_path)) as lake:
        for _ in range(12):
            match rng.choice(
                ["land", "land", "land", "derive", "derive", "compact", "expire", "restart", "day"]
            ):
                case "land":
                    names = rng.choices(["cart", "web", "gate"], k=rng.randint(1, 6))
                    days = rng.choice([0, 0, 0, 1, 3])
                    lake.fill(rows(*names, days=days, tenant=rng.choice(["acme", "globex"])))
                case "derive":
                    lake.deriver().round()
                case "compact" if lake.catalog.table_exists("otel.logs"):
                    compact(lake)
                case "expire" if lake.catalog.table_exists("otel.logs"):
                    forget_snapshots(lake)
                case "restart":
                    lake.restart()
                case "day" if lake.catalog.table_exists(f"otel.{TABLE}"):
                    lake.deriver().rederive([TABLE], {int(lake.now // DAY) - rng.choice([0, 1, 3])})
        lake.fill(rows("last"))
        lake.derive()
        assert_equal_to_a_single_pass(lake)


def test_a_crash_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 200):
        with contextlib.closing(DerivedLake(tmp_path / str(number))) as lake:
            lake.fill(rows("cart", "web"), rows("web", tenant="globex"))
            crashed = False
            with crashing_at(monkeypatch, lake.catalog, number):
                try:
                    lake.derive()
                    lake.fill(rows("gate"))
                    lake.derive()
                    lake.deriver().rederive([TABLE], {int(lake.now // DAY)})
                except Crash:
                    crashed = True
            lake.land()
            lake.restart()
            lake.derive()
            assert_equal_to_a_single_pass(lake)
        if not crashed:
            assert number > 12
            return
    raise AssertionError("the sweep has no end")
