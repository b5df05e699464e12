"""The stream that a lane writes, and how long it may.

Landing closes a stream in which nothing has come for `land.stream_idle_seconds`, deletes it later and then
forgets it. A writer that slept through all of that would find its next name free, and could ack what nobody
will ever land. So it never begins a write later than half of that time after the last one began, and never
acks one that took longer than the other half: whatever it acks was there before the stream could be closed.
"""

from __future__ import annotations

from collections.abc import Callable

from frazil.errors import StoreUnavailable
from frazil.tables import Signal
from frazil.wal.clock import Clock
from frazil.wal.names import SegmentName


class Stream:
    """`begin` a segment, then `end` it when it is durable. When its outcome is unknown, `renew`."""

    def __init__(self, signal: Signal, use_seconds: float, clock: Clock, ids: Callable[[], str]) -> None:
        self._signal = signal
        self._use_seconds = use_seconds
        self._clock = clock
        self._ids = ids
        self.renew()

    def renew(self) -> None:
        """A new stream takes the place of this one."""
        self._next = SegmentName(self._signal, self._ids(), 0)
        self._begun = self._clock()
        self._used = self._begun
        self.rows = 0
        """In the segments that are durable."""

    def begin(self) -> SegmentName:
        """The name of the segment to be created now."""
        self._begun = self._clock()
        if self._begun - self._used >= self._use_seconds:
            self.renew()
        return self._next

    def end(self, rows: int) -> None:
        """The segment is durable with so many rows. StoreUnavailable if it must not be acked."""
        seconds = self._clock() - self._begun
        if seconds > self._use_seconds:
            raise StoreUnavailable(
                f"the write took {seconds:.0f} s; its stream may have been taken for dead meanwhile"
            )
        self._used = self._begun
        self._next = self._next.next
        self.rows += rows
