"""What a task says of what it did. Travels from the workers to the driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile

from frazil.wal.names import SegmentName
from frazil.wal.segment import Facts


@dataclass(frozen=True)
class UnreadableSegment:
    """Something that cannot land. `source` is what `_segment` would have been."""

    source: str
    reason: str
    size: int
    payload: bytes | None = None
    tenant: str | None = None
    """Whose it is, where that is known."""
    location: str | None = None


@dataclass
class MessageCounts:
    messages: int = 0
    rows: int = 0
    set_aside: int = 0
    bytes: int = 0


@dataclass
class TaskResult:
    files: list[DataFile] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    """Of the segments that were landed or are tombstones."""
    unreadable: list[UnreadableSegment] = field(default_factory=list)
    vanished: list[SegmentName] = field(default_factory=list)
    partitions: dict[int, MessageCounts] = field(default_factory=dict)
    """Of Kafka."""
    oldest_received_unix_nano: int | None = None
    """When the first of it came to the receiver."""
    rows: int = 0
    clamped: int = 0
    files_needed: int = 0
    """One for each tenant and day of each chunk of rows that was arranged."""
    too_many_files: bool = False
    """The task stopped, as it needs more files than it may write. It has not written all of its rows."""
    cpu_seconds: float = 0.0
    rss_bytes: int = 0

    def received(self, unix_nano: int) -> None:
        before = self.oldest_received_unix_nano
        self.oldest_received_unix_nano = unix_nano if before is None else min(before, unix_nano)
