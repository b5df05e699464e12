"""Files of old days in colder storage: every reader sees every row once, before and after."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from frazil.config import Config
from frazil.config.maintain import ExpireConfig
from frazil.errors import JobFailed, Refused, StoreUnavailable
from frazil.lake.commits.commit import Committer
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import LANDED
from frazil.lake.upkeep.expire import expire_old
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from frazil.lake.upkeep.tier import tier_folders
from frazil.ledger import balance
from frazil.pipeline.maintain import tier
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.metrics import Metrics
from tests.components.s3 import S3Server
from tests.support.known_lake import DAY, KnownLake, holding
from tests.support.local_runner import LocalRunner
from tests.support.query.small_lake import Service

OLD = [("acme", "u1 old", 9, 40.0), ("acme", "u42 old", 9, 40.0), ("globex", "u7 old", 9, 50.0)]
NEW = [("acme", "u1 new", 9, 0.0)]
ALL = Counter(row[1] for row in (*OLD, *NEW))


@contextlib.contextmanager
def kept(folder: Path, tier: dict[str, Any] | None = None, **settings: Any) -> Iterator[KnownLake]:
    (folder / "cold").mkdir()
    wanted = {"location": str(folder / "cold"), "after_seconds": "30d", **(tier or {})}
    maintain = {"tier": wanted, **settings.pop("maintain", {})}
    lake = KnownLake(folder / "data", maintain=maintain, **settings)
    with contextlib.closing(lake):
        lake.fill(OLD, NEW)
        yield lake


def maintainer(lake: KnownLake, days: float = 1.0, config: Config | None = None) -> Maintainer:
    """Moves the files as of some days later, when nothing that just landed is new any more."""
    return Maintainer(
        config or lake.config,
        lake.catalog,
        LocalRunner(),
        MaintainMetrics(Metrics().registry),
        clock=lambda: lake.now + days * DAY,
    )


def move(lake: KnownLake, *, dry_run: bool = False) -> TaskReport:
    return maintainer(lake).run("tier", "logs", dry_run=dry_run)


def cold(lake: KnownLake) -> set[str]:
    return {path for path in lake.data_files() if path.startswith(f"{lake.config.tier_location}/otel/logs/")}


def assert_whole(lake: KnownLake, bodies: Counter[str] = ALL) -> None:
    assert lake.bodies() == bodies
    assert balance(lake.config).problems == []


def test_files_of_old_days_move_and_the_table_reads_as_before(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        before, landed = lake.data_files(), lake.table().metadata.refs[LANDED].snapshot_id
        would = move(lake, dry_run=True)
        assert lake.data_files() == before
        assert not tier_folders(lake.table().metadata)
        report = move(lake)
        assert (would.files_in, would.bytes_in, would.rows) == (2, report.bytes_in, 3)
        assert (report.files_in, report.files_out, report.rows) == (2, 2, 3)
        assert report.bytes_in == report.bytes_out == sum(os.stat(path).st_size for path in cold(lake))
        assert len(cold(lake)) == 2
        assert len(lake.data_files() & before) == 1, "what is new stays"
        assert {path.rpartition("/")[0].partition("/data/tenant_id=")[2][:5] for path in cold(lake)} == {
            "acme/",
            "globe",
        }
        assert_whole(lake)
        assert lake.table().metadata.refs[LANDED].snapshot_id == landed
        assert move(lake).is_nothing
        lake.fill([("acme", "u2 newer", 9, 0.0)])
        assert_whole(lake, ALL + Counter(["u2 newer"]))


def test_they_are_the_same_bytes_and_the_same_facts(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:

        def facts() -> set[tuple[Any, ...]]:
            return {
                (
                    Path(each.file.file_path).read_bytes(),
                    each.file.spec_id,
                    repr([plain(value) for at, value in enumerate(each.file._data) if at != 1]),
                )
                for each in live_files(lake.table())
            }

        before = facts()
        move(lake)
        assert facts() == before


def plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def test_the_old_files_go_with_the_snapshots_that_need_them(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        before = lake.data_files()
        move(lake)
        gone = before - lake.data_files()
        lake.fill([("acme", "u1 new", 9, 0.0)])  # what landed before needs them until then
        assert all(os.path.exists(path) for path in gone)
        config = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=0)
        expired = expire_old(lake.catalog, lake.table(), config, clock=lambda: lake.now + DAY)
        assert gone <= set(expired.data_files)
        assert not any(os.path.exists(path) for path in gone)
        assert_whole(lake, ALL + Counter(["u1 new"]))
        # And back, when late data comes: all of it is one file again, then moved again.
        lake.fill([("acme", "u3 late", 9, 40.0)])
        assert maintainer(lake, 2).run("compact", "logs").files_in == 4
        assert len(cold(lake)) == 1
        assert maintainer(lake, 3).run("tier", "logs").files_in == 1
        assert len(cold(lake)) == 2
        lake.fill([("acme", "u1 new", 9, 0.0)])
        expire_old(lake.catalog, lake.table(), config, clock=lambda: lake.now + 2 * DAY)
        assert {str(path) for path in (tmp_path / "cold").rglob("*.parquet")} == cold(lake)
        assert_whole(lake, ALL + Counter(["u1 new", "u3 late", "u1 new"]))


def test_unreferenced_files_are_found_in_both_places(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        move(lake)
        stray = [Path(path).with_name("stray.parquet") for path in sorted(lake.data_files())]
        for path in stray:
            path.write_bytes(b"x")
        neighbour = tmp_path / "cold" / "otel" / "logs" / str(uuid.uuid4()) / "data" / "other.parquet"
        neighbour.parent.mkdir(parents=True)
        neighbour.write_bytes(b"of another lake that shares the place")
        later = lake.now + 10 * DAY
        without = lake.config.model_copy(
            update={"maintain": lake.config.maintain.model_copy(update={"tier": None})}
        )
        assert without.tier_location is None  # what is configured by then does not matter
        assert {orphan.path for orphan in find_orphans(lake.table(), DAY, later)} == set(map(str, stray))
        remove_orphans(lake.table(), DAY, later)
        assert not any(path.exists() for path in stray)
        assert neighbour.exists()
        assert_whole(lake)


def test_retention_and_erasure_reach_what_has_moved(tmp_path: Path) -> None:
    rules = [{"after_seconds": "45d"}]
    with kept(tmp_path, maintain={"retention": {"rules": rules}}) as lake:
        move(lake)
        assert lake.retain().rows_removed == 1
        assert_whole(lake, ALL - Counter(["u7 old"]))
        report = lake.erase("attributes['user.id'] = 'u42'")
        assert report.is_proven
        assert report.rows_removed == 1
        assert holding(tmp_path, "u42 old") == []
        assert_whole(lake, ALL - Counter(["u7 old", "u42 old"]))


def test_erasure_searches_leftovers_in_the_other_place(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        move(lake)
        mine = next(path for path in cold(lake) if "tenant_id=acme" in path)
        shutil.copy(mine, Path(mine).with_name("leftover.parquet"))
        assert lake.erase("attributes['user.id'] = 'u42'").is_proven
        assert holding(tmp_path, "u42 old") == []


def test_an_erasure_that_leaves_something_in_the_other_place_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_all = LakeFileIO.delete_all

    def sparing(self: LakeFileIO, locations: Iterable[str]) -> None:
        delete_all(self, [path for path in locations if "/cold/" not in path])

    with kept(tmp_path) as lake:
        move(lake)
        monkeypatch.setattr(LakeFileIO, "delete_all", sparing)
        report = lake.erase("attributes['user.id'] = 'u42'")
        assert not report.is_proven


def test_queries_read_both_places(tmp_path: Path) -> None:
    query = {"temp_dir": tmp_path / "temp", "threads": 1, "workers": 1}
    with kept(tmp_path, query=query) as lake:
        move(lake)
        lake.write([("acme", "u9 waits", 9, 0.0)])
        service = Service(lake.config)
        service.start()
        try:
            rows = service.execute("SELECT body FROM logs ORDER BY body").rows
            assert rows == [["u1 new"], ["u1 old"], ["u42 old"], ["u9 waits"]]
            assert service.execute("SELECT body FROM logs", "globex").rows == [["u7 old"]]
        finally:
            service.close()


def test_another_location_takes_over_what_has_moved(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        move(lake)
        (tmp_path / "colder").mkdir()
        maintain = {"tier": {"location": str(tmp_path / "colder"), "after_seconds": "30d"}}
        config = Config.model_validate({"data_dir": tmp_path / "data", "maintain": maintain})
        assert maintainer(lake, config=config).run("tier", "logs").files_in == 2
        assert cold(lake) == set()
        assert len(find_orphans(lake.table(), 0, lake.now + DAY)) == 0, "older snapshots need the others"
        assert_whole(lake)


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    """Its disk may not be mounted."""
    with kept(tmp_path) as lake:
        (tmp_path / "cold").rmdir()
        with pytest.raises(Refused, match="mount its disk"):
            move(lake)
        assert not (tmp_path / "cold").exists()
        assert_whole(lake)


def test_without_a_location_nothing_is_done_and_the_command_reports_it(tmp_path: Path) -> None:
    with contextlib.closing(KnownLake(tmp_path)) as lake:
        lake.fill(OLD)
        keeper = maintainer(lake)
        assert not keeper.can("tier", "logs")
        with pytest.raises(Refused, match=r"maintain\.tier"):
            keeper.run("tier", "logs")
        assert "tier" not in {report.task for report in keeper.round()}


def test_it_runs_automatically_when_it_is_due(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        keeper = maintainer(lake)
        assert [report.files_in for report in keeper.round() if report.task == "tier"] == [2]
        assert [report.task for report in keeper.round() if report.task == "tier"] == []


def test_the_next_round_follows_at_once_and_moves_the_rest(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        settings = lake.config.maintain.tier
        assert settings is not None
        tier = settings.model_copy(update={"round_bytes_max": 1})
        maintain = lake.config.maintain.model_copy(update={"tier": tier})
        keeper = maintainer(lake, config=lake.config.model_copy(update={"maintain": maintain}))
        rounds = [{report.task for report in keeper.round() if report.table == "logs"} for _ in range(3)]
        assert ["tier" in tasks for tasks in rounds] == [True, True, False]
        assert rounds[1] == {"tier"}
        assert len(cold(lake)) == 2
        assert_whole(lake)


def test_a_damaged_file_stays_where_it_is_and_the_others_move(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        damaged = next(path for path in lake.data_files() if "globex" in path)
        data = Path(damaged).read_bytes()
        for wrong in (data[:-1], bytes(len(data)), b""):
            Path(damaged).write_bytes(wrong)
            report = move(lake)
            assert report.detail["left_alone"] == 1
            assert damaged in lake.data_files()
        os.unlink(damaged)
        assert move(lake).detail["left_alone"] == 1
        Path(damaged).write_bytes(data)
        assert len(cold(lake)) == 1
        assert move(lake).files_in == 1
        assert_whole(lake)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), StoreUnavailable("no access")])
def test_a_file_that_cannot_be_read_stays_and_the_others_move_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with kept(tmp_path) as lake:
        blocked = next(path for path in lake.data_files() if "acme" in path and "old" in body_of(path))
        chunks = tier._chunks

        def failing(files: LakeFileIO, path: str) -> Iterator[bytes]:
            if path == blocked:
                raise error
            yield from chunks(files, path)

        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(tier, "_chunks", failing)
            keeper = maintainer(lake)
            report = keeper.run("tier", "logs")
            assert (report.files_in, report.detail["left_alone"]) == (1, 1)
            assert keeper.run("tier", "logs").is_nothing, "it is not tried again at once"
            assert move(lake).detail["left_alone"] == 1
        assert {line["path"] for line in lines if line["log_level"] == "warning"} == {blocked}
        assert len(list((tmp_path / "cold").rglob("*.parquet"))) == 1
        assert move(lake).files_in == 1
        assert_whole(lake)


def body_of(path: str) -> str:
    return " ".join(pq.read_table(path, columns=["body"])["body"].to_pylist())


@pytest.mark.parametrize("error", [StoreUnavailable("full"), JobFailed("the worker has died")])
def test_finished_copies_are_committed_when_another_copy_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    publish, published = LakeFileIO.publish, list[str]()

    def second_fails(self: LakeFileIO, location: str, *rest: Any) -> None:
        if published:
            raise error
        published.append(location)
        publish(self, location, *rest)

    with kept(tmp_path) as lake:
        with monkeypatch.context() as patch:
            patch.setattr(LakeFileIO, "publish", second_fails)
            with pytest.raises(type(error), match=str(error)):
                move(lake)
        assert cold(lake) == set(published)
        assert {str(path) for path in (tmp_path / "cold").rglob("*.*")} == set(published)
        assert move(lake).files_in == 1
        assert_whole(lake)


def test_an_unavailable_store_is_not_tried_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(files: LakeFileIO, path: str) -> Iterator[bytes]:
        raise StoreUnavailable(f"{path} is away")

    with kept(tmp_path) as lake:
        lake.fill([(f"t{number}", "u old", 9, 40.0) for number in range(10)])
        with monkeypatch.context() as patch:
            patch.setattr(tier, "_chunks", away)
            keeper = maintainer(lake)
            with pytest.raises(StoreUnavailable, match="8 files in a row"):
                keeper.run("tier", "logs")
        assert keeper.run("tier", "logs").files_in == 4, "the others need not wait"


def test_a_copy_with_other_bytes_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = LakeFileIO.publish

    def damaging(self: LakeFileIO, location: str, local_file: Path, storage_class: str | None = None) -> None:
        data = bytearray(local_file.read_bytes())
        data[len(data) // 2] ^= 1
        local_file.write_bytes(data)
        publish(self, location, local_file, storage_class)

    with kept(tmp_path) as lake:
        before = lake.data_files()
        with monkeypatch.context() as patch:
            patch.setattr(LakeFileIO, "publish", damaging)
            with pytest.raises(StoreUnavailable, match="other bytes than were written"):
                move(lake)
        assert lake.data_files() == before
        assert list((tmp_path / "cold").rglob("*.parquet")) == []
        assert move(lake).files_in == 2
        assert_whole(lake)


def test_files_changed_by_other_processes_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Committer.replace
    with kept(tmp_path) as lake:

        def overtaken(self: Committer, *given: Any, **facts: Any) -> Any:
            monkeypatch.setattr(Committer, "replace", replace)
            assert lake.erase("attributes['user.id'] = 'u42'").rows_removed == 1
            return replace(self, *given, **facts)

        monkeypatch.setattr(Committer, "replace", overtaken)
        report = move(lake)
        assert (report.files_in, report.detail["conflicts"]) == (1, 1)
        assert_whole(lake, ALL - Counter(["u42 old"]))
        assert holding(tmp_path, "u42 old") == [], "the erasure found the copy"


@pytest.mark.parametrize("storage_class", [None, "STANDARD_IA"])
def test_from_one_prefix_of_a_bucket_to_another(
    tmp_path: Path, moto_s3: S3Server, storage_class: str | None
) -> None:
    bucket = moto_s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    other = moto_s3.make_bucket(f"cold-{uuid.uuid4().hex}") if storage_class is None else bucket
    access = {
        "endpoint": moto_s3.endpoint,
        "access_key_id": moto_s3.access_key,
        "secret_access_key": moto_s3.secret_key,
        "allow_http": True,
    }
    wanted = {"location": f"s3://{other}/colder", "storage_class": storage_class}
    where = {"warehouse": f"s3://{bucket}/warehouse", "s3": access}
    query = {"temp_dir": tmp_path / "temp", "threads": 1, "workers": 1}
    with kept(tmp_path, wanted, lake=where, query=query) as lake:
        assert move(lake).files_in == 2
        assert len(cold(lake)) == 2
        assert_whole(lake)
        with contextlib.closing(moto_s3.client()) as client:
            for path in cold(lake):
                head = client.head_object(Bucket=other, Key=path.removeprefix(f"s3://{other}/"))
                assert head.get("StorageClass") == storage_class
        LakeFileIO(lake.table().io.properties).write(
            f"{sorted(cold(lake))[0].rpartition('/')[0]}/stray.parquet", b"x"
        )
        assert [orphan.bytes for orphan in remove_orphans(lake.table(), 0, lake.now + 10 * DAY)] == [1]
        service = Service(lake.config)
        service.start()
        try:
            assert service.execute("SELECT count(*) FROM logs").rows == [[3]]
        finally:
            service.close()
        assert lake.erase("attributes['user.id'] = 'u42'").is_proven
        assert_whole(lake, ALL - Counter(["u42 old"]))


def test_a_copy_that_lost_holds_nothing_that_was_erased_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erased while the copy is on its way, where the proof cannot see it."""
    replace = Committer.replace
    hidden = tmp_path / "hidden"
    with kept(tmp_path) as lake:

        def overtaken(self: Committer, *given: Any, **facts: Any) -> Any:
            monkeypatch.setattr(Committer, "replace", replace)
            (tmp_path / "cold" / "otel").rename(hidden)
            assert lake.erase("attributes['user.id'] = 'u42'").is_proven
            shutil.copytree(hidden, tmp_path / "cold" / "otel", dirs_exist_ok=True)
            shutil.rmtree(hidden)
            return replace(self, *given, **facts)

        monkeypatch.setattr(Committer, "replace", overtaken)
        assert move(lake).detail["conflicts"] == 1
        assert holding(tmp_path, "u42 old") == []
        assert_whole(lake, ALL - Counter(["u42 old"]))
