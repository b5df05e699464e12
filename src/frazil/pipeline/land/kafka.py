"""A Kafka topic as a source of landing, read with Spark's Kafka connector."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from frazil.config import Config
from frazil.config.wal import KafkaConfig
from frazil.errors import DataLost
from frazil.pipeline.datafile import Layout
from frazil.pipeline.land.messages import COLUMNS, ReadSettings, land_messages, received_bounds
from frazil.pipeline.land.source import BatchResult, MessageCounts, TaskResult
from frazil.pipeline.partition_sort import Horizon
from frazil.pipeline.runner import Runner
from frazil.position import KafkaPosition, LandingPosition, PartitionPosition, TopicPosition
from frazil.tables import Signal
from frazil.tables.promoted import promoted
from frazil.wal.kafka.client import spark_settings
from frazil.wal.kafka.topics import Topics, TopicState

_MESSAGE_BYTES_INITIAL = 16 * 1024
_ESTIMATE_WEIGHT = 0.3


@dataclass
class _SizeEstimate:
    """Estimates the bytes of pending messages from the average size of landed messages."""

    message_bytes: float = _MESSAGE_BYTES_INITIAL

    def update(self, counts: Sequence[MessageCounts]) -> None:
        messages = sum(each.messages for each in counts)
        if messages:
            average = sum(each.bytes for each in counts) / messages
            self.message_bytes += (max(average, 1.0) - self.message_bytes) * _ESTIMATE_WEIGHT


@dataclass(frozen=True)
class PendingMessages:
    """Pending messages. `position` has the first offset of each partition, `ends` the end offsets."""

    config: Config
    signal: Signal
    label: str
    position: LandingPosition
    ends: Mapping[int, int]
    estimate: _SizeEstimate

    @property
    def _starts(self) -> Mapping[int, PartitionPosition]:
        topics = self.position.kafka.topics
        return topics[self.label].partitions if self.label in topics else {}

    @property
    def count(self) -> int:
        return sum(end - self._starts[number].offset for number, end in self.ends.items())

    @property
    def size(self) -> int:
        return int(self.count * self.estimate.message_bytes)

    @property
    def oldest_seconds(self) -> float | None:
        return None  # offsets have no time

    def batch(self, bytes_max: int) -> PendingMessages:
        """Takes the same share of every partition, so that none falls behind."""
        if self.size <= bytes_max:
            return self
        share = bytes_max / self.size
        ends = {
            number: min(end, start + max(1, int((end - start) * share)))
            for number, end in self.ends.items()
            if end > (start := self._starts[number].offset)
        }
        return replace(self, ends=ends)

    def land(self, runner: Runner, layout: Layout, horizon: Horizon, *, files_max: int | None) -> BatchResult:
        kafka = _kafka(self.config)
        settings = ReadSettings(
            kafka.model_copy(update={"sasl": None, "tls": None}),
            self.signal,
            self.label,
            self.config.tenants.default,
            promoted(self.config),
            self.config.receive.limits.nesting_depth_max,
            *received_bounds(time.time_ns(), layout.changed_ms, ahead_micros=horizon.ahead_micros),
        )
        per_task = kafka.messages_per_task_max
        topic = kafka.topic(self.signal)
        due = {number: end for number, end in self.ends.items() if end > self._starts[number].offset}
        options = {
            **spark_settings(kafka),
            "assign": json.dumps({topic: sorted(due)}),
            "startingOffsets": json.dumps({topic: {str(n): self._starts[n].offset for n in due}}),
            "endingOffsets": json.dumps({topic: {str(number): end for number, end in due.items()}}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "maxRecordsPerPartition": str(per_task),
        }
        tasks = sum(-(-(end - self._starts[number].offset) // per_task) for number, end in due.items())
        share = None if files_max is None else max(1, files_max // max(tasks, 1))

        def read(spark: SparkSession) -> DataFrame:
            return spark.read.format("kafka").options(**options).load().select(*COLUMNS)

        work = partial(land_messages, layout=layout, horizon=horizon, settings=settings, files_max=share)
        results = runner.run_frame(read, work)
        if any(result.too_many_files for result in results):
            return BatchResult(results, self.position)
        self.estimate.update([counts for result in results for counts in result.partitions.values()])
        return BatchResult(results, self._advanced(due, results))

    def _advanced(self, due: Mapping[int, int], results: Sequence[TaskResult]) -> LandingPosition:
        partitions = dict(self._starts)
        for number, end in due.items():
            counts = [result.partitions[number] for result in results if number in result.partitions]
            at = partitions[number]
            partitions[number] = replace(
                at,
                offset=end,
                rows=at.rows + sum(each.rows for each in counts),
                messages=at.messages + sum(each.messages for each in counts),
                set_aside=at.set_aside + sum(each.set_aside for each in counts),
            )
        topic = replace(self.position.kafka.topics[self.label], partitions=partitions)
        return _with_topic(self.position, self.label, topic)


class KafkaSource:
    def __init__(self, config: Config, signal: Signal, topics: Topics | None = None) -> None:
        self._config = config
        self._signal: Signal = signal
        self._kafka = _kafka(config)
        self._topics = topics or Topics(self._kafka)
        self._estimate = _SizeEstimate()

    def pending(self, position: LandingPosition) -> PendingMessages:
        state = self._topics.state(self._signal)
        topic = self._kafka.topic(self._signal)
        if state is None:
            known = [label for label in position.kafka.topics if label.partition("@")[0] == topic]
            if known and self._kafka.on_lost_offsets == "stop":
                raise self._lost(
                    f"the topic {topic} does not exist; if the topic was deleted on purpose, {_SKIP}"
                )
            return PendingMessages(self._config, self._signal, topic, position, {}, self._estimate)
        label, at = self._find(position.kafka, state)
        starts = {number: self._start(number, at, state) for number in state.partitions}
        begun = replace(at, partitions={**at.partitions, **starts})
        return PendingMessages(
            self._config,
            self._signal,
            label,
            _with_topic(position, label, begun),
            {number: high for number, (_, high) in state.partitions.items()},
            self._estimate,
        )

    def _find(self, position: KafkaPosition, state: TopicState) -> tuple[str, TopicPosition]:
        """Returns the topic's label and position. A topic that was deleted and recreated is a new topic."""
        known = {label: at for label, at in position.topics.items() if label.partition("@")[0] == state.name}
        for label, at in known.items():
            if at.id == state.id:
                return label, at
        if not known:
            return state.name, TopicPosition(state.id)
        if self._kafka.on_lost_offsets == "stop":
            offsets = {
                number: part.offset for at in known.values() for number, part in sorted(at.partitions.items())
            }
            raise self._lost(
                f"the topic {state.name} was deleted and recreated (its id is {state.id} now). Messages "
                f"after these offsets have not landed: {offsets}. If the deletion was intended, {_SKIP}"
            )
        return f"{state.name}@{state.id[:8]}", TopicPosition(state.id)

    def _start(self, number: int, at: TopicPosition, state: TopicState) -> PartitionPosition:
        low, high = state.partitions[number]
        if not at.partitions:  # the first landing from this topic
            return PartitionPosition(low)
        part = at.partitions.get(number, PartitionPosition())  # partitions added later begin at 0
        if high < part.offset:
            raise self._lost(
                f"{state.name}/{number} ends at offset {high}, but everything before {part.offset} has "
                "landed: the brokers lost messages that they had acknowledged. Restore or recreate the topic"
            )
        if low <= part.offset:
            return part
        if self._kafka.on_lost_offsets == "stop":
            raise self._lost(
                f"{low - part.offset:,} messages of {state.name}/{number} were deleted before they landed: "
                f"offsets {part.offset} to {low - 1}; the partition now begins at {low}. To skip them, "
                f"{_SKIP}"
            )
        return replace(part, offset=low, lost=part.lost + low - part.offset)

    def _lost(self, message: str) -> DataLost:
        return DataLost(f"{self._config.lake.namespace}.{self._signal}", message)


_SKIP = "start once with wal.kafka.on_lost_offsets: skip"


def _with_topic(position: LandingPosition, label: str, topic: TopicPosition) -> LandingPosition:
    return replace(position, kafka=KafkaPosition({**position.kafka.topics, label: topic}))


def _kafka(config: Config) -> KafkaConfig:
    assert config.wal.kafka is not None  # checked by the configuration  # noqa: S101
    return config.wal.kafka
