"""Files that are replaced or removed: what manifests and totals then say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import LANDED
from tests.support.lake.commit_faults import IDENTIFIER, data_file, sources
from tests.support.lake.replacing import (
    assert_totals,
    erase,
    files_of,
    land,
    less,
    merge,
    summary_of,
    table_rows,
)

EXISTING, ADDED, DELETED = (
    ManifestEntryStatus.EXISTING,
    ManifestEntryStatus.ADDED,
    ManifestEntryStatus.DELETED,
)


def entries(table: Table, snapshot: Snapshot | None = None) -> list[ManifestEntry]:
    """All of them, also of what went."""
    snapshot = snapshot or table.current_snapshot()
    assert snapshot is not None
    return [
        entry
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]


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
