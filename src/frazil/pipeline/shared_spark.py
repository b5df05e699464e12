"""The Spark session that all steps of a pipeline share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import structlog
from pyspark.sql import SparkSession

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Stopped
from frazil.lease import Lease
from frazil.pipeline.cluster import (
    PIPELINE_PART,
    application_id,
    idle_reason,
    is_standalone,
    remove_applications,
)
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.session import spark_session, stop

log = structlog.get_logger("frazil.pipeline")


class SharedSpark:
    """Started for the first job, by any thread. `is_over`: the pipeline stops, or has lost its lease."""

    def __init__(self, config: Config, metrics: Metrics, lease: Lease, is_over: Callable[[], bool]) -> None:
        self._config = config
        self._metrics = metrics
        self._lease = lease
        self._is_over = is_over
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def session(self) -> SparkSession:
        """Returns the session. Replaces one whose JVM has died. Raises Stopped if the pipeline is over."""
        is_new = False
        with self._lock:
            if self._is_over():
                raise Stopped("the pipeline stops, or has lost its lease")
            if self._spark is not None and not _alive(self._spark):
                log.warning("Spark has died; starting it again")
                with contextlib.suppress(Exception):  # PySpark's errors about a dead JVM are of many types
                    stop(self._spark)
                self._spark = None
            if self._spark is None:
                self._spark = self._started()
                is_new = True
            self._metrics.job()
            spark = self._spark
        if is_new and is_standalone(self._config.spark.master):
            # Not under the lock: while a master does not answer, Spark can still be ended.
            remove_applications(spark, self._lease.applications)
            self._lease.applications = (application_id(spark),)
        return spark

    def _started(self) -> SparkSession:
        begin, master = time.monotonic(), self._config.spark.master
        with telemetry.span("spark.start", master=master):
            spark = spark_session(
                self._config, app_name="frazil-pipeline", is_over=self._is_over, cores_part=PIPELINE_PART
            )
        self._metrics.spark_started()
        log.info("Spark started", master=master, seconds=round(time.monotonic() - begin, 1))
        return spark

    def end(self) -> None:
        """Cancels the jobs that run or wait, and gives a cluster's cores back."""
        with self._lock:
            if self._spark is not None:
                stop(self._spark)
                self._spark = None

    def has_died(self) -> bool:
        spark = self._spark
        return spark is not None and not _alive(spark)

    def problem(self) -> str:
        """Returns why jobs do not run, or an empty text. A JVM that has died is replaced when needed."""
        spark = self._spark
        if spark is None:
            return ""
        with contextlib.suppress(Exception):  # it is being stopped, or its JVM has died
            return idle_reason(spark)
        return ""


def _alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # the JVM is gone
        return False
