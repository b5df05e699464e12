"""The lane that writes segments: each group of requests becomes one durable segment of the lane's stream.

At most one segment is in flight, so a stream has no gaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frazil.errors import RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.storage import Store
from frazil.tables import Signal
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.group import Lane, LaneSettings, Observer, Receipt, SegmentWritten, Steps
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter
from frazil.wal.slices import PendingRequest, Tally

_ATTEMPTS_MAX = 3


@dataclass(frozen=True)
class SegmentSettings(LaneSettings):
    compression_level: int
    stream_use_seconds: float
    """See `Stream`."""


class Stream:
    """The stream that a lane writes. `begin` a segment, `end` it when durable, `renew` if the outcome is
    unknown.

    Landing closes a stream that was idle for `land.stream_idle_seconds`, later deletes and forgets it. A
    writer suspended for all that time would find its next name free, and could acknowledge a segment that
    never lands. So no write begins later than half of that time after the previous one began (`use_seconds`),
    and no write that took longer than the other half is acknowledged: every acknowledged segment existed
    before its stream could be closed.
    """

    def __init__(self, signal: Signal, use_seconds: float, clock: Clock, ids: Callable[[], str]) -> None:
        self._signal = signal
        self._use_seconds = use_seconds
        self._clock = clock
        self._ids = ids
        self.renew()

    def renew(self) -> None:
        """Starts a new stream."""
        self._next = SegmentName(self._signal, self._ids(), 0)
        self._begun = self._clock()
        self._used = self._begun
        self.rows = 0
        """Rows in the durable segments."""

    def begin(self) -> SegmentName:
        """Returns the name of the segment to create now."""
        self._begun = self._clock()
        if self._begun - self._used >= self._use_seconds:
            self.renew()
        return self._next

    def end(self, rows: int) -> None:
        """Counts a durable segment. Raises StoreUnavailable if it must not be acknowledged."""
        seconds = self._clock() - self._begun
        if seconds > self._use_seconds:
            raise StoreUnavailable(
                f"the write took {seconds:.0f} s, so its stream may have been closed as idle; retry"
            )
        self._used = self._begun
        self._next = self._next.next
        self.rows += rows


class SegmentLane(Lane[Receipt]):
    def __init__(
        self,
        store: Store,
        decoder: Decoder,
        settings: SegmentSettings,
        observer: Observer,
        *,
        stream_ids: Callable[[], str] = new_stream,
        clock: Clock = boot_seconds,
    ) -> None:
        super().__init__(decoder, settings, observer)
        self._store = store
        self._compression_level = settings.compression_level
        self._stream = Stream(decoder.signal, settings.stream_use_seconds, clock, stream_ids)

    def _process(self, requests: Sequence[PendingRequest]) -> Steps[list[Receipt]]:
        for _ in range(_ATTEMPTS_MAX):
            try:
                tallies = yield from self._write(requests)
            except FileExistsError:  # fenced: the stream was closed as idle
                self._stream.renew()
            except (RequestInvalid, RequestTooLarge, GeneratorExit):  # nothing was written
                raise
            except BaseException:  # unknown whether the segment exists: its name must not be used again
                self._stream.renew()
                raise
            else:
                signal = self._decoder.signal
                return [Receipt(one.accepted, one.rejected, one.reason(signal)) for one in tallies]
        raise StoreUnavailable("the store reports that every new segment name already exists")

    def _write(self, requests: Sequence[PendingRequest]) -> Steps[list[Tally]]:
        """Writes one segment. Raises FileExistsError if the stream's next name exists.

        The segment gets its name when it is complete, because other jobs may write segments between steps.
        """
        begin, paused = time.perf_counter(), 0.0
        tallies = [Tally() for _ in requests]
        writer = SegmentWriter(self._compression_level, self._decoder.fill.fingerprint)
        for number, part in enumerate(self._slice_decoder.slices(requests, tallies)):
            if number:
                pause = time.perf_counter()
                yield
                paused += time.perf_counter() - pause
            if part is not None:
                writer.write(part.decoded.table)
        if writer.rows == 0:
            return tallies  # empty requests, or all records rejected
        times = [request.received_unix_nano for request in requests]
        name = self._stream.begin()
        data = writer.finish(name, stream_rows=self._stream.rows, received=(min(times), max(times)))
        encoded = time.perf_counter()
        self._store.create(name.path, data)
        self._stream.end(writer.rows)
        self.failure = None
        stored = time.perf_counter()
        self._observer.segment_written(
            SegmentWritten(
                name, len(requests), writer.rows, len(data), encoded - begin - paused, stored - encoded
            )
        )
        return tallies
