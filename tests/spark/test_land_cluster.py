"""Landing on a standalone cluster of two workers, from a WAL on S3 into a warehouse on S3."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pytest

from frazil.pipeline.java import java_home
from tests.components.process import wait_until
from tests.components.s3 import S3Server
from tests.components.spark_cluster import SparkCluster, running_cluster
from tests.support.fault.traffic import Account, Client
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import (
    PROMPT,
    PipelineProcess,
    landed_bodies,
    rows_in,
    running_pipeline,
    verified,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TEXT_BYTES = 40_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), java_home=java_home()) as running:
        yield running


@pytest.fixture
def receiver(tmp_path: Path, cluster: SparkCluster, moto_s3: S3Server) -> Iterator[Receiver]:
    bucket = moto_s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    keys = {"access_key_id": moto_s3.access_key, "secret_access_key": moto_s3.secret_key}
    s3 = {"endpoint": moto_s3.endpoint, "allow_http": True, **keys}
    both = {"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings: dict[str, Any] = {
        "wal": {"type": "s3", "s3": {"bucket": bucket, **s3}},
        "lake": {"warehouse": f"s3://{bucket}/warehouse", "s3": s3},
        "land": PROMPT | {"task_bytes_max": "64KiB", "wal_grace_seconds": 2},
        "spark": {
            "master": cluster.master,
            "driver_memory_bytes": "512MiB",
            "executor_memory_bytes": "512MiB",
            "settings": both | local,
        },
        "receive": {"workers": 1},
        "derive": {"interval_seconds": 1},
    }
    with running_receiver(tmp_path, settings) as running:
        yield running


def large_texts(receiver: Receiver, account: Account, count: int = 4) -> None:
    """Segments that are each a task of their own."""
    client = Client(receiver, "http")
    for _ in range(count):
        texts = [os.urandom(TEXT_BYTES // 2).hex() for _ in range(3)]
        assert account.note(client.send(texts)).answer == "ok"
    client.close()


def settled(pipeline: PipelineProcess, receiver: Receiver, account: Account) -> None:
    pipeline.until("all landed", lambda: account.acked <= landed_bodies(receiver.config_path).keys())
    account.check(landed_bodies(receiver.config_path))
    code, ledger = verified(receiver.config_path)
    assert (code, ledger["problems"]) == (0, [])


def python_workers(executor: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(executor).children(recursive=True)
    return []


def test_landing_runs_on_both_workers(cluster: SparkCluster, receiver: Receiver) -> None:
    account = Account()
    large_texts(receiver, account)
    with running_pipeline(receiver.config_path) as pipeline:
        settled(pipeline, receiver, account)
        executors = cluster.executor_pids()
        assert len(executors) == 2
        # Spark starts Python beside an executor for its first task in Python, and keeps it.
        assert all(python_workers(pid) for pid in executors)
        assert pipeline.stop() == 0
    assert wait_until(lambda: cluster.executor_pids() == [], seconds_max=60)


def test_derivation_runs_on_the_cluster_and_counts_each_row_once(
    cluster: SparkCluster, receiver: Receiver
) -> None:
    account = Account()
    with running_pipeline(receiver.config_path) as pipeline:
        for _ in range(2):
            large_texts(receiver, account)
            settled(pipeline, receiver, account)
        total = landed_bodies(receiver.config_path).total()
        pipeline.until("all derived", lambda: derived_records(receiver.config_path) == total)
        executors = cluster.executor_pids()
        assert len(executors) == 2
        assert all(python_workers(pid) for pid in executors)
        assert pipeline.metric("frazil_derive_errors_total") == 0
        assert pipeline.stop() == 0
    assert derived_records(receiver.config_path) == total
    assert wait_until(lambda: cluster.executor_pids() == [], seconds_max=60)


def derived_records(config_path: Path) -> int:
    """The sum over all partial rows of the coarsest resolution."""
    rows = rows_in(config_path, "log_rollups", "resolution", "records")
    if rows is None:
        return 0
    whole_days = rows.filter(pc.equal(rows["resolution"], 86_400))
    return int(pc.sum(whole_days["records"]).as_py() or 0)


@pytest.mark.soak
def test_an_executor_killed_in_the_middle_of_a_landing_costs_nothing(
    cluster: SparkCluster, receiver: Receiver
) -> None:
    account = Account()
    with running_pipeline(receiver.config_path) as pipeline:
        for _ in range(2):
            jobs = pipeline.metric("frazil_spark_jobs_total")
            large_texts(receiver, account)
            pipeline.until("a job", lambda jobs=jobs: pipeline.metric("frazil_spark_jobs_total") > jobs)
            # Its Python runs: it is at work, unless this landing has ended just now.
            pipeline.until("tasks run", lambda: any(map(python_workers, cluster.executor_pids())))
            victim = next(pid for pid in cluster.executor_pids() if python_workers(pid))
            psutil.Process(victim).kill()
            settled(pipeline, receiver, account)
            pipeline.until("another is there", lambda: len(cluster.executor_pids()) == 2)
        large_texts(receiver, account)
        settled(pipeline, receiver, account)
