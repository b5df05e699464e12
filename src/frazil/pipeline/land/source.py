"""Sources of a table's rows, WAL segments or a Kafka topic, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.manifest import DataFile

from frazil.config import Config
from frazil.pipeline.datafile import Layout
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Runner
from frazil.position import LandingPosition
from frazil.tables import Signal
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import Facts


@dataclass(frozen=True)
class UnreadableSegment:
    """A segment or message that cannot land. `source` is the value that its rows would have in `_segment`."""

    source: str
    reason: str
    size: int
    payload: bytes | None = None
    tenant: str | None = None
    """None if unknown."""
    location: str | None = None


@dataclass
class MessageCounts:
    messages: int = 0
    rows: int = 0
    set_aside: int = 0
    bytes: int = 0


@dataclass
class TaskResult:
    """The result of one landing task, sent from the worker to the driver."""

    files: list[DataFile] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    """Footers of the segments that were read, including tombstones."""
    unreadable: list[UnreadableSegment] = field(default_factory=list)
    vanished: list[SegmentName] = field(default_factory=list)
    partitions: dict[int, MessageCounts] = field(default_factory=dict)
    """Counts by Kafka partition."""
    oldest_received_unix_nano: int | None = None
    rows: int = 0
    clamped: int = 0
    files_needed: int = 0
    """One for each tenant and day of each chunk of rows."""
    too_many_files: bool = False
    """The task stopped because it needs more files than allowed. Some of its rows are not written."""
    cpu_seconds: float = 0.0
    rss_bytes: int = 0

    def received(self, unix_nano: int) -> None:
        before = self.oldest_received_unix_nano
        self.oldest_received_unix_nano = unix_nano if before is None else min(before, unix_nano)


@dataclass(frozen=True)
class BatchResult:
    """The results of all tasks of a batch, and the table's position after their files are committed."""

    results: Sequence[TaskResult]
    position: LandingPosition
    vanished: Sequence[str] = ()
    """Segments that were listed but no longer exist: another process may have landed them."""

    @property
    def rows(self) -> int:
        return sum(result.rows for result in self.results)

    @property
    def files(self) -> list[DataFile]:
        return [file for result in self.results for file in result.files]

    @property
    def files_needed(self) -> int:
        """The largest number of files that one task needs."""
        return max((result.files_needed for result in self.results), default=0)

    @property
    def too_many_files(self) -> bool:
        """A task has stopped early, so the batch must not be committed."""
        return any(result.too_many_files for result in self.results)

    @property
    def unreadable(self) -> list[UnreadableSegment]:
        return [item for result in self.results for item in result.unreadable]


class Pending(Protocol):
    """Data after a position that has not landed, or a part of it."""

    @property
    def size(self) -> int:
        """Bytes, estimated if the source does not report sizes; 0 if nothing is pending."""
        ...

    @property
    def count(self) -> int:
        """Segments or messages."""
        ...

    @property
    def oldest_seconds(self) -> float | None:
        """When the oldest data was made durable, in seconds since 1970. None if the source does not know."""
        ...

    def batch(self, bytes_max: int) -> Pending:
        """Returns the first part, as much as one commit should land."""
        ...

    def land(self, runner: Runner, layout: Layout, horizon: Horizon, *, files_max: int | None) -> BatchResult:
        """Runs the tasks on Spark. Does not commit. Each task may write its share of `files_max` files, and
        stops if it needs more (`BatchResult.too_many_files`).
        """
        ...


class Source(Protocol):
    """The pending data of one table."""

    def pending(self, position: LandingPosition) -> Pending: ...


def source_of(config: Config, signal: Signal, reader: WalReader | None) -> Source:
    """Returns the configured source. `reader` is None with Kafka."""
    if reader is None:
        from frazil.pipeline.land.kafka import KafkaSource

        return KafkaSource(config, signal)
    from frazil.pipeline.land.segments import SegmentSource

    return SegmentSource(config, signal, reader)
