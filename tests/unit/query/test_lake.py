"""The lake as queries see it: real tables in a SQLite catalog, with a catalog and a store that fail."""

from __future__ import annotations

import contextlib
import datetime
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

import frazil.query.lake
from frazil.config import Config
from frazil.errors import CatalogUnavailable, DataLost, QueryInvalid, StoreUnavailable
from frazil.lake.catalog import ensure_namespace, metadata_location, open_catalog
from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.lake.commits.staging import Staging
from frazil.lake.files import LakeFileIO
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.position import LandingPosition, StreamPosition, WalPosition
from frazil.query.lake import Lake, TableVersion
from frazil.query.manifests import Manifests
from frazil.query.model import AsOf
from frazil.sql.constants import Constraint
from frazil.sql.index import File
from frazil.tables import SET_ASIDE, Promoted, landed_spec
from tests.support.lake.answering import Request, answering
from tests.support.wal_stores import HandClock

LOGS = ("otel", "logs")
DAY_MICROS = 86_400_000_000
DAY = 20_000
ZONE = Promoted("zone", "resource")


def at(sequence: int) -> WalPosition:
    return WalPosition({"stream": StreamPosition(sequence, sequence, sequence)})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"data_dir": tmp_path, "query": {"metadata_age_max_seconds": 1}})


@pytest.fixture
def catalog(config: Config) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        yield catalog


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a slow catalog."""
    monkeypatch.setattr(frazil.query.lake, "_WAIT_SECONDS", 60)


@pytest.fixture
def lake(config: Config, catalog: Catalog, clock: HandClock) -> Iterator[Lake]:
    with contextlib.closing(Lake(config, clock=clock)) as lake:
        yield lake


@pytest.fixture
def logs(catalog: Catalog) -> Checkpoint:
    return open_table(catalog, "otel", landed_spec("logs"), LandingPosition(at(0)).to_text())


def rows(tenant: str = "acme", day: int = DAY, extra: tuple[Promoted, ...] = (), **columns: Any) -> pa.Table:
    time = datetime.datetime.fromtimestamp(day * 86_400 + 3600, datetime.UTC)
    row = {"tenant_id": tenant, "time": time, "received_time": time, "_segment": "stream/0", **columns}
    return pa.Table.from_pylist([row], schema=landed_spec("logs", extra).arrow_schema)


def data_file(
    table: Table,
    name: str,
    tenant: str = "acme",
    day: int = DAY,
    extra: tuple[Promoted, ...] = (),
    **columns: Any,
) -> DataFile:
    layout = Layout.of(table, landed_spec("logs", extra), 1)
    return write_part(layout, Part(tenant, day, rows(tenant, day, extra, **columns)), name)


def land(catalog: Catalog, sequence: int, *names: str, **columns: Any) -> int:
    """One batch, with a file for each name. Returns its snapshot."""
    checkpoint = read_checkpoint(catalog, LOGS)
    files = [data_file(checkpoint.table, name, **columns) for name in names]
    return commit(catalog, checkpoint, files, sequence)


def commit(catalog: Catalog, checkpoint: Checkpoint, files: list[DataFile], sequence: int) -> int:
    committer = Committer(catalog, deadline_seconds=60)
    return committer.append(checkpoint, files, LandingPosition(at(sequence)).to_text()).snapshot_id


def version(lake: Lake, as_of: AsOf | None = None) -> TableVersion:
    found = lake.version("logs", as_of)
    assert found is not None
    return found


def names(found: TableVersion, tenant: str = "acme", **constraints: Constraint) -> list[str]:
    return sorted(name_of(file) for file in found.files(tenant, constraints).files)


def name_of(file: File) -> str:
    """Without the fingerprint."""
    return Path(file.path).name.partition(".")[0]


def move(table: Table, name: str, snapshot_id: int) -> None:
    kind = SnapshotRefType.BRANCH if name == "main" else SnapshotRefType.TAG
    update = SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    table.catalog.commit_table(table, (), (update,))


class Opened(list[str]):
    """Names of files of the lake that were opened."""

    def count_of(self, ending: str) -> int:
        return sum(name.endswith(ending) for name in self)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    seen, real = Opened(), LakeFileIO.new_input

    def new_input(self: LakeFileIO, location: str) -> Any:
        seen.append(location)
        return real(self, location)

    monkeypatch.setattr(LakeFileIO, "new_input", new_input)
    return seen


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


def test_within_its_age_metadata_is_not_asked_for_again(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock
) -> None:
    before = version(lake)
    land(catalog, 1, "a")
    clock.seconds += 1
    assert version(lake) == before
    clock.seconds += 0.5
    assert names(version(lake)) == ["a"]


def test_who_wants_it_renewed_gets_what_the_catalog_says_after_that(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    version(lake)
    answered, answer = threading.Event(), threading.Event()

    def ask(*args: Any) -> str | None:
        found = metadata_location(*args)
        answered.set()
        assert answer.wait(60)
        return found

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(lake.version, "logs", renew=True)
        assert answered.wait(60)
        land(catalog, 1, "a")
        # This one comes while an answer is on its way that does not know of the file.
        late = threads.submit(lake.version, "logs", renew=True)
        while not late.running():
            threading.Event().wait(0.001)
        answer.set()
        assert early.result() is not None
        found = late.result()
    assert found is not None
    assert (names(found), found.stale) == (["a"], None)


def test_metadata_that_has_not_changed_is_not_read_again(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, opened: Opened
) -> None:
    land(catalog, 1, "a")
    opened.clear()
    for _ in range(5):
        assert version(lake).loaded_at == clock.seconds
        clock.seconds += 2
    assert opened.count_of(".metadata.json") == 1
    assert opened.count_of("-m0.avro") == 1


def test_each_manifest_is_read_once_however_many_snapshots_have_it(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, opened: Opened
) -> None:
    for number in range(4):
        land(catalog, number + 1, f"f{number}")
        opened.clear()
        assert len(names(version(lake))) == number + 1
        assert opened.count_of("-m0.avro") == 1
        clock.seconds += 2
    opened.clear()
    assert names(version(lake, AsOf(tag="landed"))) == ["f0", "f1", "f2", "f3"]
    assert opened == []


def test_manifests_are_forgotten_beyond_their_bound_but_never_those_in_use(
    catalog: Catalog, logs: Checkpoint, opened: Opened
) -> None:
    for number in range(4):
        land(catalog, number + 1, f"f{number}")
    table = catalog.load_table(LOGS)
    with contextlib.closing(Manifests(files_max=2, indexes_max=1)) as manifests:
        assert len(manifests.index(table, table.current_snapshot())) == 4
        opened.clear()
        older, *_ = (each for each in table.snapshots() if each.sequence_number == 3)
        assert len(manifests.index(table, older)) == 2
        assert opened.count_of("-m0.avro") == 0
        assert len(manifests.index(table, table.current_snapshot())) == 4
        assert opened.count_of("-m0.avro") == 2


def test_many_queries_at_once_ask_the_catalog_once(
    lake: Lake, logs: Checkpoint, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, together = [], threading.Barrier(8)

    def ask(*args: Any) -> str | None:
        asked.append(args)
        return metadata_location(*args)

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)

    def query(_: int) -> TableVersion:
        together.wait()
        return version(lake)

    with ThreadPoolExecutor(8) as threads:
        for number in range(3):
            found = list(threads.map(query, range(8)))
            assert len(asked) == number + 1
            assert {each.loaded_at for each in found} == {clock.seconds}
            clock.seconds += 2


def test_a_catalog_that_is_gone_leaves_what_was_last_known_and_is_used_again_when_it_is_back(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, config: Config, tmp_path: Path
) -> None:
    land(catalog, 1, "a")
    loaded_at = clock.seconds
    assert version(lake).stale is None
    config.catalog_file.rename(tmp_path / "away")
    clock.seconds += 2
    stale = version(lake)
    assert (names(stale), stale.position, stale.loaded_at) == (["a"], at(1), loaded_at)
    assert stale.stale is not None
    assert "has not answered since 20" in stale.stale
    assert "catalog.db is missing" in stale.stale
    assert version(lake, AsOf(tag="landed")).stale == stale.stale, "a tag may have moved"
    assert version(lake, AsOf(snapshot_id=stale.snapshot_id)).stale is None, "a snapshot never does"
    assert not config.catalog_file.exists()
    (tmp_path / "away").rename(config.catalog_file)
    land(catalog, 2, "b")
    assert version(lake).stale == stale.stale
    clock.seconds += 10
    found = version(lake)
    assert (found.stale, names(found)) == (None, ["a", "b"])


def test_a_catalog_in_another_file_of_the_same_name_is_opened_anew(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, config: Config, tmp_path: Path
) -> None:
    version(lake)
    copy = tmp_path / "copy"
    copy.write_bytes(config.catalog_file.read_bytes())
    copy.rename(config.catalog_file)
    with contextlib.closing(open_catalog(config)) as other:
        land(other, 1, "a")
    clock.seconds += 2
    assert names(version(lake)) == ["a"]


def test_a_catalog_that_hangs_is_not_waited_for_where_something_is_known(
    lake: Lake,
    catalog: Catalog,
    logs: Checkpoint,
    clock: HandClock,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    land(catalog, 1, "a")
    version(lake)
    land(catalog, 2, "b")
    clock.seconds += 4
    with contextlib.closing(sqlite3.connect(config.catalog_file)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as hurry:
            hurry.setattr(frazil.query.lake, "_WAIT_SECONDS", 0.01)
            stale = version(lake)
            assert stale.stale == "the catalog is slow to answer; its state of 4 s ago is used"
            assert names(stale) == ["a"]
        holder.rollback()
    found = version(lake)
    assert (found.stale, names(found)) == (None, ["a", "b"])


def test_a_catalog_that_never_answered_is_an_error_and_is_left_in_peace_for_a_while(
    config: Config, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def count(config: Config) -> Catalog:
        tries.append(clock.seconds)
        return open_catalog(config)

    monkeypatch.setattr(frazil.query.lake, "open_catalog", count)
    config.catalog_file.mkdir(parents=True)
    with contextlib.closing(Lake(config, clock=clock)) as lake:
        for _ in range(5):
            with pytest.raises(CatalogUnavailable, match="unable to open database"):
                lake.version("logs")
        assert len(tries) == 1
        clock.seconds += 10
        config.catalog_file.rmdir()
        assert lake.version("logs") is None


@pytest.mark.parametrize("what", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize("how", ["garbage", "gone"])
def test_metadata_that_cannot_be_read_is_the_stores_failure(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, what: str, how: str
) -> None:
    version(lake)
    land(catalog, 1, "a")
    clock.seconds += 2
    for file in Path(logs.table.location(), "metadata").glob(what):
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes(b"garbage")
    with pytest.raises(StoreUnavailable, match=r"is missing|cannot be read"):
        version(lake)


def test_a_manifest_that_expired_on_the_way_is_looked_for_in_newer_metadata(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(catalog, 1, "a")
    old = catalog.load_table(LOGS)
    land(catalog, 2, "b")
    snapshot = old.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list).unlink()
    answers = [old.metadata_location]

    def ask(*args: Any) -> str | None:
        return answers.pop() if answers else metadata_location(*args)

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)
    assert names(version(lake)) == ["a", "b"]


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


def test_what_is_warm_needs_no_file_to_be_read(
    lake: Lake, catalog: Catalog, logs: Checkpoint, opened: Opened
) -> None:
    open_table(catalog, "otel", SET_ASIDE, "no position")
    land(catalog, 1, "a")
    lake.warm()
    opened.clear()
    assert names(version(lake)) == ["a"]
    assert opened == []


def test_warming_up_without_a_catalog_is_quiet(config: Config) -> None:
    config.catalog_file.mkdir(parents=True)
    with contextlib.closing(Lake(config)) as lake:
        lake.warm()


def test_a_rest_catalog_is_asked_for_the_table_and_may_fail_too(
    catalog: Catalog, logs: Checkpoint, clock: HandClock, tmp_path: Path
) -> None:
    down = False

    def answer(request: Request) -> tuple[int, Any]:
        if request.path.startswith("/v1/config"):
            return 200, {"defaults": {}, "overrides": {}}
        if down:
            return 503, {"error": {"message": "come again", "type": "Unavailable", "code": 503}}
        if not request.path.endswith("/namespaces/otel/tables/logs"):
            return 404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
        table = catalog.load_table(LOGS)
        metadata = json.loads(Path(table.metadata_location).read_bytes())
        return 200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    land(catalog, 1, "a")
    with answering(answer) as server:
        settings = {"catalog": {"type": "rest", "rest": {"uri": server.url}}}
        config = Config.model_validate({"data_dir": tmp_path / "other", "lake": settings})
        with contextlib.closing(Lake(config, clock=clock)) as lake:
            first = version(lake)
            assert (names(first), first.position) == (["a"], at(1))
            assert lake.version("spans") is None
            clock.seconds += 2
            assert version(lake).index is first.index
            land(catalog, 2, "b")
            clock.seconds += 2
            assert names(version(lake)) == ["a", "b"]
            down = True
            clock.seconds += 2
            stale = version(lake)
            assert names(stale) == ["a", "b"]
            assert stale.stale is not None
            assert "come again" in stale.stale


def test_names_that_mean_nothing_are_not_kept_without_end(lake: Lake) -> None:
    for number in range(300):
        assert lake.version(f"nobody{number}") is None
    assert len(lake._entries) <= 257
