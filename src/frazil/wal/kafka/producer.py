"""The Kafka producer. A request is delivered when all its messages are confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from frazil.config.wal import KafkaConfig
from frazil.errors import ConfigError, FrazilError, Overloaded, RequestTooLarge, StoreUnavailable
from frazil.wal.kafka.client import client_settings

_LINGER_MS = 5
_POLL_SECONDS = 0.1
_PURGE_SECONDS = 1.0
_GRACE_SECONDS = 5.0
"""Delivery reports arrive within the write timeout. A missing report must not block a request for ever."""
_MESSAGE_BYTES = 512
"""Memory per message in addition to its value: key, headers and the client's own data."""
_ENVELOPE_BYTES = 16 * 1024
"""Allowance for key and headers, which the client's limit on a message includes."""
_THREAD_BYTES = 256 * 1024
"""Producing a message copies it. Larger requests are produced outside the event loop."""

log = structlog.get_logger("frazil.wal.kafka")


@dataclass(frozen=True)
class RequestMessages:
    """The messages of one request."""

    topic: str
    values: tuple[bytes, ...]
    key: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int

    @property
    def size(self) -> int:
        return sum(len(value) + _MESSAGE_BYTES for value in self.values)


class _Delivery:
    """The outstanding delivery reports of one request. The producer's lock guards `left` and `error`."""

    def __init__(self, messages: RequestMessages) -> None:
        self.left = len(messages.values)
        self.size = messages.size
        self.error: FrazilError | None = None
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def settle(self) -> None:
        """Completes `done`. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and with it all waiting requests
            self._loop.call_soon_threadsafe(self._complete)

    def _complete(self) -> None:
        if self.done.done():
            return  # the client disconnected
        if self.error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.error)


class KafkaProducer:
    """Delivers requests to Kafka. Calls `on_brokers_down` from another thread when no broker is reachable."""

    def __init__(
        self,
        config: KafkaConfig,
        *,
        write_timeout_seconds: float,
        bytes_max: int,
        on_brokers_down: Callable[[], None],
        make_producer: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._settings: dict[str, Any] = {
            **producer_settings(config, write_timeout_seconds),
            # `_bytes` refuses a request before its first message is queued, so this limit is never reached.
            "queue.buffering.max.kbytes": 2 * bytes_max // 1024 + 1024 * 1024,
            "queue.buffering.max.messages": 0,
            "error_cb": self._on_error,
        }
        self._seconds_max = write_timeout_seconds + _GRACE_SECONDS
        self._bytes_max = bytes_max
        self._on_brokers_down = on_brokers_down
        self._make_producer = make_producer
        self._producer: Any = None
        self._swap = threading.Lock()
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_broken = False
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True, name="kafka-reports")

    def start(self) -> None:
        """Raises ConfigError if the settings are invalid. Does not wait for the brokers."""
        try:
            self._producer = self._make_producer(self._settings)
        except KafkaException as error:
            raise ConfigError(f"wal.kafka: {error.args[0].str()}") from None
        self._poller.start()

    async def deliver(self, messages: RequestMessages) -> None:
        """Returns when all in-sync replicas have every message.

        Raises StoreUnavailable if that is not confirmed in time. Some messages may still be stored, and a
        retry then duplicates them, as after any lost response. Raises Overloaded, with nothing sent, if the
        queue is full.
        """
        delivery = _Delivery(messages)
        with self._lock:
            if self._bytes and self._bytes + delivery.size > self._bytes_max:
                raise _overloaded()
            self._bytes += delivery.size
        if delivery.size <= _THREAD_BYTES:
            self._send(messages, delivery)
        else:
            await asyncio.to_thread(self._send, messages, delivery)
        try:
            async with asyncio.timeout(self._seconds_max):
                await delivery.done
        except TimeoutError:
            raise StoreUnavailable("the Kafka client did not report the delivery in time") from None

    def close(self, seconds_max: float) -> None:
        """Waits for pending messages, then abandons them. Idempotent; needs no start."""
        if self._producer is None or self._closing.is_set():
            return
        self._producer.flush(seconds_max)
        self._closing.set()
        self._poller.join()
        _abandon(self._producer)

    def _send(self, messages: RequestMessages, delivery: _Delivery) -> None:
        for index, value in enumerate(messages.values):
            try:
                with self._swap:
                    self._producer.produce(
                        messages.topic,
                        value,
                        key=messages.key,
                        headers=messages.headers,
                        timestamp=messages.timestamp_ms,
                        on_delivery=lambda error, _: self._report(delivery, 1, error),
                    )
            except (BufferError, KafkaException) as error:
                reason = error.args[0] if isinstance(error, KafkaException) else error
                self._report(delivery, len(messages.values) - index, reason)
                return

    def _report(self, delivery: _Delivery, count: int, error: KafkaError | BufferError | None) -> None:
        """Records the result of `count` messages. Runs mostly in the polling thread."""
        if isinstance(error, KafkaError) and error.fatal():
            self._is_broken = True
        with self._lock:
            delivery.left -= count
            if error is not None and delivery.error is None:
                delivery.error = _refusal(error)
            is_done = delivery.left == 0
            if is_done:
                self._bytes -= delivery.size
        if is_done:
            delivery.settle()

    def _on_error(self, error: KafkaError) -> None:
        """Handles client errors that belong to no message."""
        if error.fatal():
            self._is_broken = True
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:
            log.warning("Kafka client reported an error", reason=error.str(), fatal=error.fatal())
            self._on_brokers_down()

    def _poll(self) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:  # a fatal client error
                self._on_error(error.args[0])
            except Exception:  # a bug in a callback must not stop polling
                log.exception("Kafka delivery reports could not be processed")
            if self._is_broken:
                self._renew()

    def _renew(self) -> None:
        """Replaces the producer: after a fatal error an idempotent producer accepts no more messages."""
        broken = self._producer
        with self._swap:
            self._producer = self._make_producer(self._settings)
            self._is_broken = False
        _abandon(broken)
        log.warning("Kafka producer recreated after a fatal error")


def producer_settings(config: KafkaConfig, write_timeout_seconds: float) -> dict[str, Any]:
    """Requires all in-sync replicas, prevents duplicates by client retries, and bounds the delivery time."""
    return {
        **client_settings(config),
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": config.compression,
        "linger.ms": _LINGER_MS,
        "delivery.timeout.ms": max(int(write_timeout_seconds * 1000), 2 * _LINGER_MS),
        "message.max.bytes": config.message_bytes_max + _ENVELOPE_BYTES,
        # Brokers limit the size of batches: two messages that fit alone would be refused together.
        "batch.size": config.message_bytes_max,
    }


def _abandon(producer: Any) -> None:
    """Purges the queue, which reports a failure for every pending message."""
    producer.purge()
    producer.flush(_PURGE_SECONDS)


def _refusal(error: KafkaError | BufferError) -> FrazilError:
    if isinstance(error, BufferError):
        return _overloaded()
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        log.error(
            "Kafka refused a message: wal.kafka.message_bytes_max exceeds the brokers' message.max.bytes"
        )
        return RequestTooLarge("the request's messages exceed the brokers' message.max.bytes", bytes_max=0)
    return StoreUnavailable(f"Kafka did not confirm the request: {error.str()}")


def _overloaded() -> Overloaded:
    return Overloaded("the queue for Kafka is full; retry later", bound="kafka_queue")
