"""The same session on a real cluster: its Python and its jars get to every worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frazil.pipeline.java import java_home
from tests.components.process import wait_until
from tests.components.spark_cluster import SparkCluster, running_cluster
from tests.support.spark.driver import Driver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("spark_cluster"), java_home=java_home()) as cluster:
        yield cluster


def sections(master: str) -> dict[str, object]:
    both_workers = {"spark.cores.max": "2", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
    return {
        "spark": {"master": master, "executor_memory_bytes": "512MiB", "settings": both_workers},
        "wal": {"type": "s3", "s3": {"bucket": "never-asked"}},
        "lake": {"shared_warehouse": True},
    }


def test_a_job_runs_on_both_workers_with_this_python_and_these_jars(
    spark_cluster: SparkCluster, start_driver: Callable[..., Driver]
) -> None:
    driver = start_driver(**sections(spark_cluster.master))
    tasks = driver.ask("job")["tasks"]
    # An executor's folder is <worker>/<application>/<number>.
    assert {Path(task["folder"]).parents[1].name for task in tasks} == {"worker-1", "worker-2"}
    assert sum(task["rows"] for task in tasks) == 1000
    assert len(spark_cluster.worker_pids()) == 2
    assert len(spark_cluster.executor_pids()) == 2
    assert driver.ask("iceberg") == {"rows": 1000}
    assert driver.ask("stop") == {"stopped": True}
    assert list(driver.folder.iterdir()) == []
    assert wait_until(lambda: spark_cluster.executor_pids() == [], seconds_max=30)


@pytest.mark.soak
def test_a_job_outlives_the_executor_that_ran_it(
    spark_cluster: SparkCluster, start_driver: Callable[..., Driver]
) -> None:
    driver = start_driver(**sections(spark_cluster.master))
    driver.ask("job")
    killed = psutil.Process(spark_cluster.executor_pids()[0])
    killed.kill()
    assert sum(task["rows"] for task in driver.ask("job")["tasks"]) == 1000
