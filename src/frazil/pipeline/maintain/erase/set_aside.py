"""Erasure of data that could not be read or cannot land. Its tenants are unknown, so it is erased completely
or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Conflict, Refused
from frazil.lake.catalog import table_or_none
from frazil.lake.commits.commit import Committer, read_checkpoint
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import ERASED
from frazil.lake.tags import kind_of
from frazil.lake.upkeep.expire import expire
from frazil.lake.upkeep.orphans import find_orphans
from frazil.pipeline.maintain.erase.table import pinned_message
from frazil.pipeline.maintain.retain.set_aside import COPIES, drop_rows
from frazil.position import landing_position
from frazil.storage import Store
from frazil.tables import SET_ASIDE, Signal
from frazil.wal.reader import WalReader

_ALL = float("inf")


class SetAsideEraser:
    """Erases the table `set_aside`, copies of unreadable segments, and segments that cannot land. `store` is
    None with Kafka: unreadable messages are in the table's rows.
    """

    def __init__(self, config: Config, catalog: Catalog, store: Store | None) -> None:
        self._config = config
        self._catalog = catalog
        self._store = store
        self._namespace = tuple(config.lake.namespace.split("."))

    def problem(self, signals: Sequence[Signal]) -> str:
        """Returns why an erasure cannot be proven while there is such data; empty if there is none."""
        items = self._files() + self._copies() + sum(len(self._strays(signal)) for signal in signals)
        if not items:
            return ""
        return (
            f"{items:,} items were set aside or cannot land, and may hold rows of any tenant: see the table "
            "set_aside and `frazil verify`. --drop-set-aside removes all of them"
        )

    def pinning(self) -> list[str]:
        """Returns the tags of users and readers that keep rows of `set_aside`."""
        table = self._table(SET_ASIDE.name)
        if table is None:
            return []
        return sorted(
            name
            for name, ref in table.metadata.refs.items()
            if kind_of(name) in ("incident", "reader")
            and live_files(table, table.metadata.snapshot_by_id(ref.snapshot_id))
        )

    def streams(self, signals: Sequence[Signal]) -> set[str]:
        """Returns the streams with segments that cannot land."""
        return {path.split("/")[1] for signal in signals for path in self._strays(signal)}

    def delete_strays(self, signals: Sequence[Signal]) -> int:
        """Deletes segments that cannot land; they were never acknowledged. Returns their number."""
        deleted = 0
        for signal in signals:
            if self._store is not None and (strays := self._strays(signal)):
                self._store.delete_all(strays)
                deleted += len(strays)
        return deleted

    def drop(self, erasure: str, *, drop_tags: bool) -> int:
        """Removes all rows, old snapshots and copies. Returns the number of rows. A concurrent landing that
        sets data aside is fenced and repeats it.
        """
        dropped = 0
        while (table := self._table(SET_ASIDE.name)) is not None:
            try:
                change = drop_rows(self._config, self._catalog, table, _every, {ERASED: erasure})
                dropped += change.counts.total()
                self._expire_snapshots(drop_tags=drop_tags)
            except Conflict:
                continue  # data was set aside, or a tag was created, at the same time
            break
        if self._store is not None:
            self._store.delete_all([entry.path for entry in self._store.list(COPIES)])
        return dropped

    def _expire_snapshots(self, *, drop_tags: bool) -> None:
        table = self._catalog.load_table((*self._namespace, SET_ASIDE.name))
        names = self.pinning()
        if names and not drop_tags:
            raise Refused(pinned_message({SET_ASIDE.name: names}))
        refs, snapshots = table.metadata.refs, table.metadata.snapshots
        current = {ref.snapshot_id for name, ref in refs.items() if kind_of(name) == "reserved"}
        drop = [name for name, ref in refs.items() if ref.snapshot_id not in current]
        ids = [each.snapshot_id for each in snapshots if each.snapshot_id not in current]
        expire(self._catalog, table, ids, drop_tags=drop, drop_old_metadata=True)
        if unreferenced := self._unreferenced(table):
            # Moving `landed` prevents the commit of files that are being written now.
            seconds = self._config.land.commit_deadline_seconds
            Committer(self._catalog, deadline_seconds=seconds).overwrite(table, [], [], lambda at: at)
            LakeFileIO(table.io.properties).delete_all(unreferenced & self._unreferenced(table))

    def _unreferenced(self, table: Table) -> set[str]:
        return {each.path for each in find_orphans(table, 0.0, _ALL) if "/data/" in each.path}

    def _files(self) -> int:
        """Returns the number of data files in all snapshots."""
        table = self._table(SET_ASIDE.name)
        snapshots = [] if table is None else table.metadata.snapshots
        found: set[str] = set()
        for snapshot in snapshots:
            assert table is not None  # noqa: S101
            found |= {each.file.file_path for each in live_files(table, snapshot)}
        return len(found)

    def _copies(self) -> int:
        entries = () if self._store is None else self._store.list(COPIES)
        return sum(not entry.path.endswith(".json") for entry in entries)

    def _strays(self, signal: Signal) -> list[str]:
        if self._store is None or self._table(signal) is None:
            return []
        position = landing_position(read_checkpoint(self._catalog, (*self._namespace, signal)).position)
        return [each.name.path for each in WalReader(self._store).strays(signal, position.wal)]

    def _table(self, name: str) -> Table | None:
        return table_or_none(self._catalog, self._config.lake.namespace, name)


def _every(rows: pa.Table) -> pa.Array:
    return pa.array([True] * rows.num_rows, pa.bool_())
