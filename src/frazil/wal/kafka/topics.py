"""The topics of the signals: whether they are there, how far they reach, and making missing ones."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, admin

from frazil.config.wal import KafkaConfig
from frazil.errors import ConfigError, StoreUnavailable
from frazil.tables import Signal
from frazil.wal.kafka.client import client_settings

_admin: Any = admin  # its type hints are incomplete
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
_PASSING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""What brokers say of a partition that was made, or got another leader, a moment ago."""
_PAUSE_SECONDS = 0.05

log = structlog.get_logger("frazil.wal.kafka")


@dataclass(frozen=True)
class TopicState:
    """`id` is the broker's: a topic that was deleted and made anew has another.

    `partitions`: the first offset that is still there, and the one that the next message will get.
    """

    name: str
    id: str
    partitions: Mapping[int, tuple[int, int]]


class Topics:
    """Every method asks the brokers, waits `timeout_seconds` at most for each question, and raises
    StoreUnavailable if they do not answer. ConfigError if the settings cannot be used at all.
    """

    def __init__(self, config: KafkaConfig, *, timeout_seconds: float = 5.0) -> None:
        self._config = config
        self._timeout_seconds = timeout_seconds
        self._trouble = ""

    def state(self, signal: Signal) -> TopicState | None:
        """None if there is no such topic."""
        topic = self._described(signal)
        if topic is None:
            return None
        partitions = [TopicPartition(topic.name, partition.id) for partition in topic.partitions]
        try:
            low = self._offsets(partitions, _admin.OffsetSpec.earliest())
            high = self._offsets(partitions, _admin.OffsetSpec.latest())
        except KafkaException as error:
            if _code(error) in _ABSENT:  # deleted between the questions
                return None
            raise self._unavailable(error) from None
        after = self._described(signal)
        if after is None or str(after.topic_id) != str(topic.topic_id):
            return self.state(signal)  # made anew between the questions: the offsets may be of either
        return TopicState(
            topic.name, str(topic.topic_id), {number: (low[number], high[number]) for number in sorted(low)}
        )

    def ensure(self, signal: Signal) -> None:
        """Makes the topic if it is missing. Returns when the brokers can take messages for it."""
        if self._has_leader(signal) is None:
            self._create(self._config.topic(signal))
        deadline = time.monotonic() + self._timeout_seconds
        while not self._has_leader(signal):  # what is made is not known everywhere at once
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"no partition of the topic {self._config.topic(signal)} has a leader")
            time.sleep(_PAUSE_SECONDS)

    def check(self, signal: Signal) -> None:
        """Raises StoreUnavailable if the brokers do not answer, or if the signal's topic is there and no
        partition has a leader.
        """
        if self._has_leader(signal) is False:
            raise StoreUnavailable(f"no partition of the topic {self._config.topic(signal)} has a leader")

    def delete_before(self, signal: Signal, offsets: Mapping[int, int]) -> None:
        """Deletes the messages before these offsets, by partition, for good."""
        name = self._config.topic(signal)
        wanted = [TopicPartition(name, number, offset) for number, offset in offsets.items() if offset > 0]
        if not wanted:
            return
        try:
            asked = self._client.delete_records(wanted, request_timeout=self._timeout_seconds)
            for future in asked.values():
                self._answer(future)
        except KafkaException as error:
            raise self._unavailable(error) from None

    def retention_ms(self, signal: Signal) -> int | None:
        """How long messages are kept; -1: for ever. None if there is no such topic."""
        if self._described(signal) is None:
            return None
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, self._config.topic(signal))
        try:
            asked = self._client.describe_configs([resource], request_timeout=self._timeout_seconds)
            settings = self._answer(asked[resource])
        except KafkaException as error:
            raise self._unavailable(error) from None
        return int(settings["retention.ms"].value)

    def _has_leader(self, signal: Signal) -> bool | None:
        """None if there is no such topic."""
        topic = self._described(signal)
        return topic and any(partition.leader is not None for partition in topic.partitions)

    @cached_property
    def _client(self) -> Any:
        try:
            return _admin.AdminClient(client_settings(self._config) | {"error_cb": self._note})
        except KafkaException as error:
            raise ConfigError(f"wal.kafka: {error.args[0].str()}") from None

    def _described(self, signal: Signal) -> Any:
        name = self._config.topic(signal)
        try:
            asked = self._client.describe_topics(
                TopicCollection([name]), request_timeout=self._timeout_seconds
            )
            return self._answer(asked[name])
        except KafkaException as error:
            if _code(error) in _ABSENT:
                return None
            raise self._unavailable(error) from None

    def _offsets(self, partitions: list[TopicPartition], spec: Any) -> dict[int, int]:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            asked = self._client.list_offsets(
                dict.fromkeys(partitions, spec), request_timeout=self._timeout_seconds
            )
            try:
                return {at.partition: self._answer(future).offset for at, future in asked.items()}
            except KafkaException as error:
                if _code(error) not in _PASSING or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _create(self, name: str) -> None:
        topic = _admin.NewTopic(name, self._config.partitions, self._config.replication_factor)
        asked = self._client.create_topics(
            [topic], operation_timeout=self._timeout_seconds, request_timeout=self._timeout_seconds
        )
        try:
            self._answer(asked[name])
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:  # somebody was faster
                raise StoreUnavailable(
                    f"the topic {name} is missing and cannot be created: {error.args[0].str()}"
                ) from None
        else:
            log.info("topic created", topic=name, partitions=self._config.partitions)

    def _answer(self, future: concurrent.futures.Future[Any]) -> Any:
        try:
            return future.result(self._timeout_seconds + 1)
        except concurrent.futures.TimeoutError:
            raise StoreUnavailable(f"{self._where} did not answer in time") from None

    def _unavailable(self, error: KafkaException) -> StoreUnavailable:
        """A wrong password is a time-out for whoever asked; the client itself was told what is wrong."""
        self._trouble = ""
        self._client.poll(0)
        return StoreUnavailable(f"{self._where}: {self._trouble or error.args[0].str()}")

    def _note(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._trouble = error.str()

    @property
    def _where(self) -> str:
        return f"Kafka at {', '.join(self._config.brokers)}"


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())
