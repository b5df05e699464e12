"""WAL segments as a source of landing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from frazil.config import Config
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land.source import BatchResult, TaskResult
from frazil.pipeline.land.task import land_segments, segment_of
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Runner, batched
from frazil.position import LandingPosition, StreamPosition, WalPosition
from frazil.tables import Signal
from frazil.wal.names import SegmentName
from frazil.wal.reader import Segment, WalReader
from frazil.wal.segment import Facts


@dataclass(frozen=True)
class PendingSegments:
    config: Config
    position: LandingPosition
    segments: Sequence[Segment]

    @property
    def size(self) -> int:
        return sum(max(segment.size, 1) for segment in self.segments)  # truncated files are pending too

    @property
    def count(self) -> int:
        return len(self.segments)

    @property
    def oldest_seconds(self) -> float | None:
        times = (segment.durable_seconds for segment in self.segments)
        return min((each for each in times if each is not None), default=None)

    def batch(self, bytes_max: int) -> PendingSegments:
        """Takes the oldest segments of each stream in turn, so that no stream waits for another's backlog."""
        streams: dict[str, list[Segment]] = {}
        for segment in self.segments:
            streams.setdefault(segment.name.stream, []).append(segment)
        taken: list[Segment] = []
        size, depth = 0, 0
        while streams:
            for stream in list(streams):
                if depth >= len(streams[stream]):
                    del streams[stream]
                    continue
                segment = streams[stream][depth]
                if taken and size + segment.size > bytes_max:
                    return replace(self, segments=sorted(taken, key=lambda each: each.name))
                taken.append(segment)
                size += segment.size
            depth += 1
        return self

    def land(self, runner: Runner, layout: Layout, horizon: Horizon, *, files_max: int | None) -> BatchResult:
        tasks = split_tasks(self.segments, self.config.land.task_bytes_max)
        share = None if files_max is None else max(1, files_max // len(tasks))
        # Workers get only the settings that they need to open the store.
        config = Config(data_dir=self.config.data_dir, wal=self.config.wal)
        work = partial(land_segments, config, layout, horizon, files_max=share)
        results = runner.run_job(work, tasks)
        if any(result.too_many_files for result in results):
            return BatchResult(results, self.position)
        return BatchResult(
            results,
            replace(self.position, wal=advance(self.position.wal, self.segments, results)),
            [name.path for result in results for name in result.vanished],
        )


class SegmentSource:
    def __init__(self, config: Config, signal: Signal, reader: WalReader) -> None:
        self._config = config
        self._signal: Signal = signal
        self._reader = reader

    def pending(self, position: LandingPosition) -> PendingSegments:
        """Lists enough segments for one batch, not the whole backlog. Takes streams in turn, like `batch`."""
        streams = self._reader.pending_by_stream(self._signal, position.wal)
        found: list[Segment] = []
        size = 0
        while streams and size <= self._config.land.batch_bytes_max:
            waiting = []
            for stream in streams:
                if (segment := next(stream, None)) is None:
                    continue
                waiting.append(stream)
                found.append(segment)
                size += segment.size
            streams = waiting
        return PendingSegments(self._config, position, sorted(found, key=lambda each: each.name))


def split_tasks(segments: Iterable[Segment], bytes_max: int) -> list[list[SegmentName]]:
    """Groups segments into tasks of at most `bytes_max` bytes. A larger segment is its own task."""
    tasks = batched(segments, lambda segment: segment.size, bytes_max)
    return [[segment.name for segment in task] for task in tasks]


def advance(position: WalPosition, segments: Sequence[Segment], results: Sequence[TaskResult]) -> WalPosition:
    """Returns the position after the segments. Unreadable segments are skipped: they are set aside.

    Raises AssertionError unless the results have each segment exactly once: otherwise rows would be lost or
    duplicated.
    """
    facts: dict[SegmentName, Facts] = {each.name: each for result in results for each in result.facts}
    if len(facts) != sum(len(result.facts) for result in results):
        raise AssertionError("a segment was landed twice in one batch")
    without_rows = {item.source for result in results for item in result.unreadable}
    without_rows |= {segment_of(name) for result in results for name in result.vanished}
    streams: dict[str, StreamPosition] = {}
    for segment in sorted(segments, key=lambda each: each.name):
        stream = segment.name.stream
        at = streams.get(stream) or position.streams.get(stream, StreamPosition())
        if at.sequence != segment.name.sequence:
            raise AssertionError(f"{segment.name.path} does not follow sequence {at.sequence - 1}")
        found = facts.get(segment.name)
        if found is None and segment_of(segment.name) not in without_rows:
            raise AssertionError(f"no task reported {segment.name.path}")
        streams[stream] = replace(
            at,
            sequence=at.sequence + 1,
            rows=at.rows + (found.rows if found is not None else 0),
            durable_rows=found.stream_rows if found is not None else at.durable_rows,
            closed=at.closed or (found is not None and found.tombstone),
        )
    return position.with_streams(streams)
