"""Positions as landing moves them: what was removed before stays counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frazil.config import Config
from frazil.pipeline.land import kafka
from frazil.pipeline.land.segments import SegmentSource, advance
from frazil.pipeline.land.source import MessageCounts, TaskResult
from frazil.position import (
    KafkaPosition,
    LandingPosition,
    PartitionPosition,
    StreamPosition,
    TopicPosition,
    WalPosition,
)
from frazil.storage import Entry, Listing
from frazil.wal.names import SegmentName
from frazil.wal.reader import Segment, WalReader
from tests.support.wal_stores import MemoryStore

STREAM = "20261115T081823120-9f86d081884c7d65"


@pytest.mark.parametrize("readable", [True, False])
def test_a_segment_that_lands_leaves_the_count_of_removed_rows(readable: bool) -> None:
    name, result = SegmentName("logs", STREAM, 4), TaskResult()
    if readable:
        facts = SimpleNamespace(name=name, rows=3, stream_rows=23, tombstone=False)
        result.facts.append(cast("Any", facts))
    else:
        result.vanished.append(name)
    before = WalPosition({STREAM: StreamPosition(4, 20, 20, removed=7)})
    after = advance(before, [Segment(name, 100)], [result]).streams[STREAM]
    expected = StreamPosition(5, 23, 23, removed=7) if readable else StreamPosition(5, 20, 20, removed=7)
    assert after == expected


def test_messages_that_land_leave_the_count_of_removed_rows(tmp_path: Path) -> None:
    part = PartitionPosition(5, 50, 5, 1, 2, removed=9)
    position = LandingPosition(kafka=KafkaPosition({"logs": TopicPosition("id", {0: part, 1: part})}))
    work = kafka.PendingMessages(
        Config(data_dir=tmp_path), "logs", "logs", position, {0: 8, 1: 5}, kafka._SizeEstimate()
    )
    result = TaskResult(partitions={0: MessageCounts(messages=2, rows=6, set_aside=1, bytes=10)})
    after = work._advanced({0: 8}, [result]).kafka.topics["logs"].partitions
    assert after == {0: PartitionPosition(8, 56, 7, 2, 2, removed=9), 1: part}


class Long(MemoryStore):
    """Streams of large segments, so many that nothing should list them all."""

    def __init__(self, streams: int) -> None:
        super().__init__()
        self.names = [f"20261115T08182312{number}-9f86d081884c7d65" for number in range(streams)]

    def children(self, prefix: str) -> Listing:
        return Listing(tuple(self.names), ())

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        for sequence in itertools.count(0 if after is None else int(after[-28:-8]) + 1):
            self.listed.append(f"{prefix}{sequence:020d}.parquet")
            yield Entry(self.listed[-1], 100_000, 0.0)


def test_a_backlog_is_listed_no_further_than_a_batch_needs(tmp_path: Path) -> None:
    store = Long(3)
    config = Config.model_validate({"data_dir": tmp_path, "land": {"batch_bytes_max": 1_048_576}})
    position = LandingPosition(WalPosition({store.names[0]: StreamPosition(7)}))
    work = SegmentSource(config, "logs", WalReader(store)).pending(position)
    assert work.size > 1_048_576
    assert len(store.listed) <= 4 * 3
    batch = work.batch(1_048_576)
    assert [(segment.name.stream[17], segment.name.sequence) for segment in batch.segments] == [
        *(("0", sequence) for sequence in range(7, 11)),
        *(("1", sequence) for sequence in range(3)),
        *(("2", sequence) for sequence in range(3)),
    ]
