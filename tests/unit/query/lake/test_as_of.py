"""Queries of the past: by time, by snapshot and by tag."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.errors import QueryInvalid, StoreUnavailable
from frazil.lake.commits.commit import Checkpoint
from frazil.position import WalPosition
from frazil.query.lake import Lake
from frazil.query.model import AsOf
from tests.support.lake.commit_faults import move
from tests.support.query.lake_table import LOGS, land, names, rows, version
from tests.support.wal_stores import HandClock


@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_as_of_a_time_a_snapshot_or_a_tag(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock
) -> None:
    snapshots = [land(catalog, number + 1, f"f{number}") for number in range(3)]
    table = catalog.load_table(LOGS)
    move(table, "release", snapshots[1])
    table.append(rows("acme"), branch="aside")
    by_id = {each.snapshot_id: each for each in table.refresh().snapshots()}
    for number, snapshot_id in enumerate(snapshots):
        wanted = [f"f{each}" for each in range(number + 1)]
        found = version(lake, AsOf(snapshot_id=snapshot_id))
        assert names(found) == wanted
        assert found.position == WalPosition()
        micros = by_id[snapshot_id].timestamp_ms * 1000
        assert found.committed_at == micros
        later = 999 if number < 2 else 10**15
        for moment in (micros, micros + later):
            at_time = version(lake, AsOf(time=moment))
            assert (at_time.snapshot_id, names(at_time)) == (snapshot_id, wanted)
    assert version(lake, AsOf(tag="release")).snapshot_id == snapshots[1]
    assert version(lake, AsOf(tag="aside")).snapshot_id == table.metadata.refs["aside"].snapshot_id
    assert names(version(lake)) == ["f0", "f1", "f2"]


@pytest.mark.parametrize(
    ("as_of", "says"),
    [
        (AsOf(tag="nope"), r"otel\.logs has no tag `nope`; the oldest time is 20.*UTC.*landed, main"),
        (AsOf(snapshot_id=17), "no snapshot 17; the oldest time is 20.*landed, main"),
        (AsOf(time=1_000_000), "no snapshot as old as 1970-01-01 00:00:01 UTC; the oldest time is 20"),
        (AsOf(time=-(10**30)), "no snapshot as old as .*seconds after 1970"),
        (AsOf(), "without a time, an id or a tag"),
    ],
)
def test_an_as_of_that_names_nothing_says_what_there_is(
    lake: Lake, logs: Checkpoint, as_of: AsOf, says: str
) -> None:
    with pytest.raises(QueryInvalid, match=says):
        lake.version("logs", as_of)


def test_as_of_in_a_table_that_is_not_there_is_none(lake: Lake) -> None:
    assert lake.version("logs", AsOf(tag="landed")) is None


def test_a_snapshot_of_the_past_that_expired_meanwhile_is_said_to_be_gone(
    lake: Lake, catalog: Catalog, logs: Checkpoint
) -> None:
    old = land(catalog, 1, "a")
    land(catalog, 2, "b")
    version(lake)
    table = catalog.load_table(LOGS)
    snapshot = table.snapshot_by_id(old)
    assert snapshot is not None
    Path(snapshot.manifest_list).unlink()
    with pytest.raises(StoreUnavailable, match="is missing"):
        version(lake, AsOf(snapshot_id=old))
    table.maintenance.expire_snapshots().by_id(old).commit()
    with pytest.raises(QueryInvalid, match=f"no snapshot {old}"):
        version(lake, AsOf(snapshot_id=old))
