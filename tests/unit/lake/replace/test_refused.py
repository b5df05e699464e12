"""Tables that are not changed: rolled back, gone, or with delete files."""

from __future__ import annotations

import shutil

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from frazil.errors import Conflict, DataLost, Refused
from frazil.lake.commits.commit import Checkpoint, Committer
from frazil.lake.commits.staging import Staging
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.tables import SET_ASIDE
from tests.support.lake.commit_faults import IDENTIFIER, data_file, first, inject, move, sources
from tests.support.lake.replacing import CHANGES, files_of, less


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
        inject(catalog, monkeypatch, first(roll_back))
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
