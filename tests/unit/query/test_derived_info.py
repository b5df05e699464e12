"""How far a derived table is, as `GET /api/v1/tables` has it: without the pipeline, from metadata alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.lake.derived_days import DAYS_LEFT
from frazil.query.derived import DerivedInfo, derived_info
from frazil.query.lake import Lake
from frazil.tables import table_specs
from tests.support.derived_lake import DerivedLake

NAME = "log_rollups"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        yield made


def land(lake: DerivedLake) -> None:
    lake.write([("acme", "user-1 cart done", 9, 0.0)])
    lake.land()


def info(lake: DerivedLake, **derive: Any) -> DerivedInfo:
    config = Config(**lake.config.model_dump() | {"derive": derive})
    with contextlib.closing(Lake(config)) as seen:
        found = derived_info(table_specs()[NAME], seen.version(NAME), seen.version("logs"), config)
    assert found is not None
    return found


def test_a_table_is_complete_once_its_source_is_derived(lake: DerivedLake) -> None:
    land(lake)
    assert info(lake).lag_seconds is None
    assert not info(lake).is_complete, "nothing is derived yet"
    lake.derive()
    assert info(lake) == DerivedInfo("logs", enabled=True, days_left=0, lag_seconds=0.0)
    assert info(lake).is_complete


def test_the_lag_is_the_age_of_the_oldest_landing_that_is_not_derived(
    lake: DerivedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(lake)
    lake.derive()
    land(lake)
    oldest = lake.table("logs").metadata.snapshots[-1].timestamp_ms / 1000
    land(lake)
    monkeypatch.setattr("frazil.lake.derived_days.time.time", lambda: oldest + 40)
    assert info(lake).lag_seconds == pytest.approx(40, abs=0.1)
    lake.derive()
    assert info(lake).lag_seconds == 0


@pytest.mark.parametrize("derive", [{"enabled": False}, {"disabled_tables": [NAME]}])
def test_a_table_that_is_off_is_not_read_in_place_of_its_source(
    derive: dict[str, Any], lake: DerivedLake
) -> None:
    land(lake)
    lake.derive()
    assert not info(lake, **derive).enabled
    assert not info(lake, **derive).is_complete


def test_past_days_that_are_left_are_counted(lake: DerivedLake) -> None:
    land(lake)
    lake.derive()
    with lake.table(NAME).transaction() as change:
        change.set_properties({DAYS_LEFT: json.dumps([20_000, 20_001])})
    assert info(lake).days_left == 2
    assert not info(lake).is_complete
