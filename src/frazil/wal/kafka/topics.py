"""The topics of the signals: their state and offsets, and the creation of missing topics."""

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
_RETRYABLE = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of a partition that was just created or has just changed its leader."""
_PAUSE_SECONDS = 0.05

log = structlog.get_logger("frazil.wal.kafka")


@dataclass(frozen=True)
class TopicState:
    """The state of a topic. A topic that was deleted and recreated has another `id`.

    `partitions` maps each partition to its first offset and to the offset of the next message.
    """

    name: str
    id: str
    partitions: Mapping[int, tuple[int, int]]


class Topics:
    """Client for the signals' topics. Each request to the brokers takes at most `timeout_seconds`.

    All methods raise StoreUnavailable if the brokers do not respond, and ConfigError if the settings are
    invalid.
    """

    def __init__(self, config: KafkaConfig, *, timeout_seconds: float = 5.0) -> None:
        self._config = config
        self._timeout_seconds = timeout_seconds
        self._last_error = ""

    def state(self, signal: Signal) -> TopicState | None:
        """Returns None if the topic does not exist."""
        topic = self._describe(signal)
        if topic is None:
            return None
        partitions = [TopicPartition(topic.name, partition.id) for partition in topic.partitions]
        try:
            low = self._offsets(partitions, _admin.OffsetSpec.earliest())
            high = self._offsets(partitions, _admin.OffsetSpec.latest())
        except KafkaException as error:
            if _code(error) in _ABSENT:  # deleted between the requests
                return None
            raise self._unavailable(error) from None
        after = self._describe(signal)
        if after is None or str(after.topic_id) != str(topic.topic_id):
            return self.state(signal)  # recreated between the requests: the offsets may be of either topic
        return TopicState(
            topic.name, str(topic.topic_id), {number: (low[number], high[number]) for number in sorted(low)}
        )

    def ensure(self, signal: Signal) -> None:
        """Creates the topic if it is missing. Returns when the brokers accept messages for it."""
        if self._has_leader(signal) is None:
            self._create(self._config.topic(signal))
        deadline = time.monotonic() + self._timeout_seconds
        while not self._has_leader(signal):  # not all brokers know a new topic immediately
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"no partition of the topic {self._config.topic(signal)} has a leader")
            time.sleep(_PAUSE_SECONDS)

    def check(self, signal: Signal) -> None:
        """Raises StoreUnavailable if the topic exists and no partition has a leader."""
        if self._has_leader(signal) is False:
            raise StoreUnavailable(f"no partition of the topic {self._config.topic(signal)} has a leader")

    def delete_before(self, signal: Signal, offsets: Mapping[int, int]) -> None:
        """Permanently deletes the messages before these offsets, by partition."""
        name = self._config.topic(signal)
        ends = [TopicPartition(name, number, offset) for number, offset in offsets.items() if offset > 0]
        if not ends:
            return
        try:
            futures = self._client.delete_records(ends, request_timeout=self._timeout_seconds)
            for future in futures.values():
                self._result(future)
        except KafkaException as error:
            raise self._unavailable(error) from None

    def retention_ms(self, signal: Signal) -> int | None:
        """Returns the topic's retention; -1 means unlimited. None if the topic does not exist."""
        if self._describe(signal) is None:
            return None
        resource = _admin.ConfigResource(_admin.ResourceType.TOPIC, self._config.topic(signal))
        try:
            futures = self._client.describe_configs([resource], request_timeout=self._timeout_seconds)
            settings = self._result(futures[resource])
        except KafkaException as error:
            raise self._unavailable(error) from None
        return int(settings["retention.ms"].value)

    def _has_leader(self, signal: Signal) -> bool | None:
        """Returns None if the topic does not exist."""
        topic = self._describe(signal)
        return topic and any(partition.leader is not None for partition in topic.partitions)

    @cached_property
    def _client(self) -> Any:
        try:
            return _admin.AdminClient(client_settings(self._config) | {"error_cb": self._on_error})
        except KafkaException as error:
            raise ConfigError(f"wal.kafka: {error.args[0].str()}") from None

    def _describe(self, signal: Signal) -> Any:
        name, topics = self._config.topic(signal), TopicCollection([self._config.topic(signal)])
        try:
            return self._result(
                self._client.describe_topics(topics, request_timeout=self._timeout_seconds)[name]
            )
        except KafkaException as error:
            if _code(error) in _ABSENT:
                return None
            raise self._unavailable(error) from None

    def _offsets(self, partitions: list[TopicPartition], spec: Any) -> dict[int, int]:
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            futures = self._client.list_offsets(
                dict.fromkeys(partitions, spec), request_timeout=self._timeout_seconds
            )
            try:
                return {at.partition: self._result(future).offset for at, future in futures.items()}
            except KafkaException as error:
                if _code(error) not in _RETRYABLE or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_SECONDS)

    def _create(self, name: str) -> None:
        topic = _admin.NewTopic(name, self._config.partitions, self._config.replication_factor)
        futures = self._client.create_topics(
            [topic], operation_timeout=self._timeout_seconds, request_timeout=self._timeout_seconds
        )
        try:
            self._result(futures[name])
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:  # another process created it
                raise StoreUnavailable(
                    f"the topic {name} is missing and cannot be created: {error.args[0].str()}"
                ) from None
        else:
            log.info("Kafka topic created", topic=name, partitions=self._config.partitions)

    def _result(self, future: concurrent.futures.Future[Any]) -> Any:
        try:
            return future.result(self._timeout_seconds + 1)
        except concurrent.futures.TimeoutError:
            raise StoreUnavailable(f"{self._where} did not respond in time") from None

    def _unavailable(self, error: KafkaException) -> StoreUnavailable:
        """Prefers the client's own last error: after a wrong password the request itself only times out."""
        self._last_error = ""
        self._client.poll(0)
        return StoreUnavailable(f"{self._where}: {self._last_error or error.args[0].str()}")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.str()

    @property
    def _where(self) -> str:
        return f"Kafka at {', '.join(self._config.brokers)}"


def _code(error: KafkaException) -> int:
    return int(error.args[0].code())
