"""A standalone cluster of Spark from pip's pyspark: a master, and workers with a core each."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from .process import ComponentDiedError, answers, serving, wait_until

WORKER_MEMORY = "1536M"
REGISTERED_SECONDS_MAX = 60.0
_SPARK_HOME = Path(pyspark.__file__).parent
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def running_cluster(folder: Path, workers: int = 2, *, java_home: Path | None = None) -> SparkCluster:
    """Started, with all workers registered. Ends with `stop`, or as a `with` block."""
    return SparkCluster(folder, workers, java_home)


class SparkCluster:
    """`master` is the address for drivers."""

    def __init__(self, folder: Path, workers: int, java_home: Path | None) -> None:
        self._folder = folder.resolve()
        self._environment = {
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC",
            # Spark's shuffle service and others would look for settings of the machine's own Spark.
            "SPARK_CONF_DIR": str(self._folder),
        }
        if java_home is not None:
            self._environment["JAVA_HOME"] = str(java_home)
        self._stack = contextlib.ExitStack()
        try:
            self._web_port = self._start("master", "org.apache.spark.deploy.master.Master")
            self.master = str(self._state()["url"])
            for number in range(1, workers + 1):
                name = f"worker-{number}"
                where = str(self._folder / name)
                self._start(
                    name, _WORKER, "--cores", "1", "--memory", WORKER_MEMORY, "-d", where, self.master
                )
            self.wait_for_workers(workers)
        except BaseException:
            self._stack.close()
            raise

    def wait_for_workers(self, count: int) -> None:
        """Until so many are registered and alive."""

        def registered() -> bool:
            return sum(worker["state"] == "ALIVE" for worker in self._state()["workers"]) == count

        if not wait_until(registered, seconds_max=REGISTERED_SECONDS_MAX):
            log = self._folder / "master.log"
            raise ComponentDiedError("spark-cluster", f"does not have {count} workers", log)

    def worker_pids(self) -> list[int]:
        """The workers' processes that run now."""
        return [process.pid for process in psutil.Process().children() if _WORKER in _command(process)]

    def executor_pids(self) -> list[int]:
        """The executors of all workers; also of those that were killed, until they notice."""
        return [
            process.pid
            for process in psutil.process_iter()
            if _EXECUTOR in _command(process) and self._folder in _folder_of(process).parents
        ]

    def applications(self) -> dict[str, int]:
        """The cores of each application that runs or waits, by its name."""
        return {each["name"]: each["cores"] for each in self._state()["activeapps"]}

    def stop(self) -> None:
        """Ends workers and master. Safe to call twice."""
        self._stack.close()

    def _start(self, name: str, main_class: str, *arguments: str) -> int:
        """Gives the port of its web page. Its own port is any free one."""

        def command(web_port: int) -> list[str]:
            spark_class = str(_SPARK_HOME / "bin" / "spark-class")
            listen = ["--host", "127.0.0.1", "--port", "0", "--webui-port", str(web_port)]
            return [spark_class, main_class, *listen, *arguments]

        return self._stack.enter_context(
            serving(
                name,
                self._folder,
                command,
                ready=lambda port: answers(port, "/json/", lambda status: status == 200),
                environment=self._environment,
            )
        )

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)
            return state

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _folder_of(process: psutil.Process) -> Path:
    with contextlib.suppress(psutil.Error):
        return Path(process.cwd())
    return Path(os.sep)
