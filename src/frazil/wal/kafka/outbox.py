"""The producer, and who waits for its reports: a request is delivered when all its messages are."""

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
"""Reports come within the write time-out. If one never came, it must not hold a request for ever."""
_MESSAGE_BYTES = 512
"""What a message counts beside its value: key, headers and the client's own book-keeping."""
_ENVELOPE_BYTES = 16 * 1024
"""The client's bound on a message counts key and headers too."""
_THREAD_BYTES = 256 * 1024
"""Handing a message over copies it: so much at most in the event loop."""

log = structlog.get_logger("frazil.wal.kafka")


@dataclass(frozen=True)
class Outgoing:
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
    """What is still to be reported of one request. `left` and `error` are changed under the outbox's lock."""

    def __init__(self, outgoing: Outgoing) -> None:
        self.left = len(outgoing.values)
        self.size = outgoing.size
        self.error: FrazilError | None = None
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    def settle(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        if self.done.done():
            return  # the client has gone
        if self.error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self.error)


class Outbox:
    """Start, deliver, close. `on_suspicion` is called, from another thread, when all brokers seem gone."""

    def __init__(
        self,
        config: KafkaConfig,
        *,
        write_timeout_seconds: float,
        bytes_max: int,
        on_suspicion: Callable[[], None],
        make_producer: Callable[[dict[str, Any]], Any] = Producer,
    ) -> None:
        self._settings: dict[str, Any] = {
            **producer_settings(config, write_timeout_seconds),
            # Our own count refuses a request before its first message is queued; this bound never should.
            "queue.buffering.max.kbytes": 2 * bytes_max // 1024 + 1024 * 1024,
            "queue.buffering.max.messages": 0,
            "error_cb": self._heard,
        }
        self._seconds_max = write_timeout_seconds + _GRACE_SECONDS
        self._bytes_max = bytes_max
        self._on_suspicion = on_suspicion
        self._make_producer = make_producer
        self._producer: Any = None
        self._swap = threading.Lock()
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_broken = False
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True, name="kafka-reports")

    def start(self) -> None:
        """ConfigError if the settings cannot be used. Brokers need not answer yet."""
        try:
            self._producer = self._make_producer(self._settings)
        except KafkaException as error:
            raise ConfigError(f"wal.kafka: {error.args[0].str()}") from None
        self._poller.start()

    async def deliver(self, outgoing: Outgoing) -> None:
        """Returns when all in-sync replicas have every message.

        StoreUnavailable when that is not known in time: some messages may be there all the same, and a retry
        then writes them again, as a retry after any lost answer does. Overloaded when too much waits already:
        then nothing was sent.
        """
        delivery = _Delivery(outgoing)
        with self._lock:
            if self._bytes and self._bytes + delivery.size > self._bytes_max:
                raise Overloaded("too much waits for Kafka already", bound="kafka_queue")
            self._bytes += delivery.size
        if delivery.size <= _THREAD_BYTES:
            self._send(outgoing, delivery)
        else:
            await asyncio.to_thread(self._send, outgoing, delivery)
        try:
            async with asyncio.timeout(self._seconds_max):
                await delivery.done
        except TimeoutError:
            raise StoreUnavailable("Kafka's client has not said what became of the request") from None

    def close(self, seconds_max: float) -> None:
        """Waits for what is under way, then gives up on it. Safe when never started and when called twice."""
        if self._producer is None or self._closing.is_set():
            return
        self._producer.flush(seconds_max)
        self._closing.set()
        self._poller.join()
        _abandon(self._producer)

    def _send(self, outgoing: Outgoing, delivery: _Delivery) -> None:
        for index, value in enumerate(outgoing.values):
            try:
                with self._swap:
                    self._producer.produce(
                        outgoing.topic,
                        value,
                        key=outgoing.key,
                        headers=outgoing.headers,
                        timestamp=outgoing.timestamp_ms,
                        on_delivery=lambda error, _: self._report(delivery, 1, error),
                    )
            except (BufferError, KafkaException) as error:
                reason = error.args[0] if isinstance(error, KafkaException) else error
                self._report(delivery, len(outgoing.values) - index, reason)
                return

    def _report(self, delivery: _Delivery, count: int, error: KafkaError | BufferError | None) -> None:
        """Of `count` messages it is now known what became of them. Runs in the thread that polls, mostly."""
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

    def _heard(self, error: KafkaError) -> None:
        """What the client has to say beside the reports."""
        if error.fatal():
            self._is_broken = True
        if error.fatal() or error.code() == KafkaError._ALL_BROKERS_DOWN:
            log.warning("trouble with Kafka", reason=error.str(), fatal=error.fatal())
            self._on_suspicion()

    def _poll(self) -> None:
        while not self._closing.is_set():
            try:
                self._producer.poll(_POLL_SECONDS)
            except KafkaException as error:  # how the client says that it is broken
                self._heard(error.args[0])
            except Exception:  # a defect of a callback must not end all reports
                log.exception("defect while reading Kafka's reports")
            if self._is_broken:
                self._renew()

    def _renew(self) -> None:
        """An idempotent producer that lost count of its messages takes no more of them, ever."""
        broken = self._producer
        with self._swap:
            self._producer = self._make_producer(self._settings)
            self._is_broken = False
        _abandon(broken)
        log.warning("Kafka's client was replaced")


def producer_settings(config: KafkaConfig, write_timeout_seconds: float) -> dict[str, Any]:
    """All in-sync replicas answer, the client's own retries make no duplicates, and waiting has an end."""
    return {
        **client_settings(config),
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": config.compression,
        "linger.ms": _LINGER_MS,
        "delivery.timeout.ms": max(int(write_timeout_seconds * 1000), 2 * _LINGER_MS),
        "message.max.bytes": config.message_bytes_max + _ENVELOPE_BYTES,
        # Brokers bound batches, not messages: of two that fit alone, none would be taken together.
        "batch.size": config.message_bytes_max,
    }


def _abandon(producer: Any) -> None:
    """Whoever still waits for it is told so."""
    producer.purge()
    producer.flush(_PURGE_SECONDS)


def _refusal(error: KafkaError | BufferError) -> FrazilError:
    if isinstance(error, BufferError):
        return Overloaded("too much waits for Kafka already", bound="kafka_queue")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        log.error("wal.kafka.message_bytes_max is more than the brokers take (message.max.bytes)")
        return RequestTooLarge("the request makes messages that Kafka does not take", bytes_max=0)
    return StoreUnavailable(f"Kafka has not confirmed the request: {error.str()}")
