"""Lands one table: reads its position, lists pending data, runs the Spark tasks, commits."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil import telemetry
from frazil.config import Config
from frazil.errors import DataLost, Fenced
from frazil.lake.catalog import catalog_errors
from frazil.lake.clock import late_before, record_late
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Checkpoint, committer_of
from frazil.lake.live_files import partition_of
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land.set_aside import set_aside
from frazil.pipeline.land.source import BatchResult, Pending, Source
from frazil.pipeline.land.upkeep import CleanUpStep, round_seconds
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Runner
from frazil.pipeline.steps import Step
from frazil.position import LandingPosition, landing_position
from frazil.tables import Signal, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.reader import WalReader

_VANISHED_MAX = 3
"""Attempts in a row in which segments may be missing at an unchanged position: a listing may be out of date.
"""

log = structlog.get_logger("frazil.land")
_wall_clock = time.time
Landing = Literal["idle", "waiting", "landed", "again"]


@dataclass
class _State:
    position: LandingPosition | None = None
    waiting_since: float | None = None
    vanished: int = 0
    deleted_streams: frozenset[str] = frozenset()


class Lander:
    """Lands one table. `step` lands one batch if one is due. All cached state is read again after an error.

    An idle table runs no Spark job.
    """

    def __init__(
        self,
        config: Config,
        signal: Signal,
        catalog: Catalog,
        source: Source,
        runner: Runner,
        metrics: Metrics,
        *,
        reader: WalReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.signal: Signal = signal
        self._config = config
        self._catalog = catalog
        self._source = source
        self._runner = runner
        self._metrics = metrics
        self._reader = reader
        self._clock = clock
        self._spec = landed_spec(signal, promoted(config))
        self._committer = committer_of(config, catalog)
        self._horizon = Horizon(
            int(config.land.horizon_past_seconds * 1e6),
            int(config.land.horizon_ahead_seconds * 1e6),
        )
        self._batch_bytes = config.land.batch_bytes_max
        self._state = _State()
        self._first = True
        self._listed_at = clock()

    def reset(self) -> None:
        """Drops cached state after an error, or if another process may have landed. Keeps the age of pending
        data, so that the next step lands it at once.
        """
        self._state = _State(waiting_since=self._state.waiting_since, vanished=self._state.vanished)

    def drop_streams(self, streams: frozenset[str]) -> None:
        """Makes the next commit remove these closed streams, whose segments are all deleted, from the
        position.
        """
        self._state.deleted_streams |= streams

    def checkpoint(self) -> Checkpoint:
        """Reads the table's checkpoint. Creates or evolves the table if needed. The next step starts from
        this position.
        """
        return self._read_position()[0]

    def _read_position(self) -> tuple[Checkpoint, LandingPosition]:
        with catalog_errors():
            found = open_table(
                self._catalog, self._config.lake.namespace, self._spec, LandingPosition().to_text()
            )
        try:
            position = landing_position(found.position)
        except ValueError as error:
            raise self._lost(f"the table's position cannot be read: {error}; upgrade frazil") from None
        self._state.position = position
        return found, position

    def _lost(self, message: str) -> DataLost:
        return DataLost(f"{self._config.lake.namespace}.{self.signal}", message)

    def step(self, *, now_due: bool = False) -> Landing:
        """Lands one batch if enough data is pending, or has been for long enough. `now_due` lands any
        amount.
        """
        state, listed_before = self._state, self._listed_at
        self._listed_at = self._clock()
        pending = self._source.pending(state.position or self._read_position()[1])
        self._observe(pending)
        if not pending.size:
            state.waiting_since, self._first = None, False
            return "idle"
        if state.waiting_since is None:
            # The data arrived after the previous listing. Data that is pending at the start may be old.
            state.waiting_since = float("-inf") if self._first else listed_before
            self._first = False
        age = self._clock() - state.waiting_since
        land = self._config.land
        if not now_due and pending.size < land.bytes_min and age < land.age_max(self._config.wal.type):
            return "waiting"
        waited = None if age == float("inf") else age
        with telemetry.span("land", table=self.signal, waited_seconds=waited):
            return self._land()

    def _land(self) -> Landing:
        begin = self._clock()
        with telemetry.span("land.look") as span:
            checkpoint, position = self._read_position()
            self._listed_at = self._clock()
            batch = self._source.pending(position).batch(self._batch_bytes)
            span.set(wal_bytes=batch.size)
        if not batch.size:  # landed by another process
            self.reset()
            return "again"
        layout = Layout.of(checkpoint.table, self._spec, self._config.land.compression_level)
        began = _wall_clock()
        with telemetry.span("land.write") as span:
            result = batch.land(self._runner, layout, self._horizon, files_max=self._files_max(batch))
            span.set(rows=result.rows, tasks=len(result.results), set_aside=len(result.unreadable))
        self._adapt_batch_size(batch, result)
        if result.too_many_files:
            discard(checkpoint.table, result.files)
            return "again"
        if result.vanished:
            discard(checkpoint.table, result.files)
            self._check_vanished(position, result)
            return "again"
        if result.unreadable:
            set_aside(self._config, self._catalog, self.signal, result.unreadable, self._reader)
            self._metrics.set_aside(self.signal, len(result.unreadable))
        self._commit(checkpoint, result, batch.size, begin, began)
        return "landed"

    def _commit(
        self, checkpoint: Checkpoint, result: BatchResult, size: int, begin: float, began: float
    ) -> None:
        landed, streams = result.position, result.position.wal.streams
        deleted = {name for name in self._state.deleted_streams if name in streams and streams[name].closed}
        position = replace(landed, wal=landed.wal.without_streams(deleted))
        files = result.files
        self._note_late(checkpoint.table, result, began)
        written = self._clock()
        try:
            with telemetry.span("land.commit", table=self.signal, files=len(files)) as commit:
                committed = self._committer.append(
                    checkpoint,
                    files,
                    position.to_text(),
                    facts={"frazil.rows": str(result.rows)},
                    began=began,
                )
                commit.set(snapshot=committed.snapshot_id, attempts=committed.attempts)
        except Fenced:
            self._metrics.fenced(self.signal)
            discard(checkpoint.table, files)  # an erasure may have removed rows that they hold
            raise
        now = self._clock()
        still_named = self._state.deleted_streams & position.wal.streams.keys()
        self._state = _State(position, deleted_streams=still_named)
        self._metrics.landed(
            self.signal,
            result,
            files,
            wal_bytes=size,
            seconds=now - begin,
            commit_seconds=now - written,
            attempts=committed.attempts,
        )
        size_written = sum(file.file_size_in_bytes for file in files)
        telemetry.note(rows=result.rows, files=len(files), bytes=size_written, wal_bytes=size)
        log.info(
            "batch landed",
            table=self.signal,
            rows=result.rows,
            files=len(files),
            bytes=size_written,
            snapshot=committed.snapshot_id,
            seconds=round(now - begin, 2),
            commit_seconds=round(now - written, 3),
            attempts=committed.attempts,
            **({"clamped": clamped} if (clamped := sum(each.clamped for each in result.results)) else {}),
        )

    def _note_late(self, table: Table, batch: BatchResult, now: float) -> None:
        """Notes in the table the partitions of rows that were received long before they land: landing was
        behind, or the receiver's clock was behind and `time` may be wrong. Retention counts their age from
        now.
        """
        before = late_before(table.metadata, now, self._config.maintain.retention.clock_gap_seconds_max)
        late = {
            (str(tenant), int(day or 0))
            for result in batch.results
            if (received := result.oldest_received_unix_nano) is not None and received / 1e9 < before
            for tenant, day in map(partition_of, result.files)
        }
        if not late:
            return
        with catalog_errors():
            is_new = record_late(self._catalog, table, late, now)
        if is_new:
            log.warning("rows landed long after they were received", table=self.signal, partitions=len(late))

    def _files_max(self, batch: Pending) -> int | None:
        """Returns how many files the commit may add. A batch of one task has no limit: half of its rows may
        need the same number of files.
        """
        if min(self._batch_bytes, batch.size) <= self._config.land.task_bytes_max:
            return None
        return self._config.land.files_per_commit_max

    def _adapt_batch_size(self, batch: Pending, result: BatchResult) -> None:
        """Sets the size of the next batch, so that its tasks fit the limit if each needs as many files as the
        largest task of this batch.
        """
        land, tasks = self._config.land, len(result.results)
        tasks_max = land.files_per_commit_max // max(result.files_needed, 1)
        fitting = land.batch_bytes_max
        if tasks_max * land.task_bytes_max < fitting:
            fitting = tasks_max * batch.size // max(tasks, 1)
        if result.too_many_files:
            # At least halved each time, so that a batch lands in the end.
            fitting = min(fitting, batch.size // 2, self._batch_bytes // 2)
        self._batch_bytes = min(max(fitting, land.task_bytes_max), land.batch_bytes_max)
        if result.too_many_files:
            self._metrics.too_many_files(self.signal)
            log.warning(
                "batch discarded: too many files needed",
                table=self.signal,
                files_per_task=result.files_needed,
                tasks=tasks,
                files_per_commit_max=land.files_per_commit_max,
                next_batch_bytes=self._batch_bytes,
            )

    def _check_vanished(self, position: LandingPosition, result: BatchResult) -> None:
        """Raises DataLost if segments are missing and the position has not moved for some attempts. If it has
        moved, another process landed and deleted them.
        """
        _, now = self._read_position()
        self._state.vanished = 0 if now != position else self._state.vanished + 1
        self.reset()
        if self._state.vanished >= _VANISHED_MAX:
            raise self._lost(
                f"{len(result.vanished)} segments were deleted before they landed, the first is "
                f"{result.vanished[0]}; restore them to the write-ahead log",
            )
        log.warning(
            "segments not found; position will be read again", table=self.signal, first=result.vanished[0]
        )

    def _observe(self, pending: Pending) -> None:
        """Reports pending data. Its age counts from when it was first seen if the source does not know."""
        since, noticed = pending.oldest_seconds, self._state.waiting_since
        if since is None and pending.size and noticed is not None and noticed != float("-inf"):
            since = _wall_clock() - (self._clock() - noticed)
        self._metrics.pending(self.signal, pending.size, pending.count, since)


class LandStep(Step):
    """Lands one table. `clean_up` returns the streams to remove from the position; None with Kafka.
    `on_landed` is called after each commit.
    """

    part = "landing"
    stop_seconds = 60.0  # time to commit a batch whose job is running

    def __init__(
        self,
        config: Config,
        lander: Lander,
        clean_up: CleanUpStep | None,
        on_landed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(lander.signal)
        self.lander = lander
        self._clean_up = clean_up
        self._on_landed = on_landed
        self._poll_seconds = config.land.poll_interval(config.wal.type)
        self._round_seconds = round_seconds(config)
        self._refreshed_at = time.monotonic()

    def run(self) -> float:
        try:
            landing = self.lander.step()
            self._refresh()
        except Fenced:
            log.info("batch discarded: another process changed the table", table=self.lander.signal)
            self.reset()
            return self._poll_seconds
        if landing == "landed":
            self._on_landed()
        return 0.0 if landing in ("landed", "again") else self._poll_seconds

    def _refresh(self) -> None:
        """Reads the streams that clean-up has deleted, and the position that another process may have
        changed.
        """
        if self._clean_up is None:
            return
        self.lander.drop_streams(self._clean_up.take_deleted_streams())
        now = time.monotonic()
        if now >= self._refreshed_at + self._round_seconds:
            self._refreshed_at = now
            self.lander.checkpoint()

    def reset(self) -> None:
        self.lander.reset()
