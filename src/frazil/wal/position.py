"""How far a table has come in its inputs. Every snapshot of a table carries one, as text.

A position names, for each stream, the next sequence to land and the rows that have landed, and for each
partition of a Kafka topic the next offset. The counts make a ledger: they add up after the segments are gone,
and after rows were removed on purpose.
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
"""Of a position that counts removed rows. A release that does not know of them must not land from it: it
would forget the counts.
"""
_PLAIN_CHARACTERS_MAX = 4096
_PACKED = "z:"

Removed = Mapping[str, int]
"""Rows by where they came from, as the column `_segment` names it: `stream/sequence`, or
`topic/partition/offset`.
"""


@dataclass(frozen=True)
class StreamPosition:
    """`rows` have landed. `durable_rows` is what the last readable segment said of its stream so far: the
    difference is in segments that were set aside. `closed`: its tombstone is behind the position. `removed`
    rows of those that landed are gone again, on purpose.
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
    """`offset` is the next to land. `lost` offsets were gone before they could land, and someone said to go
    on.
    """

    offset: int = 0
    rows: int = 0
    messages: int = 0
    set_aside: int = 0
    lost: int = 0
    removed: int = 0


@dataclass(frozen=True)
class TopicPosition:
    """`id` is the broker's: a topic that was deleted and made anew has another."""

    id: str
    partitions: Mapping[int, PartitionPosition] = field(default_factory=dict)


@dataclass(frozen=True)
class Position:
    streams: Mapping[str, StreamPosition] = field(default_factory=dict)
    left: Left = Left()
    topics: Mapping[str, TopicPosition] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """All rows that have landed, ever."""
        return (
            sum(stream.rows for stream in self.streams.values())
            + self.left.rows
            + sum(part.rows for topic in self.topics.values() for part in topic.partitions.values())
        )

    @property
    def removed(self) -> int:
        """Of those, the rows that were removed on purpose."""
        return (
            sum(stream.removed for stream in self.streams.values())
            + self.left.removed
            + sum(part.removed for topic in self.topics.values() for part in topic.partitions.values())
        )

    def with_removed(self, rows_by_source: Removed) -> Position:
        """Counts rows that go. What came from a stream that is not named any more counts with those that
        have left; what nobody of us has landed is not counted.
        """
        rows: Counter[str] = Counter()
        for source, number in rows_by_source.items():
            stream, _, place = source.rpartition("/")
            if place.isdecimal():
                rows[stream] += number
        streams = {
            name: replace(stream, removed=stream.removed + rows.pop(name))
            for name, stream in self.streams.items()
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
            for name, topic in self.topics.items()
        }
        left = replace(self.left, removed=self.left.removed + rows.total())
        return replace(self.with_streams(streams), topics=topics, left=left)

    def with_streams(self, changed: Mapping[str, StreamPosition]) -> Position:
        return replace(self, streams={**self.streams, **changed})

    def without_streams(self, gone: set[str]) -> Position:
        """Drops streams; their totals stay."""
        dropped = [stream for name, stream in self.streams.items() if name in gone]
        left = Left(
            self.left.streams + len(dropped),
            self.left.rows + sum(stream.rows for stream in dropped),
            self.left.durable_rows + sum(stream.durable_rows for stream in dropped),
            self.left.removed + sum(stream.removed for stream in dropped),
        )
        kept = {name: stream for name, stream in self.streams.items() if name not in gone}
        return replace(self, streams=kept, left=left)

    def to_text(self) -> str:
        """JSON for people while it is short; packed when there are many streams, about 30 bytes each."""
        document: dict[str, Any] = {"v": _VERSION_REMOVED if self.removed else _VERSION}
        if self.streams:
            document["streams"] = {name: _fields(stream) for name, stream in sorted(self.streams.items())}
        if self.left != Left():
            document["left"] = [
                self.left.streams,
                self.left.rows,
                self.left.durable_rows,
                *([self.left.removed] if self.left.removed else []),
            ]
        if self.topics:
            document["topics"] = {
                name: {
                    "id": topic.id,
                    "partitions": {
                        str(number): [
                            *(part.offset, part.rows, part.messages, part.set_aside, part.lost),
                            *([part.removed] if part.removed else []),
                        ]
                        for number, part in sorted(topic.partitions.items())
                    },
                }
                for name, topic in sorted(self.topics.items())
            }
        text = json.dumps(document, separators=(",", ":"))
        if len(text) <= _PLAIN_CHARACTERS_MAX:
            return text
        return _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()

    @classmethod
    def from_text(cls, text: str) -> Position:
        """ValueError if it is not a position, or one of a later version."""
        try:
            if text.startswith(_PACKED):
                text = zlib.decompress(base64.b64decode(text[len(_PACKED) :])).decode()
            document = json.loads(text)
            if document.get("v") in (_VERSION, _VERSION_REMOVED):
                return cls._from_document(document)
        except (zlib.error, AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"not a position: {error}") from None
        raise ValueError(
            f"position of version {document.get('v')}, where this release knows {_VERSION_REMOVED}"
        )

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> Position:
        return cls(
            {
                name: StreamPosition(
                    fields[0],
                    fields[1],
                    fields[2],
                    len(fields) > 3 and bool(fields[3]),
                    fields[4] if len(fields) > 4 else 0,
                )
                for name, fields in document.get("streams", {}).items()
            },
            Left(*document.get("left", ())),
            {
                name: TopicPosition(
                    topic["id"],
                    {int(number): PartitionPosition(*part) for number, part in topic["partitions"].items()},
                )
                for name, topic in document.get("topics", {}).items()
            },
        )


def _fields(stream: StreamPosition) -> list[int]:
    """What is usual is left out at the end."""
    fields = [stream.sequence, stream.rows, stream.durable_rows]
    if stream.closed or stream.removed:
        fields.append(int(stream.closed))
    if stream.removed:
        fields.append(stream.removed)
    return fields


def without(rows_by_source: Removed, position: str) -> str:
    """The position, as text, of a table from which these rows were taken."""
    return Position.from_text(position).with_removed(rows_by_source).to_text()
