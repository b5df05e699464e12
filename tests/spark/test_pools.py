"""Spark's pools: landing gets a core when it needs one, and each step's jobs are in its own pool."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from frazil.config import Config
from frazil.errors import Stopped
from frazil.lease import open_lease
from frazil.pipeline import shared_spark
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Pool, SparkRunner
from frazil.pipeline.shared_spark import SharedSpark

PROPERTY = "spark.scheduler.pool"
TASK_SECONDS = 0.3


def test_pools_are_weighted_in_the_order_of_the_steps(spark: SparkSession) -> None:
    context: Any = spark.sparkContext._jsc.sc()
    pools = [context.getPoolForName(name).get() for name in ("land", "derive", "sample", "maintain")]
    assert [(pool.weight(), pool.minShare()) for pool in pools] == [(8, 1), (4, 0), (2, 0), (1, 0)]
    assert {pool.schedulingMode().toString() for pool in pools} == {"FAIR"}


def slow_tasks(spark: SparkSession, pool: str, count: int) -> list[float]:
    """Runs them in the pool. Returns when each one ended."""
    spark.sparkContext.setLocalProperty(PROPERTY, pool)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            time.sleep(TASK_SECONDS)
            yield pa.RecordBatch.from_pylist([{"ended": time.time()}])

    return [row.ended for row in spark.range(0, count, 1, count).mapInArrow(run, "ended double").collect()]


def test_landing_that_comes_while_maintenance_has_all_cores_does_not_wait_for_it(spark: SparkSession) -> None:
    with ThreadPoolExecutor(2) as threads:
        maintaining = threads.submit(slow_tasks, spark, "maintain", 30)
        time.sleep(4 * TASK_SECONDS)
        landed = max(threads.submit(slow_tasks, spark, "land", 4).result())
        maintained = maintaining.result()
    later = sum(ended > landed for ended in maintained)
    assert later >= 10, "four tasks of landing need two or three turns of two cores"


@pytest.fixture
def shared(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedSpark:
    """On the session of all tests."""
    monkeypatch.setattr(shared_spark, "spark_session", lambda *_, **__: spark)
    config = Config(data_dir=tmp_path)
    return SharedSpark(config, Metrics(), open_lease(config), lambda: False)


def test_each_runners_jobs_are_in_its_pool(shared: SharedSpark) -> None:
    pools: tuple[Pool, ...] = ("land", "derive", "sample", "maintain", "land")
    together = threading.Barrier(len(pools))

    def pool_of_a_job(pool: Pool) -> str | None:
        found: list[str | None] = []

        def read(spark: SparkSession) -> DataFrame:
            together.wait(60)
            found.append(spark.sparkContext.getLocalProperty(PROPERTY))
            return spark.range(1)

        SparkRunner(shared.session, pool).run_frame(read, lambda batches: len(list(batches)))
        return found[0]

    with ThreadPoolExecutor(len(pools)) as threads:
        assert tuple(threads.map(pool_of_a_job, pools)) == pools


def test_no_job_begins_once_the_pipeline_is_over(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path)
    with pytest.raises(Stopped):
        SharedSpark(config, Metrics(), open_lease(config), lambda: True).session()
