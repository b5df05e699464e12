"""Positions as landing moves them: what was removed before stays counted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frazil.config import Config
from frazil.pipeline.land import kafka
from frazil.pipeline.land.results import MessageCounts, TaskResult
from frazil.pipeline.land.segments import advanced
from frazil.wal.names import SegmentName
from frazil.wal.position import PartitionPosition, Position, StreamPosition, TopicPosition
from frazil.wal.reader import Segment

STREAM = "20261115T081823120-9f86d081884c7d65"


@pytest.mark.parametrize("readable", [True, False])
def test_a_segment_that_lands_leaves_the_count_of_removed_rows(readable: bool) -> None:
    name, result = SegmentName("logs", STREAM, 4), TaskResult()
    if readable:
        facts = SimpleNamespace(name=name, rows=3, stream_rows=23, tombstone=False)
        result.facts.append(cast("Any", facts))
    else:
        result.vanished.append(name)
    before = Position({STREAM: StreamPosition(4, 20, 20, removed=7)})
    after = advanced(before, [Segment(name, 100)], [result]).streams[STREAM]
    expected = StreamPosition(5, 23, 23, removed=7) if readable else StreamPosition(5, 20, 20, removed=7)
    assert after == expected


def test_messages_that_land_leave_the_count_of_removed_rows(tmp_path: Path) -> None:
    part = PartitionPosition(5, 50, 5, 1, 2, removed=9)
    position = Position(topics={"logs": TopicPosition("id", {0: part, 1: part})})
    work = kafka.KafkaWork(Config(data_dir=tmp_path), "logs", "logs", position, {0: 8, 1: 5}, kafka._Guess())
    result = TaskResult(partitions={0: MessageCounts(messages=2, rows=6, set_aside=1, bytes=10)})
    after = work._advanced({0: 8}, [result]).topics["logs"].partitions
    assert after == {0: PartitionPosition(8, 56, 7, 2, 2, removed=9), 1: part}
