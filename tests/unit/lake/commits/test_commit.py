"""The fenced commit on a real SQL catalog: races, lost answers, zombies, and others who change tables."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from frazil.config import Config
from frazil.errors import CatalogUnavailable, DataLost, Fenced
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.lake.snapshots import LANDED, POSITION, is_ancestor
from frazil.lake.tables import open_table
from frazil.tables import SET_ASIDE
from tests.support.lake.commit_faults import (
    IDENTIFIER,
    Commit,
    Sleep,
    applied_and_lost,
    data_file,
    first,
    inject,
    lost_on_the_way,
    move,
    rows_of,
    sources,
    then,
)
from tests.support.wal_stores import HandClock

MAINTENANCE: dict[str, Callable[[Table], object]] = {
    "an append": lambda table: table.append(rows_of("by hand")),
    "a rewrite": lambda table: table.overwrite(table.scan().to_arrow()),
    "a property": lambda table: table.transaction().set_properties(owner="me").commit_transaction(),
    "a branch": lambda table: table.append(rows_of("elsewhere"), branch="aside"),
    "a tag": lambda table: (
        table.manage_snapshots().create_tag(table.metadata.current_snapshot_id, "kept").commit()
    ),
}


def left_by(maintenance: str) -> list[str]:
    return ["by hand"] if maintenance == "an append" else []


def test_a_commit_adds_rows_and_moves_main_and_the_position_together(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    done = committer.append(checkpoint, [data_file(checkpoint, "a", "b")], "at 2", facts={"frazil.rows": "2"})
    now = read_checkpoint(catalog, IDENTIFIER)
    assert (now.landed, now.position, done.attempts) == (done.snapshot_id, "at 2", 1)
    snapshot = now.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == done.snapshot_id
    assert snapshot.summary is not None
    assert snapshot.summary["frazil.rows"] == "2"
    assert (snapshot.summary["added-records"], snapshot.summary["total-records"]) == ("2", "3")
    assert sources(catalog) == ["a", "b", "zero"]


def test_a_commit_without_files_moves_the_position(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    committer.append(checkpoint, [], "at 2")
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 2"
    assert sources(catalog) == ["zero"]


def test_of_two_landers_from_one_checkpoint_one_wins(
    catalog: Catalog, other: Catalog, checkpoint: Checkpoint
) -> None:
    rival = read_checkpoint(other, IDENTIFIER)
    Committer(other, deadline_seconds=60).append(rival, [data_file(rival, "a")], "at 2")
    with pytest.raises(Fenced):
        Committer(catalog, deadline_seconds=60).append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert sources(catalog) == ["a", "zero"]


def test_of_many_landers_at_once_one_wins(config: Config, checkpoint: Checkpoint) -> None:
    outcomes: list[str] = []
    ready = threading.Barrier(4)

    def land() -> None:
        with contextlib.closing(open_catalog(config)) as catalog:
            mine = read_checkpoint(catalog, IDENTIFIER)
            file = data_file(mine, "a")
            ready.wait(30)
            try:
                Committer(catalog, deadline_seconds=60).append(mine, [file], "at 2")
                outcomes.append("won")
            except Fenced:
                outcomes.append("fenced")

    threads = [threading.Thread(target=land) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["fenced", "fenced", "fenced", "won"]
    with contextlib.closing(open_catalog(config)) as catalog:
        assert sources(catalog) == ["a", "zero"]


def test_a_lost_answer_to_a_commit_that_was_applied_is_settled_by_looking(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = inject(catalog, monkeypatch, applied_and_lost)
    done = committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert len(made) == done.attempts == 1
    assert read_checkpoint(catalog, IDENTIFIER).landed == done.snapshot_id
    assert sources(catalog) == ["a", "zero"]


def test_a_commit_that_was_lost_on_its_way_is_made_again(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = inject(catalog, monkeypatch, lost_on_the_way, lost_on_the_way)
    done = committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert len(made) == done.attempts == 3
    assert sources(catalog) == ["a", "zero"]


@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
@pytest.mark.parametrize("maintenance", MAINTENANCE)
def test_a_lost_answer_is_settled_also_when_somebody_changes_the_table_meanwhile(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    maintenance: str,
) -> None:
    inject(catalog, monkeypatch, then(answer, lambda: MAINTENANCE[maintenance](other.load_table(IDENTIFIER))))
    done = committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert done.attempts == (1 if answer is applied_and_lost else 2)
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 2"
    assert sources(catalog) == sorted(["a", "zero", *left_by(maintenance)])


@pytest.mark.parametrize("maintenance", MAINTENANCE)
def test_a_change_that_leaves_the_position_alone_is_waited_out_and_the_data_files_stay(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    maintenance: str,
) -> None:
    file = data_file(checkpoint, "a")
    made = inject(catalog, monkeypatch, first(lambda: MAINTENANCE[maintenance](other.load_table(IDENTIFIER))))
    committer.append(checkpoint, [file], "at 2")
    assert len(made) <= 2
    now = read_checkpoint(catalog, IDENTIFIER)
    assert file.file_path in [task.file.file_path for task in now.table.scan().plan_files()]
    assert sources(catalog) == sorted(["a", "zero", *left_by(maintenance)])


@pytest.mark.parametrize("held_at", ["before it is sent", "between check and swap"])
def test_a_zombies_commit_that_arrives_late_is_refused(
    catalog: Catalog,
    other: Catalog,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    held_at: str,
) -> None:
    held, go_on = threading.Event(), threading.Event()
    what = "commit_table" if held_at == "before it is sent" else "_write_metadata"
    real = getattr(catalog, what)

    def holding(*args: Any, **more: Any) -> Any:
        held.set()
        assert go_on.wait(60)
        return real(*args, **more)

    monkeypatch.setattr(catalog, what, holding)
    outcome: list[BaseException | None] = []

    def zombie() -> None:
        try:
            Committer(catalog, deadline_seconds=60).append(checkpoint, [data_file(checkpoint, "a")], "at 2")
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=zombie)
    thread.start()
    assert held.wait(60)
    rival = read_checkpoint(other, IDENTIFIER)
    Committer(other, deadline_seconds=60).append(rival, [data_file(rival, "a")], "at 2")
    MAINTENANCE["a rewrite"](other.load_table(IDENTIFIER))
    go_on.set()
    thread.join(60)
    assert isinstance(outcome[0], Fenced)
    assert sources(other) == ["a", "zero"]


def test_an_own_attempt_that_arrives_late_cannot_land_beside_the_one_that_won(
    catalog: Catalog, other: Catalog, committer: Committer, checkpoint: Checkpoint, monkeypatch: Any
) -> None:
    """The first request is stuck in a proxy; the second is answered; then the first comes through."""
    stuck: list[tuple[Any, ...]] = []

    def get_stuck(real: Commit, args: tuple[Any, ...]) -> Any:
        stuck.append(args)
        raise TimeoutError

    inject(catalog, monkeypatch, get_stuck)
    assert committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2").attempts == 2
    _, requirements, updates = stuck[0]
    with pytest.raises(Exception, match="landed"):
        other.commit_table(other.load_table(IDENTIFIER), requirements[2:], updates)
    assert sources(catalog) == ["a", "zero"]


def test_while_the_catalog_is_down_it_waits_longer_each_time_and_then_commits_once(
    catalog: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    clock: HandClock,
    sleep: Sleep,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    up_again = clock.seconds + 60
    real_load = catalog.load_table

    def load(*args: Any) -> Table:
        if clock.seconds < up_again:
            raise ConnectionError("down")
        return real_load(*args)

    monkeypatch.setattr(catalog, "load_table", load)
    made = inject(catalog, monkeypatch, lost_on_the_way)
    done = committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert len(made) == done.attempts == 2
    assert 60 <= sum(sleep.slept) < 80
    assert len(sleep.slept) < 20
    assert max(sleep.slept) <= 10
    assert sleep.slept[4] > 4 * sleep.slept[0]
    assert sources(catalog) == ["a", "zero"]


@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
def test_a_commit_that_cannot_be_settled_in_time_is_settled_by_the_next_round(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    sleep: Sleep,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
) -> None:
    def down(*_: Any) -> Table:
        raise ConnectionError("down")

    made = inject(catalog, monkeypatch, answer)
    file = data_file(checkpoint, "a")
    with monkeypatch.context() as outage:
        outage.setattr(catalog, "load_table", down)
        # Within commit_table the catalog loads the table too.
        if answer is applied_and_lost:
            made = inject(catalog, outage, lambda real, args: applied_and_lost(other.commit_table, args))
        with pytest.raises(CatalogUnavailable):
            committer.append(checkpoint, [file], "at 2")
    assert len(made) == 1
    assert 600 <= sum(sleep.slept) < 620
    now = read_checkpoint(other, IDENTIFIER)
    if now.position == "at 1":
        Committer(other, deadline_seconds=60).append(now, [data_file(now, "a")], "at 2")
    assert (now.position == "at 2") == (answer is applied_and_lost)
    assert sources(other) == ["a", "zero"]


def test_a_table_that_changes_all_the_time_is_given_up_at_the_deadline(
    catalog: Catalog,
    other: Catalog,
    checkpoint: Checkpoint,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sleep(seconds: float) -> None:
        clock.seconds += 5

    inject(
        catalog,
        monkeypatch,
        *[first(lambda: MAINTENANCE["an append"](other.load_table(IDENTIFIER))) for _ in range(50)],
    )
    committer = Committer(catalog, deadline_seconds=12, clock=clock, sleep=sleep)
    with pytest.raises(CatalogUnavailable, match="12 s"):
        committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert read_checkpoint(other, IDENTIFIER).position == "at 1"
    assert "a" not in sources(other)


def test_a_table_that_was_dropped_meanwhile_fences(
    catalog: Catalog, other: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    other.drop_table(IDENTIFIER)
    with pytest.raises(Fenced):
        committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    with pytest.raises(NoSuchTableError):
        other.load_table(IDENTIFIER)


def test_a_table_that_was_made_anew_meanwhile_fences(
    catalog: Catalog, other: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    file = data_file(checkpoint, "a")
    other.drop_table(IDENTIFIER)
    with pytest.raises(DataLost, match="rebuild-catalog"):  # not in the place of what it was
        open_table(other, "otel", SET_ASIDE, "at 0")
    for remains in Path(checkpoint.table.location().removeprefix("file://"), "metadata").glob("*.json"):
        remains.unlink()
    open_table(other, "otel", SET_ASIDE, "at 0")
    with pytest.raises(Fenced):
        committer.append(checkpoint, [file], "at 2")
    assert read_checkpoint(other, IDENTIFIER).position == "at 0"
    assert sources(other) == []


def test_a_rollback_behind_the_position_is_lost_data(catalog: Catalog, checkpoint: Checkpoint) -> None:
    snapshot = checkpoint.table.current_snapshot()
    assert snapshot is not None
    move(checkpoint.table, "main", snapshot.parent_snapshot_id or 0)
    with pytest.raises(DataLost, match="rolled back"):
        read_checkpoint(catalog, IDENTIFIER)


@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way, None])
def test_a_rollback_in_the_middle_of_a_commit_is_lost_data_too_and_nothing_is_put_on_top_of_it(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
) -> None:
    """What landed before the rollback would be hidden for good behind a position that counts it."""
    beginning = checkpoint.table.snapshots()[0].snapshot_id

    def roll_back() -> None:
        move(other.load_table(IDENTIFIER), "main", beginning)

    inject(catalog, monkeypatch, first(roll_back) if answer is None else then(answer, roll_back))
    with contextlib.suppress(DataLost):
        committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
        assert answer is applied_and_lost
    with pytest.raises(DataLost, match="rolled back"):
        read_checkpoint(other, IDENTIFIER)
    main = other.load_table(IDENTIFIER).current_snapshot()
    assert main is not None
    assert main.snapshot_id == beginning


@pytest.mark.parametrize("when", ["before", "while it commits"])
def test_a_tag_that_is_gone_is_lost_data(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    def remove_tag() -> None:
        other.commit_table(other.load_table(IDENTIFIER), (), (RemoveSnapshotRefUpdate(ref_name=LANDED),))

    if when == "before":
        remove_tag()
    else:
        inject(catalog, monkeypatch, first(remove_tag))
        with pytest.raises(Fenced):
            committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    with pytest.raises(DataLost, match="no tag"):
        read_checkpoint(other, IDENTIFIER)
    assert sources(other) == ["zero"]


def test_a_tag_on_a_snapshot_without_a_position_is_lost_data(
    catalog: Catalog, other: Catalog, checkpoint: Checkpoint
) -> None:
    table = other.load_table(IDENTIFIER)
    table.append(rows_of("by hand"))
    move(table, LANDED, table.metadata.current_snapshot_id or 0)
    with pytest.raises(DataLost, match="no tag"):
        read_checkpoint(catalog, IDENTIFIER)


def without(metadata: TableMetadata, *gone: int, blanked: bool = False) -> TableMetadata:
    """As Spark's procedure expires: those that follow keep the id of their parent. `blanked`: as PyIceberg
    does, which drops it.
    """
    kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in gone]
    if blanked:
        kept = [
            each.model_copy(update={"parent_snapshot_id": None}) if each.parent_snapshot_id in gone else each
            for each in kept
        ]
    return metadata.model_copy(update={"snapshots": kept})


@pytest.mark.parametrize("blanked", [False, True])
def test_snapshots_that_expired_between_the_position_and_main_are_not_missed(
    other: Catalog, checkpoint: Checkpoint, blanked: bool
) -> None:
    """Whoever maintains a table commits many times between two landings, and expires what it made."""
    table = other.load_table(IDENTIFIER)
    for number in range(4):
        table.append(rows_of(f"by hand {number}"))
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    at = ids.index(checkpoint.landed)
    assert is_ancestor(table.metadata, checkpoint.landed)
    for gone in ([ids[at + 1], ids[at + 2]], ids[at + 1 : -1], [ids[at - 1]]):
        assert is_ancestor(without(table.metadata, *gone, blanked=blanked), checkpoint.landed)
    assert not is_ancestor(without(table.metadata, checkpoint.landed, blanked=blanked), checkpoint.landed)


def test_pyiceberg_itself_drops_the_ids_of_parents_that_it_expires(
    other: Catalog, checkpoint: Checkpoint
) -> None:
    table = other.load_table(IDENTIFIER)
    for number in range(2):
        table.append(rows_of(f"by hand {number}"))
    gone, newest = (snapshot.snapshot_id for snapshot in table.snapshots()[-2:])
    table.maintenance.expire_snapshots().by_id(gone).commit()
    table = other.load_table(IDENTIFIER)
    snapshot = table.metadata.snapshot_by_id(newest)
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is None
    assert read_checkpoint(other, IDENTIFIER).landed == checkpoint.landed


def test_a_table_that_was_replaced_does_not_contain_what_had_landed(
    catalog: Catalog, other: Catalog, checkpoint: Checkpoint
) -> None:
    """CREATE OR REPLACE TABLE keeps tags and old snapshots; its first one begins with nothing."""
    table = other.load_table(IDENTIFIER)
    other.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name="main"),))
    other.load_table(IDENTIFIER).append(rows_of("another table"))
    metadata = other.load_table(IDENTIFIER).metadata
    assert LANDED in metadata.refs
    assert not is_ancestor(metadata, checkpoint.landed)
    with pytest.raises(DataLost):
        read_checkpoint(catalog, IDENTIFIER)


def test_a_rollback_is_noticed_also_where_expired_snapshots_cut_the_chain(
    catalog: Catalog, other: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    table = other.load_table(IDENTIFIER)
    for number in range(3):
        table.append(rows_of(f"by hand {number}"))
    ids = [snapshot.snapshot_id for snapshot in table.snapshots()]
    now = read_checkpoint(catalog, IDENTIFIER)
    committer.append(now, [data_file(now, "a")], "at 2")
    table = other.load_table(IDENTIFIER)
    landed = table.metadata.refs[LANDED].snapshot_id
    move(table, "main", ids[-1])
    for blanked in (False, True):
        metadata = without(table.refresh().metadata, ids[-2], blanked=blanked)
        assert not is_ancestor(metadata, landed)


def test_old_metadata_is_deleted_so_that_ten_versions_stay_beside_the_newest(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    for number in range(2, 20):
        now = read_checkpoint(catalog, IDENTIFIER)
        committer.append(now, [], f"at {number}")
    folder = Path(checkpoint.table.location(), "metadata")
    assert len(list(folder.glob("*.metadata.json"))) == 11
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 19"


def test_that_old_metadata_cannot_be_deleted_does_not_undo_a_commit(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(catalog, "_delete_old_metadata", refuse)
    committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    assert sources(catalog) == ["a", "zero"]


def test_the_position_is_in_the_summary_where_any_engine_can_read_it(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    done = committer.append(checkpoint, [], "at 2")
    snapshot = done.metadata.snapshot_by_id(done.snapshot_id)
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary[POSITION] == "at 2"
    assert done.metadata.refs[LANDED].snapshot_ref_type == SnapshotRefType.TAG


def test_a_clock_that_goes_back_does_not_take_the_table_back_in_time(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would refuse the whole table: `Expected sorted snapshot log entries`."""
    ahead = time.time() + 3600
    with monkeypatch.context() as fast:
        fast.setattr(time, "time", lambda: ahead)
        committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    for number in (3, 4):
        now = read_checkpoint(catalog, IDENTIFIER)
        committer.append(now, [data_file(now, "b")], f"at {number}")
    metadata = read_checkpoint(catalog, IDENTIFIER).table.metadata
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert times == sorted(times)
    assert metadata.last_updated_ms == times[-1] > ahead * 1000
    written = [entry.timestamp_ms for entry in metadata.metadata_log]
    assert written == sorted(written)


def test_the_metadata_after_each_commit_is_that_of_its_file(
    config: Config, catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    """Metadata is shared between commits and not parsed again; a new catalog parses the file."""
    for each in ("a tag", "a property", "an append", "a rewrite"):
        committer.append(checkpoint, [data_file(checkpoint, each)], f"at {each}")
        MAINTENANCE[each](catalog.load_table(IDENTIFIER))
        checkpoint = read_checkpoint(catalog, IDENTIFIER)
        with contextlib.closing(open_catalog(config)) as other:
            parsed = other.load_table(IDENTIFIER)
        assert checkpoint.table.metadata_location == parsed.metadata_location
        assert checkpoint.table.metadata == parsed.metadata


def test_a_commit_leaves_the_metadata_before_it_unchanged(
    committer: Committer, checkpoint: Checkpoint
) -> None:
    before = checkpoint.table.metadata
    written = before.model_dump_json()
    after = committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2").metadata
    assert before.model_dump_json() == written
    assert after.snapshots[0] is before.snapshots[0], "a commit copies no snapshot"


def test_a_commit_of_another_process_is_seen(
    config: Config, catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    committer.append(checkpoint, [data_file(checkpoint, "a")], "at 2")
    with contextlib.closing(open_catalog(config)) as other:
        theirs = read_checkpoint(other, IDENTIFIER)
        Committer(other, deadline_seconds=5).append(theirs, [data_file(theirs, "b")], "at 3")
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 3"
