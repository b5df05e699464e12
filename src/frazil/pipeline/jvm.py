"""Starts and ends Spark's JVM as a child process.

The JVM reads its standard input, so it ends whenever this process ends. It ignores SIGINT: only the driver
handles Ctrl-C.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from frazil.errors import ConfigError
from frazil.pipeline.java import java_home

END_SECONDS_MAX = 20.0
STANDARD_ERROR = 2


def start_jvm(settings: Mapping[str, str], *, errors_to: IO[bytes] | None = None) -> Any:
    """Starts a JVM with Spark's classes and these settings. Returns py4j's gateway to it."""
    # Spark's launcher reads these from the environment only.
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        # Not to standard output, which has the results of commands.
        errors = STANDARD_ERROR if errors_to is None else errors_to
        # In its own session: a signal to this process group must not end the JVM during a commit.
        options = {"stdout": errors, "stderr": errors, "start_new_session": True}
        return launch_gateway(conf, options)  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise ConfigError(
            "Spark's JVM exited at its start; its output above has the reason. Check "
            "spark.driver_memory_bytes, and the keys spark.driver.* in spark.settings"
        ) from error


def end_jvm(gateway: Any) -> None:
    """Ends the JVM and waits for it. Safe if it has already ended."""
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
