"""Closing streams whose writers are gone, so that positions do not grow with every restart of a receiver.

The next sequence is created as a tombstone. If its writer lives after all, exactly one of the two creates
succeeds: either the stream goes on, or the writer finds itself fenced and opens a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from frazil.position import WalPosition
from frazil.storage import Store
from frazil.tables import Signal, TableSpec, table_spec
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName
from frazil.wal.segment import tombstone

_CLOSED_AT_ONCE_MAX = 100


@dataclass(frozen=True)
class _Rest:
    """Since when a stream's position has stood still, by our own clock."""

    sequence: int
    since: float


class IdleStreamCloser:
    """Remembers in memory only: after a restart a stream is silent from the first look on.

    A stream counts as silent while its position stands still. That what comes next is not there either, the
    create itself finds out; so a look costs no request.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        stream_idle_seconds: float,
        *,
        spec_of: Callable[[Signal], TableSpec] = table_spec,
    ) -> None:
        self._store = store
        self._clock = clock
        self._idle_seconds = stream_idle_seconds
        self._spec_of = spec_of
        self._resting: dict[Signal, dict[str, _Rest]] = {}

    def close_idle(self, signal: Signal, position: WalPosition) -> list[SegmentName]:
        """Creates tombstones in the streams that have been silent for too long; a bounded number a call.

        `position` is the table's, read just now. Landing finds the tombstones as it finds segments.
        """
        now = self._clock()
        before = self._resting.get(signal, {})
        resting = self._resting[signal] = {
            name: before[name]
            if name in before and before[name].sequence == stream.sequence
            else _Rest(stream.sequence, now)
            for name, stream in position.streams.items()
            if not stream.closed
        }
        silent = [name for name, rest in resting.items() if now - rest.since >= self._idle_seconds]
        closed = []
        for stream in sorted(silent)[:_CLOSED_AT_ONCE_MAX]:
            end = SegmentName(signal, stream, position.streams[stream].sequence)
            rows = position.streams[stream].durable_rows
            try:
                self._store.create(end.path, tombstone(end, rows, self._spec_of(signal)))
                closed.append(end)
            except FileExistsError:
                pass  # its writer lives, or another has closed it: what is there will land
            del resting[stream]
        return closed
