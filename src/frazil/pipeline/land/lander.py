"""The loop of one table: position, what waits, tasks, commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
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
from frazil.pipeline.land.source import Outcome, Source, Work
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
"""How often in a row segments may be gone while the position has not moved: a listing may be a moment old."""

log = structlog.get_logger("frazil.land")
_wall_clock = time.time
Landing = Literal["idle", "waiting", "landed", "again"]


@dataclass
class _State:
    position: LandingPosition | None = None
    waiting_since: float | None = None
    vanished: int = 0
    gone_streams: frozenset[str] = frozenset()


class Lander:
    """`step` looks once, and lands one batch if one is due. Everything it knows is read again after an error.

    An idle table runs no job.
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
        self._looked = clock()

    def forget(self) -> None:
        """After an error, and when another process may have landed meanwhile. What waits is not younger for
        it: the next step tries again at once.
        """
        self._state = _State(waiting_since=self._state.waiting_since, vanished=self._state.vanished)

    def drop_streams(self, gone: frozenset[str]) -> None:
        """Closed streams of which nothing is left: the next commit leaves them out of the position."""
        self._state.gone_streams |= gone

    def checkpoint(self) -> Checkpoint:
        """Makes or evolves the table where needed. The next step begins where it says that the table stands:
        another process may have landed meanwhile.
        """
        return self._stand()[0]

    def _stand(self) -> tuple[Checkpoint, LandingPosition]:
        with catalog_errors():
            found = open_table(
                self._catalog, self._config.lake.namespace, self._spec, LandingPosition().to_text()
            )
        try:
            position = landing_position(found.position)
        except ValueError as error:
            raise self._lost(f"its position cannot be read: {error}; upgrade frazil") from None
        self._state.position = position
        return found, position

    def _lost(self, message: str) -> DataLost:
        return DataLost(f"{self._config.lake.namespace}.{self.signal}", message)

    def step(self, *, now_due: bool = False) -> Landing:
        """`now_due` lands whatever waits, however little and young."""
        state, looked = self._state, self._looked
        self._looked = self._clock()
        work = self._source.pending(state.position or self._stand()[1])
        self._observe(work)
        if not work.size:
            state.waiting_since, self._first = None, False
            return "idle"
        if state.waiting_since is None:
            # It came after the last look, which a landing may have put a while ago. What waits at the start
            # may have waited for long already.
            state.waiting_since = float("-inf") if self._first else looked
            self._first = False
        age = self._clock() - state.waiting_since
        land = self._config.land
        if not now_due and work.size < land.bytes_min and age < land.age_max(self._config.wal.type):
            return "waiting"
        waited = None if age == float("inf") else age
        with telemetry.span("land", table=self.signal, waited_seconds=waited):
            return self._land()

    def _land(self) -> Landing:
        begin = self._clock()
        with telemetry.span("land.look") as look:
            checkpoint, position = self._stand()
            self._looked = self._clock()
            work = self._source.pending(position).batch(self._batch_bytes)
            look.set(wal_bytes=work.size)
        if not work.size:  # another process has landed it
            self.forget()
            return "again"
        layout = Layout.of(checkpoint.table, self._spec, self._config.land.compression_level)
        began = _wall_clock()
        with telemetry.span("land.write") as write:
            outcome = work.land(self._runner, layout, self._horizon, files_max=self._files_max(work))
            write.set(rows=outcome.rows, tasks=len(outcome.results), set_aside=len(outcome.unreadable))
        self._fit(work, outcome)
        if outcome.too_many_files:
            discard(checkpoint.table, _files(outcome))
            return "again"
        if outcome.vanished:
            discard(checkpoint.table, _files(outcome))
            return self._look_again(position, outcome)
        if outcome.unreadable:
            set_aside(self._config, self._catalog, self.signal, outcome.unreadable, self._reader)
            self._metrics.set_aside(self.signal, len(outcome.unreadable))
        self._commit(checkpoint, outcome, work.size, begin, began)
        return "landed"

    def _commit(
        self, checkpoint: Checkpoint, outcome: Outcome, size: int, begin: float, began: float
    ) -> None:
        landed, streams = outcome.position, outcome.position.wal.streams
        gone = {name for name in self._state.gone_streams if name in streams and streams[name].closed}
        position = replace(landed, wal=landed.wal.without_streams(gone))
        files = _files(outcome)
        self._note_late(checkpoint.table, outcome, began)
        written = self._clock()
        try:
            with telemetry.span("land.commit", table=self.signal, files=len(files)) as commit:
                committed = self._committer.append(
                    checkpoint,
                    files,
                    position.to_text(),
                    facts={"frazil.rows": str(outcome.rows)},
                    began=began,
                )
                commit.set(snapshot=committed.snapshot_id, attempts=committed.attempts)
        except Fenced:
            self._metrics.fenced(self.signal)
            discard(checkpoint.table, files)  # somebody may have erased rows that they hold
            raise
        now = self._clock()
        self._state = _State(position, gone_streams=self._state.gone_streams & position.wal.streams.keys())
        self._metrics.landed(
            self.signal,
            outcome,
            files,
            wal_bytes=size,
            seconds=now - begin,
            commit_seconds=now - written,
            attempts=committed.attempts,
        )
        size_written = sum(file.file_size_in_bytes for file in files)
        telemetry.note(rows=outcome.rows, files=len(files), bytes=size_written, wal_bytes=size)
        log.info(
            "landed",
            table=self.signal,
            rows=outcome.rows,
            files=len(files),
            bytes=size_written,
            snapshot=committed.snapshot_id,
            seconds=round(now - begin, 2),
            commit_seconds=round(now - written, 3),
            attempts=committed.attempts,
            **({"clamped": clamped} if (clamped := sum(each.clamped for each in outcome.results)) else {}),
        )

    def _note_late(self, table: Table, outcome: Outcome, now: float) -> None:
        """Rows that were received long before they land: the log waited, or the receiver's clock was behind
        and `time` may be wrong. Retention then counts their age from now.
        """
        before = late_before(table.metadata, now, self._config.maintain.retention.clock_gap_seconds_max)
        late = {
            (str(tenant), int(day or 0))
            for result in outcome.results
            if (received := result.oldest_received_unix_nano) is not None and received / 1e9 < before
            for tenant, day in map(partition_of, result.files)
        }
        if not late:
            return
        with catalog_errors():
            is_new = record_late(self._catalog, table, late, now)
        if is_new:
            log.warning("rows landed long after they were received", table=self.signal, partitions=len(late))

    def _files_max(self, work: Work) -> int | None:
        """How many files the commit may add. A batch that one task lands is not cut further: half the rows
        may need the same files.
        """
        if min(self._batch_bytes, work.size) <= self._config.land.task_bytes_max:
            return None
        return self._config.land.files_per_commit_max

    def _fit(self, work: Work, outcome: Outcome) -> None:
        """Sets the size of the next batch: as many tasks as may write what the largest one needs now."""
        land, tasks = self._config.land, len(outcome.results)
        tasks_max = land.files_per_commit_max // max(outcome.files_needed, 1)
        fitting = land.batch_bytes_max
        if tasks_max * land.task_bytes_max < fitting:
            fitting = tasks_max * work.size // max(tasks, 1)
        if outcome.too_many_files:
            # Smaller each time, so that it lands in the end: a batch may be larger than it should be.
            fitting = min(fitting, work.size // 2, self._batch_bytes // 2)
        self._batch_bytes = min(max(fitting, land.task_bytes_max), land.batch_bytes_max)
        if outcome.too_many_files:
            self._metrics.too_many_files(self.signal)
            log.warning(
                "batch discarded: it needed too many files",
                table=self.signal,
                files_per_task=outcome.files_needed,
                tasks=tasks,
                files_per_commit_max=land.files_per_commit_max,
                next_batch_bytes=self._batch_bytes,
            )

    def _look_again(self, position: LandingPosition, outcome: Outcome) -> Landing:
        """Somebody else landed it and cleaned up, or it is lost: the position tells."""
        _, now = self._stand()
        self._state.vanished = 0 if now != position else self._state.vanished + 1
        self.forget()
        if self._state.vanished >= _VANISHED_MAX:
            raise self._lost(
                f"{len(outcome.vanished)} segments are gone before they landed, the first is "
                f"{outcome.vanished[0]}; bring them back into the write-ahead log",
            )
        log.warning(
            "segments vanished; the position is read again", table=self.signal, first=outcome.vanished[0]
        )
        return "again"

    def _observe(self, work: Work) -> None:
        """Where the source does not say how old it is, it is as old as it has been seen here."""
        since, noticed = work.oldest_seconds, self._state.waiting_since
        if since is None and work.size and noticed is not None and noticed != float("-inf"):
            since = _wall_clock() - (self._clock() - noticed)
        self._metrics.pending(self.signal, work.size, work.count, since)


class LandStep(Step):
    """Lands one table. `clean_up` names the streams that may leave its position; None with Kafka."""

    part = "landing"
    stop_seconds = 60.0  # a batch whose job runs is committed

    def __init__(self, config: Config, lander: Lander, clean_up: CleanUpStep | None) -> None:
        super().__init__(lander.signal)
        self.lander = lander
        self._clean_up = clean_up
        self._poll_seconds = config.land.poll_interval(config.wal.type)
        self._round_seconds = round_seconds(config)
        self._looked = time.monotonic()

    def run(self) -> float:
        try:
            landing = self.lander.step()
            self._look_for_others()
        except Fenced:
            log.info("landing again: another process landed or removed rows", table=self.lander.signal)
            self.reset()
            return self._poll_seconds
        return 0.0 if landing in ("landed", "again") else self._poll_seconds

    def _look_for_others(self) -> None:
        """Takes over what the clean-up has found, and what another process has landed."""
        if self._clean_up is None:
            return
        self.lander.drop_streams(self._clean_up.take_gone())
        now = time.monotonic()
        if now >= self._looked + self._round_seconds:
            self._looked = now
            self.lander.checkpoint()

    def reset(self) -> None:
        self.lander.forget()


def _files(outcome: Outcome) -> list[DataFile]:
    return [file for result in outcome.results for file in result.files]
