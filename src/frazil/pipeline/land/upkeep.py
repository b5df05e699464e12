"""What landing leaves behind in the WAL: segments that have landed, and streams that have ended.

A thread of the pipeline deletes it beside landing, only below positions that were committed some time ago. So
it is safe for a moment after the lease was lost, and in two pipelines at once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from pyiceberg.table.metadata import TableMetadata

from frazil.config import Config
from frazil.errors import DataLost, FrazilError, Permanent, Stopped
from frazil.lake.commit import ancestors, landed_snapshot, position_text
from frazil.lake.times import commit_times
from frazil.pipeline.metrics import Metrics
from frazil.storage import Store
from frazil.tables import SIGNALS, Signal, table_spec
from frazil.tables.promoted import promoted
from frazil.wal.cleanup import CleanUpPass, clean_up_pass
from frazil.wal.closing import Closer
from frazil.wal.names import SegmentName
from frazil.wal.position import Position
from frazil.wal.reader import WalReader, side_by_side
from frazil.wal.sweep import MARK_SECONDS, remove_old_marks

_MISSING_ROUNDS_MAX = 3
_ROUND_SECONDS = 30.0
_BATCHES_PER_TURN = 10
"""So that a table with a large backlog does not hold up the others."""
_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 60.0
_STOP_SECONDS = 10.0

log = structlog.get_logger("frazil.land")


def settled_position(metadata: TableMetadata, grace_seconds: float, now_seconds: float) -> Position | None:
    """Where the table stood `grace_seconds` ago. Its snapshots tell, so nothing else has to remember it."""
    return _settled(metadata, grace_seconds, now_seconds)[0]


def _settled(
    metadata: TableMetadata, grace_seconds: float, now_seconds: float
) -> tuple[Position | None, float | None]:
    """Also when the first landing after it was committed, in seconds since 1970; None if there is none."""
    landed = landed_snapshot(metadata)
    times = commit_times(metadata, int(now_seconds * 1000))
    later: float | None = None
    for snapshot in () if landed is None else ancestors(metadata, landed):
        text = position_text(snapshot)
        if text is None:
            continue
        committed = times[snapshot.snapshot_id]
        if committed <= (now_seconds - grace_seconds) * 1000:
            return Position.from_text(text), later
        later = committed / 1000
    return None, later


class Upkeep:
    """Deletes segments some time after they landed, and closes streams that have fallen silent.

    For one thread. `stopping` ends a round early.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._store = store
        self._metrics = metrics
        self._wall_clock = wall_clock
        self._stopping = stopping
        self._closer = Closer(
            store,
            clock,
            config.land.stream_idle_seconds,
            spec_of=lambda signal: table_spec(signal, promoted(config)),
        )
        self._synced_for: dict[Signal, Position] = {}
        self._marks_looked_at: dict[Signal, float] = {}
        self._missing: dict[Signal, dict[SegmentName, int]] = {}
        """What lacks before segments that are there, and in how many rounds in a row."""
        self._first: dict[Signal, dict[str, int]] = {}
        """The lowest sequence that may be left in each stream; 0 in streams that are not named."""
        self._due: dict[Signal, float | None] = {}
        """When the oldest segment that is left may be deleted, in seconds since 1970."""

    def round(self, signal: Signal, metadata: TableMetadata) -> frozenset[str]:
        """The closed streams of which nothing is left in the store."""
        steps = self.cleaning(signal, metadata)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                gone: frozenset[str] = end.value
                break
        self.watch(signal, metadata)
        return gone

    def cleaning(self, signal: Signal, metadata: TableMetadata) -> CleanUpPass:
        """Deletes what landed long enough ago, batch by batch. Returns the closed streams of which nothing is
        left.
        """
        grace, now = self._config.land.wal_grace_seconds, self._wall_clock()
        settled, later = _settled(metadata, grace, now)
        landed = _landed_position(metadata) or Position()
        first = self._first_left(signal, landed)
        self._due.setdefault(signal, now)
        self._observe(signal, landed)
        gone: frozenset[str] = frozenset()
        if settled is not None:
            self._make_sure(signal, settled)
            steps, deleted, size = clean_up_pass(self._store, signal, settled), 0, 0
            while True:
                try:
                    batch = next(steps)
                except StopIteration as end:
                    gone = end.value
                    break
                self._metrics.cleaned(signal, batch.deleted, batch.bytes)
                deleted, size = deleted + batch.deleted, size + batch.bytes
                first.update(batch.first)
                self._observe(signal, landed)
                yield batch
            if deleted:
                log.info("cleaned up", table=signal, segments=deleted, bytes=size)
            first.update({name: max(at.sequence, first.get(name, 0)) for name, at in settled.streams.items()})
        self._due[signal] = None if later is None else later + grace
        self._observe(signal, landed)
        return gone

    def _first_left(self, signal: Signal, landed: Position) -> dict[str, int]:
        """Lists the streams once; afterwards clean-up keeps the numbers. New streams begin at 0."""
        known = self._first.get(signal)
        if known is None:
            reader = WalReader(self._store)
            known = {stream: at.sequence for stream, at in landed.streams.items()}
            there = [stream for stream in reader.streams(signal) if stream in known]
            for listing in side_by_side(reader.stream(signal, stream) for stream in there):
                self._check_stopping()
                for left in itertools.islice(listing, 1):
                    known[left.name.stream] = left.name.sequence
        self._first[signal] = {stream: at for stream, at in known.items() if stream in landed.streams}
        return self._first[signal]

    def _observe(self, signal: Signal, landed: Position) -> None:
        first = self._first[signal]
        count = sum(max(0, at.sequence - first.get(stream, 0)) for stream, at in landed.streams.items())
        self._metrics.not_cleaned(signal, count, self._due[signal])

    def watch(self, signal: Signal, metadata: TableMetadata) -> None:
        """Closes silent streams. Raises DataLost if segments have been missing for some rounds."""
        self._remove_old_marks(signal)
        position = _landed_position(metadata)
        if position is None:
            return
        missing = self._look_for_missing(signal, position)
        # A tombstone in the place of what is missing would shut out what lies behind it.
        whole = position.without_streams({name.stream for name in missing})
        for name in self._closer.close_idle(signal, whole):
            log.info("stream closed", table=signal, stream=name.stream)
        lost = sorted(name for name, rounds in missing.items() if rounds >= _MISSING_ROUNDS_MAX)
        if lost:
            raise DataLost(
                f"{self._config.lake.namespace}.{signal}",
                f"{lost[0].path} is missing in the write-ahead log, so later segments cannot land; "
                f"bring it back ({len(lost)} streams have a missing segment)",
            )

    def _remove_old_marks(self, signal: Signal) -> None:
        now = self._wall_clock()
        if now - self._marks_looked_at.get(signal, 0.0) >= MARK_SECONDS:
            remove_old_marks(self._store, signal, now)
            self._marks_looked_at[signal] = now

    def _look_for_missing(self, signal: Signal, position: Position) -> dict[SegmentName, int]:
        """The next segments of streams that have later ones, each with the rounds for which it has lacked:
        a first look may be overtaken by a writer, or by another pipeline.
        """
        reader, before = WalReader(self._store), self._missing.get(signal, {})
        wanted = [
            SegmentName(signal, stream, 0 if at is None else at.sequence)
            for stream in reader.streams(signal)
            # A segment behind a stream's end was written too late, and its writer never acked it.
            if (at := position.streams.get(stream)) is None or not at.closed
        ]
        missing = {}
        listings = side_by_side(reader.stream(signal, name.stream, name.sequence) for name in wanted)
        for name, listing in zip(wanted, listings, strict=True):
            self._check_stopping()
            there = list(itertools.islice(listing, 2))
            # A single one in a stream that the position does not name is what a late writer leaves.
            alone = name.stream not in position.streams and len(there) == 1
            if there and there[0].name != name and not alone:
                missing[name] = before.get(name, 0) + 1
        self._missing[signal] = missing
        return missing

    def _check_stopping(self) -> None:
        if self._stopping():
            raise Stopped("the pipeline is stopping")

    def _make_sure(self, signal: Signal, settled: Position) -> None:
        """Other engines write metadata on the same disk without fsync. Nothing that could still be lost with
        it may be the only copy of what is deleted next.
        """
        if self._config.warehouse.startswith("s3://") or self._synced_for.get(signal) == settled:
            return
        os.sync()
        self._synced_for[signal] = settled


def _landed_position(metadata: TableMetadata) -> Position | None:
    landed = landed_snapshot(metadata)
    text = None if landed is None else position_text(landed)
    return None if text is None else Position.from_text(text)


@dataclass
class _Job:
    """Work for one table that is done again and again."""

    signal: Signal
    part: str
    run: Callable[[_Job], bool]
    """Does a part of it; whether some is left."""
    due: float = 0.0
    began: float = 0.0
    backoff: float = _BACKOFF_SECONDS
    problem: str = ""
    steps: CleanUpPass | None = None


class UpkeepThread:
    """Cares for the logs of all tables beside landing, until it is stopped. A failure delays that table's
    upkeep alone.

    `metadata_of` gives a table's newest metadata; None if there is no such table yet.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        metadata_of: Callable[[Signal], TableMetadata | None],
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._metadata_of = metadata_of
        self._metrics = metrics
        self._clock = clock
        self._stopping = threading.Event()
        self._upkeep = Upkeep(
            config, store, metrics, clock=clock, wall_clock=wall_clock, stopping=self._stopping.is_set
        )
        self._pause = min(_ROUND_SECONDS, max(config.land.wal_grace_seconds, 1.0))
        parts = {"clean-up": self._clean, "watch": self._watch}
        self._jobs = [_Job(signal, part, run) for part, run in parts.items() for signal in SIGNALS]
        self._gone: dict[Signal, frozenset[str]] = {}
        self._handing_over = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Waits for the batch that is being deleted, for a while."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)
        for job in self._jobs:
            job.problem = ""

    @property
    def problems(self) -> dict[str, str]:
        """By table."""
        return {job.signal: job.problem for job in self._jobs if job.problem}

    def take_gone(self, signal: Signal) -> frozenset[str]:
        """The closed streams of which nothing is left, once. Those that are not dropped then come again."""
        with self._handing_over:
            return self._gone.pop(signal, frozenset())

    def _run(self) -> None:
        while not self._stopping.wait(self.turn()):
            pass

    def turn(self) -> float:
        """Does a part of every job that is due. Returns the seconds until the next is."""
        for job in self._jobs:
            if self._clock() >= job.due and not self._stopping.is_set():
                self._do(job)
        return max(0.0, min(job.due for job in self._jobs) - self._clock())

    def _do(self, job: _Job) -> None:
        if job.steps is None:
            job.began = self._clock()
        try:
            is_left = job.run(job)
        except BaseException as error:  # a panic of the store's client is no Exception
            self._failed(job, error)
            return
        # By when it began: a pass that took longer than the pause is followed by the next one at once.
        job.due = self._clock() if is_left else job.began + self._pause
        job.backoff = _BACKOFF_SECONDS
        if is_left:
            return
        self._metrics.succeeded(job.signal, job.part)
        if job.problem:
            log.info("upkeep of the write-ahead log succeeded again", table=job.signal, part=job.part)
            job.problem = ""

    def _clean(self, job: _Job) -> bool:
        if job.steps is None:
            metadata = self._metadata_of(job.signal)
            if metadata is None:
                return False
            job.steps = self._upkeep.cleaning(job.signal, metadata)
        for _ in range(_BATCHES_PER_TURN):
            if self._stopping.is_set():
                return True
            try:
                next(job.steps)
            except StopIteration as end:
                job.steps = None
                with self._handing_over:
                    self._gone[job.signal] = self._gone.get(job.signal, frozenset()) | end.value
                return False
        return True

    def _watch(self, job: _Job) -> bool:
        metadata = self._metadata_of(job.signal)
        if metadata is not None:
            self._upkeep.watch(job.signal, metadata)
        return False

    def _failed(self, job: _Job, error: BaseException) -> None:
        job.steps = None
        if isinstance(error, Stopped) or self._stopping.is_set():
            return
        is_permanent = isinstance(error, Permanent)
        seconds = _BACKOFF_SECONDS_MAX if is_permanent else job.backoff
        job.due = self._clock() + seconds
        job.backoff = min(job.backoff * 2, _BACKOFF_SECONDS_MAX)
        job.problem = str(error) or repr(error)
        self._metrics.failed(job.signal, stopped=is_permanent, part=job.part)
        say = log.error if is_permanent or not isinstance(error, FrazilError) else log.warning
        say(
            "upkeep of the write-ahead log failed",
            table=job.signal,
            part=job.part,
            reason=job.problem,
            again_in_seconds=seconds,
            exc_info=None if isinstance(error, FrazilError) else error,
        )
