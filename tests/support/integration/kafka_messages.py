"""What is in a topic of a real broker, and topics that no other test has."""

from __future__ import annotations

import os
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from google.protobuf.message import Message as ProtobufMessage

from frazil.otlp.wire import REQUESTS
from frazil.tables import SIGNALS, Signal
from tests.components.kafka import KafkaBroker

RESOURCES = {"logs": "resource_logs", "spans": "resource_spans", "metrics": "resource_metrics"}
SCOPES = {"logs": "scope_logs", "spans": "scope_spans", "metrics": "scope_metrics"}
RECORDS = {"logs": "log_records", "spans": "spans", "metrics": "metrics"}


def new_topics() -> dict[str, str]:
    """A topic a signal."""
    run = os.urandom(4).hex()
    return {signal: f"otlp_{signal}_{run}" for signal in SIGNALS}


def messages_in(kafka: KafkaBroker, topic: str) -> list[Message]:
    """All messages of all partitions, as they are now."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.address, "group.id": "tests", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        numbers = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        left = {
            number: high
            for number in numbers
            if (high := consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1])
        }
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        found = []
        while left:
            message = consumer.poll(10)
            assert message is not None, f"the end of {topic} did not come: {left} are left"
            assert message.error() is None, message.error()
            found.append(message)
            if message.offset() + 1 >= left[message.partition()]:
                del left[message.partition()]
        return found
    finally:
        consumer.close()


@dataclass(frozen=True)
class KnownLake:
    """The records of one service, of every message in which it has some."""

    messages: list[Message]
    records: list[ProtobufMessage]


def kept_of(signal: Signal, service: str, messages: list[Message]) -> KnownLake:
    """By the stock protobuf parser."""
    kept = KnownLake([], [])
    for message in messages:
        records = _records_of(signal, service, REQUESTS[signal].FromString(message.value() or b""))
        if records:
            kept.messages.append(message)
            kept.records.extend(records)
    return kept


def _records_of(signal: Signal, service: str, request: ProtobufMessage) -> list[ProtobufMessage]:
    return [
        record
        for resource in getattr(request, RESOURCES[signal])
        if any(pair.value.string_value == service for pair in resource.resource.attributes)
        for scope in getattr(resource, SCOPES[signal])
        for record in getattr(scope, RECORDS[signal])
    ]


def sent_records(signal: Signal, request: ProtobufMessage) -> list[ProtobufMessage]:
    """Of a request of one resource and one scope."""
    resource = getattr(request, RESOURCES[signal])[0]
    return list(getattr(getattr(resource, SCOPES[signal])[0], RECORDS[signal]))
