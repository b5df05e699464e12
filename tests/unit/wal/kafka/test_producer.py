"""No ack before every message of a request is delivered, and an answer whatever the client library does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from frazil.config.wal import KafkaConfig
from frazil.errors import ConfigError, Overloaded, RequestTooLarge, StoreUnavailable
from frazil.wal.kafka.producer import KafkaProducer, RequestMessages, producer_settings

CONFIG = KafkaConfig(brokers=("127.0.0.1:1",))
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "lost count", True)


class FakeProducer:
    """Keeps what it is given until a test says what became of it; reports when polled, as the real one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.queued: list[tuple[bytes, Callable[[KafkaError | None, object], None]]] = []
        self.refuses_after: tuple[int, Exception] | None = None
        self.raises: Exception | None = None
        self._reports: list[Callable[[], None]] = []
        self._changed = threading.Condition()

    def produce(self, topic: str, value: bytes, *, on_delivery: Any, **_: Any) -> None:
        if self.refuses_after is not None and len(self.queued) >= self.refuses_after[0]:
            raise self.refuses_after[1]
        self.queued.append((value, on_delivery))

    def report(self, error: KafkaError | None = None) -> None:
        """What became of the oldest message."""
        _, on_delivery = self.queued.pop(0)
        with self._changed:
            self._reports.append(lambda: on_delivery(error, None))
            self._changed.notify_all()

    def breaks(self) -> None:
        with self._changed:
            self.raises = KafkaException(FATAL)
            self._changed.notify_all()

    def poll(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self.raises, seconds)
            reports, self._reports = self._reports, []
            raises, self.raises = self.raises, None
        for report in reports:
            report()
        if raises is not None:
            raise raises

    def purge(self) -> None:
        while self.queued:
            self.report(KafkaError(KafkaError._PURGE_QUEUE))

    def flush(self, seconds: float) -> None:
        self.poll(0)


class World:
    """A KafkaProducer over fake clients, the newest of them last."""

    def __init__(self, bytes_max: int) -> None:
        self.producers: list[FakeProducer] = []
        self.suspicions = 0
        self.client = KafkaProducer(
            CONFIG,
            write_timeout_seconds=8,
            bytes_max=bytes_max,
            on_brokers_down=self._suspect,
            make_producer=self._make,
        )

    def _make(self, settings: dict[str, Any]) -> FakeProducer:
        self.producers.append(FakeProducer(settings))
        return self.producers[-1]

    def _suspect(self) -> None:
        self.suspicions += 1

    @property
    def producer(self) -> FakeProducer:
        return self.producers[-1]

    def deliver(self, *values: bytes) -> asyncio.Task[None]:
        messages = RequestMessages("otlp_logs", values, None, [], 7)
        return asyncio.create_task(self.client.deliver(messages))


@contextmanager
def world(bytes_max: int = 1 << 20) -> Iterator[World]:
    made = World(bytes_max)
    made.client.start()
    try:
        yield made
    finally:
        made.client.close(0)


def run(test: Callable[[World], Awaitable[None]], **settings: int) -> None:
    async def bounded(at: World) -> None:
        async with asyncio.timeout(30):
            await test(at)

    with world(**settings) as at:
        asyncio.run(bounded(at))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_no_ack_before_the_last_message_is_delivered() -> None:
    async def test(at: World) -> None:
        sent = at.deliver(b"1", b"2", b"3")
        await turns()
        at.producer.report()
        at.producer.report()
        other = at.deliver(b"other")
        await turns()
        assert [value for value, _ in at.producer.queued] == [b"3", b"other"]
        assert not sent.done()
        at.producer.report()
        await sent
        at.producer.report()
        await other

    run(test)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_message_that_is_not_delivered_fails_its_request_alone(failing: int) -> None:
    async def test(at: World) -> None:
        sent, other = at.deliver(b"1", b"2", b"3"), at.deliver(b"other")
        await turns()
        for index in range(3):
            assert not sent.done()
            at.producer.report(TIMED_OUT if index == failing else None)
        with pytest.raises(StoreUnavailable, match="did not confirm"):
            await sent
        at.producer.report()
        await other

    run(test)


def test_a_message_that_brokers_find_too_large_is_not_to_be_retried() -> None:
    async def test(at: World) -> None:
        sent = at.deliver(b"1")
        await turns()
        at.producer.report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        with pytest.raises(RequestTooLarge):
            await sent

    run(test)


def test_over_the_bound_requests_are_refused_before_anything_is_sent_until_there_is_room() -> None:
    async def test(at: World) -> None:
        first = at.deliver(b"x" * 600)
        await turns()
        with pytest.raises(Overloaded):
            await at.deliver(b"y", b"z")
        assert len(at.producer.queued) == 1
        at.producer.report()
        await first
        second = at.deliver(b"y" * 5000)  # alone, a request may be larger than the bound
        await turns()
        at.producer.report()
        await second

    run(test, bytes_max=2000)


@pytest.mark.parametrize(
    ("error", "expected"), [(BufferError(), Overloaded), (KafkaException(TIMED_OUT), StoreUnavailable)]
)
def test_a_request_that_is_queued_only_in_part_is_refused_when_its_part_is_reported(
    error: Exception, expected: type[Exception]
) -> None:
    async def test(at: World) -> None:
        at.producer.refuses_after = (2, error)
        sent = at.deliver(b"1", b"2", b"3", b"4")
        await turns()
        assert not sent.done()
        at.producer.report()
        at.producer.report()
        with pytest.raises(expected):
            await sent

    run(test)


@pytest.mark.parametrize("how", ["raised while polling", "reported of a message", "raised by a message"])
def test_a_broken_producer_is_replaced_and_whoever_waits_is_told(how: str) -> None:
    async def test(at: World) -> None:
        broken = at.producer
        sent, waiting = at.deliver(b"1"), at.deliver(b"2")
        await turns()
        if how == "raised while polling":
            broken.breaks()
        elif how == "reported of a message":
            broken.report(FATAL)
        else:
            broken.refuses_after = (0, KafkaException(FATAL))
            with pytest.raises(StoreUnavailable):
                await at.deliver(b"3")
        for task in (sent, waiting):
            with pytest.raises(StoreUnavailable):
                await task
        assert len(at.producers) == 2
        again = at.deliver(b"2")
        await turns()
        assert not broken.queued
        at.producer.report()
        await again

    run(test)


def test_a_client_that_has_gone_leaves_room_when_its_message_is_reported() -> None:
    async def test(at: World) -> None:
        sent = at.deliver(b"x" * 1000)
        await turns()
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        with pytest.raises(Overloaded):
            await at.deliver(b"y" * 1000)
        at.producer.report()
        at.producer.flush(0)
        second = at.deliver(b"y" * 1000)
        await turns()
        at.producer.report()
        await second

    run(test, bytes_max=2000)


def test_all_brokers_down_is_a_suspicion_and_other_noise_is_not() -> None:
    with world() as at:
        at.producer.settings["error_cb"](KafkaError(KafkaError._TRANSPORT))
        assert at.suspicions == 0
        at.producer.settings["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
        assert at.suspicions == 1
        assert len(at.producers) == 1


def test_at_the_end_whoever_still_waits_is_told() -> None:
    async def test(at: World) -> None:
        sent = at.deliver(b"1")
        await turns()
        await asyncio.to_thread(at.client.close, 0)
        await asyncio.to_thread(at.client.close, 0)
        with pytest.raises(StoreUnavailable):
            await sent

    run(test)


def test_closing_a_producer_that_never_started_is_harmless() -> None:
    World(1000).client.close(0)


def test_the_real_producer_takes_the_settings() -> None:
    client = KafkaProducer(
        CONFIG, write_timeout_seconds=0.001, bytes_max=1 << 30, on_brokers_down=lambda: None
    )
    client.start()
    client.close(0)


def test_settings_that_the_client_library_refuses_are_a_configuration_error() -> None:
    config = KafkaConfig.model_validate({"brokers": ["a:1"], "tls": {"ca_file": "/absent.pem"}})
    client = KafkaProducer(config, write_timeout_seconds=8, bytes_max=1, on_brokers_down=lambda: None)
    with pytest.raises(ConfigError, match=r"wal\.kafka: .*ssl\.ca\.location"):
        client.start()


def test_a_delivery_is_acked_by_all_replicas_without_duplicates_and_within_bounds() -> None:
    settings = producer_settings(CONFIG, 8)
    assert settings["acks"] == "all"
    assert settings["enable.idempotence"] is True
    assert settings["delivery.timeout.ms"] == 8000
    assert CONFIG.message_bytes_max < settings["message.max.bytes"] < 1_000_000
    assert settings["compression.type"] == "zstd"
