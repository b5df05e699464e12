"""Closes streams whose writers are gone, so that positions do not grow with every restart of a receiver.

Creates the stream's next sequence as a tombstone. If the writer is still alive, exactly one of the two
creates succeeds: either the stream stays open, or the writer is fenced and opens a new stream.
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
class _IdleSince:
    """The local time since which a stream's position has not changed."""

    sequence: int
    since: float


class IdleStreamCloser:
    """Closes streams whose position has not changed for `stream_idle_seconds`.

    Idle times are kept in memory and start again after a restart. Checking costs no store request: whether
    the next segment exists is decided by the create of the tombstone.
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
        self._open: dict[Signal, dict[str, _IdleSince]] = {}

    def close_idle(self, signal: Signal, position: WalPosition) -> list[SegmentName]:
        """Creates tombstones in idle streams, at most 100 per call, and returns their names.

        `position` is the table's current position. Landing reads tombstones like segments.
        """
        now = self._clock()
        before = self._open.get(signal, {})
        streams = self._open[signal] = {
            name: before[name]
            if name in before and before[name].sequence == stream.sequence
            else _IdleSince(stream.sequence, now)
            for name, stream in position.streams.items()
            if not stream.closed
        }
        idle = [name for name, state in streams.items() if now - state.since >= self._idle_seconds]
        closed = []
        for stream in sorted(idle)[:_CLOSED_AT_ONCE_MAX]:
            end = SegmentName(signal, stream, position.streams[stream].sequence)
            rows = position.streams[stream].durable_rows
            try:
                self._store.create(end.path, tombstone(end, rows, self._spec_of(signal)))
                closed.append(end)
            except FileExistsError:
                pass  # the writer is alive, or another process closed the stream: the segment will land
            del streams[stream]
        return closed
