"""Topics of a real broker, landed through Spark's own source: exactly once, whatever is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyspark.sql import SparkSession

from frazil.errors import DataLost
from frazil.otlp.encode import encode
from frazil.otlp.json import request_to_json
from frazil.tables import SIGNALS, Signal
from tests.components.kafka import PLAIN_PASSWORD, SCRAM_PASSWORD, USER, KafkaBroker
from tests.components.otelcol import running_collector
from tests.components.process import free_port, wait_until
from tests.support.integration.clients import post
from tests.support.integration.kafka_messages import messages_in, new_topics
from tests.support.integration.messages import UNIX_NANO, logs, new_service, request
from tests.support.otlp_canonical import canonical_logs, canonical_metrics, canonical_spans
from tests.support.receiver import running_receiver
from tests.support.spark.land_lake import DECODERS, UNCLOSED_SOCKETS, Lake, opened

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(UNCLOSED_SOCKETS)]
CANONICAL = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}


@pytest.fixture
def admin(kafka: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})


def settings(kafka: KafkaBroker, folder: Path, **more: Any) -> dict[str, Any]:
    section = {"brokers": [kafka.address], "topics": new_topics(), "partitions": 2} | more
    return {"data_dir": folder, "wal": {"type": "kafka", "kafka": section}}


@pytest.fixture
def lake(kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, admin: AdminClient) -> Iterator[Lake]:
    with opened(settings(kafka, tmp_path)) as made:
        make_topics(admin, made)
        yield made


def make_topics(admin: AdminClient, lake: Lake, **config: str) -> None:
    made = admin.create_topics([NewTopic(topic_of(lake, s), 2, 1, config=config) for s in SIGNALS])
    for future in made.values():
        future.result(20)


def topic_of(lake: Lake, signal: Signal) -> str:
    assert lake.config.wal.kafka is not None
    return lake.config.wal.kafka.topic(signal)


def produce(kafka: KafkaBroker, topic: str, *values: bytes | None, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, "acks": "all", "log_level": 0})
    failed: list[Any] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda e, _: failed.append(e) if e else None, **more)
    assert producer.flush(20) == 0
    assert failed == []


def text(body: str) -> bytes:
    request = logs("service")
    request.resource_logs[0].scope_logs[0].log_records[0].body.string_value = body
    data: bytes = request.SerializeToString()
    return data


def with_skip(lake: Lake) -> dict[str, Any]:
    changed = lake.config.model_dump()
    changed["wal"]["kafka"]["on_lost_offsets"] = "skip"
    return changed


def test_what_a_receiver_acked_into_kafka_lands_exactly_once(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession
) -> None:
    chosen = settings(kafka, tmp_path / "data")
    wal = {"wal": chosen["wal"]}
    with running_receiver(tmp_path, wal | {"receive": {"workers": 1}}) as receiver, opened(chosen) as lake:
        for round_ in range(2):
            sent = {signal: [request(signal, new_service(), 3) for _ in range(6)] for signal in SIGNALS}
            before = {s: 0 if not round_ else lake.by_pyiceberg(s).num_rows for s in SIGNALS}
            for signal, requests in sent.items():
                for each in requests:
                    assert post(receiver, signal, each.SerializeToString()).status_code == 200
            lake.land()
            for signal, requests in sent.items():
                rows = lake.by_pyiceberg(signal)
                assert rows.num_rows == before[signal] + 18
                back = CANONICAL[signal](encode(rows.drop_columns("_segment"), DECODERS[signal].spec))
                assert set(back) >= {record for each in requests for record in CANONICAL[signal](each)}
                offsets = {
                    f"{message.topic()}/{message.partition()}/{message.offset()}"
                    for message in messages_in(kafka, topic_of(lake, signal))
                }
                assert set(rows["_segment"].to_pylist()) == offsets
        ledger = lake.ledger()
        assert ledger.problems == []
        assert {line.table: 0 for line in ledger.lines} == dict.fromkeys(SIGNALS, 0)
        assert sum(line.landed for line in ledger.lines) == 3 * 36


def test_a_message_that_is_delivered_again_lands_once(kafka: KafkaBroker, lake: Lake) -> None:
    """A driver that dies after its tasks and before its commit reads the same offsets again."""
    produce(kafka, topic_of(lake, "logs"), *(text(str(number)) for number in range(10)))
    dying = lake.lander("logs")
    dying._commit = lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        dying.step(now_due=True)
    lake.land("logs")
    lake.land("logs")
    assert lake.bodies() == {str(number): 1 for number in range(10)}
    assert lake.ledger().problems == []


def bad_spans() -> bytes:
    """One good span, and two whose ids are none."""
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for trace_id, span_id in ((b"t" * 16, b"s" * 8), (b"t" * 15, b"s" * 8), (b"", b"")):
        scope.spans.add(name="s", trace_id=trace_id, span_id=span_id, start_time_unix_nano=UNIX_NANO)
    data: bytes = request.SerializeToString()
    return data


def test_poison_is_set_aside_with_its_reason_and_bytes_and_landing_goes_on(
    kafka: KafkaBroker, lake: Lake
) -> None:
    garbage, as_json = bytes(range(256)) * 4, request_to_json(logs("service"))
    topic = topic_of(lake, "logs")
    produce(kafka, topic, text("before"), garbage, None, as_json, text("after"), partition=0)
    produce(kafka, topic_of(lake, "spans"), bad_spans(), partition=1)
    lake.land()
    assert lake.bodies() == {"before": 1, "after": 1}
    assert lake.by_pyiceberg("spans")["name"].to_pylist() == ["s"]
    rows = {row["source"]: row for row in lake.by_pyiceberg("set_aside").to_pylist()}
    spans = f"{topic_of(lake, 'spans')}/1/0"
    assert sorted(rows) == sorted([*(f"{topic}/0/{offset}" for offset in (1, 2, 3)), spans])
    assert [rows[f"{topic}/0/{offset}"]["payload"] for offset in (1, 2, 3)] == [garbage, b"", as_json]
    assert "tombstone" in rows[f"{topic}/0/2"]["reason"]
    assert rows[spans]["payload"] == bad_spans()
    assert rows[spans]["reason"].startswith("2 spans rejected")
    assert {row["table_name"] for row in rows.values()} == {"logs", "spans"}
    ledger = lake.ledger()
    assert ledger.problems == []
    assert sum(line.set_aside for line in ledger.lines) == 4
    lake.land()
    assert lake.by_pyiceberg("set_aside").num_rows == 4


def test_messages_with_absurd_times_and_headers_land(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, admin: AdminClient
) -> None:
    with opened(settings(kafka, tmp_path)) as lake:
        make_topics(admin, lake, **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
        topic = topic_of(lake, "logs")
        for number, at in enumerate((1, 253_402_300_800_000, 400_000_000_000_000)):
            produce(kafka, topic, text(f"time {number}"), timestamp=at)
        for number, value in enumerate((b"", b"x" * 30, b"-1", b"9" * 19, None)):
            headers = [("frazil-received-unix-nano", value), ("frazil-tenant", b"../..\xff")]
            produce(kafka, topic, text(f"header {number}"), headers=headers)
        exact = [1_790_000_000_000 + number for number in range(1, 1000, 37)]
        for at in exact:
            produce(kafka, topic, text(f"{at}"), timestamp=at)
        lake.land("logs")
        expected = [f"time {number}" for number in range(3)] + [f"header {number}" for number in range(5)]
        expected += map(str, exact)
        assert lake.bodies() == dict.fromkeys(expected, 1)
        rows = lake.by_spark("logs")
        assert set(rows["tenant_id"].to_pylist()) == {"default"}
        received = dict(
            zip(rows["body"].to_pylist(), rows["received_time"].cast("int64").to_pylist(), strict=True)
        )
        assert {at: received[str(at)] for at in exact} == {at: at * 1000 for at in exact}
        assert lake.ledger().problems == []


def test_partitions_that_are_added_later_are_noticed(
    kafka: KafkaBroker, lake: Lake, admin: AdminClient
) -> None:
    topic = topic_of(lake, "logs")
    produce(kafka, topic, text("old"), partition=0)
    lake.land("logs")
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(20)
    assert wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 4, seconds_max=20)
    produce(kafka, topic, text("new"), partition=3)
    lake.land("logs")
    assert lake.bodies() == {"old": 1, "new": 1}


def test_what_a_new_partition_lost_before_it_was_noticed_is_named(
    kafka: KafkaBroker, lake: Lake, admin: AdminClient
) -> None:
    topic = topic_of(lake, "logs")
    produce(kafka, topic, text("old"), partition=0)
    lake.land("logs")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(20)
    assert wait_until(lambda: len(admin.list_topics(topic).topics[topic].partitions) == 3, seconds_max=20)
    produce(kafka, topic, text("lost"), text("kept"), partition=2)
    at = TopicPartition(topic, 2, 1)
    admin.delete_records([at])[at].result(20)
    with pytest.raises(DataLost, match=f"1 messages of {topic}/2 .* offsets 0 to 0"):
        lake.land("logs")


def test_a_topic_made_anew_stops_its_table_loudly_and_no_other(
    kafka: KafkaBroker, lake: Lake, admin: AdminClient
) -> None:
    topic = topic_of(lake, "logs")
    produce(kafka, topic, text("old"), text("old too"), partition=0)
    lake.land("logs")
    admin.delete_topics([topic])[topic].result(20)
    assert wait_until(lambda: topic not in admin.list_topics().topics, seconds_max=20)
    with pytest.raises(DataLost, match=f"{topic} does not exist"):
        lake.land("logs")
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(20)
    produce(kafka, topic, text("new"), partition=0)
    with pytest.raises(DataLost, match="recreated"):
        lake.land("logs")
    produce(kafka, topic_of(lake, "metrics"), request("metrics", "s").SerializeToString())
    lake.land("metrics")
    assert lake.by_pyiceberg("metrics").num_rows == 1
    assert lake.bodies() == {"old": 1, "old too": 1}
    with opened(with_skip(lake)) as skipping:
        skipping.land("logs")
        assert skipping.bodies() == {"old": 1, "old too": 1, "new": 1}
        assert skipping.ledger().problems == []
    produce(kafka, topic, text("newer"), partition=0)
    lake.land("logs")  # to stop is the setting again; what was decided once stays decided
    assert lake.bodies()["newer"] == 1
    assert lake.ledger().problems == []


def test_offsets_that_are_gone_are_named_and_counted(
    kafka: KafkaBroker, lake: Lake, admin: AdminClient
) -> None:
    topic = topic_of(lake, "logs")
    produce(kafka, topic, text("first"), partition=0)
    lake.land("logs")
    produce(kafka, topic, *(text(f"lost {number}") for number in range(4)), text("kept"), partition=0)
    at = TopicPartition(topic, 0, 5)
    admin.delete_records([at])[at].result(20)
    with pytest.raises(DataLost, match=f"4 messages of {topic}/0 .* offsets 1 to 4"):
        lake.land("logs")
    assert lake.bodies() == {"first": 1}
    with opened(with_skip(lake)) as skipping:
        skipping.land("logs")
    assert lake.bodies() == {"first": 1, "kept": 1}
    (problem,) = lake.ledger().problems
    assert problem == f"{topic}/0: 4 messages were deleted from the topic before they landed"


def test_requests_in_json_land_too(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, admin: AdminClient
) -> None:
    with opened(settings(kafka, tmp_path, encoding="otlp_json")) as lake:
        make_topics(admin, lake)
        for signal in SIGNALS:
            sent = request(signal, "s", 3)
            produce(kafka, topic_of(lake, signal), request_to_json(sent), b'{"resourceLogs": [')
            lake.land(signal)
            rows = lake.by_pyiceberg(signal).drop_columns("_segment")
            assert CANONICAL[signal](encode(rows, DECODERS[signal].spec)) == CANONICAL[signal](sent)
        assert lake.by_pyiceberg("set_aside").num_rows == 3


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("header", ["default", "default", "team-h"]),
        ("key", ["default", "default", "team-k"]),
        ("fixed", ["default"] * 3),
    ],
)
def test_a_message_belongs_to_the_tenant_that_its_place_says(
    kafka: KafkaBroker,
    tmp_path: Path,
    spark: SparkSession,
    admin: AdminClient,
    source: str,
    expected: list[str],
) -> None:
    with opened(settings(kafka, tmp_path, tenant={"source": source, "header": "x-tenant"})) as lake:
        make_topics(admin, lake)
        topic = topic_of(lake, "logs")
        produce(kafka, topic, text("a"), key=b"team-k", headers=[("x-tenant", b"team-h")])
        produce(kafka, topic, text("b"))
        produce(kafka, topic, text("c"), key=b"no tenant!", headers=[("x-tenant", b"../etc")])
        lake.land("logs")
        assert sorted(lake.by_pyiceberg("logs")["tenant_id"].to_pylist()) == expected


def test_a_backlog_is_landed_in_bounded_tasks_and_batches(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, admin: AdminClient
) -> None:
    chosen = settings(kafka, tmp_path, messages_per_task_max=10) | {"land": {"batch_bytes_max": "1MiB"}}
    with opened(chosen) as lake:
        make_topics(admin, lake)
        produce(kafka, topic_of(lake, "logs"), *(text(f"{number}" + "x" * 20_000) for number in range(100)))
        lake.land("logs")
        assert set(lake.bodies().values()) == {1}
        assert lake.bodies().total() == 100
        assert len(lake.table("logs").snapshots()) > 2
        assert lake.ledger().problems == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_passwords_and_certificates_get_through_to_spark(
    kafka: KafkaBroker, tmp_path: Path, spark: SparkSession, admin: AdminClient, mechanism: str
) -> None:
    certificate, key = map(str, kafka.client_files)
    password = PLAIN_PASSWORD if mechanism == "PLAIN" else SCRAM_PASSWORD
    secure = {
        "brokers": [kafka.secure_address],
        "sasl": {"mechanism": mechanism, "username": USER, "password": password},
        "tls": {"ca_file": str(kafka.ca_file), "cert_file": certificate, "key_file": key},
    }
    with opened(settings(kafka, tmp_path, **secure)) as lake:
        make_topics(admin, lake)
        produce(kafka, topic_of(lake, "logs"), text("secret"))
        lake.land("logs")
        assert lake.bodies() == {"secret": 1}


@pytest.mark.go
def test_a_stock_collector_feeds_the_tables_through_kafka(
    kafka: KafkaBroker, lake: Lake, tmp_path: Path, otel_collector: Path
) -> None:
    """No receiver of ours: the Collector's own Kafka exporter writes the topics."""
    port, service = free_port(), new_service()
    topics = {
        name: {"topic": topic_of(lake, signal), "encoding": "otlp_proto"}
        for name, signal in (("logs", "logs"), ("traces", "spans"), ("metrics", "metrics"))
    }
    pipeline = {"receivers": ["otlp"], "exporters": ["kafka"]}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"kafka": {"brokers": [kafka.address], **topics}},
        "service": {"pipelines": dict.fromkeys(("logs", "traces", "metrics"), pipeline)},
    }
    sent = {signal: request(signal, service, 5) for signal in SIGNALS}
    with running_collector(tmp_path / "collector", config=json.loads(json.dumps(config))):
        import httpx

        for signal, path in (("logs", "logs"), ("spans", "traces"), ("metrics", "metrics")):
            httpx.post(
                f"http://127.0.0.1:{port}/v1/{path}",
                content=sent[signal].SerializeToString(),  # type: ignore[index]
                headers={"content-type": "application/x-protobuf"},
            ).raise_for_status()
        assert wait_until(
            lambda: all(messages_in(kafka, topic_of(lake, signal)) for signal in SIGNALS), seconds_max=30
        )
    lake.land()
    for signal in SIGNALS:
        rows = lake.by_pyiceberg(signal).drop_columns("_segment")
        assert CANONICAL[signal](encode(rows, DECODERS[signal].spec)) == CANONICAL[signal](sent[signal])
    assert lake.ledger().problems == []
