"""The lane of segments: what waits together becomes one durable segment of the lane's stream.

One segment is in flight at a time, so a stream has no gaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frazil.errors import RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.storage import Store
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.group import Lane, LaneSettings, Observer, Receipt, SegmentWritten, Steps
from frazil.wal.names import new_stream
from frazil.wal.segment import SegmentWriter
from frazil.wal.slices import PendingRequest, Tally
from frazil.wal.stream import Stream

_ATTEMPTS_MAX = 3


@dataclass(frozen=True)
class SegmentSettings(LaneSettings):
    compression_level: int
    stream_use_seconds: float
    """See `Stream`."""


class SegmentLane(Lane[Receipt]):
    """Owns one stream of one signal in the store."""

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
            except FileExistsError:  # fenced: this writer was taken for dead, and its stream was closed
                self._stream.renew()
            except (RequestInvalid, RequestTooLarge, GeneratorExit):  # nothing was begun
                raise
            except BaseException:  # whether the segment is there is unknown: its name is not used again
                self._stream.renew()
                raise
            else:
                signal = self._decoder.signal
                return [Receipt(one.accepted, one.rejected, one.explained(signal)) for one in tallies]
        raise StoreUnavailable("the store says that every new name exists already")

    def _write(self, requests: Sequence[PendingRequest]) -> Steps[list[Tally]]:
        """FileExistsError if the stream's next name is taken.

        The segment gets its name when it is complete: segments of other jobs may come in between.
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
            return tallies  # nothing to keep: empty requests, or all records rejected
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
