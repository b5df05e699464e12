"""The Spark session that all steps of the pipeline share."""

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
    """The shared session. The first job of any thread starts it. `is_cancelled` returns whether the pipeline
    is stopping or has lost its lease.
    """

    def __init__(
        self, config: Config, metrics: Metrics, lease: Lease, is_cancelled: Callable[[], bool]
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._lease = lease
        self._is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._spark: SparkSession | None = None

    def session(self) -> SparkSession:
        """Returns the session. Starts a new one if its JVM has died. Raises Stopped if the pipeline
        is over.
        """
        is_new = False
        with self._lock:
            if self._is_cancelled():
                raise Stopped("the pipeline is stopping or has lost its lease")
            if self._spark is not None and not _alive(self._spark):
                log.warning("Spark died; restarting")
                with contextlib.suppress(Exception):  # PySpark raises many error types for a dead JVM
                    stop(self._spark)
                self._spark = None
            if self._spark is None:
                self._spark = self._started()
                is_new = True
            self._metrics.job()
            spark = self._spark
        if is_new and is_standalone(self._config.spark.master):
            # Not under the lock: `end` must not wait for a master that does not respond.
            remove_applications(spark, self._lease.applications)
            self._lease.applications = (application_id(spark),)
        return spark

    def _started(self) -> SparkSession:
        begin, master = time.monotonic(), self._config.spark.master
        with telemetry.span("spark.start", master=master):
            spark = spark_session(
                self._config,
                app_name="frazil-pipeline",
                is_cancelled=self._is_cancelled,
                cores_part=PIPELINE_PART,
            )
        self._metrics.spark_started()
        log.info("Spark started", master=master, seconds=round(time.monotonic() - begin, 1))
        return spark

    def end(self) -> None:
        """Cancels all jobs and releases the cluster's cores."""
        with self._lock:
            if self._spark is not None:
                stop(self._spark)
                self._spark = None

    def has_died(self) -> bool:
        spark = self._spark
        return spark is not None and not _alive(spark)

    def problem(self) -> str:
        """Returns why jobs do not run, or an empty string. A dead JVM is not a problem: it is restarted."""
        spark = self._spark
        if spark is None:
            return ""
        with contextlib.suppress(Exception):  # the session is being stopped, or its JVM has died
            return idle_reason(spark)
        return ""


def _alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # the JVM has died
        return False
