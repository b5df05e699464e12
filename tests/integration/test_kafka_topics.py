"""Topics and settings against a real broker, through librdkafka and through Java's own client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from frazil.config.wal import KafkaConfig
from frazil.errors import StoreUnavailable
from frazil.wal.kafka.client import client_settings, spark_settings
from frazil.wal.kafka.topics import Topics
from tests.components.kafka import PLAIN_PASSWORD, SCRAM_PASSWORD, USER, KafkaBroker
from tests.components.process import free_port, wait_until
from tests.support.integration.kafka_messages import new_topics

pytestmark = pytest.mark.slow

PASSWORDS = {"PLAIN": PLAIN_PASSWORD, "SCRAM-SHA-512": SCRAM_PASSWORD}


def config(kafka: KafkaBroker, **settings: Any) -> KafkaConfig:
    return KafkaConfig.model_validate({"brokers": [kafka.address], "topics": new_topics()} | settings)


def secured(kafka: KafkaBroker, mechanism: str, **sasl: str) -> KafkaConfig:
    certificate, key = kafka.client_files
    return config(
        kafka,
        brokers=[kafka.secure_address],
        sasl={"mechanism": mechanism, "username": USER, "password": PASSWORDS[mechanism]} | sasl,
        tls={"ca_file": str(kafka.ca_file), "cert_file": str(certificate), "key_file": str(key)},
    )


def test_a_topic_that_is_missing_has_no_state_until_it_is_made(kafka: KafkaBroker) -> None:
    chosen = config(kafka, partitions=3)
    topics = Topics(chosen)
    assert topics.state("logs") is None
    topics.ensure("logs")
    state = topics.state("logs")
    assert state is not None
    assert state.name == chosen.topics.logs
    assert state.partitions == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    topics.ensure("logs")
    assert topics.state("logs") == state
    assert topics.state("spans") is None


def test_a_state_tells_what_is_there_and_what_is_gone(kafka: KafkaBroker) -> None:
    chosen = config(kafka, partitions=2)
    topics = Topics(chosen)
    topics.ensure("logs")
    producer = Producer(client_settings(chosen))
    for _ in range(5):
        producer.produce(chosen.topics.logs, b"x", partition=1)
    assert producer.flush(10) == 0
    state = topics.state("logs")
    assert state is not None
    assert state.partitions == {0: (0, 0), 1: (0, 5)}


def test_a_topic_made_anew_has_another_id(kafka: KafkaBroker) -> None:
    chosen = config(kafka)
    topics = Topics(chosen)
    topics.ensure("logs")
    before = topics.state("logs")
    name = chosen.topics.logs
    admin = AdminClient(client_settings(chosen))
    admin.delete_topics([name])[name].result(10)
    assert wait_until(lambda: topics.state("logs") is None, seconds_max=10)
    topics.ensure("logs")
    after = topics.state("logs")
    assert before is not None
    assert after is not None
    assert before.id != after.id


def test_all_of_many_who_make_the_same_topic_at_once_succeed(kafka: KafkaBroker) -> None:
    chosen = config(kafka)
    rivals = [Topics(chosen) for _ in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda topics: topics.ensure("spans"), rivals))
    assert len({topics.state("spans").id for topics in rivals}) == 1  # type: ignore[union-attr]


def test_brokers_that_do_not_answer_are_unavailable_in_bounded_time() -> None:
    nobody = KafkaConfig(brokers=(f"127.0.0.1:{free_port()}",))
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable, match="Connection refused"):
        Topics(nobody, timeout_seconds=0.5).state("logs")
    assert time.monotonic() - begin < 5


def test_a_topic_that_cannot_be_made_says_why(kafka: KafkaBroker) -> None:
    with pytest.raises(StoreUnavailable, match=r"missing and cannot be created: .*replicat"):
        Topics(config(kafka, replication_factor=3)).ensure("logs")


@pytest.mark.parametrize("mechanism", PASSWORDS)
def test_a_password_over_tls_opens_the_broker(kafka: KafkaBroker, mechanism: str) -> None:
    topics = Topics(secured(kafka, mechanism))
    topics.ensure("metrics")
    assert topics.state("metrics") is not None


def test_a_wrong_password_is_named_as_the_reason(kafka: KafkaBroker) -> None:
    topics = Topics(secured(kafka, "PLAIN", password="wrong"), timeout_seconds=1)
    with pytest.raises(StoreUnavailable, match="Invalid username or password"):
        topics.state("logs")


@pytest.mark.parametrize("mechanism", ["PLAIN", pytest.param("SCRAM-SHA-512")])
def test_java_gets_in_with_the_settings_for_spark(kafka: KafkaBroker, mechanism: str) -> None:
    chosen = secured(kafka, mechanism)
    Topics(chosen).ensure("logs")
    java = {key.removeprefix("kafka."): value for key, value in spark_settings(chosen).items()}
    assert chosen.topics.logs in kafka.topics_seen_by_java(java)


def test_what_has_landed_can_be_deleted_and_the_rest_stays(kafka: KafkaBroker) -> None:
    chosen = config(kafka, partitions=2)
    topics = Topics(chosen)
    topics.ensure("logs")
    producer = Producer(client_settings(chosen))
    for _ in range(5):
        producer.produce(chosen.topics.logs, b"x", partition=1)
    assert producer.flush(10) == 0
    topics.delete_before("logs", {0: 0, 1: 3})
    state = topics.state("logs")
    assert state is not None
    assert state.partitions == {0: (0, 0), 1: (3, 5)}
    topics.delete_before("logs", {0: 0, 1: 3})


def test_how_long_messages_are_kept_is_known(kafka: KafkaBroker) -> None:
    topics = Topics(config(kafka))
    assert topics.retention_ms("logs") is None
    topics.ensure("logs")
    week = 7 * 24 * 3_600_000
    assert topics.retention_ms("logs") == week
