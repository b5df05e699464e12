"""Steps that tidy the WAL: they delete segments that have landed, and close streams that have ended.

Segments are deleted only below positions that were committed some time ago. So these steps are safe for a
moment after the lease was lost, and in two pipelines at once.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable

import structlog
from pyiceberg.table.metadata import TableMetadata

from frazil.config import Config
from frazil.errors import DataLost
from frazil.lake.snapshots import ancestors, commit_times, landed_snapshot, position_text
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.steps import Step
from frazil.position import WalPosition, landing_position
from frazil.storage import Store
from frazil.tables import Signal, table_spec
from frazil.tables.promoted import promoted
from frazil.wal.cleanup import clean_up_pass
from frazil.wal.idle_streams import IdleStreamCloser
from frazil.wal.immediate_delete import MARK_SECONDS, remove_old_marks
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader, prefetched

_MISSING_ROUNDS_MAX = 3
_ROUND_SECONDS = 30.0

log = structlog.get_logger("frazil.land")


def settled_position(
    metadata: TableMetadata, grace_seconds: float, now_seconds: float
) -> tuple[WalPosition | None, float | None]:
    """Returns the table's position `grace_seconds` ago, and when the first landing after it was committed, in
    seconds since 1970. The table's snapshots tell both.
    """
    landed = landed_snapshot(metadata)
    times = commit_times(metadata, int(now_seconds * 1000))
    later: float | None = None
    for snapshot in () if landed is None else ancestors(metadata, landed):
        text = position_text(snapshot)
        if text is None:
            continue
        committed = times[snapshot.snapshot_id]
        if committed <= (now_seconds - grace_seconds) * 1000:
            return landing_position(text).wal, later
        later = committed / 1000
    return None, later


MetadataOf = Callable[[], TableMetadata | None]
"""Loads a table's newest metadata; None if there is no such table yet."""


class _WalStep(Step):
    """A step on the write-ahead log of one table. `metadata_of` tells how far the table has come."""

    def __init__(
        self,
        config: Config,
        signal: Signal,
        store: Store,
        metadata_of: MetadataOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(signal)
        self._config = config
        self._signal: Signal = signal
        self._store = store
        self._metadata_of = metadata_of
        self._clock = clock
        self._wall_clock = wall_clock


class CleanUpStep(_WalStep):
    """Deletes a table's segments some time after they landed."""

    part = "WAL clean-up"

    def __init__(
        self,
        config: Config,
        signal: Signal,
        store: Store,
        metadata_of: MetadataOf,
        metrics: Metrics,
        **clocks: Callable[[], float],
    ) -> None:
        super().__init__(config, signal, store, metadata_of, **clocks)
        self._metrics = metrics
        self._synced_for: WalPosition | None = None
        self._first: dict[str, int] | None = None
        """The lowest sequence that may be left in each stream; 0 in streams that are not named."""
        self._due: float | None = self._wall_clock()
        """When the oldest segment that is left may be deleted, in seconds since 1970."""
        self._gone: frozenset[str] = frozenset()
        self._handing_over = threading.Lock()

    def run(self) -> float:
        begin = self._clock()
        if (metadata := self._metadata_of()) is not None:
            gone = self._clean_up(metadata)
            with self._handing_over:
                self._gone |= gone
        # A pass that took longer than the pause is followed by the next one at once.
        return max(0.0, begin + round_seconds(self._config) - self._clock())

    def take_gone(self) -> frozenset[str]:
        """Returns the closed streams of which nothing is left in the store, once. Those that the caller does
        not drop from the position are found again. Called from any thread.
        """
        with self._handing_over:
            gone, self._gone = self._gone, frozenset()
        return gone

    def _clean_up(self, metadata: TableMetadata) -> frozenset[str]:
        """Deletes batch by batch. Returns the closed streams of which nothing is left."""
        grace = self._config.land.wal_grace_seconds
        settled, later = settled_position(metadata, grace, self._wall_clock())
        landed = _landed_position(metadata) or WalPosition()
        first = self._first_left(landed)
        self._observe(first, landed)
        gone: frozenset[str] = frozenset()
        if settled is not None:
            self._make_sure(settled)
            gone = self._delete(settled, first, landed)
            first.update({name: max(at.sequence, first.get(name, 0)) for name, at in settled.streams.items()})
        self._due = None if later is None else later + grace
        self._observe(first, landed)
        return gone

    def _delete(self, settled: WalPosition, first: dict[str, int], landed: WalPosition) -> frozenset[str]:
        batches, deleted, size = clean_up_pass(self._store, self._signal, settled), 0, 0
        while True:
            self.check_cancelled()
            try:
                batch = next(batches)
            except StopIteration as end:
                gone: frozenset[str] = end.value
                break
            self._metrics.cleaned(self._signal, batch.deleted, batch.bytes)
            deleted, size = deleted + batch.deleted, size + batch.bytes
            first.update(batch.first)
            self._observe(first, landed)
        if deleted:
            log.info("cleaned up", table=self._signal, segments=deleted, bytes=size)
        return gone

    def _first_left(self, landed: WalPosition) -> dict[str, int]:
        """Lists the streams once; afterwards clean-up keeps the numbers. New streams begin at 0."""
        known = self._first
        if known is None:
            reader = WalReader(self._store)
            known = {stream: at.sequence for stream, at in landed.streams.items()}
            there = [stream for stream in reader.streams(self._signal) if stream in known]
            for listing in prefetched(reader.stream(self._signal, stream) for stream in there):
                self.check_cancelled()
                for left in itertools.islice(listing, 1):
                    known[left.name.stream] = left.name.sequence
        self._first = {stream: at for stream, at in known.items() if stream in landed.streams}
        return self._first

    def _observe(self, first: dict[str, int], landed: WalPosition) -> None:
        count = sum(max(0, at.sequence - first.get(stream, 0)) for stream, at in landed.streams.items())
        self._metrics.not_cleaned(self._signal, count, self._due)

    def _make_sure(self, settled: WalPosition) -> None:
        """Other engines write metadata on the same disk without fsync. Nothing that could still be lost with
        it may be the only copy of what is deleted next.
        """
        if self._config.warehouse.startswith("s3://") or self._synced_for == settled:
            return
        os.sync()
        self._synced_for = settled


class WatchStep(_WalStep):
    """Closes a table's streams that have fallen silent, and notices segments that are missing."""

    part = "WAL watch"

    def __init__(
        self,
        config: Config,
        signal: Signal,
        store: Store,
        metadata_of: MetadataOf,
        **clocks: Callable[[], float],
    ) -> None:
        super().__init__(config, signal, store, metadata_of, **clocks)
        self._closer = IdleStreamCloser(
            store,
            self._clock,
            config.land.stream_idle_seconds,
            spec_of=lambda signal: table_spec(signal, promoted(config)),
        )
        self._marks_looked_at = 0.0
        self._missing: dict[SegmentName, int] = {}
        """Missing segments that later ones follow, and in how many rounds in a row they were missing."""

    def run(self) -> float:
        """Raises DataLost if segments have been missing for some rounds."""
        if (metadata := self._metadata_of()) is not None:
            self._watch(metadata)
        return round_seconds(self._config)

    def _watch(self, metadata: TableMetadata) -> None:
        self._remove_old_marks()
        position = _landed_position(metadata)
        if position is None:
            return
        self._missing = self._look_for_missing(position)
        # A tombstone in the place of a missing segment would shut out the segments that follow it.
        whole = position.without_streams({name.stream for name in self._missing})
        for name in self._closer.close_idle(self._signal, whole):
            log.info("stream closed", table=self._signal, stream=name.stream)
        lost = sorted(name for name, rounds in self._missing.items() if rounds >= _MISSING_ROUNDS_MAX)
        if lost:
            raise DataLost(
                f"{self._config.lake.namespace}.{self._signal}",
                f"{lost[0].path} is missing in the write-ahead log, so later segments cannot land; "
                f"bring it back ({len(lost)} streams have a missing segment)",
            )

    def _remove_old_marks(self) -> None:
        now = self._wall_clock()
        if now - self._marks_looked_at >= MARK_SECONDS:
            remove_old_marks(self._store, self._signal, now)
            self._marks_looked_at = now

    def _look_for_missing(self, position: WalPosition) -> dict[SegmentName, int]:
        """Returns the next segments of streams that have later ones, each with the rounds for which it was
        missing: in the first round, a writer or another pipeline may have been faster.
        """
        reader = WalReader(self._store)
        wanted = [
            SegmentName(self._signal, stream, 0 if at is None else at.sequence)
            for stream in reader.streams(self._signal)
            # A segment behind a stream's end was written too late, and its writer never acked it.
            if (at := position.streams.get(stream)) is None or not at.closed
        ]
        missing = {}
        listings = prefetched(reader.stream(self._signal, name.stream, name.sequence) for name in wanted)
        for name, listing in zip(wanted, listings, strict=True):
            self.check_cancelled()
            there = list(itertools.islice(listing, 2))
            # A single one in a stream that the position does not name is what a late writer leaves.
            alone = name.stream not in position.streams and len(there) == 1
            if there and there[0].name != name and not alone:
                missing[name] = self._missing.get(name, 0) + 1
        return missing


def round_seconds(config: Config) -> float:
    """How often to tidy up, and to learn what another process has landed."""
    return min(_ROUND_SECONDS, max(config.land.wal_grace_seconds, 1.0))


def _landed_position(metadata: TableMetadata) -> WalPosition | None:
    landed = landed_snapshot(metadata)
    text = None if landed is None else position_text(landed)
    return None if text is None else landing_position(text).wal
