"""Where a table's rows come from: WAL segments or a Kafka topic, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from frazil.config import Config
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land.results import TaskResult, UnreadableSegment
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Runner
from frazil.position import LandingPosition
from frazil.tables import Signal
from frazil.wal.reader import WalReader


@dataclass(frozen=True)
class Outcome:
    """What the tasks of one batch gave, and where the table stands once their files are committed."""

    results: Sequence[TaskResult]
    position: LandingPosition
    vanished: Sequence[str] = ()
    """What was listed and then not there: somebody else has landed it."""

    @property
    def rows(self) -> int:
        return sum(result.rows for result in self.results)

    @property
    def files_needed(self) -> int:
        """By the task that needs most."""
        return max((result.files_needed for result in self.results), default=0)

    @property
    def too_many_files(self) -> bool:
        """Nothing of this may be committed: some task has stopped."""
        return any(result.too_many_files for result in self.results)

    @property
    def unreadable(self) -> list[UnreadableSegment]:
        return [item for result in self.results for item in result.unreadable]


class Work(Protocol):
    """What waits behind a position, or a part of it."""

    @property
    def size(self) -> int:
        """Bytes, as near as the source knows them; 0 if nothing waits."""
        ...

    @property
    def count(self) -> int:
        """Segments or messages."""
        ...

    @property
    def oldest_seconds(self) -> float | None:
        """Since 1970: when the oldest of it was made durable, if the source knows."""
        ...

    def batch(self, bytes_max: int) -> Work:
        """The first of it, as much as one commit should land."""
        ...

    def land(self, runner: Runner, layout: Layout, horizon: Horizon, *, files_max: int | None) -> Outcome:
        """Runs the tasks on Spark; commits nothing. Each task may write its share of `files_max` files, and
        stops if it needs more: `Outcome.too_many_files`.
        """
        ...


class Source(Protocol):
    """Of one table."""

    def pending(self, position: LandingPosition) -> Work: ...


def source_of(config: Config, signal: Signal, reader: WalReader | None) -> Source:
    """Returns the source that the configuration names. `reader` is None with Kafka."""
    if reader is None:
        from frazil.pipeline.land.kafka import KafkaSource

        return KafkaSource(config, signal)
    from frazil.pipeline.land.segments import SegmentSource

    return SegmentSource(config, signal, reader)
