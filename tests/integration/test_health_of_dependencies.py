"""Every role says that it is not ready while the store, the catalog or the brokers are away, and why."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.components.fixtures import FaultyProxyFactory
from tests.components.kafka import KafkaBroker
from tests.components.postgres import postgres_server
from tests.components.process import end, free_port, wait_until
from tests.components.proxy import FaultyProxy
from tests.components.s3 import S3Server
from tests.support.integration.api import Api
from tests.support.integration.kafka_messages import new_topics
from tests.support.receiver import running_receiver, write_config
from tests.support.spark.land_process import PipelineProcess, running_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
NOTICED_SECONDS_MAX = 60


def on_s3(moto_s3: S3Server, proxy: FaultyProxy) -> dict[str, Any]:
    bucket = moto_s3.make_bucket(f"health-{uuid.uuid4().hex}")
    keys = {"access_key_id": moto_s3.access_key, "secret_access_key": moto_s3.secret_key}
    s3 = {"endpoint": proxy.url, "allow_http": True, **keys}
    return {
        "wal": {"type": "s3", "s3": {"bucket": bucket, **s3}},
        "lake": {"warehouse": f"s3://{bucket}/warehouse", "s3": s3},
        "pipeline": {"lease_seconds": 3},
    }


@contextlib.contextmanager
def two_pipelines(config_path: Path) -> Iterator[tuple[PipelineProcess, PipelineProcess]]:
    """The active one and the standby, both ready."""
    with running_pipeline(config_path, "active") as active:
        active.until("it works", lambda: active.metric("frazil_pipeline_leader") == 1 and active.is_ready())
        with running_pipeline(config_path, "standby") as standby:
            standby.until("it stands by", standby.is_ready)
            yield active, standby


def problems(pipeline: PipelineProcess) -> dict[str, str]:
    status, text = pipeline.get("/readyz")
    found: dict[str, str] = json.loads(text)["problems"] if status else {}
    assert (status == 503) == bool(found)
    return found


def noticed(said: Callable[[], bool]) -> bool:
    return wait_until(said, seconds_max=NOTICED_SECONDS_MAX)


def test_active_pipeline_and_standby_are_not_ready_while_s3_is_away(
    tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    path = write_config(tmp_path, free_port(), free_port(), on_s3(moto_s3, proxy))
    with two_pipelines(path) as pipelines:
        with proxy.refusing():
            for pipeline in pipelines:
                pipeline.until("not ready", lambda p=pipeline: {"wal", "warehouse"} <= problems(p).keys())
                assert "error sending request" in problems(pipeline)["wal"]
                # The lease has ended, and no pipeline lands: neither may say that it is ready.
                lost = lambda p=pipeline: "the lease cannot be acquired" in problems(p).get("pipeline", "")  # noqa: E731
                pipeline.until("no lease", lost)
                assert pipeline.get("/livez")[0] == 200
        for pipeline in pipelines:
            pipeline.until("ready again", pipeline.is_ready)
        assert noticed(lambda: sum(each.metric("frazil_pipeline_leader") for each in pipelines) == 1)
        for pipeline in pipelines:
            text = pipeline.log.read_text()
            assert text.count('"event":"lease not acquired; retrying"') == 1
            assert "another pipeline works" not in text
        active = pipelines[0].log.read_text()
        assert active.count('"event":"landing stopped: the lease was lost"') == 1


def test_both_pipelines_are_not_ready_while_postgres_is_away(tmp_path: Path) -> None:
    with contextlib.ExitStack() as server:
        uri = server.enter_context(postgres_server(tmp_path)).make_database("lake")
        catalog = {"type": "postgres", "postgres": {"uri": uri}}
        path = write_config(tmp_path, free_port(), free_port(), {"lake": {"catalog": catalog}})
        with two_pipelines(path) as pipelines:
            server.close()
            for pipeline in pipelines:
                pipeline.until("not ready", lambda p=pipeline: "catalog" in problems(p))
                assert "the catalog is unavailable" in problems(pipeline)["catalog"]


def test_both_pipelines_and_the_receiver_are_not_ready_while_kafka_is_away(
    tmp_path: Path, kafka: KafkaBroker
) -> None:
    wal = {"type": "kafka", "kafka": {"brokers": [kafka.address], "topics": new_topics()}}
    with (
        running_receiver(tmp_path, {"wal": wal, "receive": {"workers": 1}}) as receiver,
        two_pipelines(receiver.config_path) as pipelines,
    ):
        kafka.kill()
        try:
            for pipeline in pipelines:
                pipeline.until("not ready", lambda p=pipeline: "Kafka" in problems(p).get("wal", ""))
            assert noticed(lambda: not receiver.is_ready())
        finally:
            kafka.restart()
        for pipeline in pipelines:
            pipeline.until("ready again", pipeline.is_ready)
        assert noticed(receiver.is_ready)


def test_an_idle_receiver_is_not_ready_while_s3_is_away(
    tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    settings = {**on_s3(moto_s3, proxy), "receive": {"workers": 1}}
    with running_receiver(tmp_path, settings) as receiver:
        with proxy.refusing():
            assert noticed(lambda: not receiver.is_ready())
            for path in ("/readyz", "/healthz"):
                answer = httpx.get(receiver.http + path, timeout=10)
                assert answer.status_code == 503
                assert "is unavailable" in answer.text
            assert httpx.get(f"{receiver.http}/livez").status_code == 200
        assert noticed(receiver.is_ready)


def test_the_api_is_not_ready_while_s3_is_away_and_queries_fail(
    tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    port = free_port()
    settings = {
        **on_s3(moto_s3, proxy),
        "serve": {"listen": f"127.0.0.1:{port}"},
        "query": {"workers": 1},
    }
    path = write_config(tmp_path, free_port(), free_port(), settings)
    api = Api(tmp_path, path, f"http://127.0.0.1:{port}")
    api.start()
    try:
        assert api.sql("SELECT count(*) FROM logs").status_code == 200
        requests = proxy.count("GET")
        for _ in range(20):
            assert api.is_ready()
        assert proxy.count("GET") - requests <= 6, "health is kept: 20 questions are not 40 requests"
        with proxy.refusing():
            assert noticed(lambda: not api.is_ready())
            assert api.sql("SELECT count(*) FROM logs").status_code == 503
            assert api.get("/readyz").json()["problems"]
            assert api.get("/healthz").status_code == 503
            assert api.get("/livez").status_code == 200
        assert noticed(api.is_ready)
    finally:
        end(api.process, 15)
