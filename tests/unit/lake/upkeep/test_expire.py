"""Snapshots go, and with them exactly the files that nothing else needs: also beside everybody else."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile

from frazil.config import Config
from frazil.config.maintain import ExpireConfig
from frazil.errors import CatalogUnavailable, Conflict, DataLost, Refused
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.snapshots import LANDED
from frazil.lake.state.recover import recover_tables
from frazil.lake.tags import create_tag, delete_tag, list_tags
from frazil.lake.upkeep import expire as expire_module
from frazil.lake.upkeep.expire import Expired, expire, expire_old
from frazil.lake.upkeep.orphans import find_orphans
from tests.support.lake.commit_faults import applied_and_lost, first, inject, lost_on_the_way
from tests.support.lake.history import IDENTIFIER, History

NOTHING_YOUNG = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=0)


@pytest.fixture
def history(catalog: Catalog) -> History:
    return History(catalog)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


def later() -> float:
    return time.time() + 3600


def all_old(history: History, **named: Any) -> Expired:
    return expire_old(history.catalog, history.table, NOTHING_YOUNG, clock=later, **named)


def test_snapshots_that_only_added_leave_no_data_behind_to_delete(history: History) -> None:
    ids = [history.land() for _ in range(4)]
    table = history.table
    gone = expire(history.catalog, table, ids[:2])
    assert gone.snapshots == tuple(ids[:2])
    assert gone.data_files == ()
    assert gone.manifests == ()
    assert len(gone.manifest_lists) == 2
    assert ids[2] in history.ids
    assert ids[0] not in history.ids
    history.assert_kept_are_whole()
    assert not any(os.path.exists(path) for path in gone.files)


def test_files_that_were_replaced_go_with_the_last_snapshot_that_showed_them(history: History) -> None:
    old = [history.land() for _ in range(3)]
    history.rewrite()
    assert expire(history.catalog, history.table, old[:2]).data_files == ()
    history.rewrite()
    table = history.table
    size = sum(task.file.file_size_in_bytes for task in table.scan(snapshot_id=old[2]).plan_files())
    gone = expire(history.catalog, table, history.ids[-2:-1])
    assert len(gone.data_files) == 1
    # `landed` names the last landing, which shows all three.
    history.land()
    gone = expire(history.catalog, history.table, [old[2]])
    assert len(gone.data_files) == 3
    assert gone.bytes > size
    assert not any(os.path.exists(path) for path in gone.files)
    history.assert_kept_are_whole()


def test_a_dry_run_says_the_same_and_changes_nothing(history: History) -> None:
    for _ in range(3):
        history.land()
    history.rewrite()
    history.land()
    names, version = history.names(), history.table.metadata_location
    would = all_old(history, dry_run=True)
    assert len(would.data_files) == 3
    assert (history.names(), history.table.metadata_location) == (names, version)
    assert all_old(history) == would


def test_afterwards_nothing_but_what_is_needed_is_there(history: History) -> None:
    for _ in range(3):
        history.land()
    history.rewrite()
    history.land()
    create_tag(history.catalog, history.table, "incident-1", history.land())
    history.lose_rows()
    history.land()
    all_old(history)
    assert history.names() == history.needed() | history.versions()
    assert len(history.ids) == 2
    assert find_orphans(history.table, 0, later()) == []
    history.assert_kept_are_whole()


def test_with_nothing_to_do_nothing_is_committed(history: History) -> None:
    history.land()
    version = history.table.metadata_location
    assert expire(history.catalog, history.table, [], properties={}) == Expired()
    assert expire(history.catalog, history.table, [12345], drop_tags=["no-such"]) == Expired()
    assert history.table.metadata_location == version


def test_properties_and_tags_go_with_the_same_commit(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [history.land() for _ in range(3)]
    create_tag(history.catalog, history.table, "old", ids[0])
    table, made = history.table, inject(history.catalog, monkeypatch)
    done = expire(
        history.catalog,
        table,
        ids[:1],
        drop_tags=["old"],
        create_tags={"hour-20261115T10": ids[1]},
        properties={"frazil.maintenance": "{}"},
    )
    assert (len(made), done.tags_dropped, done.tags_created) == (1, ("old",), ("hour-20261115T10",))
    assert [tag.name for tag in list_tags(history.table)] == ["hour-20261115T10"]
    assert history.table.properties["frazil.maintenance"] == "{}"
    assert ids[0] not in history.ids


def test_what_a_tag_or_branch_names_cannot_be_removed(history: History) -> None:
    ids = [history.land() for _ in range(3)]
    create_tag(history.catalog, history.table, "incident-1", ids[0])
    names, version = history.names(), history.table.metadata_location
    for held in (ids[0], ids[2]):
        for dry_run in (False, True):
            with pytest.raises(Conflict, match=str(held)):
                expire(history.catalog, history.table, [held], dry_run=dry_run)
    for reserved in ("main", LANDED):
        with pytest.raises(Refused, match=reserved):
            expire(history.catalog, history.table, [], drop_tags=[reserved])
    assert (history.names(), history.table.metadata_location) == (names, version)


def test_a_tag_that_comes_at_that_moment_is_kept_with_its_snapshot(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [history.land() for _ in range(4)]
    inject(
        history.catalog, monkeypatch, first(lambda: create_tag(other, history.table, "incident-1", ids[0]))
    )
    table = history.table
    with pytest.raises(Conflict, match="incident-1"):
        expire(history.catalog, table, ids[:3])
    assert set(ids) <= set(history.ids)
    all_old(history)
    assert history.ids == [ids[0], ids[3]]
    history.assert_kept_are_whole()


def test_expiry_by_age_chooses_anew_when_a_tag_comes(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader's tag keeps all that is newer, too."""
    ids = [history.land() for _ in range(4)]
    inject(history.catalog, monkeypatch, first(lambda: create_tag(other, history.table, "reader-x", ids[1])))
    gone = all_old(history)
    assert ids[0] in gone.snapshots
    assert history.ids == ids[1:]
    history.assert_kept_are_whole()


def test_a_landing_at_that_moment_costs_a_retry(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [history.land() for _ in range(4)]
    made = inject(history.catalog, monkeypatch, first(history.through(other).land))
    assert expire(history.catalog, history.table, ids[:2]).snapshots == tuple(ids[:2])
    assert len(made) == 2
    assert read_checkpoint(history.catalog, IDENTIFIER).position == "at 5"
    assert history.read(history.main) == history.shown[history.main]
    history.assert_kept_are_whole()


def test_two_expiries_at_once_remove_each_snapshot_once(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    table = history.table
    inject(history.catalog, monkeypatch, first(lambda: expire(other, history.table, ids[:2])))
    gone = expire(history.catalog, table, ids)
    assert set(ids).isdisjoint(history.ids)
    assert len(gone.data_files) == 3
    history.assert_kept_are_whole()


@pytest.mark.parametrize("outcome", [applied_and_lost, lost_on_the_way])
def test_an_answer_that_was_lost_changes_nothing_of_the_outcome(
    outcome: Callable[..., Any], history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        history.land()
    history.rewrite()
    history.land()
    inject(history.catalog, monkeypatch, outcome)
    gone = all_old(history)
    assert len(gone.data_files) == 3
    assert history.names() - history.versions() == history.needed()
    history.assert_kept_are_whole()


def test_nothing_is_deleted_when_the_commit_never_succeeds(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    names = history.names()

    def refuse(*_: Any) -> Any:
        raise CommitFailedException("no")

    monkeypatch.setattr(history.catalog, "commit_table", refuse)
    monkeypatch.setattr("frazil.lake.commits.metadata_commit._COMMIT_SECONDS_MAX", 0.5)
    with pytest.raises(CatalogUnavailable, match=r"could not be committed in 0\.5 s: no"):
        expire(history.catalog, history.table, ids)
    assert history.names() == names


def test_a_catalog_that_does_not_check_for_new_tags_loses_no_file_of_theirs(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REST catalogs cannot be asked to: the tag goes with its snapshot, which is said, and no file does."""
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    table, names = history.table, history.names()
    monkeypatch.setattr(expire_module, "MetastoreCatalog", type(None))
    inject(
        history.catalog, monkeypatch, first(lambda: create_tag(other, history.table, "incident-1", ids[2]))
    )
    with pytest.raises(Conflict, match=r"incident-1.*lost"):
        expire(history.catalog, table, ids)
    assert names <= history.names()


def test_a_second_run_finishes_what_one_that_died_has_left(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshots are gone from the table, so that what it left is for the search for orphans."""
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    with monkeypatch.context() as patched:
        patched.setattr(expire_module.LakeFileIO, "delete_all", lambda *_: (_ for _ in ()).throw(KeyError))
        with pytest.raises(KeyError):
            expire(history.catalog, history.table, ids)
    left = {found.path for found in find_orphans(history.table, 0, later())}
    assert len(left) >= 6
    assert {
        path.rsplit("/", 1)[-1] for path in left
    } == history.names() - history.needed() - history.versions()


def test_snapshots_whose_files_are_gone_already_can_be_expired(history: History) -> None:
    """So it is after a fall back to the version of the metadata from before an expiry."""
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    doomed = [s for s in history.table.metadata.snapshots if s.snapshot_id in ids[:2]]
    for snapshot in doomed:
        os.unlink(snapshot.manifest_list)
    os.unlink(history.table.snapshot_by_id(ids[2]).manifests(history.table.io)[0].manifest_path)  # type: ignore[union-attr]
    with pytest.raises(DataLost, match="nothing is deleted"):
        find_orphans(history.table, 0, later())
    assert all_old(history).snapshots[:3]
    history.assert_kept_are_whole()


def test_nothing_is_deleted_while_a_snapshot_that_stays_cannot_be_read(history: History) -> None:
    ids = [history.land() for _ in range(3)]
    history.rewrite()
    history.land()
    table = history.table
    os.unlink(table.current_snapshot().manifests(table.io)[0].manifest_path)  # type: ignore[union-attr]
    names = history.names()
    with pytest.raises(DataLost, match="missing, so nothing is deleted"):
        expire(history.catalog, table, ids)
    assert names <= history.names()


@pytest.mark.parametrize("torn_after", ["the expiry", "a landing after it"])
def test_a_table_set_back_after_an_expiry_reads_and_expires_as_before(
    torn_after: str, history: History
) -> None:
    """Its catalog entry falls back to the version before, whose `main` an expiry never takes."""
    for _ in range(3):
        history.land()
    history.rewrite()
    last = history.land()
    all_old(history)
    if torn_after == "a landing after it":
        history.land()
    Path(history.table.metadata_location).write_bytes(b"{")
    assert len(recover_tables(history.catalog, "otel")) == 1
    assert history.main == last
    assert history.read(last) == history.shown[last]
    assert read_checkpoint(history.catalog, IDENTIFIER).landed == last
    newer = history.land()
    all_old(history)
    assert history.ids == [newer]
    history.assert_kept_are_whole()
    assert find_orphans(history.table, 0, later()) != [] or torn_after == "the expiry"


def test_for_an_erasure_all_but_main_and_landed_goes_with_every_version_that_named_it(
    history: History,
) -> None:
    ids = [history.land() for _ in range(3)]
    expire(history.catalog, history.table, [], create_tags={"hour-20261115T10": ids[1]})
    main = history.rewrite()
    table = history.table
    others = [each for each in history.ids if each not in (main, table.metadata.refs[LANDED].snapshot_id)]
    gone = expire(history.catalog, table, others, drop_tags=["hour-20261115T10"], drop_old_metadata=True)
    assert set(history.ids) == {main, ids[2]}
    assert gone.tags_dropped == ("hour-20261115T10",)
    assert len(gone.metadata_files) > 3
    left = [name for name in history.names() if name.endswith(".metadata.json")]
    assert left == [history.table.metadata_location.rsplit("/", 1)[-1]]
    history.assert_kept_are_whole()
    history.land()


def test_statistics_of_a_snapshot_go_with_it(history: History) -> None:
    ids = [history.land() for _ in range(3)]
    paths = []
    for snapshot_id in ids[1:]:
        path = f"{history.table.location()}/metadata/{snapshot_id}.stats"
        history.files.write(path, b"statistics")
        paths.append(path)
        with history.table.update_statistics() as update:
            update.set_statistics(
                StatisticsFile(
                    snapshot_id=snapshot_id,
                    statistics_path=path,
                    file_size_in_bytes=10,
                    file_footer_size_in_bytes=1,
                    blob_metadata=list[BlobMetadata](),
                )
            )
    expire(history.catalog, history.table, ids[:2])
    assert [os.path.exists(path) for path in paths] == [False, True]
    assert find_orphans(history.table, 0, later()) == []


def test_hourly_tags_are_made_and_dropped_by_the_expiry_itself(history: History) -> None:
    last = [history.land() for _ in range(3)][-1]
    config = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=2)
    made = expire_old(history.catalog, history.table, config, clock=later)
    assert len(made.tags_created) >= 1
    assert history.table.metadata.refs[made.tags_created[-1]].snapshot_id == last
    assert all_old(history, dry_run=True).tags_dropped == made.tags_created
    newer = history.land()
    two_days = time.time() + 2 * 86_400
    dropped = expire_old(history.catalog, history.table, config, clock=lambda: two_days)
    assert dropped.tags_dropped == made.tags_created
    assert history.ids == [newer]


ACTIONS = ["land", "rewrite", "lose_rows", "tag", "untag", "expire", "expire_some", "die"]


@pytest.mark.slow
@settings(max_examples=8, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(actions=st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=14), draws=st.randoms())
def test_whatever_has_happened_no_kept_snapshot_loses_a_file_and_no_other_file_stays(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], draws: Any
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": folder}))) as catalog:
        ensure_namespace(catalog, "otel")
        history, numbers = History(catalog), itertools.count()
        history.land()
        for action in actions:
            tags = list_tags(history.table)
            if action == "tag":
                name = draws.choice(["incident", "reader"])
                create_tag(catalog, history.table, f"{name}-{next(numbers)}", draws.choice(history.ids))
            elif action == "untag" and tags:
                assert delete_tag(catalog, history.table, draws.choice(tags).name)
            elif action == "expire":
                all_old(history)
            elif action == "expire_some":
                held = {ref.snapshot_id for ref in history.table.metadata.refs.values()}
                free = [each for each in history.ids if each not in held]
                expire(catalog, history.table, draws.sample(free, draws.randint(0, len(free))))
            elif action == "die":
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr(expire_module.LakeFileIO, "delete_all", lambda *_: None)
                    all_old(history)
            elif action in ("land", "rewrite", "lose_rows"):
                getattr(history, action)()
            history.assert_kept_are_whole()
            assert history.needed() <= history.names()
        orphans = {each.path.rsplit("/", 1)[-1] for each in find_orphans(history.table, 0, later())}
        assert orphans == history.names() - history.needed() - history.versions()
        assert "die" in actions or not {name for name in orphans if name.endswith(".parquet")}
