"""Erasure: rows of a tenant go from the tables, from all that the tables were, and from the write-ahead log.

The order makes it safe to be killed anywhere and done again: what was acked is landed first, the tables lose
the rows, then their past does, then the log, then what lies about. Whoever comes again finds what is left.
"""

from __future__ import annotations

import datetime
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.errors import Conflict, Refused
from frazil.lake.catalog import catalog_errors
from frazil.lake.commit import read_checkpoint
from frazil.lake.erased import ERASED
from frazil.lake.expire import expire
from frazil.lake.files import LakeFileIO
from frazil.lake.live import live_files
from frazil.lake.orphans import find_orphans
from frazil.lake.tags import kind_of
from frazil.pipeline.land.flush import land_all
from frazil.pipeline.maintain.erase_check import checked_predicates, checked_tables, checked_tenant
from frazil.pipeline.maintain.erase_kafka import delete_landed, kept_by_kafka
from frazil.pipeline.maintain.erase_report import Erasure
from frazil.pipeline.maintain.erase_table import Found, TableEraser, pinned
from frazil.pipeline.maintain.retain_set_aside import COPIES, drop_rows
from frazil.pipeline.maintain.runner import Runner
from frazil.pipeline.metrics import Metrics
from frazil.query.predicate import parse_predicate
from frazil.tables import SET_ASIDE, Signal, landed_spec
from frazil.wal.journal import promoted
from frazil.wal.local import LocalStore
from frazil.wal.position import Position
from frazil.wal.reader import Segment, WalReader
from frazil.wal.store import Store, open_store
from frazil.wal.sweep import leave_mark, sweep

LOOK_SECONDS = 30.0
"""Between a mark in the log and the deletion of what lies before it: longer than anybody looks at the log."""
_PROOFS_MAX = 3

log = structlog.get_logger("frazil.maintain")


@dataclass(frozen=True)
class Request:
    """What an operator asks for. `tables`: all, if there is none."""

    tenant: str
    where: str
    tables: Sequence[str] = ()
    drop_tags: bool = False
    drop_set_aside: bool = False
    delete_kafka_records: bool = False
    yes: bool = False
    """Also if everything that the tenant has matches."""
    dry_run: bool = False


class EverythingMatches(Refused):
    """Every row of the tenant would go. Whoever means it says so."""

    def __init__(self, message: str, *, rows: int) -> None:
        super().__init__(message)
        self.rows = rows


def erase(
    config: Config,
    catalog: Catalog,
    request: Request,
    runner: Runner,
    start_spark: Callable[[], SparkSession],
    *,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    sync: Callable[[], None] = os.sync,
) -> Erasure:
    """Raises Refused, QueryInvalid or QueryRefused before anything is changed, if it must not be done so.

    May fail or be killed anywhere and be done again. Others may land and query meanwhile; another maintainer
    must not run (the lease), as it might take a file for lost that it has just committed.
    """
    with catalog_errors():
        return _Erasing(config, catalog, request, runner, start_spark, say, clock, sleep, sync).run()


class _Erasing:
    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        request: Request,
        runner: Runner,
        start_spark: Callable[[], SparkSession],
        say: Callable[[str], None],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        sync: Callable[[], None],
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._request = request
        self._runner = runner
        self._start_spark = start_spark
        self._say = say
        self._clock = clock
        self._sleep = sleep
        self._sync = sync
        self._store: Store | None = None if config.wal.type == "kafka" else open_store(config)
        self._namespace = tuple(config.lake.namespace.split("."))
        self._begin = time.monotonic()
        self._erasure = Erasure(uuid.uuid4().hex, request.tenant, int(clock() * 1e6), dry_run=request.dry_run)

    def run(self) -> Erasure:
        signals = checked_tables(self._request.tables)
        predicates = checked_predicates(self._config, self._request.where, signals, self._request.tables)
        before_cut = f"({self._request.where}\n) AND received_time < TIMESTAMPTZ '{self._cut}'"
        checked_tenant(self._config, self._catalog, self._request.tenant)
        self._check_set_aside(signals)
        if any(predicate.is_constant for predicate in predicates.values()) and not self._request.yes:
            raise EverythingMatches(
                "the condition names no column: it holds for all rows or for none. --yes, if that is meant",
                rows=-1,
            )
        if not self._request.dry_run:
            if self._request.drop_set_aside:
                self._delete_strays(signals)
            self._say("landing what the write-ahead log holds")
            land_all(self._config, self._catalog, self._start_spark, Metrics(), sleep=self._sleep)
            self._check_set_aside(signals)
        erasers = {
            signal: TableEraser(
                self._config,
                self._catalog,
                self._runner,
                signal,
                self._request.tenant,
                predicates[signal],
                parse_predicate(before_cut, landed_spec(signal, promoted(self._config))),
                self._erasure.id,
            )
            for signal in signals
            if self._table(signal) is not None
        }
        self._erasure.tables = [eraser.report for eraser in erasers.values()]
        found = self._looked(erasers)
        self._erasure.outside = self._outside(signals)
        if not self._request.dry_run:
            self._do(erasers)
        else:
            for signal, eraser in erasers.items():
                eraser.report.rows_removed = found[signal].matches
                eraser.report.rows_of_tenant = found[signal].rows
                eraser.report.files_rewritten = found[signal].files_part
                eraser.report.files_dropped = found[signal].files_whole
        self._erasure.seconds = time.monotonic() - self._begin
        return self._erasure

    @property
    def _cut(self) -> str:
        cut = datetime.datetime.fromtimestamp(self._erasure.cut_unix_micros / 1e6, datetime.UTC)
        return f"{cut:%Y-%m-%d %H:%M:%S.%f}+00"

    def _looked(self, erasers: dict[Signal, TableEraser]) -> dict[Signal, Found]:
        """Searches everything, and refuses what needs a decision. Nothing was changed so far."""
        found: dict[Signal, Found] = {}
        for signal, eraser in erasers.items():
            self._say(f"searching {signal}")
            found[signal] = eraser.look()
        request = self._request
        tags: dict[str, Sequence[str]] = {signal: each.tags for signal, each in found.items() if each.tags}
        if request.drop_set_aside and (names := self._pinning_set_aside()):
            tags[SET_ASIDE.name] = names
        if tags and not request.drop_tags and not request.dry_run:
            raise Refused(pinned(tags))
        rows, matches = (
            sum(each.rows for each in found.values()),
            sum(each.matches for each in found.values()),
        )
        if matches and matches == rows and not request.yes and not request.dry_run:
            raise EverythingMatches(
                f"all {rows:,} rows of tenant {request.tenant} in {', '.join(found)} match. --yes, if that "
                "is meant",
                rows=rows,
            )
        return found

    def _do(self, erasers: dict[Signal, TableEraser]) -> None:
        for _ in range(_PROOFS_MAX):
            for signal, eraser in erasers.items():
                self._say(f"erasing from {signal}")
                eraser.remove()
                eraser.expire(drop_tags=self._request.drop_tags)
            if self._request.drop_set_aside:
                self._drop_set_aside()
            left = self._sweep(list(erasers))
            for eraser in erasers.values():
                eraser.delete_unreferenced()
            self._make_durable()
            self._say("searching again")
            proofs = [eraser.prove(left[signal]) for signal, eraser in erasers.items()]
            if all(proof.holds for proof in proofs):
                break
        log.info(
            "erased", id=self._erasure.id, rows=self._erasure.rows_removed, proven=self._erasure.is_proven
        )

    # The write-ahead log

    def _sweep(self, signals: Sequence[Signal]) -> dict[Signal, int]:
        """Deletes what has landed from the log. How much of it is left of each signal."""
        if self._store is None:
            self._delete_kafka_records(signals)
            return dict.fromkeys(signals, 0)
        positions = {signal: self._position(signal) for signal in signals}
        due = {signal: at for signal, at in positions.items() if self._below(signal, at)}
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned(self._clock())
        if due:
            self._make_durable()  # what is deleted now must not be the only copy
            for signal, position in due.items():
                leave_mark(self._store, signal, position, self._clock())
            self._say("waiting for queries that look at the write-ahead log")
            self._sleep(LOOK_SECONDS)
        for signal, position in due.items():
            deleted = sweep(self._store, signal, position)
            report = next(each for each in self._erasure.tables if each.table == signal)
            report.wal_segments_deleted += len(deleted)
        return {signal: self._below(signal, at) for signal, at in positions.items()}

    def _delete_strays(self, signals: Sequence[Signal]) -> None:
        """Nobody was told that they are durable, and they can never land."""
        if self._store is None:
            return
        for signal in signals:
            if self._table(signal) is not None:
                strays = [each.name.path for each in self._strays(signal)]
                self._store.delete_all(strays)
                self._erasure.set_aside_dropped += len(strays)

    def _strays(self, signal: Signal) -> list[Segment]:
        assert self._store is not None  # noqa: S101
        return list(WalReader(self._store).strays(signal, self._position(signal)))

    def _below(self, signal: Signal, position: Position) -> int:
        assert self._store is not None  # noqa: S101
        return sum(
            segment.name.stream in position.streams
            and segment.name.sequence < position.streams[segment.name.stream].sequence
            for segment in WalReader(self._store).segments(signal)
        )

    def _position(self, signal: Signal) -> Position:
        return Position.from_text(read_checkpoint(self._catalog, (*self._namespace, signal)).position)

    def _delete_kafka_records(self, signals: Sequence[Signal]) -> None:
        if self._request.delete_kafka_records:
            for signal in signals:
                deleted = delete_landed(self._config, signal, self._position(signal))
                self._erasure.kafka_records_deleted.update(deleted)

    # What could not be read

    def _check_set_aside(self, signals: Sequence[Signal]) -> None:
        """Nobody knows whose rows are in what cannot be read."""
        if self._request.drop_set_aside or self._request.dry_run:
            return
        items = self._set_aside_items(signals)
        if items:
            raise Refused(
                f"{items:,} items are set aside or can never land, and nobody knows whose rows they hold: "
                "see the table set_aside and `frazil verify`. --drop-set-aside removes all of them"
            )

    def _set_aside_items(self, signals: Sequence[Signal]) -> int:
        table = self._table(SET_ASIDE.name)
        files: set[str] = set()
        if table is not None:
            for snapshot in table.metadata.snapshots:
                for manifest in snapshot.manifests(table.io):
                    files |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
        items = len(files)
        if self._store is not None:
            items += sum(not entry.path.endswith(".json") for entry in self._store.list(COPIES))
            items += sum(len(self._strays(signal)) for signal in signals if self._table(signal) is not None)
        return items

    def _drop_set_aside(self) -> None:
        """All rows, all that the table was, and all copies. Landing that sets something aside just now is
        fenced, and does it again.
        """
        while (table := self._table(SET_ASIDE.name)) is not None:
            everything = lambda rows: pa.array([True] * rows.num_rows)  # noqa: E731
            try:
                change = drop_rows(self._config, self._catalog, table, everything, {ERASED: self._erasure.id})
                self._erasure.set_aside_dropped += change.counts.total()
                self._forget_past(SET_ASIDE.name)
            except Conflict:
                continue  # something was set aside, or a tag came, just then
            break
        if self._store is not None:
            copies = [entry.path for entry in self._store.list(COPIES)]
            self._store.delete_all(copies)

    def _pinning_set_aside(self) -> list[str]:
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

    def _forget_past(self, name: str) -> None:
        table = self._table(name)
        if table is None:
            return
        names = self._pinning_set_aside()
        if names and not self._request.drop_tags:
            raise Refused(pinned({name: names}))
        refs, snapshots = table.metadata.refs, table.metadata.snapshots
        standing = {refs[each].snapshot_id for each in refs if kind_of(each) == "reserved"}
        drop = [each for each, ref in refs.items() if ref.snapshot_id not in standing]
        ids = [each.snapshot_id for each in snapshots if each.snapshot_id not in standing]
        expire(self._catalog, table, ids, drop_tags=drop, forget=True)
        data = [each.path for each in find_orphans(table, 0.0, float("inf")) if "/data/" in each.path]
        LakeFileIO(table.io.properties).delete_all(data)

    # Beside that

    def _table(self, name: str) -> Table | None:
        try:
            return self._catalog.load_table((*self._namespace, name))
        except NoSuchTableError:
            return None

    def _make_durable(self) -> None:
        if "://" not in self._config.warehouse or self._config.warehouse.startswith("file:"):
            self._sync()

    def _outside(self, signals: Sequence[Signal]) -> tuple[str, ...]:
        places = [
            "backups, and copies that other systems have made",
            "answers that were downloaded, and what collectors and applications keep themselves",
            "temporary files of processes that were killed, on the machines where they ran",
        ]
        if self._config.warehouse.startswith("s3://") or self._config.wal.type == "s3":
            places.append("earlier versions of objects, where a bucket keeps versions")
        if self._store is None:
            places += kept_by_kafka(self._config, signals, deleted=self._request.delete_kafka_records)
        return tuple(places)
