"""What landing leaves behind in the WAL: segments that have landed, and streams that have ended."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

import structlog
from pyiceberg.table.metadata import TableMetadata

from frazil.config import Config
from frazil.errors import DataLost
from frazil.lake.commit import ancestors, landed_snapshot, position_text
from frazil.lake.times import commit_times
from frazil.pipeline.metrics import Metrics
from frazil.tables import Signal, table_spec
from frazil.wal.cleanup import clean_up
from frazil.wal.closing import Closer
from frazil.wal.journal import promoted
from frazil.wal.names import SegmentName
from frazil.wal.position import Position
from frazil.wal.reader import WalReader
from frazil.wal.store import Store
from frazil.wal.sweep import MARK_SECONDS, remove_old_marks

_MISSING_ROUNDS_MAX = 3

log = structlog.get_logger("frazil.land")


def settled_position(metadata: TableMetadata, grace_seconds: float, now_seconds: float) -> Position | None:
    """Where the table stood `grace_seconds` ago. Its snapshots tell, so nothing else has to remember it."""
    landed = landed_snapshot(metadata)
    times = commit_times(metadata, int(now_seconds * 1000))
    for snapshot in () if landed is None else ancestors(metadata, landed):
        text = position_text(snapshot)
        if text is not None and times[snapshot.snapshot_id] <= (now_seconds - grace_seconds) * 1000:
            return Position.from_text(text)
    return None


class Upkeep:
    """Deletes segments some time after they landed, and closes streams that have fallen silent."""

    def __init__(
        self,
        config: Config,
        store: Store,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._store = store
        self._metrics = metrics
        self._wall_clock = wall_clock
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

    def round(self, signal: Signal, metadata: TableMetadata) -> frozenset[str]:
        """The closed streams of which nothing is left in the store."""
        settled = settled_position(metadata, self._config.land.wal_grace_seconds, self._wall_clock())
        gone: frozenset[str] = frozenset()
        if settled is not None:
            self._make_sure(signal, settled)
            cleaned = clean_up(self._store, signal, settled)
            if cleaned.deleted:
                log.info("cleaned up", table=signal, segments=cleaned.deleted, bytes=cleaned.bytes)
            self._metrics.cleaned(signal, cleaned.deleted, cleaned.bytes)
            gone = frozenset(cleaned.gone_streams)
        self._remove_old_marks(signal)
        landed = landed_snapshot(metadata)
        text = None if landed is None else position_text(landed)
        if text is not None:
            position = Position.from_text(text)
            missing = self._look_for_missing(signal, position)
            # A tombstone in the place of what is missing would shut out what lies behind it.
            whole = position.without_streams({name.stream for name in missing})
            for name in self._closer.close_idle(signal, whole):
                log.info("stream closed", table=signal, stream=name.stream)
            lost = sorted(name for name, rounds in missing.items() if rounds >= _MISSING_ROUNDS_MAX)
            if lost:
                raise DataLost(
                    f"{self._config.lake.namespace}.{signal}",
                    f"{lost[0].path} is missing in the write-ahead log, and what lies behind it cannot land; "
                    f"bring it back ({len(lost)} streams lack one)",
                )
        return gone

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
        missing = {}
        for stream in reader.streams(signal):
            at = position.streams.get(stream)
            if at is not None and at.closed:
                continue  # what may lie there was written too late, and nobody was told that it is durable
            wanted = SegmentName(signal, stream, 0 if at is None else at.sequence)
            there = list(itertools.islice(reader.stream(signal, stream, wanted.sequence), 2))
            # A single one in a stream that the position does not name is what a late writer leaves.
            alone = at is None and len(there) == 1
            if there and there[0].name != wanted and not alone:
                missing[wanted] = before.get(wanted, 0) + 1
        self._missing[signal] = missing
        return missing

    def _make_sure(self, signal: Signal, settled: Position) -> None:
        """Other engines write metadata on the same disk without fsync. Nothing that could still be lost with
        it may be the only copy of what is deleted next.
        """
        if self._config.warehouse.startswith("s3://") or self._synced_for.get(signal) == settled:
            return
        os.sync()
        self._synced_for[signal] = settled
