"""A pipeline that lands Kafka, while the broker and the driver die under traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.components.kafka import KafkaBroker
from tests.components.postgres import PostgresServer
from tests.components.process import wait_until
from tests.support.fault.traffic import Account, Steady, burst
from tests.support.integration.clients import post
from tests.support.integration.kafka_messages import new_topics
from tests.support.integration.messages import request
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import (
    PROMPT,
    SMALL_SPARK,
    PipelineProcess,
    landed_bodies,
    rows_in,
    running_pipeline,
    verified,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def settings(kafka: KafkaBroker, **more: Any) -> dict[str, Any]:
    section = {"brokers": [kafka.address], "topics": new_topics(), "partitions": 2} | more
    return {
        "wal": {"type": "kafka", "kafka": section, "write_timeout_seconds": 5},
        "land": PROMPT,
        "spark": SMALL_SPARK,
        "receive": {"workers": 1},
    }


def settled(pipeline: PipelineProcess, config_path: Path, account: Account) -> None:
    pipeline.until("all landed", lambda: account.acked <= landed_bodies(config_path).keys())
    account.check(landed_bodies(config_path))
    code, ledger = verified(config_path)
    assert (code, ledger["problems"]) == (0, [])
    rows = rows_in(config_path, "logs", "_segment", "body")
    assert rows is not None
    # A client that got no answer sends again, and that is another message; no message is there twice.
    pairs = set(zip(rows["_segment"].to_pylist(), rows["body"].to_pylist(), strict=True))
    assert len(pairs) == rows.num_rows


def test_broker_and_driver_die_under_traffic_and_everything_acked_lands(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    account = Account()
    with (
        running_receiver(tmp_path, settings(kafka)) as receiver,
        Steady(receiver, account, retries=True, pause_seconds=0.2) as traffic,
    ):
        with running_pipeline(receiver.config_path) as pipeline:
            pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") > 0)
            kafka.kill()
            try:
                pipeline.until("it says so", lambda: not pipeline.is_ready())
            finally:
                kafka.restart()
            rows = pipeline.metric("frazil_landed_rows_total")
            pipeline.until("goes on", lambda: pipeline.metric("frazil_landed_rows_total") > rows)
            pipeline.kill()
        with running_pipeline(receiver.config_path) as pipeline:
            pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") > 0)
            traffic.stop()
            settled(pipeline, receiver.config_path, account)
            assert pipeline.stop() == 0


def test_of_pipelines_on_two_machines_one_works_and_the_other_takes_over(
    kafka: KafkaBroker, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """They share Kafka, the catalog and the warehouse, and no folder of their own."""
    account = Account()
    catalog = {"type": "postgres", "postgres": {"uri": postgres_server.make_database("two-machines")}}
    lake = {"lake": {"catalog": catalog, "warehouse": str(tmp_path / "warehouse")}}
    other = {"FRAZIL_DATA_DIR": str(tmp_path / "other")}
    with running_receiver(tmp_path, settings(kafka) | lake) as receiver:
        path = receiver.config_path
        with running_pipeline(path, "one") as one, running_pipeline(path, "two", other) as two:
            machines = [one, two]
            leads = lambda each: each.metric("frazil_pipeline_leader") == 1  # noqa: E731
            one.until("one leads", lambda: any(map(leads, machines)))
            burst(receiver, account)
            machines.sort(key=leads)
            standby, leader = machines
            settled(leader, path, account)
            standby.until("ready", standby.is_ready)
            assert (leads(leader), leads(standby)) == (True, False)
            leader.kill()
            burst(receiver, account)
            standby.until("it leads", lambda: leads(standby))
            settled(standby, path, account)


def logs_topic(receiver: Receiver) -> str:
    assert receiver.config.wal.kafka is not None
    return receiver.config.wal.kafka.topic("logs")


def test_a_table_whose_topic_was_deleted_stops_and_the_others_continue(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 0})
    with (
        running_receiver(tmp_path, settings(kafka)) as receiver,
        running_pipeline(receiver.config_path) as pipeline,
    ):
        post(receiver, "logs", request("logs", "s").SerializeToString()).raise_for_status()
        pipeline.until("landed", lambda: landed_bodies(receiver.config_path).total() == 1)
        topic = logs_topic(receiver)
        admin.delete_topics([topic])[topic].result(20)
        pipeline.until("stopped", lambda: pipeline.metric("frazil_land_stopped", table="logs") == 1)
        status, text = pipeline.get("/readyz")
        assert status == 503
        assert f"the topic {topic} does not exist" in text
        assert pipeline.get("/livez")[0] == 200
        assert wait_until(
            lambda: post(receiver, "spans", request("spans", "s").SerializeToString()).status_code == 200,
            seconds_max=60,
        )
        pipeline.until("spans land", lambda: pipeline.metric("frazil_landed_rows_total", table="spans") == 1)
