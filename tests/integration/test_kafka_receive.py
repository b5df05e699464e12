"""A receiver whose WAL is Kafka: what it acks is in the topic, exactly once, for any reader of OTLP."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from frazil.keys import new_key
from frazil.otlp.wire import REQUESTS
from frazil.tables import Signal
from frazil.wal.journal import decoders
from frazil.wal.kafka.messages import body_of, received_unix_nano, tenant_of
from tests.components.kafka import SCRAM_PASSWORD, USER, KafkaBroker
from tests.components.otelcol import running_collector
from tests.components.process import free_port, wait_until
from tests.support.integration.clients import (
    METHODS,
    RESPONSES,
    SIGNALS,
    channel,
    export,
    post,
    retry_delay_of,
    status_of,
)
from tests.support.integration.kafka_messages import kept_of, messages_in, new_topics, sent_records
from tests.support.integration.messages import logs, metrics, new_service, request, spans
from tests.support.receiver import Receiver, running_receiver

pytestmark = pytest.mark.slow

BYTES_MAX = 50_000


def settings(kafka: KafkaBroker, **more: Any) -> dict[str, Any]:
    """Of a receiver with topics of its own."""
    section = {"brokers": [kafka.address], "topics": new_topics(), "message_bytes_max": BYTES_MAX} | more
    return {"wal": {"type": "kafka", "kafka": section, "write_timeout_seconds": 2}}


def topic_of(receiver: Receiver, signal: Signal) -> str:
    assert receiver.config.wal.kafka is not None
    return receiver.config.wal.kafka.topic(signal)


@pytest.fixture(scope="module")
def to_kafka(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    with running_receiver(tmp_path_factory.mktemp("to-kafka"), settings(kafka)) as running:
        yield running


def kept(kafka: KafkaBroker, receiver: Receiver, signal: Signal, service: str) -> Any:
    return kept_of(signal, service, messages_in(kafka, topic_of(receiver, signal)))


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_was_acked_is_in_the_topic_exactly_once(
    kafka: KafkaBroker, to_kafka: Receiver, signal: Signal
) -> None:
    service = new_service()
    sent = [request(signal, service, 5) for _ in range(20)]
    begin = time.time_ns()
    with channel(to_kafka) as opened:
        for message in sent[:10]:
            assert export(opened, signal, message.SerializeToString()) == b""
    for message in sent[10:]:
        assert post(to_kafka, signal, message.SerializeToString()).status_code == 200
    found = kept(kafka, to_kafka, signal, service)
    expected = [record for message in sent for record in sent_records(signal, message)]
    assert sorted(map(str, found.records)) == sorted(map(str, expected))
    for message in found.messages:
        unix_nano = received_unix_nano(message.headers(), 0)
        assert begin < unix_nano < time.time_ns()
        assert message.timestamp()[1] == unix_nano // 1_000_000
        assert tenant_of(message.headers(), message.key(), to_kafka.config.wal.kafka, "none") == "default"
    assert to_kafka.metric("frazil_wal_rows_total", signal=signal) >= 100


def test_a_large_request_is_split_into_messages_that_brokers_take(
    kafka: KafkaBroker, to_kafka: Receiver
) -> None:
    service = new_service()
    sent = logs(service, 20_000)
    assert len(sent.SerializeToString()) > 5 * BYTES_MAX
    assert post(to_kafka, "logs", sent.SerializeToString()).status_code == 200
    found = kept(kafka, to_kafka, "logs", service)
    assert len(found.messages) > 5
    assert max(len(message.value()) for message in found.messages) <= BYTES_MAX
    bodies = sorted(record.body.string_value for record in found.records)
    assert bodies == sorted(f"record {index}" for index in range(20_000))
    assert len({received_unix_nano(message.headers(), 0) for message in found.messages}) == 1


def test_a_record_larger_than_a_message_is_refused_for_good(kafka: KafkaBroker, to_kafka: Receiver) -> None:
    service = new_service()
    sent = logs(service, 2)
    sent.resource_logs[0].scope_logs[0].log_records[1].body.string_value = "x" * (BYTES_MAX + 1)
    assert post(to_kafka, "logs", sent.SerializeToString()).status_code == 413
    assert not kept(kafka, to_kafka, "logs", service).messages


def test_invalid_records_are_reported_and_only_the_others_are_in_the_topic(
    kafka: KafkaBroker, to_kafka: Receiver
) -> None:
    service = new_service()
    sent = spans(service, 10)
    listed = sent_records("spans", sent)
    listed[3].trace_id = b"short"  # type: ignore[attr-defined]
    response = post(to_kafka, "spans", sent.SerializeToString())
    assert response.status_code == 200
    partial = RESPONSES["spans"].FromString(response.content).partial_success  # type: ignore[attr-defined]
    assert partial.rejected_spans == 1
    assert "trace_id" in partial.error_message
    found = kept(kafka, to_kafka, "spans", service)
    assert found.records == [span for index, span in enumerate(listed) if index != 3]


def test_a_malformed_request_is_refused_and_never_written(kafka: KafkaBroker, to_kafka: Receiver) -> None:
    before = len(messages_in(kafka, topic_of(to_kafka, "metrics")))
    response = post(to_kafka, "metrics", b"\x0a\x7f")
    assert response.status_code == 400
    assert "metrics" in status_of(response).message
    assert len(messages_in(kafka, topic_of(to_kafka, "metrics"))) == before


def test_json_is_written_as_collectors_write_it(kafka: KafkaBroker, tmp_path: Path) -> None:
    service = new_service()
    sent = {signal: request(signal, service, 300) for signal in SIGNALS}
    chosen = settings(kafka, encoding="otlp_json", message_bytes_max=20_000, tenant={"source": "key"})
    with running_receiver(tmp_path, chosen) as receiver:
        for signal, message in sent.items():
            assert post(receiver, signal, message.SerializeToString()).status_code == 200
            found = messages_in(kafka, topic_of(receiver, signal))
            assert len(found) > 1
            assert all(message.key() == b"default" for message in found)
            values = [message.value() or b"" for message in found]
            assert all(value.startswith(b"{") and len(value) <= 20_000 for value in values)
            bodies = [body_of(value, "otlp_json", signal) for value in values]
            records = [
                record
                for body in bodies
                for record in sent_records(signal, REQUESTS[signal].FromString(body))
            ]
            assert sorted(map(str, records)) == sorted(map(str, sent_records(signal, message)))


def test_a_password_over_tls_and_the_tenant_of_an_api_key(kafka: KafkaBroker, tmp_path: Path) -> None:
    secret, hashed = new_key("shop")
    certificate, key = kafka.client_files
    chosen = settings(
        kafka,
        brokers=[kafka.secure_address],
        sasl={"mechanism": "SCRAM-SHA-512", "username": USER, "password": SCRAM_PASSWORD},
        tls={"ca_file": str(kafka.ca_file), "cert_file": str(certificate), "key_file": str(key)},
        tenant={"header": "x-tenant"},
    ) | {"auth": {"keys": [{"name": "shop", "tenant": "shop", "hash": hashed}]}}
    service = new_service()
    with running_receiver(tmp_path, chosen) as receiver:
        headers = {"authorization": f"Bearer {secret}"}
        response = post(receiver, "logs", logs(service, 3).SerializeToString(), headers=headers)
        assert response.status_code == 200
        found = kept(kafka, receiver, "logs", service)
        assert len(found.records) == 3
        assert dict(found.messages[0].headers())["x-tenant"] == b"shop"


def test_messages_that_the_brokers_find_too_large_are_refused_alone(
    kafka: KafkaBroker, to_kafka: Receiver
) -> None:
    """As when `message_bytes_max` is set to more than brokers take."""
    service = new_service()
    topic = topic_of(to_kafka, "metrics")
    large, small = metrics(service), metrics(service)
    large.resource_metrics[0].scope_metrics[0].metrics[0].description = os.urandom(10_000).hex()

    def status() -> int:
        return post(to_kafka, "metrics", large.SerializeToString()).status_code

    _bound_messages(kafka, topic, 5_000)
    try:
        assert wait_until(lambda: status() == 413, seconds_max=10)  # brokers learn of their settings in time
        assert post(to_kafka, "metrics", small.SerializeToString()).status_code == 200
        assert to_kafka.is_ready()
    finally:
        _bound_messages(kafka, topic, 1_000_000)
    assert wait_until(lambda: status() == 200, seconds_max=10)


def _bound_messages(kafka: KafkaBroker, topic: str, bytes_max: int) -> None:
    entry = ConfigEntry("max.message.bytes", str(bytes_max), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.incremental_alter_configs([resource])[resource].result(10)


_NO_ANSWER = 0


class Traffic:
    """Clients that send one record after the other and keep account of what was acked."""

    def __init__(self, receiver: Receiver) -> None:
        self.service = new_service()
        self.acked: set[str] = set()
        self.statuses: list[int] = []
        self._receiver = receiver
        self._numbers = itertools.count()
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def flowing(self, clients: int = 4) -> Iterator[None]:
        threads = [threading.Thread(target=self._send) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            for thread in threads:
                thread.join()

    def _send(self) -> None:
        with httpx.Client(base_url=self._receiver.http, timeout=30, verify=False) as client:
            while not self._stopping.is_set():
                name = f"traffic {next(self._numbers)}"
                sent = logs(self.service)
                sent.resource_logs[0].scope_logs[0].log_records[0].body.string_value = name
                headers = {"content-type": "application/x-protobuf"}
                try:
                    response = client.post("/v1/logs", content=sent.SerializeToString(), headers=headers)
                except httpx.TransportError:
                    self.statuses.append(_NO_ANSWER)
                    return
                self.statuses.append(response.status_code)
                if response.status_code == 200:
                    self.acked.add(name)
                else:
                    assert int(response.headers["retry-after"]) >= 1
                    self._stopping.wait(0.05)

    def acks_more(self, seconds_max: float = 30) -> bool:
        before = len(self.acked)
        return wait_until(lambda: len(self.acked) > before + 20, seconds_max=seconds_max)


def test_while_the_broker_is_down_requests_are_refused_and_nothing_acked_is_lost(
    kafka: KafkaBroker, to_kafka: Receiver
) -> None:
    traffic = Traffic(to_kafka)
    with traffic.flowing():
        assert traffic.acks_more()
        kafka.kill()
        try:
            assert wait_until(lambda: traffic.statuses[-1] == 503, seconds_max=20)
            assert wait_until(lambda: not to_kafka.is_ready(), seconds_max=20)
            with channel(to_kafka) as opened, pytest.raises(grpc.RpcError) as refused:
                export(opened, "spans", spans("s").SerializeToString())
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
            assert (retry_delay_of(refused.value) or 0) >= 1
        finally:
            kafka.restart()
        assert traffic.acks_more()
        assert wait_until(to_kafka.is_ready, seconds_max=10)
    check_account(kafka, to_kafka, traffic)


def check_account(kafka: KafkaBroker, receiver: Receiver, traffic: Traffic) -> None:
    """What was acked is there, once. What was refused may be there too, as after any lost answer."""
    assert set(traffic.statuses) == {200, 503}
    found = [record.body.string_value for record in kept(kafka, receiver, "logs", traffic.service).records]
    assert traffic.acked <= set(found)
    assert len(found) == len(set(found))


def test_a_broker_that_hangs_costs_time_but_nothing_that_was_acked(
    kafka: KafkaBroker, to_kafka: Receiver
) -> None:
    traffic = Traffic(to_kafka)
    with traffic.flowing():
        assert traffic.acks_more()
        kafka.pause()
        try:
            assert wait_until(lambda: traffic.statuses[-1] == 503, seconds_max=20)
            assert wait_until(lambda: not to_kafka.is_ready(), seconds_max=20)
        finally:
            kafka.resume()
        assert traffic.acks_more()
    check_account(kafka, to_kafka, traffic)


def test_a_receiver_that_ends_has_written_what_it_acked(kafka: KafkaBroker, tmp_path: Path) -> None:
    with running_receiver(tmp_path, settings(kafka)) as receiver:
        traffic = Traffic(receiver)
        with traffic.flowing():
            assert traffic.acks_more()
            assert receiver.stop() == 0
        found = kept(kafka, receiver, "logs", traffic.service).records
    names = [record.body.string_value for record in found]
    assert traffic.acked <= set(names)
    assert len(names) == len(set(names))


def test_a_receiver_that_starts_without_brokers_waits_for_them(kafka: KafkaBroker, tmp_path: Path) -> None:
    kafka.kill()
    try:
        with running_receiver(tmp_path, settings(kafka), ready=False) as receiver:

            def said() -> str:
                try:
                    return httpx.get(f"{receiver.http}/readyz", timeout=1, verify=False).text
                except httpx.HTTPError:
                    return ""

            assert wait_until(lambda: "Connection refused" in said(), seconds_max=30), said()
            assert post(receiver, "logs", logs("s").SerializeToString()).status_code == 503
            kafka.restart()
            assert wait_until(receiver.is_ready, seconds_max=20)
            assert post(receiver, "logs", logs("s").SerializeToString()).status_code == 200
    finally:
        if not kafka.answers():
            kafka.restart()


@pytest.mark.go
@pytest.mark.parametrize("encoding", ["otlp_proto", "otlp_json"])
def test_what_a_collector_writes_is_read_as_a_request(
    kafka: KafkaBroker, otel_collector: Path, tmp_path: Path, to_kafka: Receiver, encoding: Any
) -> None:
    topics = new_topics()
    admin = AdminClient({"bootstrap.servers": kafka.address})
    for made in admin.create_topics([NewTopic(name, 1, 1) for name in topics.values()]).values():
        made.result(10)
    kinds: dict[Signal, str] = {"logs": "logs", "spans": "traces", "metrics": "metrics"}
    exporter: dict[str, Any] = {
        kind: {"topic": topics[signal], "encoding": encoding} for signal, kind in kinds.items()
    }
    port = free_port()
    pipeline = {"receivers": ["otlp"], "exporters": ["kafka"]}
    config = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"kafka": {"brokers": [kafka.address], "sending_queue": {"enabled": False}} | exporter},
        "service": {"pipelines": dict.fromkeys(kinds.values(), pipeline)},
    }
    sent = {signal: request(signal, "shop", 25) for signal in SIGNALS}
    with (
        running_collector(tmp_path, config=config),
        grpc.insecure_channel(f"127.0.0.1:{port}") as opened,
    ):
        for signal, message in sent.items():
            opened.unary_unary(METHODS[signal])(message.SerializeToString(), timeout=30)
    for signal, decoder in decoders(to_kafka.config).items():
        found: list[Message] = messages_in(kafka, topics[signal])
        bodies = [body_of(message.value(), encoding, signal) for message in found]
        tenants = [tenant_of(m.headers(), m.key(), to_kafka.config.wal.kafka, "default") for m in found]
        times = [received_unix_nano(message.headers(), message.timestamp()[1]) for message in found]
        decoded = decoder.decode(bodies, tenants, times)
        assert int(decoded.rejected.sum()) == 0
        column = {"logs": "body", "spans": "name", "metrics": "metric_name"}[signal]
        names = decoded.table.column(column).to_pylist()
        assert sorted(names) == sorted(f"record {index}" for index in range(25))
        assert decoded.table.column("tenant_id").to_pylist() == ["default"] * 25
