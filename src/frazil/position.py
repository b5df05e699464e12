"""Positions: how much of its input a table contains. Every snapshot of a table stores its position as text.

A landed table has a LandingPosition: the next sequence number of each WAL stream, the next offset of each
Kafka partition, and row counts. The counts form the ledger: they stay correct after segments are deleted and
after rows are removed on purpose. A table that is derived from another table has a SourcePosition.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_VERSION = 1
_VERSION_REMOVED = 2
"""A position that counts removed rows. A release that does not know this version must not land from it: it
would lose the counts.
"""
_VERSION_SOURCE = 3
"""The position of a derived table."""
_PLAIN_CHARACTERS_MAX = 4096
_PACKED = "z:"

Removed = Mapping[str, int]
"""Rows by their source, as in column `_segment`: `stream/sequence` or `topic/partition/offset`."""


@dataclass(frozen=True)
class StreamPosition:
    """The position in one stream. `rows` have landed. `durable_rows` is the total of the stream by its last
    readable segment; the difference is in segments that were set aside. `closed`: the position is past the
    tombstone of the stream. `removed` of the landed rows were removed on purpose.
    """

    sequence: int = 0
    rows: int = 0
    durable_rows: int = 0
    closed: bool = False
    removed: int = 0


@dataclass(frozen=True)
class Left:
    """Totals of the streams that were closed, cleaned up and dropped from the position."""

    streams: int = 0
    rows: int = 0
    durable_rows: int = 0
    removed: int = 0


@dataclass(frozen=True)
class PartitionPosition:
    """The position in one Kafka partition. `offset` is the next to land. `lost` offsets were missing before
    they could land, and an operator chose to skip them.
    """

    offset: int = 0
    rows: int = 0
    messages: int = 0
    set_aside: int = 0
    lost: int = 0
    removed: int = 0


@dataclass(frozen=True)
class TopicPosition:
    """The position in one Kafka topic. A topic that was deleted and recreated has another `id`."""

    id: str
    partitions: Mapping[int, PartitionPosition] = field(default_factory=dict)


@dataclass(frozen=True)
class WalPosition:
    """The position in the WAL. `left` has the totals of streams that were dropped from the position."""

    streams: Mapping[str, StreamPosition] = field(default_factory=dict)
    left: Left = Left()

    @property
    def rows(self) -> int:
        return sum(stream.rows for stream in self.streams.values()) + self.left.rows

    @property
    def removed(self) -> int:
        return sum(stream.removed for stream in self.streams.values()) + self.left.removed

    def with_streams(self, changed: Mapping[str, StreamPosition]) -> WalPosition:
        return replace(self, streams={**self.streams, **changed})

    def without_streams(self, gone: set[str]) -> WalPosition:
        """Drop streams, and keep their totals."""
        dropped = [stream for name, stream in self.streams.items() if name in gone]
        left = Left(
            self.left.streams + len(dropped),
            self.left.rows + sum(stream.rows for stream in dropped),
            self.left.durable_rows + sum(stream.durable_rows for stream in dropped),
            self.left.removed + sum(stream.removed for stream in dropped),
        )
        return WalPosition({name: at for name, at in self.streams.items() if name not in gone}, left)


@dataclass(frozen=True)
class KafkaPosition:
    topics: Mapping[str, TopicPosition] = field(default_factory=dict)

    @property
    def _parts(self) -> list[PartitionPosition]:
        return [part for topic in self.topics.values() for part in topic.partitions.values()]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self._parts)

    @property
    def removed(self) -> int:
        return sum(part.removed for part in self._parts)


@dataclass(frozen=True)
class LandingPosition:
    """The position of a landed table. Both parts are filled if a lake changed between WAL and Kafka."""

    wal: WalPosition = WalPosition()
    kafka: KafkaPosition = KafkaPosition()

    @property
    def rows(self) -> int:
        """All rows that have landed, ever."""
        return self.wal.rows + self.kafka.rows

    @property
    def removed(self) -> int:
        """Of those, the rows that were removed on purpose."""
        return self.wal.removed + self.kafka.removed

    def with_removed(self, rows_by_source: Removed) -> LandingPosition:
        """Count removed rows. Rows of dropped streams are added to `left`; rows that frazil has not landed
        are not counted.
        """
        rows: Counter[str] = Counter()
        for source, number in rows_by_source.items():
            stream, _, place = source.rpartition("/")
            if place.isdecimal():
                rows[stream] += number
        streams = {
            name: replace(stream, removed=stream.removed + rows.pop(name))
            for name, stream in self.wal.streams.items()
            if name in rows
        }
        topics = {
            name: replace(
                topic,
                partitions={
                    number: replace(part, removed=part.removed + rows.pop(f"{name}/{number}", 0))
                    for number, part in topic.partitions.items()
                },
            )
            for name, topic in self.kafka.topics.items()
        }
        left = replace(self.wal.left, removed=self.wal.left.removed + rows.total())
        return LandingPosition(replace(self.wal.with_streams(streams), left=left), KafkaPosition(topics))

    def to_text(self) -> str:
        return _text(_landing_document(self))


@dataclass(frozen=True)
class SourcePosition:
    """The position of a table that is derived from `table`: complete up to one of its snapshots, and up to
    the landing position of that snapshot. If the snapshot has expired, the landing position says which rows
    are new.
    """

    table: str
    snapshot_id: int
    landing: LandingPosition
    sequence: int = 0
    """The snapshot's Iceberg sequence number. Data files with at most this sequence number have no new
    rows.
    """
    counted: int | None = None
    """The rows of the source that are counted in the table. None if the table does not count them."""
    replacements: int = 0
    """How often days were replaced. Two replacements that began at the same number must not both succeed:
    they could add the same rows.
    """

    def to_text(self) -> str:
        source: dict[str, Any] = {
            "table": self.table,
            "snapshot": self.snapshot_id,
            "sequence": self.sequence,
            "landing": _landing_document(self.landing),
        }
        if self.counted is not None:
            source["counted"] = self.counted
        if self.replacements:
            source["replacements"] = self.replacements
        return _text({"v": _VERSION_SOURCE, "source": source})


Position = LandingPosition | SourcePosition


def parse_position(text: str) -> Position:
    """Parse a position. Raises ValueError if the text is not a position or has a later version."""
    try:
        if text.startswith(_PACKED):
            text = zlib.decompress(base64.b64decode(text[len(_PACKED) :])).decode()
        document = json.loads(text)
        version = document.get("v")
        if version in (_VERSION, _VERSION_REMOVED):
            return _landing(document)
        if version == _VERSION_SOURCE:
            source = document["source"]
            landing, sequence = _landing(source["landing"]), int(source.get("sequence", 0))
            counted = None if source.get("counted") is None else int(source["counted"])
            return SourcePosition(
                str(source["table"]),
                int(source["snapshot"]),
                landing,
                sequence,
                counted,
                int(source.get("replacements", 0)),
            )
    except (zlib.error, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a position: {error}") from None
    raise ValueError(f"the position has version {version}, but this release supports up to {_VERSION_SOURCE}")


def landing_position(text: str) -> LandingPosition:
    """Parse the position of a landed table. Raises ValueError as `parse_position` does, and for a derived
    table.
    """
    position = parse_position(text)
    if isinstance(position, SourcePosition):
        raise ValueError(f"the position is in the table {position.table}, not in the WAL or Kafka")
    return position


def source_position(text: str) -> SourcePosition:
    """Parse the position of a derived table. Raises ValueError as `parse_position` does, and for a landed
    table.
    """
    position = parse_position(text)
    if isinstance(position, LandingPosition):
        raise ValueError("the position is in the WAL or Kafka, not in another table")
    return position


@dataclass(frozen=True)
class NewRows:
    """Decides from the column `_segment` which rows of a table landed after a position.

    `head` is a later landing position of the table. A source that neither position knows is a stream that
    has ended. Names of streams increase with the time of their start: the stream is new if its name is
    greater than all names in the earlier position.
    """

    since: LandingPosition
    head: LandingPosition

    def is_new(self, source: str) -> bool:
        name, _, number = source.rpartition("/")
        if not number.isdecimal():
            return False
        at = int(number)
        if (stream := self.since.wal.streams.get(name)) is not None:
            return at >= stream.sequence
        topic, _, partition = name.rpartition("/")
        if (known := self.since.kafka.topics.get(topic)) is not None and partition.isdecimal():
            part = known.partitions.get(int(partition))
            return part is None or at >= part.offset
        if name in self.head.wal.streams or topic in self.head.kafka.topics:
            return True
        if self.since != LandingPosition() and not self.is_uncertain(source):
            return False  # all streams that neither position knows had ended before the earlier one
        return name > max(self.since.wal.streams, default="") or self.since == LandingPosition()

    def is_uncertain(self, source: str) -> bool:
        """Whether only the name of a stream tells whether its rows are new: neither position knows the
        stream, and streams have ended between them.
        """
        name = source.rpartition("/")[0]
        return (
            self.since != LandingPosition()
            and self.since.wal.left.streams != self.head.wal.left.streams
            and name not in self.since.wal.streams
            and name not in self.head.wal.streams
            and name.rpartition("/")[0] not in {*self.since.kafka.topics, *self.head.kafka.topics}
        )


def without(rows_by_source: Removed, text: str, *, counted: int = 0) -> str:
    """Return the position text of a table after these rows were removed. Derived rows have no source in the
    WAL or Kafka: of their table, only the number of counted rows changes, by `counted`.
    """
    position = parse_position(text)
    if isinstance(position, SourcePosition):
        return shifted(text, -counted)
    return position.with_removed(rows_by_source).to_text()


def shifted(text: str, by: int) -> str:
    """Return the position text of a derived table that counts `by` more rows of its source."""
    position = source_position(text)
    if by == 0 or position.counted is None:
        return text
    return replace(position, counted=position.counted + by).to_text()


def _text(document: dict[str, Any]) -> str:
    """Return readable JSON if it is short; compressed for many streams, about 30 bytes each."""
    text = json.dumps(document, separators=(",", ":"))
    if len(text) <= _PLAIN_CHARACTERS_MAX:
        return text
    return _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _landing_document(position: LandingPosition) -> dict[str, Any]:
    wal, topics = position.wal, position.kafka.topics
    document: dict[str, Any] = {"v": _VERSION_REMOVED if position.removed else _VERSION}
    if wal.streams:
        document["streams"] = {name: _fields(stream) for name, stream in sorted(wal.streams.items())}
    if wal.left != Left():
        left = wal.left
        document["left"] = [left.streams, left.rows, left.durable_rows, *_unless_zero(left.removed)]
    if topics:
        document["topics"] = {
            name: {
                "id": topic.id,
                "partitions": {
                    str(number): [
                        *(part.offset, part.rows, part.messages, part.set_aside, part.lost),
                        *_unless_zero(part.removed),
                    ]
                    for number, part in sorted(topic.partitions.items())
                },
            }
            for name, topic in sorted(topics.items())
        }
    return document


def _landing(document: dict[str, Any]) -> LandingPosition:
    streams = {
        name: StreamPosition(
            fields[0],
            fields[1],
            fields[2],
            len(fields) > 3 and bool(fields[3]),
            fields[4] if len(fields) > 4 else 0,
        )
        for name, fields in document.get("streams", {}).items()
    }
    topics = {
        name: TopicPosition(
            topic["id"],
            {int(number): PartitionPosition(*part) for number, part in topic["partitions"].items()},
        )
        for name, topic in document.get("topics", {}).items()
    }
    return LandingPosition(WalPosition(streams, Left(*document.get("left", ()))), KafkaPosition(topics))


def _fields(stream: StreamPosition) -> list[int]:
    """Trailing default fields are omitted."""
    closed = [int(stream.closed)] if stream.closed or stream.removed else []
    return [stream.sequence, stream.rows, stream.durable_rows, *closed, *_unless_zero(stream.removed)]


def _unless_zero(count: int) -> list[int]:
    return [count] if count else []
