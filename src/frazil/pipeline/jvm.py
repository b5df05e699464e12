"""The JVM beside this process: started with its settings, ended for good.

It reads its standard input, so it ends when this process does, however that happens; and it ignores SIGINT,
so that Ctrl-C reaches only the driver, which then stops in order.
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
    """A JVM with Spark's classes and these settings, as py4j's gateway to it."""
    # Spark's launcher takes them from the environment only.
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    try:
        # Never to standard output: what a JVM has to say is no result of ours.
        errors = STANDARD_ERROR if errors_to is None else errors_to
        # In a session of its own: a signal to this process's group must not end it before a commit is done.
        options = {"stdout": errors, "stderr": errors, "start_new_session": True}
        return launch_gateway(conf, options)  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise ConfigError(
            "Spark's JVM ended as it began; its reason is above. Check spark.driver_memory_bytes, and what "
            "spark.settings says of spark.driver"
        ) from error


def end_jvm(gateway: Any) -> None:
    """Ends the JVM and waits for it. Safe when it has ended already."""
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
