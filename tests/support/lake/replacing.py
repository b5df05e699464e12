"""A table of known files, the changes that replace them, and what its manifests say."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.commits.commit import Committed, Committer, read_checkpoint
from frazil.lake.live_files import live_files
from tests.support.lake.commit_faults import IDENTIFIER, data_file


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
