"""The Spark session. The only place that builds one."""

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
from frazil.paths import OwnFolder
from frazil.pipeline.cluster import COMMAND_PART, cores_share
from frazil.pipeline.jars import jars
from frazil.pipeline.java import cache_folder, trust_options
from frazil.pipeline.jvm import end_jvm, start_jvm

LOCAL_ADDRESS = "127.0.0.1"
# A worker holds a batch as Arrow, again as what it makes of it, and in pipes between.
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
    is_over: Callable[[], bool] | None = None,
    cores_part: int = COMMAND_PART,
) -> SparkSession:
    """A session for this configuration, on a JVM of this process. Raises Stopped if `is_over` becomes True
    before Spark is there, without waiting for it. On a standalone cluster the session is limited to one
    `cores_part`-th of the cores, unless the configuration sets a limit.

    A process has one JVM. While it runs, another call gives a session beside the first, with the catalog of
    its own configuration; master and memory stay as they were.
    """
    if SparkContext._active_spark_context is not None:
        beside = SparkSession.builder.getOrCreate().newSession()
        for key, value in _catalog_settings(config).items():
            if key.startswith("spark.sql.catalog."):
                beside.conf.set(key, value)
        return beside
    with _own_interrupt_handler():
        temp = _temporary_folder(config)
        try:
            settings = session_settings(config, app_name=app_name, temp_dir=temp)
            os.environ.update(_environment(config))
            # Only what a JVM must know at its start: everybody on the machine can read a command line, and
            # among the other settings are passwords. They go through the gateway.
            gateway = start_jvm({key: value for key, value in settings.items() if key.startswith(_AT_START)})
        except BaseException:
            _give_back_temporary()
            raise
        try:
            with _given_up(is_over, gateway):
                settings |= cores_share(gateway, settings, cores_part)
                conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
                context = SparkContext(conf=conf, gateway=gateway)
                # It prints the end of a JVM that died as a traceback; who was using it says it in a line.
                context._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
                return SparkSession.builder.getOrCreate()
        except BaseException:
            _forget(gateway)
            raise


@contextlib.contextmanager
def _given_up(is_over: Callable[[], bool] | None, gateway: Any) -> Iterator[None]:
    """Spark takes seconds to start, many on a busy machine, and does not listen meanwhile. A JVM that nobody
    has given work yet can be ended at any time.
    """
    if is_over is None:
        yield
        return
    is_there = threading.Event()

    def watch() -> None:
        while not is_there.wait(_WATCH_SECONDS):
            if is_over():
                gateway.proc.kill()
                return

    watcher = threading.Thread(target=watch, name="spark-start", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        if is_over():
            raise Stopped("Spark's start was cancelled: the pipeline stops or lost its lease") from error
        raise
    finally:
        is_there.set()
        watcher.join()


def stop(session: SparkSession) -> None:
    """Ends all sessions and their JVM; jobs that run are cancelled. Safe when it was called before, and when
    the JVM has died. A JVM that does not stop in time is killed.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    late = threading.Timer(_STOP_SECONDS_MAX, gateway.proc.kill)
    late.daemon = True
    late.start()
    try:
        # That a JVM which has died cannot be stopped in order is no news to whoever stops it.
        with contextlib.suppress(Py4JError, OSError), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            session.stop()
    finally:
        late.cancel()
        _forget(gateway)


_temporary: list[OwnFolder] = []
"""Of the JVM that runs: a process has one."""


def _temporary_folder(config: Config) -> Path:
    """A new folder in the data folder, for shuffles, spills and broadcasts: they hold rows. In the system's
    temporary folder where the data folder cannot be written, as on a driver whose lake is on S3.
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
    """All that is not as Spark would have it. What the configuration says comes last."""
    return {
        "spark.app.name": app_name,
        "spark.master": config.spark.master,
        "spark.submit.deployMode": "client",
        "spark.driver.memory": f"{config.spark.driver_memory_bytes >> 10}k",
        "spark.driver.defaultJavaOptions": shlex.join(_jvm_options(config, temp_dir)),
        **_QUIET_AND_SMALL,
        **_FAIR,
        **_PYTHON_WORKERS,
        **_SQL,
        # Stays empty, tables are in Iceberg's catalog; but by default it is made in the current folder.
        "spark.sql.warehouse.dir": (cache_folder() / "spark-warehouse").as_uri(),
        **(_ON_THIS_MACHINE if config.spark.is_local else _on_a_cluster(config)),
        **_authentication(config),
        **_jar_settings(config),
        **_catalog_settings(config),
        **config.spark.settings,
    }


_QUIET_AND_SMALL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The history of jobs is kept for the web page that is off. A pipeline runs for months.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}
_FAIR = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": _POOLS.as_uri()}
_PYTHON_WORKERS = {
    "spark.python.worker.reuse": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_RECORDS_MAX),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES_MAX),
    # A larger function, as of a batch with 18,000 segments, would be written to a file on the driver that
    # stays until Spark ends.
    "spark.broadcast.UDFCompressionThreshold": "1g",
}
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    # No Hive: its metastore would be a database in the current folder.
    "spark.sql.catalogImplementation": "in-memory",
}
_ON_THIS_MACHINE = {
    "spark.driver.host": LOCAL_ADDRESS,
    "spark.driver.bindAddress": LOCAL_ADDRESS,
    "spark.sql.shuffle.partitions": str(LOCAL_SHUFFLE_PARTITIONS),
}
# One run each of 30 small jobs, local[2], 1 GiB, Java 17 on 24 GiB: 440 MB resident afterwards. With the
# JVM's own first heap size, a 64th of the machine, 507 MB; with G1 instead 551 MB; with G1's periodic
# collections 651 MB, and 434 MB after a while, but 1.2 % of a core when idle instead of 0.4 %.
_SMALL_HEAP = ["-XX:+UseSerialGC", "-Xms96m"]


def _jvm_options(config: Config, temp_dir: Path | None) -> list[str]:
    options = [f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", *trust_options()]
    if temp_dir is not None:
        # Spark's default for spark.local.dir too, which would log a warning if it were set.
        options.append(f"-Djava.io.tmpdir={temp_dir}")
    # Two collectors are one too many: the JVM would not start.
    if not re.search(r"-XX:\+Use\w+GC\b", config.spark.settings.get("spark.driver.extraJavaOptions", "")):
        options += _SMALL_HEAP
    return options


def _authentication(config: Config) -> dict[str, str]:
    """Closes the driver's ports to other users of the machine, who can reach loopback. For such masters Spark
    makes a random secret; a cluster has its own, which `spark.settings` must name.
    """
    is_chosen = any(key.startswith(_AUTHENTICATION) for key in config.spark.settings)
    if is_chosen or not config.spark.is_local:
        return {}
    return dict.fromkeys(("spark.authenticate", "spark.network.crypto.enabled"), "true")


def _on_a_cluster(config: Config) -> dict[str, str]:
    return {"spark.executor.memory": f"{config.spark.executor_memory_bytes >> 10}k"}


def _jar_settings(config: Config) -> dict[str, str]:
    files = jars(config)
    settings = {"spark.driver.extraClassPath": os.pathsep.join(map(str, files))}
    if not config.spark.is_local:
        # Executors fetch them from the driver. Locally that would only copy them at each start.
        settings["spark.jars"] = ",".join(file.as_uri() for file in files)
    return settings


def _catalog_settings(config: Config) -> dict[str, str]:
    from frazil.lake.catalog import spark_properties

    return spark_properties(config)


def _environment(config: Config) -> dict[str, str]:
    """What Spark takes from the environment only."""
    python = config.spark.settings.get("spark.pyspark.python", sys.executable)
    environment = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if config.spark.is_local:
        environment["SPARK_LOCAL_IP"] = LOCAL_ADDRESS
    return environment


@contextlib.contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Spark takes SIGINT over, to cancel all jobs. It is for the driver to say what Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _forget(gateway: object) -> None:
    """Ends the JVM, and lets the next session start one of its own: memory is given to a JVM at its start."""
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None  # a stop that got no answer leaves it
    end_jvm(gateway)
    _give_back_temporary()
