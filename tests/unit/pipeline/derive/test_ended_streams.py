"""Streams that have ended are no longer in positions. Their rows are still derived once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.errors import Conflict
from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.ledger import balance
from frazil.position import landing_position
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import DAY, STREAM
from tests.unit.pipeline.derive.test_deriver import (
    assert_equal_to_a_single_pass,
    compact,
    forget_snapshots,
    rows,
)

TABLE = "log_rollups"
LATER = "20261101T081823120-9f86d081884c7d65"
LATEST = "20261102T081823120-9f86d081884c7d65"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    """A stream that goes on, and one that began later and has ended."""
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        made.fill(rows("cart"))
        made.write(rows("web"), stream=LATER)
        made.land()
        end(made, LATER)
        made.derive()
        yield made


def end(lake: DerivedLake, stream: str) -> None:
    """As landing does once the segments of an ended stream are deleted."""
    table = lake.table()
    position = landing_position(checkpoint_of(table).position)
    for path in lake.config.wal_dir.glob(f"*/{stream}/*"):
        path.unlink()
    without = replace(position, wal=position.wal.without_streams({stream}))
    Committer(lake.catalog, deadline_seconds=20).append(checkpoint_of(table), [], without.to_text())
    assert STREAM in without.wal.streams
    assert stream not in without.wal.streams


def test_its_rows_are_not_derived_twice_after_the_snapshots_have_expired(lake: DerivedLake) -> None:
    lake.fill(rows("gate"))
    compact(lake)
    forget_snapshots(lake)
    lake.restart()
    lake.derive()
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []


def test_its_rows_are_derived_again_with_their_day(lake: DerivedLake) -> None:
    lake.fill(rows("gate"))
    compact(lake)
    lake.restart().rederive([TABLE], {int(lake.now // DAY)})
    lake.derive()
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []


def test_a_day_waits_until_it_is_certain_which_rows_are_new(lake: DerivedLake) -> None:
    lake.write(rows("gate"), stream=LATEST)
    lake.land()
    end(lake, LATEST)
    compact(lake)
    assert balance(lake.config).problems == [], "what is not certain is no problem"
    with pytest.raises(Conflict, match="streams have ended"):
        lake.restart().rederive([TABLE], {int(lake.now // DAY)})
    lake.derive()
    lake.restart().rederive([TABLE], {int(lake.now // DAY)})
    assert_equal_to_a_single_pass(lake)
    assert balance(lake.config).problems == []
