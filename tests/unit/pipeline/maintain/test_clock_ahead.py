"""A clock that was ahead for one commit: maintenance of the tables and WAL clean-up continue."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from frazil.lake.commits import staging
from frazil.lake.upkeep.expire import expire_old
from frazil.ledger import balance
from frazil.pipeline.maintain.tag_tables import tag_tables, untag_tables
from frazil.pipeline.metrics import Metrics
from frazil.wal.reader import WalReader
from tests.support.known_lake import DAY, KnownLake, holding
from tests.support.upkeep import Upkeep

MARKER = "zanzibar"


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KnownLake]:
    """The second of three landings was 400 days ahead."""
    with contextlib.closing(KnownLake(tmp_path / "data", maintain={"expire": {"snapshots_kept": 1}})) as lake:
        lake.fill([("acme", "u1 stays", 9, 0.0)])
        real = time.time
        with monkeypatch.context() as patched:
            patched.setattr(staging, "time", SimpleNamespace(time=lambda: real() + 400 * DAY))
            lake.fill([("acme", f"u42 {MARKER}", 9, 0.0)])
        lake.fill([("acme", "u2 stays", 9, 0.0)])
        yield lake


def test_erasure_is_proven(lake: KnownLake) -> None:
    report = lake.erase("attributes['user.id'] = 'u42'")
    assert report.is_proven
    assert report.rows_removed == 1
    assert lake.bodies() == Counter(["u1 stays", "u2 stays"])
    assert holding(lake.config.data_dir, MARKER) == []
    assert balance(lake.config).problems == []


def test_all_tables_can_be_tagged_and_untagged(lake: KnownLake) -> None:
    cut = tag_tables(lake.config, lake.catalog, lake.runner, Metrics(), "incident-42")
    assert {tag.table for tag in cut.tags} >= {"logs"}
    assert untag_tables(lake.config, lake.catalog, "incident-42") == len(cut.tags)


def test_landed_segments_are_deleted_when_they_are_due(lake: KnownLake) -> None:
    lake.write([("acme", "u3 waits", 9, 0.0)])
    grace = lake.config.land.wal_grace_seconds
    for seconds, left in ((grace - 60, 4), (grace + 60, 1)):
        later = time.time() + seconds
        upkeep = Upkeep(lake.config, lake.store, Metrics(), wall_clock=lambda at=later: at)  # type: ignore[misc]
        upkeep.round("logs", lake.table().metadata)
        assert len(list(WalReader(lake.store).segments("logs"))) == left
    assert balance(lake.config).problems == []


def test_old_snapshots_go_and_young_ones_stay(lake: KnownLake) -> None:
    config = lake.config.maintain.expire
    before = len(lake.table().metadata.snapshots)
    assert expire_old(lake.catalog, lake.table(), config).snapshots == ()
    later = time.time() + config.kept_seconds + 60
    gone = expire_old(lake.catalog, lake.table(), config, clock=lambda: later)
    assert len(gone.snapshots) == before - len(lake.table().metadata.snapshots) > 0
    assert sum(lake.bodies().values()) == 3
    assert balance(lake.config).problems == []
