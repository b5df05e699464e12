"""Erasure: removes rows of a tenant from the tables, from their old snapshots, and from the write-ahead log.

The order makes it safe to kill and repeat an erasure: all durable data is landed first, then rows are removed
from the tables, then from old snapshots, then from the log, then from unreferenced files. A repeated run
finds the rest.
"""

from __future__ import annotations

import datetime
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import DataLost, Refused, StoreUnavailable, Transient
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.lake.commits.commit import read_checkpoint
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.land.flush import land_all
from frazil.pipeline.maintain.erase.check import checked_predicates, checked_tables, checked_tenant
from frazil.pipeline.maintain.erase.derived import DerivedEraser, lacking_days
from frazil.pipeline.maintain.erase.report import Erasure
from frazil.pipeline.maintain.erase.request import EraseRequest, EverythingMatches
from frazil.pipeline.maintain.erase.set_aside import SetAsideEraser
from frazil.pipeline.maintain.erase.table import SearchSummary, TableEraser, pinned_message
from frazil.pipeline.maintain.predicates.match import Predicate, parse_predicate
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner
from frazil.position import KafkaPosition, LandingPosition, WalPosition, landing_position
from frazil.storage import Store
from frazil.storage.local import LocalStore
from frazil.tables import SET_ASIDE, SIGNALS, Signal, TableSpec, derived_specs
from frazil.tables.columns import RECEIVED
from frazil.wal.immediate_delete import delete_landed_segments, write_mark
from frazil.wal.kafka.topics import Topics
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store

QUERY_SECONDS_MAX = 30.0
"""Wait between a mark in the log and the deletion of the segments before it: queries read the log for less
time.
"""
_PROOFS_MAX = 3

log = structlog.get_logger("frazil.maintain")


def erase(
    config: Config,
    catalog: Catalog,
    request: EraseRequest,
    runner: Runner,
    *,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    timer: Callable[[], float] = time.monotonic,
    sync: Callable[[], None] = os.sync,
    metrics: Metrics | None = None,
) -> Erasure:
    """Erases the matching rows and proves it. Raises Refused, QueryInvalid or QueryRefused before anything is
    changed if the request is not valid. A dry run names these reasons in the report instead.

    May fail or be killed anywhere and be repeated. Landing and queries may run at the same time. Another
    maintainer should not (see the lease): it could write rows that it has read before to unreferenced files
    after the proof.
    """
    with catalog_errors():
        return _Erasing(
            config, catalog, request, runner, metrics or Metrics(), say, clock, sleep, timer, sync
        ).run()


@dataclass(frozen=True)
class _Marked:
    """Positions of the log, by signal, whose earlier segments were marked at the time `at` of the timer."""

    positions: dict[Signal, WalPosition]
    at: float


@dataclass
class _Erasing:
    _config: Config
    _catalog: Catalog
    _request: EraseRequest
    _runner: Runner
    _metrics: Metrics
    _say: Callable[[str], None]
    _clock: Callable[[], float]
    _sleep: Callable[[float], None]
    _timer: Callable[[], float]
    _sync: Callable[[], None]

    def __post_init__(self) -> None:
        config, request = self._config, self._request
        self._store: Store | None = None if config.wal.type == "kafka" else open_store(config)
        self._set_aside = SetAsideEraser(config, self._catalog, self._store)
        self._namespace = tuple(config.lake.namespace.split("."))
        self._begin = time.monotonic()
        self._derive_metrics = DeriveMetrics(CollectorRegistry())
        cut_micros = int(self._clock() * 1e6)
        self._erasure = Erasure(uuid.uuid4().hex, request.tenant, cut_micros, dry_run=request.dry_run)

    def run(self) -> Erasure:
        specs = checked_tables(self._config, self._request.tables)
        signals = [spec.signal for spec in specs if spec.signal is not None]
        predicates = checked_predicates(self._request.where, specs, self._request.tables)
        checked_tenant(self._config, self._catalog, self._store, self._request.tenant)
        if not self._request.drop_set_aside:
            self._refuse(self._set_aside.problem(signals))
        is_constant = any(predicate.is_constant for predicate in predicates.values())
        if is_constant and not self._request.yes:
            self._refuse(
                "the condition names no column, so it matches all rows or none. To erase anyway, add --yes",
                EverythingMatches,
            )
        if not self._request.dry_run:
            self._say("landing the write-ahead log")
            land_all(
                self._config,
                self._catalog,
                self._runner,
                self._metrics,
                skip=self._set_aside.streams(SIGNALS) if self._request.drop_set_aside else (),
                sleep=self._sleep,
            )
            if not self._request.drop_set_aside:
                self._refuse(self._set_aside.problem(signals))
            self._derive(signals)
        erasers: dict[str, TableEraser] = {
            spec.name: TableEraser(
                self._config,
                self._catalog,
                self._runner,
                spec,
                self._request.tenant,
                predicates[spec.name],
                self._before_cut(spec),
                self._erasure.id,
            )
            for spec in specs
            if self._table(spec.name) is not None
        }
        found = self._search(erasers)
        derived = self._derived_erasers(erasers)
        found |= self._search(derived, of_source=False)
        erasers |= derived
        self._erasure.tables = [eraser.report for eraser in erasers.values()]
        self._erasure.outside = (*self._outside(signals), *_unmatched(derived))
        if not self._request.dry_run:
            self._erase(erasers, [signal for signal in signals if signal in erasers])
        else:
            for name, eraser in erasers.items():
                eraser.report.rows_removed = found[name].matches
                eraser.report.rows_of_tenant = found[name].rows
                eraser.report.files_rewritten = found[name].files_part
                eraser.report.files_dropped = found[name].files_whole
                eraser.report.tags_dropped = list(found[name].tags) if self._request.drop_tags else []
        self._erasure.seconds = time.monotonic() - self._begin
        return self._erasure

    def _refuse(self, why: str, error: type[Refused] = Refused) -> None:
        """Raises the error if there is a reason. A dry run notes it in the report and continues."""
        if not why:
            return
        if not self._request.dry_run:
            raise error(why)
        if why not in self._erasure.blockers:
            self._erasure.blockers.append(why)

    def _before_cut(self, spec: TableSpec) -> Predicate:
        """Returns the condition, limited to rows received before the erasure began if the table has that
        time.
        """
        where = self._request.where
        if spec.has(RECEIVED):
            cut = datetime.datetime.fromtimestamp(self._erasure.cut_unix_micros / 1e6, datetime.UTC)
            where = f"({where}\n) AND {RECEIVED} < TIMESTAMPTZ '{cut:%Y-%m-%d %H:%M:%S.%f}+00'"
        return parse_predicate(where, spec)

    def _derive(self, signals: Sequence[Signal]) -> None:
        """Derives what has landed, so that no derived table reads rows that are being erased."""
        if not self._config.derive.enabled:
            return
        self._say("deriving the landed rows")
        for signal in signals:
            deriver = Deriver(self._config, signal, self._catalog, self._runner, self._derive_metrics)
            try:
                while deriver.round() == "more":
                    pass
            except Transient as error:  # it must not prevent the erasure: only rows that are left are derived
                log.warning("rows not derived before the erasure", source=signal, reason=str(error))

    def _derived_erasers(self, erasers: Mapping[str, TableEraser]) -> dict[str, DerivedEraser]:
        """Returns the erasers of the tables that are derived from the searched ones."""
        found: dict[str, DerivedEraser] = {}
        for source in SIGNALS:
            specs = [
                spec
                for spec in derived_specs(source)
                if spec.name not in erasers and self._table(spec.name) is not None
            ]
            if source not in erasers or not specs:
                continue
            eraser, tenant = erasers[source], self._request.tenant
            tables = [(spec, self._load(spec.name)) for spec in specs]
            lacking = lacking_days(self._load(source), tables, tenant, set(eraser.matched_days))
            deriver = Deriver(
                self._config, source, self._catalog, self._runner, self._derive_metrics, specs=specs
            )
            for spec in specs:
                found[spec.name] = DerivedEraser(
                    self._config,
                    self._catalog,
                    self._runner,
                    spec,
                    tenant,
                    self._request.where,
                    self._erasure.id,
                    deriver,
                    partial(_matched_days, eraser),
                    partial(_without, lacking),
                )
        return found

    def _load(self, name: str) -> Table:
        return self._catalog.load_table((*self._namespace, name))

    def _search(
        self, erasers: Mapping[str, TableEraser], *, of_source: bool = True
    ) -> dict[str, SearchSummary]:
        """Searches all tables. Raises Refused if the operator must decide about tags or about erasing all
        rows.
        """
        found: dict[str, SearchSummary] = {}
        for name, eraser in erasers.items():
            self._say(f"searching {name}")
            try:
                found[name] = eraser.search()
            except DataLost as error:
                if not self._request.dry_run:
                    raise
                found[name] = SearchSummary()
                self._refuse(str(error))
        request = self._request
        tags: dict[str, Sequence[str]] = {name: each.tags for name, each in found.items() if each.tags}
        if of_source and request.drop_set_aside and (names := self._set_aside.pinning()):
            tags[SET_ASIDE.name] = names
        if tags and not request.drop_tags:
            self._refuse(pinned_message(tags))
        rows = sum(each.rows for each in found.values())
        matches = sum(each.matches for each in found.values())
        if matches and matches == rows and not request.yes:
            self._refuse(
                f"all {rows:,} rows of tenant {request.tenant} in {', '.join(found)} match. To erase all of "
                "them, add --yes",
                EverythingMatches,
            )
        return found

    def _erase(self, erasers: dict[str, TableEraser], signals: Sequence[Signal]) -> None:
        derived = [eraser for eraser in erasers.values() if isinstance(eraser, DerivedEraser)]
        for each in derived:
            each.begin()
        for _ in range(_PROOFS_MAX):
            marked = self._mark_segments(signals)
            for name, eraser in erasers.items():
                self._say(f"erasing from {name}")
                eraser.remove()
                eraser.expire(drop_tags=self._request.drop_tags)
            if self._request.drop_set_aside:
                dropped = self._set_aside.drop(self._erasure.id, drop_tags=self._request.drop_tags)
                self._erasure.set_aside_dropped += dropped + self._set_aside.delete_strays(signals)
            left = self._delete_segments(marked)
            self._delete_kafka_records(signals)
            for eraser in erasers.values():
                eraser.delete_unreferenced()
            self._make_durable()
            self._say("verifying")
            proofs = [eraser.prove(left.get(name, 0)) for name, eraser in erasers.items()]
            if all(proof.holds for proof in proofs):
                for each in derived:
                    each.end()
                break
        erasure = self._erasure
        log.info("rows erased", id=erasure.id, rows=erasure.rows_removed, proven=erasure.is_proven)

    def _mark_segments(self, signals: Sequence[Signal]) -> _Marked:
        """Marks the landed segments as deleted for new queries. The wait for earlier queries begins."""
        if self._store is None:
            return _Marked({}, self._timer())
        positions = {signal: self._position(signal).wal for signal in signals}
        for signal, position in positions.items():
            if self._landed_segments(signal, position):
                write_mark(self._store, signal, position, self._clock())
        return _Marked(positions, self._timer())

    def _delete_segments(self, marked: _Marked) -> dict[str, int]:
        """Deletes the marked segments from the log. Returns the number of those left, by signal."""
        if self._store is None:
            return {}
        due = {signal: at for signal, at in marked.positions.items() if self._landed_segments(signal, at)}
        if isinstance(self._store, LocalStore):
            self._store.remove_abandoned(self._clock())
        if due:
            self._make_durable()  # the tables' copy of the rows must be durable first
            seconds = marked.at + QUERY_SECONDS_MAX - self._timer()
            if seconds > 0:
                self._say(f"waiting {seconds:.0f} s for queries that read the write-ahead log")
                self._sleep(seconds)
        for signal, position in due.items():
            deleted = delete_landed_segments(self._store, signal, position)
            report = next(each for each in self._erasure.tables if each.table == signal)
            report.wal_segments_deleted += len(deleted)
        return {signal: self._landed_segments(signal, at) for signal, at in marked.positions.items()}

    def _landed_segments(self, signal: Signal, position: WalPosition) -> int:
        assert self._store is not None  # noqa: S101
        return sum(
            segment.name.stream in position.streams
            and segment.name.sequence < position.streams[segment.name.stream].sequence
            for segment in WalReader(self._store).segments(signal)
        )

    def _position(self, signal: Signal) -> LandingPosition:
        return landing_position(read_checkpoint(self._catalog, (*self._namespace, signal)).position)

    def _delete_kafka_records(self, signals: Sequence[Signal]) -> None:
        if self._store is None and self._request.delete_kafka_records:
            for signal in signals:
                deleted = delete_landed(self._config, signal, self._position(signal).kafka)
                self._erasure.kafka_records_deleted.update(deleted)

    def _table(self, name: str) -> Table | None:
        return table_or_none(self._catalog, self._config.lake.namespace, name)

    def _make_durable(self) -> None:
        if "://" not in self._config.warehouse or self._config.warehouse.startswith("file:"):
            self._sync()

    def _outside(self, signals: Sequence[Signal]) -> tuple[str, ...]:
        """Returns the places that may hold matching rows and that frazil cannot erase."""
        places = [
            "backups, and copies made by other systems",
            "downloaded query results, and data kept by collectors and applications",
            "temporary files of killed processes, on the machines where they ran",
            "files written by processes that had read such rows before, until their commits are refused",
        ]
        if self._config.warehouse.startswith("s3://") or self._config.wal.type == "s3":
            places.append("old object versions, if the bucket has versioning")
        if self._store is None:
            places += kept_by_kafka(self._config, signals, deleted=self._request.delete_kafka_records)
        return tuple(places)


def _unmatched(derived: Mapping[str, DerivedEraser]) -> list[str]:
    """Returns one line about derived tables to which the condition cannot be applied, if there are any."""
    names = [name for name, eraser in derived.items() if not eraser.has_condition]
    if not names:
        return []
    return [
        f"rows of {', '.join(names)} of days that the source no longer holds: the condition names columns "
        "that these tables do not have; if they copy such values, erase from them with --table and a "
        "condition on their own columns"
    ]


def _matched_days(eraser: TableEraser) -> set[int]:
    return eraser.matched_days


def _without(gone: Collection[int], days: Collection[int]) -> set[int]:
    return {*days} - {*gone}


def delete_landed(config: Config, signal: Signal, position: KafkaPosition) -> dict[str, int]:
    """Deletes the landed messages of all tenants from Kafka, which cannot delete single messages. Returns the
    first remaining offset by partition.
    """
    assert config.wal.kafka is not None  # checked by the configuration  # noqa: S101
    topics = Topics(config.wal.kafka)
    state = topics.state(signal)
    if state is None:
        return {}
    for at in position.topics.values():
        if at.id == state.id:
            offsets = {
                number: part.offset for number, part in at.partitions.items() if number in state.partitions
            }
            topics.delete_before(signal, offsets)
            return {f"{state.name}/{number}": offset for number, offset in offsets.items()}
    return {}


def kept_by_kafka(config: Config, signals: Sequence[Signal], *, deleted: bool) -> list[str]:
    """Returns one line per topic about messages that it may still hold, for the report."""
    assert config.wal.kafka is not None  # checked by the configuration  # noqa: S101
    if deleted:
        return ["log segments that the Kafka brokers have not deleted yet (file.delete.delay.ms)"]
    topics = Topics(config.wal.kafka)
    return [f"the topic {config.wal.kafka.topic(signal)}: {_kept(topics, signal)}" for signal in signals]


def _kept(topics: Topics, signal: Signal) -> str:
    try:
        retention_ms = topics.retention_ms(signal)
    except StoreUnavailable as error:
        return f"its retention is unknown ({error})"
    if retention_ms is None:
        return "it does not exist"
    if retention_ms < 0:
        return "keeps messages forever (retention.ms = -1); --delete-kafka-records deletes landed messages"
    return f"keeps messages for {retention_ms / 3_600_000:g} hours (retention.ms = {retention_ms})"
