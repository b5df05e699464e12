"""What could not be read, or can never land: nobody knows whose rows it holds, so all of it goes or none."""

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
from frazil.pipeline.maintain.erase.table import pinned
from frazil.pipeline.maintain.retain.set_aside import COPIES, drop_rows
from frazil.position import landing_position
from frazil.storage import Store
from frazil.tables import SET_ASIDE, Signal
from frazil.wal.reader import WalReader

_ALL = float("inf")


class SetAside:
    """`store` is None with Kafka, whose messages are in the table's rows."""

    def __init__(self, config: Config, catalog: Catalog, store: Store | None) -> None:
        self._config = config
        self._catalog = catalog
        self._store = store
        self._namespace = tuple(config.lake.namespace.split("."))

    def refuse(self, signals: Sequence[Signal]) -> None:
        """Refused if there is anything."""
        items = self._files() + self._copies() + sum(len(self._strays(signal)) for signal in signals)
        if items:
            raise Refused(
                f"{items:,} items are set aside or can never land, and nobody knows whose rows they hold: "
                "see the table set_aside and `frazil verify`. --drop-set-aside removes all of them"
            )

    def pinning(self) -> list[str]:
        """Tags of people and readers that keep something that was set aside."""
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
        """Those that hold such segments."""
        return {path.split("/")[1] for signal in signals for path in self._strays(signal)}

    def delete_strays(self, signals: Sequence[Signal]) -> int:
        """Segments that can never land. Nobody was told that they are durable."""
        deleted = 0
        for signal in signals:
            if self._store is not None and (strays := self._strays(signal)):
                self._store.delete_all(strays)
                deleted += len(strays)
        return deleted

    def drop(self, erasure: str, *, drop_tags: bool) -> int:
        """All rows, all that the table was, and all copies; how many rows. Landing that sets something aside
        just now is fenced, and does it again.
        """
        dropped = 0
        while (table := self._table(SET_ASIDE.name)) is not None:
            try:
                change = drop_rows(self._config, self._catalog, table, _every, {ERASED: erasure})
                dropped += change.counts.total()
                self._forget_past(drop_tags=drop_tags)
            except Conflict:
                continue  # something was set aside, or a tag came, just then
            break
        if self._store is not None:
            self._store.delete_all([entry.path for entry in self._store.list(COPIES)])
        return dropped

    def _forget_past(self, *, drop_tags: bool) -> None:
        table = self._catalog.load_table((*self._namespace, SET_ASIDE.name))
        names = self.pinning()
        if names and not drop_tags:
            raise Refused(pinned({SET_ASIDE.name: names}))
        refs, snapshots = table.metadata.refs, table.metadata.snapshots
        standing = {ref.snapshot_id for name, ref in refs.items() if kind_of(name) == "reserved"}
        drop = [name for name, ref in refs.items() if ref.snapshot_id not in standing]
        ids = [each.snapshot_id for each in snapshots if each.snapshot_id not in standing]
        expire(self._catalog, table, ids, drop_tags=drop, drop_old_metadata=True)
        if lying_about := self._unneeded(table):
            # Whoever wrote them and has not committed yet cannot any more, once `landed` has moved.
            seconds = self._config.land.commit_deadline_seconds
            Committer(self._catalog, deadline_seconds=seconds).overwrite(table, [], [], lambda at: at)
            LakeFileIO(table.io.properties).delete_all(lying_about & self._unneeded(table))

    def _unneeded(self, table: Table) -> set[str]:
        return {each.path for each in find_orphans(table, 0.0, _ALL) if "/data/" in each.path}

    def _files(self) -> int:
        """Of all that the table is and was."""
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
