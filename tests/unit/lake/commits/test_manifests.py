"""Many small manifests become few: no file, row or position changes, and what is said of files stays."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from frazil.errors import DataLost
from frazil.lake.commits import entries, manifests, staging
from frazil.lake.commits.commit import Checkpoint, Committer, checkpoint_of
from frazil.lake.commits.manifests import rewrite_manifests
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.tables import landed_spec
from tests.support.lake.commit_faults import applied_and_lost, first, inject, lost_on_the_way, move, then

LOGS = ("otel", "logs")
DAY = 20_000
Known = dict[str, tuple[Any, ...]]


def data_file(table: Table, tenant: str, day: int, body: str, rows: int = 2) -> DataFile:
    spec = landed_spec("logs")
    time = datetime.datetime.fromtimestamp(day * 86_400, datetime.UTC)
    row = {"tenant_id": tenant, "time": time, "received_time": time, "_segment": "s/0", "body": body}
    made = pa.Table.from_pylist([row] * rows, schema=spec.arrow_schema)
    return write_part(Layout.of(table, spec, 1), Part(tenant, day, made), f"{tenant}-{day}-{body}")


def land(catalog: Catalog, *parts: tuple[str, int, str]) -> list[DataFile]:
    now = checkpoint_of(catalog.load_table(LOGS))
    files = [data_file(now.table, *part) for part in parts]
    Committer(catalog, deadline_seconds=60).append(now, files, f"{now.position}+{len(parts)}")
    return files


@pytest.fixture
def landed(catalog: Catalog) -> Checkpoint:
    """Twelve landings of two tenants and three days, which do not come in order."""
    open_table(catalog, "otel", landed_spec("logs"), "at 0")
    for number in range(12):
        tenant = "acme" if number % 2 else "zenith"
        land(catalog, (tenant, DAY + number % 3, f"{number}"), ("other", DAY + 2 - number % 3, f"{number}"))
    return checkpoint_of(catalog.load_table(LOGS))


def known(table: Table) -> Known:
    """All that is said of each live file."""
    return {
        each.file.file_path: (
            each.snapshot_id,
            each.sequence,
            each.file_sequence,
            each.file.record_count,
            tuple(each.file.partition[number] for number in range(2)),
            dict(each.file.lower_bounds),
            dict(each.file.upper_bounds),
            dict(each.file.null_value_counts),
            list(each.file.split_offsets or ()),
        )
        for each in live_files(table)
    }


def days(table: Table) -> list[list[int]]:
    """Of the entries of each manifest, as they follow each other."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [
        [entry.data_file.partition[1] for entry in manifest.fetch_manifest_entry(table.io)]
        for manifest in snapshot.manifests(table.io)
    ]


def bodies(catalog: Catalog) -> list[str]:
    found: list[str] = catalog.load_table(LOGS).scan(selected_fields=("body",)).to_arrow()["body"].to_pylist()
    return sorted(found)


def test_small_manifests_become_one_in_which_files_follow_by_day(
    catalog: Catalog, committer: Committer, landed: Checkpoint
) -> None:
    before, rows = known(landed.table), bodies(catalog)
    done = rewrite_manifests(committer, landed.table, 11)
    assert done is not None
    now = checkpoint_of(catalog.load_table(LOGS))
    assert (now.landed, now.position) == (landed.landed, landed.position)
    assert known(now.table) == before
    assert bodies(catalog) == rows
    (manifest,) = days(now.table)
    assert manifest == sorted(manifest)
    snapshot = now.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id == done.snapshot_id
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    counts = snapshot.summary.additional_properties
    assert (counts["manifests-created"], counts["manifests-replaced"]) == ("1", "12")
    assert (counts["total-data-files"], counts["total-records"]) == ("24", "48")
    (written,) = snapshot.manifests(now.table.io)
    assert written.min_sequence_number == min(each[1] for each in before.values())
    assert written.existing_files_count == 24


def test_few_manifests_are_left_alone(catalog: Catalog, committer: Committer, landed: Checkpoint) -> None:
    assert rewrite_manifests(committer, landed.table, 12) is None
    assert catalog.load_table(LOGS).metadata == landed.table.metadata


def test_manifests_are_cut_and_those_that_are_full_are_left_alone(
    catalog: Catalog, committer: Committer, landed: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_MANIFEST", 10)
    monkeypatch.setattr(manifests, "SMALL_MANIFEST", 5)
    before = known(landed.table)
    assert rewrite_manifests(committer, landed.table, 5) is not None
    table = catalog.load_table(LOGS)
    assert sorted(map(len, days(table))) == [8, 8, 8]
    assert rewrite_manifests(committer, table, 0) is None
    for number in range(3):
        land(catalog, ("acme", DAY, f"new {number}"))
    assert rewrite_manifests(committer, catalog.load_table(LOGS), 2) is not None
    table = catalog.load_table(LOGS)
    assert sorted(map(len, days(table))) == [3, 8, 8, 8]
    assert {path: each for path, each in known(table).items() if path in before} == before


def test_what_says_that_files_went_goes_itself(
    catalog: Catalog, committer: Committer, landed: Checkpoint
) -> None:
    gone = [each.file for each in live_files(landed.table)][::2]
    committer.overwrite(landed.table, gone, [], lambda position: f"{position}-12")
    rewrite_manifests(committer, catalog.load_table(LOGS), 0)
    table = catalog.load_table(LOGS)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    found = [
        entry.status
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    assert found == [ManifestEntryStatus.EXISTING] * 12
    assert len(bodies(catalog)) == 24


def test_a_landing_in_between_is_waited_out_and_what_was_written_is_used(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[int] = []
    real = manifests.read_entries
    monkeypatch.setattr(manifests, "read_entries", lambda io, of: [reads.append(len(of)), real(io, of)][1])
    inject(catalog, monkeypatch, first(lambda: land(other, ("acme", DAY, "new"))))
    done = rewrite_manifests(committer, landed.table, 5)
    assert done is not None
    assert done.attempts == 2
    assert reads == [12]
    assert sorted(map(len, days(catalog.load_table(LOGS)))) == [1, 24]
    assert checkpoint_of(catalog.load_table(LOGS)).position == f"{landed.position}+1"


def test_files_that_are_replaced_in_between_stay_replaced(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live = [each.file for each in live_files(landed.table)]
    gone = [file for file in live if file.partition[0] == "acme" and file.partition[1] == DAY + 1]
    rival = Committer(other, deadline_seconds=60)
    inject(
        catalog,
        monkeypatch,
        first(lambda: rival.overwrite(landed.table, gone, [], lambda position: f"{position}-2")),
    )
    done = rewrite_manifests(committer, landed.table, 5)
    assert done is not None
    assert done.attempts == 2
    table = catalog.load_table(LOGS)
    assert known(table).keys() == {file.file_path for file in live} - {file.file_path for file in gone}
    assert checkpoint_of(table).position == f"{landed.position}-2"


@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
@pytest.mark.parametrize("lands", [False, True])
def test_a_lost_answer_is_settled_by_looking(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    lands: bool,
) -> None:
    made = inject(
        catalog, monkeypatch, then(answer, lambda: land(other, ("acme", DAY, "new")) if lands else None)
    )
    before = known(landed.table)
    done = rewrite_manifests(committer, landed.table, 5)
    assert done is not None
    assert len(made) == done.attempts == (1 if answer is applied_and_lost else 2)
    table = catalog.load_table(LOGS)
    assert {path: each for path, each in known(table).items() if path in before} == before
    assert len(days(table)) == 1 + lands


def test_nothing_is_committed_on_top_of_a_table_that_was_rolled_back(
    catalog: Catalog, committer: Committer, landed: Checkpoint
) -> None:
    move(landed.table, "main", landed.table.metadata.snapshots[3].snapshot_id)
    with pytest.raises(DataLost):
        rewrite_manifests(committer, catalog.load_table(LOGS), 1)


def test_partitions_are_the_tenant_and_the_day_in_days_since_1970(landed: Checkpoint) -> None:
    found = {(each.file.partition[0], each.file.partition[1]) for each in live_files(landed.table)}
    assert ("other", DAY + 2) in found
    assert all(isinstance(tenant, str) and isinstance(day, int) for tenant, day in found)


def partitions_read(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The days of every manifest that a change reads."""
    found: list[set[int]] = []
    real = staging.read_entries

    def counted(io: Any, of: Any) -> Any:
        read = real(io, of)
        found.extend({entry.data_file.partition[1] for entry in each} for each in read)
        return read

    monkeypatch.setattr(staging, "read_entries", counted)
    return found


def test_of_manifests_that_are_merged_by_day_a_change_reads_only_those_of_its_day(
    catalog: Catalog, committer: Committer, landed: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_MANIFEST", 8)
    rewrite_manifests(committer, landed.table, 5)
    table = catalog.load_table(LOGS)
    assert days(table) == [[DAY] * 8, [DAY + 1] * 8, [DAY + 2] * 8]
    gone = [each.file for each in live_files(table) if each.file.partition[1] == DAY + 1]
    assert len(gone) == 8
    read = partitions_read(monkeypatch)
    committer.overwrite(table, gone, [], lambda position: f"{position}-8")
    assert read == [{DAY + 1}]
    assert {each.file.partition[1] for each in live_files(catalog.load_table(LOGS))} == {DAY, DAY + 2}


@pytest.mark.parametrize("tenant", ["acme", "other", "zenith"])
def test_a_change_finds_its_files_by_their_partition_or_without(
    catalog: Catalog, committer: Committer, landed: Checkpoint, tenant: str
) -> None:
    live = [each.file for each in live_files(landed.table)]
    gone = [file for file in live if file.partition[0] == tenant]
    for file in gone[::2]:
        del file._spec_id  # as of one that did not come from a manifest
    committer.overwrite(landed.table, gone, [], lambda position: position)
    left = {each.file.partition[0] for each in live_files(catalog.load_table(LOGS))}
    assert left == {"acme", "other", "zenith"} - {tenant}


def test_manifests_that_are_full_are_not_merged_with_those_that_are_not(
    catalog: Catalog, committer: Committer, landed: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what came today would be named beside what came last year, and each change would write it all."""
    monkeypatch.setattr(entries, "ENTRIES_PER_MANIFEST", 8)
    monkeypatch.setattr(staging, "SMALL_MANIFEST", 4)
    rewrite_manifests(committer, landed.table, 5)
    for number in range(2):
        land(catalog, ("acme", DAY + 9, f"new {number}"))
    table = catalog.load_table(LOGS)
    live = [each.file for each in live_files(table)]
    gone = [next(file for file in live if file.partition[1] == day) for day in (DAY, DAY + 9)]
    committer.overwrite(table, gone, [], lambda position: position)
    found = sorted(days(catalog.load_table(LOGS)))  # one that only says what went is empty
    assert found == [[], [DAY] * 7, [DAY + 1] * 8, [DAY + 2] * 8, [DAY + 9]]
