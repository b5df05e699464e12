"""Landing on a real Spark cluster, by one executor and by two, with the WAL and the tables on an S3 server.

All of it shares this machine: wall time says little here. What counts is that CPU a record stays the same.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.components.cache import ComponentMissingError
from tests.components.process import wait_until
from tests.components.s3 import S3Server, moto_server, versitygw_server
from tests.components.spark_cluster import SparkCluster, running_cluster

from bench.backlog import make_backlog
from bench.land import WARM_UP_SECTIONS, WARM_UP_SEED, Landed, jvm_pid, land_all, running_spark
from bench.table import Bench, Row
from frazil.config import Config
from frazil.pipeline.java import java_home

RECORDS = 1_200_000
WARM_UP_RECORDS = 360_000


def cluster(bench: Bench, records: int = RECORDS) -> None:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-cluster-") as place:
        folder = Path(place)
        with (
            _s3_server(folder / "s3") as (server, product),
            running_cluster(folder / "spark", workers=2, java_home=java_home()) as spark_cluster,
        ):
            for executors in (1, 2):
                landed = _landed(folder, server, spark_cluster, executors, records)
                bench.add(
                    Row(
                        f"{landed.records:,} logs by {executors} executor{'s' if executors > 1 else ''} of a "
                        f"cluster, {product}",
                        f"{landed.records_per_cpu_second:,.0f}",
                        f"{landed.cost.wall_seconds:.1f} s",
                        f"{landed.records / landed.cost.wall_seconds:,.0f} records/s, with store, cluster "
                        f"and driver on one machine; {landed.cost.text}; {landed.files} files",
                    )
                )


@contextlib.contextmanager
def _s3_server(folder: Path) -> Iterator[tuple[S3Server, str]]:
    """The compiled one if it was built."""
    with contextlib.ExitStack() as stack:
        try:
            server, product = stack.enter_context(versitygw_server(folder)), "versitygw"
        except ComponentMissingError:
            server, product = stack.enter_context(moto_server(folder)), "moto"
        yield server, product


def _landed(
    folder: Path, server: S3Server, spark_cluster: SparkCluster, executors: int, records: int
) -> Landed:
    """Each time a bucket, a driver and executors of its own."""
    config = _config(folder, server, spark_cluster.master, executors, "counted")
    warm = _config(folder, server, spark_cluster.master, executors, "warm", WARM_UP_SECTIONS)
    made = make_backlog(config, records)
    made_warm = make_backlog(warm, min(records, WARM_UP_RECORDS), first_seed=WARM_UP_SEED)
    with running_spark(config) as spark:
        pids = spark_cluster.executor_pids()
        assert len(pids) == executors, f"{len(pids)} executors instead of {executors}"
        jvms = [jvm_pid(), *pids]
        land_all(warm, spark, jvms, made_warm.records)
        landed = land_all(config, spark, jvms, made.records)
    wait_until(lambda: not spark_cluster.executor_pids(), seconds_max=30)
    return landed


def _config(
    folder: Path,
    server: S3Server,
    master: str,
    executors: int,
    name: str,
    sections: dict[str, Any] | None = None,
) -> Config:
    bucket = server.make_bucket(f"frazil-bench-{executors}-{name}")
    connection: dict[str, Any] = {
        "endpoint": server.endpoint,
        "allow_http": True,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }
    return Config.model_validate(
        {
            **(sections or {}),
            "data_dir": folder / f"{executors}-{name}",
            "wal": {"type": "s3", "s3": {"bucket": bucket, **connection}},
            "lake": {"warehouse": f"s3://{bucket}/lake", "s3": connection},
            "spark": {
                "master": master,
                "settings": {
                    "spark.cores.max": str(executors),
                    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                },
            },
        }
    )
