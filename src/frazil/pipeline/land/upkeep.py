"""WAL upkeep: deletes segments that have landed, and closes idle streams.

Only segments below positions that were committed some time ago are deleted. So these steps are also safe
shortly after the lease was lost, and in two pipelines at once.
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
    """Returns the table's position `grace_seconds` ago, and the commit time of the first landing after it, in
    seconds since 1970, both from the table's snapshots.
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
"""Loads a table's newest metadata; None if the table does not exist yet."""


@dataclass(frozen=True)
class TableWal:
    """The write-ahead log of one table. `metadata_of` loads the table's metadata."""

    config: Config
    signal: Signal
    store: Store
    metadata_of: MetadataOf
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


class CleanUpStep(Step):
    """Deletes a table's segments `land.wal_grace_seconds` after they landed."""

    part = "WAL clean-up"

    def __init__(self, wal: TableWal, metrics: Metrics) -> None:
        super().__init__(wal.signal)
        self._wal = wal
        self._metrics = metrics
        self._synced_for: WalPosition | None = None
        self._first: dict[str, int] | None = None
        """The lowest sequence that may still exist in each stream; 0 for other streams."""
        self._due: float | None = self._wal.wall_clock()
        """When the oldest remaining segment may be deleted, in seconds since 1970."""
        self._deleted_streams: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def run(self) -> float:
        begin = self._wal.clock()
        if (metadata := self._wal.metadata_of()) is not None:
            deleted = self._clean_up(metadata)
            with self._lock:
                self._deleted_streams |= deleted
        # If a pass took longer than the pause, the next one starts at once.
        return max(0.0, begin + round_seconds(self._wal.config) - self._wal.clock())

    def take_deleted_streams(self) -> frozenset[str]:
        """Returns, once, the closed streams that have no segments left in the store. Streams that the caller
        does not remove from the position are found again. May be called from any thread.
        """
        with self._lock:
            deleted, self._deleted_streams = self._deleted_streams, frozenset()
        return deleted

    def _clean_up(self, metadata: TableMetadata) -> frozenset[str]:
        """Deletes segments in batches. Returns the closed streams that have no segments left."""
        grace = self._wal.config.land.wal_grace_seconds
        settled, later = settled_position(metadata, grace, self._wal.wall_clock())
        landed = _landed_position(metadata) or WalPosition()
        first = self._first_left(landed)
        self._observe(first, landed)
        deleted_streams: frozenset[str] = frozenset()
        if settled is not None:
            self._sync_metadata(settled)
            deleted_streams = self._delete(settled, first, landed)
            first.update({name: max(at.sequence, first.get(name, 0)) for name, at in settled.streams.items()})
        self._due = None if later is None else later + grace
        self._observe(first, landed)
        return deleted_streams

    def _delete(self, settled: WalPosition, first: dict[str, int], landed: WalPosition) -> frozenset[str]:
        batches, deleted, size = clean_up_pass(self._wal.store, self._wal.signal, settled), 0, 0
        while True:
            self.check_cancelled()
            try:
                batch = next(batches)
            except StopIteration as end:
                deleted_streams: frozenset[str] = end.value
                break
            self._metrics.cleaned(self._wal.signal, batch.deleted, batch.bytes)
            deleted, size = deleted + batch.deleted, size + batch.bytes
            first.update(batch.first)
            self._observe(first, landed)
        if deleted:
            log.info("landed segments deleted", table=self._wal.signal, segments=deleted, bytes=size)
        return deleted_streams

    def _first_left(self, landed: WalPosition) -> dict[str, int]:
        """Returns the lowest remaining sequence of each stream. Lists the streams only in the first call;
        clean-up keeps the numbers up to date. New streams begin at 0.
        """
        known = self._first
        if known is None:
            reader = WalReader(self._wal.store)
            known = {stream: at.sequence for stream, at in landed.streams.items()}
            existing = [stream for stream in reader.streams(self._wal.signal) if stream in known]
            for listing in prefetched(reader.stream(self._wal.signal, stream) for stream in existing):
                self.check_cancelled()
                for segment in itertools.islice(listing, 1):
                    known[segment.name.stream] = segment.name.sequence
        self._first = {stream: at for stream, at in known.items() if stream in landed.streams}
        return self._first

    def _observe(self, first: dict[str, int], landed: WalPosition) -> None:
        count = sum(max(0, at.sequence - first.get(stream, 0)) for stream, at in landed.streams.items())
        self._metrics.not_cleaned(self._wal.signal, count, self._due)

    def _sync_metadata(self, settled: WalPosition) -> None:
        """Syncs a local disk before segments are deleted: other engines write metadata without fsync, and the
        tables' copy of the rows must be durable first.
        """
        if self._wal.config.warehouse.startswith("s3://") or self._synced_for == settled:
            return
        os.sync()
        self._synced_for = settled


class WatchStep(Step):
    """Closes a table's idle streams and detects missing segments."""

    part = "WAL watch"

    def __init__(self, wal: TableWal) -> None:
        super().__init__(wal.signal)
        self._wal = wal
        self._closer = IdleStreamCloser(
            wal.store,
            wal.clock,
            wal.config.land.stream_idle_seconds,
            spec_of=lambda signal: table_spec(signal, promoted(wal.config)),
        )
        self._marks_removed_at = 0.0
        self._missing: dict[SegmentName, int] = {}
        """Missing segments before existing ones, and for how many rounds in a row they were missing."""

    def run(self) -> float:
        """Raises DataLost if a segment was missing in several rounds in a row."""
        if (metadata := self._wal.metadata_of()) is not None:
            self._watch(metadata)
        return round_seconds(self._wal.config)

    def _watch(self, metadata: TableMetadata) -> None:
        self._remove_old_marks()
        position = _landed_position(metadata)
        if position is None:
            return
        self._missing = self._find_missing(position)
        # A tombstone in the place of a missing segment would exclude the segments after it.
        complete = position.without_streams({name.stream for name in self._missing})
        for name in self._closer.close_idle(self._wal.signal, complete):
            log.info("stream closed", table=self._wal.signal, stream=name.stream)
        lost = sorted(name for name, rounds in self._missing.items() if rounds >= _MISSING_ROUNDS_MAX)
        if lost:
            raise DataLost(
                f"{self._wal.config.lake.namespace}.{self._wal.signal}",
                f"{lost[0].path} is missing in the write-ahead log, so later segments cannot land; "
                f"restore it ({len(lost)} streams have a missing segment)",
            )

    def _remove_old_marks(self) -> None:
        now = self._wal.wall_clock()
        if now - self._marks_removed_at >= MARK_SECONDS:
            remove_old_marks(self._wal.store, self._wal.signal, now)
            self._marks_removed_at = now

    def _find_missing(self, position: WalPosition) -> dict[SegmentName, int]:
        """Returns the missing next segments of streams that have later segments, with the number of rounds in
        which each was missing. One round is no proof: a writer or another pipeline may have been faster.
        """
        reader = WalReader(self._wal.store)
        expected = [
            SegmentName(self._wal.signal, stream, 0 if at is None else at.sequence)
            for stream in reader.streams(self._wal.signal)
            # Segments after the end of a closed stream were written too late and never acknowledged.
            if (at := position.streams.get(stream)) is None or not at.closed
        ]
        missing = {}
        listings = prefetched(
            reader.stream(self._wal.signal, name.stream, name.sequence) for name in expected
        )
        for name, listing in zip(expected, listings, strict=True):
            self.check_cancelled()
            found = list(itertools.islice(listing, 2))
            # A late writer leaves a single segment in a stream that the position does not have.
            is_late = name.stream not in position.streams and len(found) == 1
            if found and found[0].name != name and not is_late:
                missing[name] = self._missing.get(name, 0) + 1
        return missing


def round_seconds(config: Config) -> float:
    """Returns the interval of WAL upkeep and of reading the position again."""
    return min(_ROUND_SECONDS, max(config.land.wal_grace_seconds, 1.0))


def _landed_position(metadata: TableMetadata) -> WalPosition | None:
    landed = landed_snapshot(metadata)
    text = None if landed is None else position_text(landed)
    return None if text is None else landing_position(text).wal
