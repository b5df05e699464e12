"""A small table with a past: landings, files replaced, tags; and what each snapshot must go on to show."""

from __future__ import annotations

import copy
import datetime
import itertools
from collections import Counter
from collections.abc import Collection

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.commits.commit import Committer, read_checkpoint
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.tables import SET_ASIDE

IDENTIFIER = ("otel", "set_aside")


def rows_of(*sources: str) -> pa.Table:
    now = datetime.datetime.now(datetime.UTC)
    rows = [
        {"time": now, "table_name": "logs", "source": source, "reason": "", "bytes": 1} for source in sources
    ]
    return pa.Table.from_pylist(rows, schema=SET_ASIDE.arrow_schema)


class History:
    """`shown` is what each snapshot showed when it was made."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.shown: dict[int, Counter[str]] = {}
        self._numbers = itertools.count(1)
        open_table(catalog, "otel", SET_ASIDE, "at 0")
        self._note()

    def through(self, catalog: Catalog) -> History:
        """The same table, seen and changed through another connection."""
        seen = copy.copy(self)
        seen.catalog = catalog
        return seen

    @property
    def table(self) -> Table:
        return self.catalog.load_table(IDENTIFIER)

    @property
    def files(self) -> LakeFileIO:
        return LakeFileIO(self.table.io.properties)

    @property
    def ids(self) -> list[int]:
        """Of all snapshots, the oldest first."""
        return [snapshot.snapshot_id for snapshot in self.table.metadata.snapshots]

    @property
    def main(self) -> int:
        found = self.table.metadata.current_snapshot_id
        assert found is not None
        return found

    def land(self, *sources: str, write_only: bool = False) -> int:
        checkpoint, number = read_checkpoint(self.catalog, IDENTIFIER), next(self._numbers)
        layout = Layout.of(checkpoint.table, SET_ASIDE, 1)
        file = write_part(layout, Part(None, None, rows_of(*(sources or (str(number),)))), layout.batch)
        if not write_only:
            Committer(self.catalog, deadline_seconds=60).append(checkpoint, [file], f"at {number}")
            self._note()
        return self.main

    def rewrite(self) -> int:
        """All rows in one new file, as compaction does it."""
        table, files = self.table, [each.file for each in live_files(self.table)]
        Committer(self.catalog, deadline_seconds=60).replace(table, files, [self._all_rows(table)])
        self._note()
        return self.main

    def lose_rows(self) -> int:
        """Those of one file, as retention does it."""
        table = self.table
        file = min((each.file for each in live_files(table)), key=lambda file: file.file_path, default=None)
        if file is not None:
            committer = Committer(self.catalog, deadline_seconds=60)
            committer.overwrite(table, [file], [], lambda position: f"{position}, less")
            self._note()
        return self.main

    def _all_rows(self, table: Table) -> DataFile:
        layout = Layout.of(table, SET_ASIDE, 1)
        return write_part(layout, Part(None, None, rows_of(*self.shown[self.main].elements())), layout.batch)

    def read(self, snapshot_id: int) -> Counter[str]:
        scanned = self.table.scan(snapshot_id=snapshot_id, selected_fields=("source",)).to_arrow()
        return Counter(scanned["source"].to_pylist())

    def assert_kept_are_whole(self) -> None:
        for snapshot_id in self.ids:
            assert self.read(snapshot_id) == self.shown[snapshot_id]

    def names(self) -> set[str]:
        """Of all files of the table."""
        return {found.path.rsplit("/", 1)[-1] for found in self.files.walk(self.table.location())}

    def needed(self, of: Collection[int] | None = None) -> set[str]:
        """What PyIceberg itself says the snapshots need, told without the code that is tested."""
        table = self.table
        needed = set()
        for snapshot in table.metadata.snapshots:
            if of is not None and snapshot.snapshot_id not in of:
                continue
            needed.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                needed.add(manifest.manifest_path)
                needed |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        return {path.rsplit("/", 1)[-1] for path in needed}

    def versions(self) -> set[str]:
        """The metadata files that the table knows."""
        table = self.table
        known = [table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)]
        return {path.rsplit("/", 1)[-1] for path in known}

    def _note(self) -> None:
        self.shown[self.main] = self.read(self.main)
