"""Builds and stops the Spark session."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.errors import Stopped
from frazil.lake.catalog import spark_properties
from frazil.paths import OwnFolder
from frazil.pipeline.cluster import COMMAND_PART, cores_share
from frazil.pipeline.jars import jars
from frazil.pipeline.java import cache_folder, trust_options
from frazil.pipeline.jvm import end_jvm, start_jvm

LOCAL_ADDRESS = "127.0.0.1"
# A worker holds a batch as input, as output, and in the pipes between.
ARROW_BATCH_BYTES_MAX = 16 * 1024 * 1024
ARROW_BATCH_RECORDS_MAX = 65_536
LOCAL_SHUFFLE_PARTITIONS = 4

_WATCH_SECONDS = 0.2
_AUTHENTICATION = ("spark.authenticate", "spark.network.crypto.")
_STOP_SECONDS_MAX = 10.0
_AT_START = ("spark.driver.", "spark.master", "spark.submit.")
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
_POOLS = Path(__file__).with_name("fairscheduler.xml")


def spark_session(
    config: Config,
    *,
    app_name: str = "frazil",
    is_cancelled: Callable[[], bool] | None = None,
    cores_part: int = COMMAND_PART,
) -> SparkSession:
    """Returns a session for this configuration. Starts the JVM of this process, or shares the one that runs:
    then the session has its own catalog settings, but the master and memory of the first session.

    Raises Stopped as soon as `is_cancelled` returns True while Spark starts. On a standalone cluster the
    session is limited to one `cores_part`-th of the cores, unless the configuration sets a limit.
    """
    if SparkContext._active_spark_context is not None:
        shared = SparkSession.builder.getOrCreate().newSession()
        for key, value in spark_properties(config).items():
            if key.startswith("spark.sql.catalog."):
                shared.conf.set(key, value)
        return shared
    with _own_interrupt_handler():
        temp = _temporary_folder(config)
        try:
            settings = session_settings(config, app_name=app_name, temp_dir=temp)
            os.environ.update(_environment(config))
            # Only what the JVM needs at its start: every user of the machine can read a command line. The
            # other settings include passwords and go through the gateway.
            gateway = start_jvm({key: value for key, value in settings.items() if key.startswith(_AT_START)})
        except BaseException:
            _give_back_temporary()
            raise
        try:
            with _cancellable(is_cancelled, gateway):
                settings |= cores_share(gateway, settings, cores_part)
                conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
                context = SparkContext(conf=conf, gateway=gateway)
                # By default it prints a traceback when the JVM dies. The caller reports that in one line.
                context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
                return SparkSession.builder.getOrCreate()
        except BaseException:
            _end_gateway(gateway)
            raise


@contextlib.contextmanager
def _cancellable(is_cancelled: Callable[[], bool] | None, gateway: Any) -> Iterator[None]:
    """Kills the JVM and raises Stopped if `is_cancelled` returns True during the block. Spark takes seconds
    to start and cannot be interrupted; a JVM without jobs can be killed at any time.
    """
    if is_cancelled is None:
        yield
        return
    started = threading.Event()

    def watch() -> None:
        while not started.wait(_WATCH_SECONDS):
            if is_cancelled():
                gateway.proc.kill()
                return

    watcher = threading.Thread(target=watch, name="spark-start", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if is_cancelled():
            raise Stopped("Spark was not started: the pipeline is stopping or has lost its lease") from error
        raise
    finally:
        started.set()
        watcher.join()


def stop(session: SparkSession) -> None:
    """Cancels all jobs and ends all sessions and their JVM. Kills a JVM that does not stop in time. Safe to
    call twice, and if the JVM has died.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    late = threading.Timer(_STOP_SECONDS_MAX, gateway.proc.kill)
    late.daemon = True
    late.start()
    try:
        # PySpark fails and warns if the JVM has already died.
        with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    finally:
        late.cancel()
        _end_gateway(gateway)


_temporary: list[OwnFolder] = []
"""The temporary folder of the running JVM, if there is one."""


def _temporary_folder(config: Config) -> Path:
    """Creates the folder for shuffles, spills and broadcasts, which hold rows. It is in the data folder, or
    in the system's temporary folder if the data folder cannot be written, as on a driver whose lake is on S3.
    """
    for parent in ((config.data_dir / "tmp").absolute(), None):
        own = OwnFolder(parent, "frazil-spark-")
        try:
            folder = own.take()
        except OSError:
            if parent is None:
                raise
            continue
        _temporary.append(own)
        break
    return folder


def _give_back_temporary() -> None:
    while _temporary:
        _temporary.pop().give_back()


def session_settings(config: Config, *, app_name: str, temp_dir: Path | None = None) -> dict[str, str]:
    """Returns all settings that differ from Spark's defaults. `spark.settings` overrides the others."""
    return {
        "spark.app.name": app_name,
        "spark.master": config.spark.master,
        "spark.submit.deployMode": "client",
        "spark.driver.memory": f"{config.spark.driver_memory_bytes >> 10}k",
        "spark.driver.defaultJavaOptions": shlex.join(_jvm_options(config, temp_dir)),
        **_WEB_UI,
        **_SCHEDULER,
        **_PYTHON_WORKERS,
        **_SQL,
        # Stays empty, because the tables are in Iceberg's catalog. The default is the current folder.
        "spark.sql.warehouse.dir": (cache_folder() / "spark-warehouse").as_uri(),
        **(_LOCAL if config.spark.is_local else _on_a_cluster(config)),
        **_authentication(config),
        **_jar_settings(config),
        **spark_properties(config),
        **config.spark.settings,
    }


_WEB_UI = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps the history of jobs for its web UI even if that is off. A pipeline runs for months.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}
_SCHEDULER = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": _POOLS.as_uri()}
_PYTHON_WORKERS = {
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_RECORDS_MAX),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES_MAX),
    # Spark writes larger functions, such as one with 18,000 segments, to a file on the driver that stays
    # until Spark ends.
    "spark.broadcast.UDFCompressionThreshold": "1g",
    # By default Arrow uses mimalloc, which returns large buffers to the kernel and gets them back page by
    # page. Measured with 600,000 metric points: landing takes 1.2 s of CPU and not 1.6 s, derivation 1.8 s
    # and not 3.4 s. The memory is the same.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
}
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    # Not Hive: its metastore would be a database in the current folder.
    "spark.sql.catalogImplementation": "in-memory",
}
_LOCAL = {
    "spark.driver.host": LOCAL_ADDRESS,
    "spark.driver.bindAddress": LOCAL_ADDRESS,
    "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
}
# Measured after 30 small jobs, one run each, local[2], 1 GiB, Java 17 on 24 GiB: 440 MB resident. With the
# JVM's default initial heap (1/64 of the machine's memory) 507 MB; with G1 551 MB; with G1's periodic
# collections 651 MB, later 434 MB, but 1.2 % of a core when idle instead of 0.4 %.
_SMALL_HEAP = ["-XX:+UseSerialGC", "-Xms96m"]


def _jvm_options(config: Config, temp_dir: Path | None) -> list[str]:
    options = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", *trust_options()]
    if temp_dir is not None:
        # It is also Spark's default for spark.local.dir. Setting spark.local.dir would log a warning.
        options.append(f"-Djava.io.tmpdir={temp_dir}")
    # The JVM does not start with two garbage collectors.
    if not re.search(r"-XX:\+Use\w+GC\b", config.spark.settings.get("spark.driver.extraJavaOptions", "")):
        options += _SMALL_HEAP
    return options


def _authentication(config: Config) -> dict[str, str]:
    """Protects the driver's ports against other users of the machine, who can reach loopback. With a local
    master Spark creates a random secret. The secret of a cluster must be in `spark.settings`.
    """
    is_configured = any(key.startswith(_AUTHENTICATION) for key in config.spark.settings)
    if is_configured or not config.spark.is_local:
        return {}
    return dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "true")


def _on_a_cluster(config: Config) -> dict[str, str]:
    return {"spark.executor.memory": f"{config.spark.executor_memory_bytes >> 10}k"}


def _jar_settings(config: Config) -> dict[str, str]:
    files = jars(config)
    settings = {"spark.driver.extraClassPath": os.pathsep.join(map(str, files))}
    if not config.spark.is_local:
        # Executors fetch the jars from the driver. With a local master that would copy them at each start.
        settings["spark.jars"] = ",".join(file.as_uri() for file in files)
    return settings


def _environment(config: Config) -> dict[str, str]:
    """Returns the settings that Spark reads from the environment only."""
    python = config.spark.settings.get("spark.pyspark.python", sys.executable)
    environment = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if config.spark.is_local:
        environment["SPARK_LOCAL_IP"] = LOCAL_ADDRESS
    return environment


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Restores the SIGINT handler after the block: Spark replaces it with one that cancels all jobs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _end_gateway(gateway: object) -> None:
    """Ends the JVM. The next session starts a new JVM: the memory limit is set at the start."""
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None  # still set if the stop failed
    end_jvm(gateway)
    _give_back_temporary()
