"""Messages in Kafka outlive their landing: what can be said of them, and what can be done."""

from __future__ import annotations

from collections.abc import Sequence

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.tables import Signal
from frazil.wal.kafka.topics import Topics
from frazil.wal.position import Position


def delete_landed(config: Config, signal: Signal, position: Position) -> dict[str, int]:
    """Deletes what has landed, of all tenants: Kafka cannot delete single messages. By partition, the first
    offset that is left.
    """
    assert config.wal.kafka is not None  # the configuration has checked that  # noqa: S101
    topics = Topics(config.wal.kafka)
    state = topics.state(signal)
    if state is None:
        return {}
    for at in position.topics.values():
        if at.id == state.id:
            offsets = {
                number: part.offset for number, part in at.partitions.items() if number in state.partitions
            }
            topics.delete_before(signal, offsets)
            return {f"{state.name}/{number}": offset for number, offset in offsets.items()}
    return {}


def kept_by_kafka(config: Config, signals: Sequence[Signal], *, deleted: bool) -> list[str]:
    """What the topics keep, for the report."""
    assert config.wal.kafka is not None  # the configuration has checked that  # noqa: S101
    if deleted:
        return ["segments of Kafka's log that its brokers have not deleted yet (file.delete.delay.ms)"]
    topics = Topics(config.wal.kafka)
    return [f"the topic {config.wal.kafka.topic(signal)}: {_kept(topics, signal)}" for signal in signals]


def _kept(topics: Topics, signal: Signal) -> str:
    try:
        retention_ms = topics.retention_ms(signal)
    except StoreUnavailable as error:
        return f"how long it keeps messages is unknown ({error})"
    if retention_ms is None:
        return "there is none"
    if retention_ms < 0:
        return (
            "it keeps messages for ever (retention.ms = -1); --delete-kafka-records deletes what has landed"
        )
    return f"it keeps messages for {retention_ms / 3_600_000:g} hours (retention.ms = {retention_ms})"
