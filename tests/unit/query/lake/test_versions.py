"""The versions of a table as queries see them: files, position and pruning."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile

from frazil.errors import DataLost, QueryInvalid
from frazil.lake.commits.commit import Checkpoint, read_checkpoint
from frazil.lake.commits.staging import Staging
from frazil.lake.tables import open_table
from frazil.position import LandingPosition
from frazil.query.lake import Lake
from frazil.query.model import AsOf
from frazil.sql.constraint import Constraint
from frazil.tables import SET_ASIDE, Promoted, landed_spec
from tests.support.lake.commit_faults import move
from tests.support.query.lake_table import (
    DAY,
    LOGS,
    at,
    commit,
    data_file,
    land,
    name_of,
    names,
    rows,
    version,
)
from tests.support.wal_stores import HandClock

DAY_MICROS = 86_400_000_000
ZONE = Promoted("zone", "resource")


def test_a_table_that_is_not_there_yet_is_none_until_it_is(
    lake: Lake, catalog: Catalog, clock: HandClock
) -> None:
    assert lake.version("logs") is None
    open_table(catalog, "otel", landed_spec("logs"), LandingPosition(at(0)).to_text())
    clock.seconds += 2
    found = version(lake)
    assert (found.position, names(found)) == (at(0), [])
    catalog.drop_table(LOGS)
    clock.seconds += 2
    assert lake.version("logs") is None


def test_a_version_has_the_files_and_the_position_that_belong_to_each_other(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock
) -> None:
    first = land(catalog, 1, "a", "b")
    before = version(lake)
    second = land(catalog, 2, "c", day=DAY + 1)
    clock.seconds += 2
    after = version(lake)
    assert (before.snapshot_id, before.position, names(before)) == (first, at(1), ["a", "b"])
    assert (after.snapshot_id, after.position, names(after)) == (second, at(2), ["a", "b", "c"])
    assert after.stale is None
    assert after.loaded_at == clock.seconds
    snapshot = catalog.load_table(LOGS).current_snapshot()
    assert snapshot is not None
    assert after.committed_at == snapshot.timestamp_ms * 1000
    found = after.files("acme")
    start = DAY * DAY_MICROS + 3600 * 1_000_000
    assert (found.total, found.total_rows) == (3, 3)
    assert (found.first_time, found.last_time) == (start, start + DAY_MICROS)
    for file in found.files:
        assert file.bytes == Path(file.path).stat().st_size
    assert found.total_bytes == sum(file.bytes for file in found.files)


@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_what_maintenance_commits_is_read_and_the_position_stays_that_of_landing(
    lake: Lake, catalog: Catalog, logs: Checkpoint
) -> None:
    land(catalog, 1, "a")
    catalog.load_table(LOGS).append(rows("other"))
    found = version(lake)
    main = catalog.load_table(LOGS).current_snapshot()
    assert main is not None
    assert found.snapshot_id == main.snapshot_id
    assert found.position == at(1)
    assert names(found) == ["a"]
    assert len(names(found, "other")) == 1


def test_tenants_see_their_own_files_alone(lake: Lake, catalog: Catalog, logs: Checkpoint) -> None:
    table = logs.table
    files = [data_file(table, "a"), data_file(table, "b", "other"), data_file(table, "c", "acme.2")]
    commit(catalog, logs, files, 1)
    found = version(lake)
    assert names(found) == ["a"]
    assert names(found, "other") == ["b"]
    assert found.files("acme").total == 1
    assert found.files("nobody").files == ()
    assert found.files("nobody").total == 0


def test_files_are_pruned_by_time_and_service(lake: Lake, catalog: Catalog, logs: Checkpoint) -> None:
    for number in range(4):
        land(catalog, number + 1, f"f{number}", day=DAY + number, service_name=f"s{number % 2}")
    time = Constraint(lower=(DAY + 1) * DAY_MICROS, upper=(DAY + 3) * DAY_MICROS)
    found = version(lake)
    assert names(found, time=time) == ["f1", "f2"]
    assert names(found, time=time, service_name=Constraint(values=frozenset({"s1"}))) == ["f1"]
    assert found.files("acme", {"time": time}).total == 4


def test_a_table_without_tenants_has_no_files_for_anyone(lake: Lake, catalog: Catalog) -> None:
    checkpoint = open_table(catalog, "otel", SET_ASIDE, LandingPosition(at(0)).to_text())
    now = datetime.datetime.now(datetime.UTC)
    row = {"time": now, "table_name": "logs", "source": "acme", "reason": "acme", "bytes": 1}
    checkpoint.table.append(pa.Table.from_pylist([row], schema=SET_ASIDE.arrow_schema))
    found = lake.version("set_aside")
    assert found is not None
    assert found.files("acme").total == 0


def test_a_column_that_was_added_later_prunes_only_files_that_have_it(
    lake: Lake, catalog: Catalog, logs: Checkpoint
) -> None:
    land(catalog, 1, "before")
    evolved = open_table(catalog, "otel", landed_spec("logs", (ZONE,)), "").table
    files = [data_file(evolved, zone or "null", extra=(ZONE,), zone=zone) for zone in ("east", "west", None)]
    commit(catalog, read_checkpoint(catalog, LOGS), files, 2)
    found = version(lake)
    assert names(found, zone=Constraint(values=frozenset({"east"}))) == ["before", "east"]
    zone_id = found.schema.find_field("zone").field_id
    have = {name_of(file): zone_id in file.columns for file in found.files("acme").files}
    assert have == {"before": False, "east": True, "west": True, "null": True}
    assert zone_id in {field.field_id for field in version(lake, AsOf(tag="landed")).schema.fields}


@pytest.mark.parametrize("where", ["in the list of manifests", "in a manifest"])
def test_delete_files_are_refused(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    file = data_file(logs.table, "a")
    if where == "in a manifest":
        file = DataFile.from_args(
            **{
                name: getattr(file, name)
                for name in ("file_path", "file_format", "partition", "record_count")
            },
            content=DataFileContent.POSITION_DELETES,
            file_size_in_bytes=1,
        )
    else:
        real = Staging.manifest

        def of_deletes(*args: Any) -> ManifestFile:
            made = real(*args)
            made._data[3] = ManifestContent.DELETES
            assert made.content == ManifestContent.DELETES
            return made

        monkeypatch.setattr(Staging, "manifest", of_deletes)
    file.spec_id = 0
    commit(catalog, logs, [file], 1)
    with pytest.raises(QueryInvalid, match=r"otel\.logs has delete files.*rewrite_data_files"):
        version(lake)


def test_a_table_that_was_rolled_back_is_not_read(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock
) -> None:
    first = land(catalog, 1, "a")
    land(catalog, 2, "b")
    version(lake)
    move(catalog.load_table(LOGS), "main", first)
    clock.seconds += 2
    for _ in range(2):
        with pytest.raises(DataLost, match="rolled back"):
            version(lake)


def test_a_position_that_this_release_cannot_read_is_an_error(lake: Lake, catalog: Catalog) -> None:
    open_table(catalog, "otel", landed_spec("logs"), '{"v": 99}')
    with pytest.raises(DataLost, match=r"otel\.logs.*version 99.*upgrade"):
        version(lake)
