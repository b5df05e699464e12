"""Retention of unreadable data: rows of the table `set_aside`, and copies of segments in the
write-ahead log.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Conflict
from frazil.lake.catalog import full_name
from frazil.lake.clock import clock_hold_reason, record_time
from frazil.lake.commits.commit import committer_of
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import BY_RETENTION
from frazil.lake.tables import evolve
from frazil.pipeline.land.set_aside import write_set_aside
from frazil.pipeline.maintain.report import TaskReport, Totals, bytes_of
from frazil.pipeline.maintain.retain.rules import RetentionRun
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.storage import Store
from frazil.tables import SET_ASIDE
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store

COPIES = "set-aside/"
"""The log's folder for copies of unreadable segments."""

Mask = Callable[[pa.Table], pa.ChunkedArray]


def retain_set_aside(config: Config, catalog: Catalog, table: Table, run: RetentionRun) -> TaskReport:
    """Removes old rows, then the copies that they refer to. If the process is killed in between, the next
    round finds the copies without a row.
    """
    begin = time.monotonic()
    settings = config.maintain.retention
    seconds, clock, dry_run = settings.set_aside_seconds, run.clock, run.dry_run
    now = run.trusted_time(table.metadata, settings)
    is_old = _older_than(now - seconds)
    held = ""
    if now != clock and _Change.of(table, _older_than(clock - seconds), write=None).removed:
        held = clock_hold_reason(SET_ASIDE.name, now, clock)
    if not dry_run and now == clock:
        record_time(catalog, table, now)
    store = None if config.wal.type == "kafka" else open_store(config)
    # Listed before the table is loaded: a copy whose segment is deleted already has its row by then.
    unreferenced = [] if store is None else list(_without_segment(store, now - seconds))
    table = catalog.load_table(table.name())
    change = (
        _Change.of(table, is_old, write=None)
        if dry_run
        else drop_rows(config, catalog, table, is_old, BY_RETENTION)
    )
    copies: list[str] = []
    if store is not None:
        copies = sorted(change.locations - change.kept)
        if not dry_run and copies:
            delete_copies(store, copies)
        known = change.kept | change.locations
        without_row = [path for path in unreferenced if path.removesuffix(".json") not in known]
        if not dry_run and without_row:
            store.delete_all(without_row)
        copies += without_row
    return TaskReport(
        "retention",
        SET_ASIDE.name,
        dry_run,
        files_in=len(change.removed),
        files_out=change.rewritten,
        bytes_in=bytes_of(change.removed),
        bytes_out=bytes_of(change.added),
        rows_removed=change.counts.total(),
        seconds=time.monotonic() - begin,
        detail={"copies_deleted": len(copies)},
        held=held,
    )


def _older_than(seconds: float) -> Mask:
    oldest = pa.scalar(datetime.datetime.fromtimestamp(seconds, datetime.UTC))
    return lambda rows: pc.less(rows["time"], oldest)


@dataclass
class _Change:
    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    rewritten: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    locations: set[str] = field(default_factory=set)
    """The copies that removed rows refer to."""
    kept: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, table: Table, mask_of: Mask, *, write: Config | None) -> _Change:
        """Reads all files. With `write`, also rewrites files that keep some rows; the new files are
        durable.
        """
        change = cls()
        for live in live_files(table):
            with table.io.new_input(live.file.file_path).open() as stream:
                rows = pq.ParquetFile(stream).read()
            mask = pc.fill_null(mask_of(rows), False)
            removed, kept = rows.filter(mask), rows.filter(pc.invert(mask))
            change.kept |= _locations(kept)
            if not removed.num_rows:
                continue
            change.removed.append(live.file)
            change.counts.update(removed["source"].to_pylist())
            change.locations |= _locations(removed)
            if kept.num_rows:
                change.rewritten += 1
                if write is not None:
                    change.added += write_set_aside(write, table, kept)
        return change


def drop_rows(
    config: Config, catalog: Catalog, table: Table, mask_of: Mask, facts: Mapping[str, str] | None = None
) -> _Change:
    """Removes rows from `set_aside`, but not their copies. Raises Conflict if another process changed the
    table.
    """
    began = time.time()
    try:
        table = evolve(table, SET_ASIDE)  # an older release may have created the table
    except CommitFailedException as error:
        raise Conflict(full_name(table), str(error)) from None
    change = _Change.of(table, mask_of, write=config)
    if change.removed:
        rewrite = Rewrite(
            table, committer_of(config, catalog), Totals(), "rows removed from set_aside", facts=facts
        )
        if rewrite.commit([Swap(change.removed, change.added, began, change.counts)]) is None:
            raise Conflict(full_name(table), "files of the table were changed by another process; try again")
    return change


def delete_copies(store: Store, locations: list[str]) -> None:
    store.delete_all([path for location in locations for path in (location, f"{location}.json")])


def _locations(rows: pa.Table) -> set[str]:
    return {location for location in rows["location"].to_pylist() if location is not None}


def _without_segment(store: Store, before_seconds: float) -> Iterator[str]:
    """Yields copies whose segments are deleted. If the segment still exists, a landing may be setting it
    aside just now.
    """
    reader = WalReader(store)
    for entry in store.list(COPIES):
        location = entry.path.removesuffix(".json")
        name = SegmentName.parse(location.removeprefix(COPIES))
        if name is None or _began(name) >= before_seconds:
            continue
        first = next(reader.stream(name.signal, name.stream, name.sequence), None)
        if first is None or first.name != name:
            yield entry.path


def _began(name: SegmentName) -> float:
    """Returns when the stream began, from its name. Its segments are not older."""
    moment = datetime.datetime.strptime(name.stream[:15], "%Y%m%dT%H%M%S")
    return moment.replace(tzinfo=datetime.UTC).timestamp()
