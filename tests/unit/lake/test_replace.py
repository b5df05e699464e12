"""Files that are replaced or removed: what manifests then say, and who wins when several commit at once."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.config import Config
from frazil.errors import CatalogUnavailable, Conflict, DataLost, Fenced, Refused
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Checkpoint, Committed, Committer, read_checkpoint
from frazil.lake.commits.staging import Staging
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import LANDED
from frazil.lake.tables import open_table
from frazil.tables import SET_ASIDE
from tests.support.lake.meddling import (
    IDENTIFIER,
    Commit,
    applied_and_lost,
    data_file,
    first,
    lost_on_the_way,
    meddle,
    move,
    sources,
    then,
)

EXISTING, ADDED, DELETED = (
    ManifestEntryStatus.EXISTING,
    ManifestEntryStatus.ADDED,
    ManifestEntryStatus.DELETED,
)


def land(catalog: Catalog, *sources: str) -> Committed:
    """One file for each, as one landing would."""
    now = read_checkpoint(catalog, IDENTIFIER)
    files = [data_file(now, source) for source in sources]
    return Committer(catalog, deadline_seconds=60).append(now, files, f"{now.position}+{len(sources)}")


def files_of(catalog: Catalog, *sources: str) -> list[DataFile]:
    """The live files that hold these."""
    table = catalog.load_table(IDENTIFIER)
    return [
        task.file
        for source in sources
        for task in table.scan(row_filter=f"source == '{source}'").plan_files()
        if source in table_rows(table, task.file)
    ]


def table_rows(table: Table, file: DataFile) -> list[str]:
    with table.io.new_input(file.file_path).open() as stream:
        found: list[str] = pq.read_table(stream, columns=["source"])["source"].to_pylist()
    return found


def entries(table: Table, snapshot: Snapshot | None = None) -> list[ManifestEntry]:
    """All of them, also of what went."""
    snapshot = snapshot or table.current_snapshot()
    assert snapshot is not None
    return [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]


def summary_of(table: Table) -> dict[str, str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties


def assert_totals(table: Table) -> None:
    """What the summary says is what is there."""
    live = [each.file for each in live_files(table)]
    found = summary_of(table)
    assert int(found["total-data-files"]) == len(live)
    assert int(found["total-records"]) == sum(file.record_count for file in live)
    assert int(found["total-files-size"]) == sum(file.file_size_in_bytes for file in live)
    assert found["total-delete-files"] == "0"


def less(position: str) -> str:
    return f"{position}-1"


@pytest.fixture
def landed(catalog: Catalog, checkpoint: Checkpoint) -> Table:
    """`zero`, and then `a` and `b` in one landing and `c` in another."""
    land(catalog, "a", "b")
    land(catalog, "c")
    return catalog.load_table(IDENTIFIER)


def merge(catalog: Catalog, committer: Committer, table: Table) -> Committed:
    """`a` and `c` become one file."""
    merged = data_file(read_checkpoint(catalog, IDENTIFIER), "a", "c")
    return committer.replace(table, files_of(catalog, "a", "c"), [merged], facts={"frazil.why": "small"})


def erase(catalog: Catalog, committer: Committer, table: Table) -> Committed:
    """`b` goes."""
    return committer.overwrite(table, files_of(catalog, "b"), [], less)


CHANGES: dict[str, tuple[Callable[[Catalog, Committer, Table], Committed], list[str], str]] = {
    "replace": (merge, ["a", "b", "c", "zero"], "at 1+2+1"),
    "overwrite": (erase, ["a", "c", "zero"], "at 1+2+1-1"),
}


def test_a_replace_keeps_rows_and_position_and_lets_landing_go_on(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    before = read_checkpoint(catalog, IDENTIFIER)
    done = merge(catalog, committer, landed)
    now = read_checkpoint(catalog, IDENTIFIER)
    assert (now.landed, now.position) == (before.landed, before.position)
    snapshot = now.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == done.snapshot_id != now.landed
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    assert summary_of(now.table)["frazil.why"] == "small"
    assert sources(catalog) == ["a", "b", "c", "zero"]
    Committer(catalog, deadline_seconds=60).append(before, [data_file(before, "d")], "at 2")
    assert sources(catalog) == ["a", "b", "c", "d", "zero"]


def test_manifests_say_what_came_what_went_and_who_added_the_rest(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    before = {entry.data_file.file_path: entry for entry in entries(landed)}
    gone = {file.file_path for file in files_of(catalog, "a", "c")}
    done = merge(catalog, committer, landed)
    table = catalog.load_table(IDENTIFIER)
    found = {
        status: [e for e in entries(table) if e.status == status] for status in (EXISTING, ADDED, DELETED)
    }
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (added,) = [entry for entry in found[ADDED] if entry.snapshot_id == done.snapshot_id]
    assert added.sequence_number == added.file_sequence_number == snapshot.sequence_number
    assert {entry.data_file.file_path for entry in found[DELETED]} == gone
    for entry in found[DELETED]:
        old = before[entry.data_file.file_path]
        assert entry.snapshot_id == done.snapshot_id
        assert entry.sequence_number == old.sequence_number
        assert entry.file_sequence_number == old.file_sequence_number
    (kept,) = found[EXISTING]  # `b`, which was named beside `a`; the manifest of `zero` is as it was
    old = before[kept.data_file.file_path]
    assert (kept.snapshot_id, kept.sequence_number, kept.file_sequence_number) == (
        old.snapshot_id,
        old.sequence_number,
        old.file_sequence_number,
    )
    assert kept.data_file.lower_bounds == old.data_file.lower_bounds
    assert len(snapshot.manifests(table.io)) == 3


def test_what_says_that_a_file_went_holds_no_value_of_its_rows(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    (gone,) = files_of(catalog, "b")
    assert b"b" in gone.lower_bounds.values()
    erase(catalog, committer, landed)
    table = catalog.load_table(IDENTIFIER)
    (entry,) = [entry for entry in entries(table) if entry.status == DELETED]
    file = entry.data_file
    assert (file.file_path, file.record_count) == (gone.file_path, 1)
    assert file.file_size_in_bytes == gone.file_size_in_bytes
    for values in (
        file.lower_bounds,
        file.upper_bounds,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.column_sizes,
        file.split_offsets,
        file.key_metadata,
    ):
        assert not values


def test_an_overwrite_takes_rows_away_and_the_position_counts_them(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    both = files_of(catalog, "a", "b")
    fewer = data_file(read_checkpoint(catalog, IDENTIFIER), "b")
    done = committer.overwrite(landed, both, [fewer], less, facts={"frazil.why": "asked"})
    now = read_checkpoint(catalog, IDENTIFIER)
    assert (now.landed, now.position) == (done.snapshot_id, "at 1+2+1-1")
    assert sources(catalog) == ["b", "c", "zero"]
    snapshot = now.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.OVERWRITE
    found = summary_of(now.table)
    assert (found["deleted-records"], found["added-records"], found["total-records"]) == ("2", "1", "3")
    assert (found["deleted-data-files"], found["added-data-files"]) == ("2", "1")
    assert found["frazil.why"] == "asked"
    assert_totals(now.table)


def test_files_that_go_without_others_in_their_place_are_a_delete(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    everything = [each.file for each in live_files(landed)]
    committer.overwrite(landed, everything, [], less)
    table = catalog.load_table(IDENTIFIER)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.DELETE
    assert (live_files(table), sources(catalog)) == ([], [])
    assert_totals(table)
    land(catalog, "after")
    after = catalog.load_table(IDENTIFIER)
    assert [entry.status for entry in entries(after)] == [ADDED]  # what only names what went is dropped
    assert_totals(after)


def test_an_overwrite_of_nothing_moves_the_position_alone(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    before = live_files(landed)
    done = committer.overwrite(landed, [], [], less)
    now = read_checkpoint(catalog, IDENTIFIER)
    assert (now.landed, now.position) == (done.snapshot_id, "at 1+2+1-1")
    assert live_files(now.table) == before
    assert_totals(now.table)


def test_totals_are_right_whatever_was_done_before(
    catalog: Catalog, committer: Committer, checkpoint: Checkpoint
) -> None:
    dice, expected = random.Random(6), {"zero": 1}
    for number in range(24):
        table = catalog.load_table(IDENTIFIER)
        live = [each.file for each in live_files(table)]
        some = dice.sample(live, min(len(live), dice.randint(1, 3)))
        held = [source for file in some for source in table_rows(table, file)]
        match dice.randrange(4):
            case 0 | 1:
                land(catalog, f"{number}", f"{number}'")
                expected |= {f"{number}": 1, f"{number}'": 1}
            case 2:
                committer.replace(table, some, [data_file(checkpoint, *held)] if held else [])
            case 3:
                gone, kept = held[:1], held[1:]
                committer.overwrite(table, some, [data_file(checkpoint, *kept)] if kept else [], less)
                for source in gone:
                    del expected[source]
        assert_totals(catalog.load_table(IDENTIFIER))
        assert sources(catalog) == sorted(expected)


def test_the_same_rows_are_as_many(catalog: Catalog, committer: Committer, landed: Table) -> None:
    with pytest.raises(ValueError, match="replace must keep the number of rows, got 2 and 1"):
        committer.replace(landed, files_of(catalog, "a", "c"), files_of(catalog, "b"))
    assert catalog.load_table(IDENTIFIER).metadata == landed.metadata


@pytest.mark.parametrize("what", CHANGES)
def test_a_landing_in_between_is_waited_out(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    change, left, position = CHANGES[what]
    made = meddle(catalog, monkeypatch, first(lambda: land(other, "d")), first(lambda: land(other, "e")))
    done = change(catalog, committer, landed)
    assert len(made) == done.attempts == 3
    assert sources(catalog) == sorted([*left, "d", "e"])
    assert read_checkpoint(other, IDENTIFIER).position == position.replace("+1", "+1+1+1")
    assert_totals(catalog.load_table(IDENTIFIER))


@pytest.mark.parametrize("what", CHANGES)
def test_further_attempts_write_no_more_than_a_list_of_manifests(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """And what they take over counts as of the attempt that is committed."""
    folder = Path(landed.location(), "metadata")
    before = set(folder.iterdir())
    landing: set[Path] = set()

    def overtake() -> None:
        already = set(folder.iterdir())
        land(other, "d")
        landing.update(set(folder.iterdir()) - already)

    meddle(catalog, monkeypatch, first(overtake), first(overtake))
    done = CHANGES[what][0](catalog, committer, landed)
    written = [path.name for path in set(folder.iterdir()) - before - landing]
    assert sum(name.startswith("snap-") for name in written) == 3
    assert sum("-m" in name for name in written) == (2 if what == "replace" else 1)
    table = catalog.load_table(IDENTIFIER)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == done.snapshot_id]
    assert {manifest.sequence_number for manifest in own} == {snapshot.sequence_number}


def test_a_landing_that_an_overwrite_overtakes_is_fenced_and_lands_nothing_twice(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table
) -> None:
    """It carries a position that does not count what went."""
    on_its_way = read_checkpoint(other, IDENTIFIER)
    file = data_file(on_its_way, "d")
    erase(catalog, committer, landed)
    with pytest.raises(Fenced):
        Committer(other, deadline_seconds=60).append(on_its_way, [file], "at 9")
    assert sources(catalog) == ["a", "c", "zero"]
    again = read_checkpoint(other, IDENTIFIER)
    Committer(other, deadline_seconds=60).append(again, [data_file(again, "d")], again.position + "+1")
    assert sources(catalog) == ["a", "c", "d", "zero"]
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 1+2+1-1+1"


def test_a_landing_that_an_overwrite_overtakes_between_its_attempts_is_fenced(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    meddle(
        catalog,
        monkeypatch,
        then(lost_on_the_way, lambda: erase(other, Committer(other, deadline_seconds=60), landed)),
    )
    now = read_checkpoint(other, IDENTIFIER)
    with pytest.raises(Fenced):
        committer.append(now, [data_file(now, "d")], "at 9")
    assert sources(catalog) == ["a", "c", "zero"]


@pytest.mark.parametrize("rival", CHANGES)
@pytest.mark.parametrize("what", CHANGES)
def test_of_two_who_replace_the_same_files_one_wins_and_the_other_is_told(
    catalog: Catalog, other: Catalog, landed: Table, monkeypatch: pytest.MonkeyPatch, what: str, rival: str
) -> None:
    gone = files_of(catalog, "a", "b")
    both, one = data_file(read_checkpoint(catalog, IDENTIFIER), "a", "b"), files_of(catalog, "c")

    def change(connection: Catalog, how: str) -> Committed:
        mine = Committer(connection, deadline_seconds=60, sleep=lambda seconds: None)
        if how == "replace":
            return mine.replace(landed, gone, [both])
        return mine.overwrite(landed, [*gone, *one], [], less)

    made = meddle(catalog, monkeypatch, first(lambda: change(other, rival)))
    with pytest.raises(Conflict, match=r"of [23] files .* no longer part of the table"):
        change(catalog, what)
    assert len(made) == 1
    assert sources(catalog) == (["a", "b", "c", "zero"] if rival == "replace" else ["zero"])
    assert read_checkpoint(other, IDENTIFIER).position == "at 1+2+1" + ("" if rival == "replace" else "-1")
    with pytest.raises(Conflict):
        change(other, what)


def test_of_many_who_replace_the_same_files_at_once_one_wins(
    config: Config, catalog: Catalog, landed: Table
) -> None:
    outcomes: list[str] = []
    ready = threading.Barrier(4)
    gone = files_of(catalog, "a", "c")

    def maintain(number: int) -> None:
        with closing(open_catalog(config)) as mine:
            merged = data_file(read_checkpoint(mine, IDENTIFIER), "a", "c")
            committer = Committer(mine, deadline_seconds=60)
            ready.wait(30)
            try:
                if number % 2:
                    committer.replace(landed, gone, [merged])
                else:
                    committer.overwrite(landed, gone, [], less)
                outcomes.append("won")
            except Conflict:
                outcomes.append("told")

    threads = [threading.Thread(target=maintain, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["told", "told", "told", "won"]
    replaced = read_checkpoint(catalog, IDENTIFIER).position == "at 1+2+1"
    assert sources(catalog) == (["a", "b", "c", "zero"] if replaced else ["b", "zero"])
    assert_totals(catalog.load_table(IDENTIFIER))


def test_two_who_replace_different_files_of_one_manifest_both_win(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = files_of(catalog, "a"), files_of(catalog, "b")
    now = read_checkpoint(other, IDENTIFIER)
    rival = Committer(other, deadline_seconds=60)
    meddle(catalog, monkeypatch, first(lambda: rival.replace(landed, a, [data_file(now, "a")])))
    assert committer.replace(landed, b, [data_file(now, "b")]).attempts == 2
    assert sources(catalog) == ["a", "b", "c", "zero"]
    assert_totals(catalog.load_table(IDENTIFIER))


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
@pytest.mark.parametrize("meanwhile", ["nothing", "a landing"])
def test_a_lost_answer_is_settled_by_looking(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: Any,
    meanwhile: str,
) -> None:
    change, left, position = CHANGES[what]
    lands = meanwhile == "a landing"
    made = meddle(catalog, monkeypatch, then(answer, lambda: land(other, "d") if lands else None))
    done = change(catalog, committer, landed)
    assert len(made) == done.attempts == (1 if answer is applied_and_lost else 2)
    now = read_checkpoint(other, IDENTIFIER)
    assert sources(catalog) == sorted([*left, *(["d"] if lands else [])])
    assert sorted(now.position.removeprefix("at 1")) == sorted(
        position.removeprefix("at 1") + ("+1" if lands else "")
    )
    assert now.table.metadata.snapshot_by_id(done.snapshot_id) is not None
    assert_totals(now.table)


@pytest.mark.parametrize("what", CHANGES)
def test_an_own_attempt_that_arrives_late_is_refused(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    stuck: list[tuple[Any, ...]] = []

    def get_stuck(real: Commit, args: tuple[Any, ...]) -> Any:
        stuck.append(args)
        raise TimeoutError

    change, left, position = CHANGES[what]
    meddle(catalog, monkeypatch, get_stuck)
    assert change(catalog, committer, landed).attempts == 2
    _, requirements, updates = stuck[0]
    with pytest.raises(Exception, match="main"):
        other.commit_table(other.load_table(IDENTIFIER), requirements, updates)
    assert sources(catalog) == left
    assert read_checkpoint(other, IDENTIFIER).position == position


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
def test_what_cannot_be_settled_in_time_is_unknown_and_the_files_tell_later(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: Any,
) -> None:
    change, left, _ = CHANGES[what]
    real_load, down = catalog.load_table, threading.Event()

    def load(*args: Any) -> Table:
        if down.is_set():
            raise ConnectionError("down")
        return real_load(*args)

    def goes_down(real: Commit, args: tuple[Any, ...]) -> Any:
        down.set()
        return answer(other.commit_table, args)

    monkeypatch.setattr(catalog, "load_table", load)
    meddle(catalog, monkeypatch, goes_down)
    with pytest.raises(CatalogUnavailable):
        change(catalog, committer, landed)
    down.clear()
    if answer is applied_and_lost:
        with pytest.raises((Conflict, ValueError)):
            committer.overwrite(landed, files_of_snapshot(landed, what), [], less)
        assert sources(catalog) == left
    else:
        assert sources(catalog) == ["a", "b", "c", "zero"]
        change(catalog, committer, landed)
        assert sources(catalog) == left


def files_of_snapshot(table: Table, what: str) -> list[DataFile]:
    """What the change wanted to be rid of, as it was before."""
    wanted = {"replace": {"a", "c"}, "overwrite": {"b"}}[what]
    return [each.file for each in live_files(table) if set(table_rows(table, each.file)) & wanted]


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("when", ["before", "while it commits"])
def test_nothing_is_committed_on_top_of_a_table_that_was_rolled_back(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    when: str,
) -> None:
    beginning = landed.metadata.snapshots[1].snapshot_id

    def roll_back() -> None:
        move(other.load_table(IDENTIFIER), "main", beginning)

    gone, same = files_of(catalog, "zero"), data_file(Checkpoint(landed, 0, ""), "zero")
    if when == "before":
        roll_back()
    else:
        meddle(catalog, monkeypatch, first(roll_back))
    change = {
        "replace": lambda: committer.replace(landed, gone, [same]),
        "overwrite": lambda: committer.overwrite(landed, gone, [], less),
    }[what]
    with pytest.raises(DataLost, match="rolled back"):
        change()
    now = other.load_table(IDENTIFIER)
    assert now.metadata.current_snapshot_id == beginning
    assert sources(other) == ["zero"]


@pytest.mark.parametrize("what", CHANGES)
def test_a_table_that_is_gone_or_another_is_a_conflict(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table, what: str
) -> None:
    gone, same = files_of(catalog, "a"), data_file(Checkpoint(landed, 0, ""), "a")
    change = {
        "replace": lambda: committer.replace(landed, gone, [same]),
        "overwrite": lambda: committer.overwrite(landed, gone, [], less),
    }[what]
    other.drop_table(IDENTIFIER)
    with pytest.raises(Conflict, match="the table was dropped"):
        change()
    shutil.rmtree(landed.location())
    open_table(other, "otel", SET_ASIDE, "at 0")
    with pytest.raises(Conflict, match="replaced by another of the same name"):
        change()


def test_a_table_with_delete_files_is_refused(catalog: Catalog, committer: Committer, landed: Table) -> None:
    """What they delete would come back with the file that they belong to."""
    snapshot = landed.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    manifests = snapshot.manifests(landed.io)
    deletes = manifests[0].from_args(
        **{name: getattr(manifests[0], name) for name in DELETES_KEEP},
        manifest_path="deletes.avro",
        content=ManifestContent.DELETES,
    )
    staged = Staging(landed.metadata).snapshot(
        landed, [*manifests, deletes], snapshot.summary, moves_landed=False
    )
    removed = files_of(catalog, "a")
    catalog.commit_table(landed, staged.requirements, staged.updates)
    table = catalog.load_table(IDENTIFIER)
    with pytest.raises(Refused, match="delete files"):
        live_files(table)
    with pytest.raises(Refused, match="delete files"):
        committer.overwrite(table, removed, [], less)
    assert live_files(table, snapshot)


DELETES_KEEP = (
    "manifest_length",
    "partition_spec_id",
    "sequence_number",
    "min_sequence_number",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
    "partitions",
    "key_metadata",
)


def test_live_files_say_who_added_them_also_after_they_changed_manifests(
    catalog: Catalog, committer: Committer, landed: Table
) -> None:
    before = {each.file.file_path: each for each in live_files(landed)}
    merge(catalog, committer, landed)
    table = catalog.load_table(IDENTIFIER)
    now = {each.file.file_path: each for each in live_files(table)}
    both = before.keys() & now.keys()
    assert len(both) == 2
    for path in both:
        assert (now[path].snapshot_id, now[path].sequence, now[path].file_sequence) == (
            before[path].snapshot_id,
            before[path].sequence,
            before[path].file_sequence,
        )
    older = table.metadata.snapshot_by_id(landed.metadata.current_snapshot_id or 0)
    assert {each.file.file_path for each in live_files(table, older)} == before.keys()


def test_old_metadata_goes_with_each_commit(catalog: Catalog, committer: Committer, landed: Table) -> None:
    (file,) = files_of(catalog, "c")
    for _ in range(14):
        table = catalog.load_table(IDENTIFIER)
        new = data_file(read_checkpoint(catalog, IDENTIFIER), "c")
        committer.replace(table, [file], [new])
        file = new
    assert len(list(Path(landed.location(), "metadata").glob("*.metadata.json"))) == 11
    assert (
        catalog.load_table(IDENTIFIER).metadata.refs[LANDED].snapshot_id != table.metadata.current_snapshot_id
    )
