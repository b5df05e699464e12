"""Cores of a standalone Spark cluster. Talks to the master over Spark's RPC, through this process's JVM.

Without a limit, an application takes every free core of a standalone cluster, and keeps them while its driver
is connected, even if the driver hangs. So each application is limited to a part of the cores, and a pipeline
that takes over removes the application of the previous lease holder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from frazil.errors import JobFailed
from frazil.pipeline.runner import reason

CORES_MAX = "spark.cores.max"
PIPELINE_PART = 2
COMMAND_PART = 4
"""A pipeline gets half of a cluster's cores and a command a quarter. With 3 cores or more, two pipelines and
a command can run at once; with 2 cores, the active pipeline and a command.
"""
_RESPONSE_SECONDS_MAX = 10
_CORES_SECONDS_MAX = 60.0
_EXPLAIN_SECONDS = 5.0
_POLL_SECONDS = 0.2
_WORKERS_SECONDS_MAX = 30.0
_MESSAGES = "org.apache.spark.deploy.DeployMessages$"

log = structlog.get_logger("frazil.pipeline")


@dataclass(frozen=True)
class ClusterState:
    """The cores of all live workers, and the names of running or waiting applications by id."""

    cores: int
    applications: Mapping[str, str]


def is_standalone(master: str) -> bool:
    return master.startswith("spark://")


def cores_share(gateway: Any, settings: Mapping[str, str], part: int) -> dict[str, str]:
    """Returns the setting that limits an application to one `part`-th of a standalone cluster's cores.
    Returns no setting for other masters, if a limit is configured, and if the master does not respond.
    """
    master = settings["spark.master"]
    if not is_standalone(master) or CORES_MAX in settings:
        return {}
    try:
        with _rpc_env(gateway.jvm, settings) as environment:
            deadline = time.monotonic() + _WORKERS_SECONDS_MAX
            while not (cores := _state(gateway.jvm, environment, master).cores):
                if time.monotonic() >= deadline:
                    log.warning("cluster has no workers; assuming one core", master=master)
                    break
                time.sleep(1.0)  # the workers may still be starting
    except (Py4JError, OSError) as error:
        log.warning("cluster size unknown; cores not limited", master=master, reason=reason(error))
        return {}
    share = share_of(cores, part, settings)
    log.info("Spark cores limited", master=master, cores_max=share, cluster_cores=cores)
    return {CORES_MAX: str(share)}


def share_of(cores: int, part: int, settings: Mapping[str, str]) -> int:
    """Returns the limit of cores: at least those of one executor, or Spark would start none."""
    return max(1, cores // part, int(settings.get("spark.executor.cores", "1")))


def application_id(spark: SparkSession) -> str:
    return str(spark.sparkContext.applicationId)


def _master(spark: SparkSession) -> str:
    return str(spark.sparkContext.master)


def remove_applications(spark: SparkSession, ids: tuple[str, ...]) -> None:
    """Removes these applications on the master, which frees their cores even if their drivers hang."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    try:
        environment = context._jsc.sc().env().rpcEnv()
        present = _state(jvm, environment, _master(spark)).applications
        for each in ids:
            if each in present and each != application_id(spark):
                message = getattr(jvm, f"{_MESSAGES}UnregisterApplication")(each)
                for endpoint in _endpoints(jvm, environment, _master(spark)):
                    endpoint.send(message)
                log.warning("Spark application of the previous lease holder removed", application=each)
    except (Py4JError, OSError) as error:
        log.warning(
            "Spark applications of the previous lease holder not removed",
            applications=ids,
            reason=reason(error),
        )


def executor_count(spark: SparkSession) -> int:
    """Returns the number of executors registered with the driver; 0 with a local master."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1


def idle_reason(spark: SparkSession) -> str:
    """Returns why started jobs do not run, or an empty string."""
    context = spark.sparkContext
    if _master(spark).startswith("local") or executor_count(spark):
        return ""
    if not context.statusTracker().getActiveJobsIds():
        return ""
    return cores_reason(spark)


def cores_reason(spark: SparkSession) -> str:
    """Returns why Spark may have no executor, with the master's view of cores and applications."""
    context = spark.sparkContext
    text = f"Spark has no executor on {_master(spark)}"
    if not is_standalone(_master(spark)):
        return text
    try:
        state = _state(context._jvm, context._jsc.sc().env().rpcEnv(), _master(spark))
    except (Py4JError, OSError) as error:
        return f"{text}, and its master does not respond: {reason(error)}"
    others = [
        f"{name} ({each})" for each, name in state.applications.items() if each != application_id(spark)
    ]
    return (
        f"{text}: its workers have {state.cores} cores, other applications are "
        f"{', '.join(others) or 'none'}. Check the workers' free memory, and limit {CORES_MAX} of the other "
        "applications"
    )


def wait_for_executor(
    spark: SparkSession, say: Callable[[str], None], seconds_max: float = _CORES_SECONDS_MAX
) -> None:
    """Waits until a job can run, and passes the reason for waiting to `say`. Raises JobFailed after
    `seconds_max`.
    """
    if _master(spark).startswith("local"):
        return
    begin, said = time.monotonic(), False
    while not executor_count(spark):
        waited = time.monotonic() - begin
        if waited > seconds_max:
            raise JobFailed(f"no cores within {seconds_max:g} s: {cores_reason(spark)}")
        if not said and waited > _EXPLAIN_SECONDS:
            say(f"waiting for cores, {seconds_max:g} s at most: {cores_reason(spark)}")
            said = True
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _rpc_env(jvm: Any, settings: Mapping[str, str]) -> Iterator[Any]:
    """Yields an RPC client for the master. Used before the application exists."""
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        conf.set(key, value)
    for key in ("spark.rpc.lookupTimeout", "spark.rpc.askTimeout", "spark.rpc.io.connectionCreationTimeout"):
        conf.set(key, f"{_RESPONSE_SECONDS_MAX}s")
    managers = jvm.org.apache.spark.SecurityManager
    defaults = [getattr(managers, f"$lessinit$greater$default${number}")() for number in (2, 3)]
    manager = managers(conf, *defaults)
    manager.initializeAuth()
    environment = jvm.org.apache.spark.rpc.RpcEnv.create("frazil", "127.0.0.1", 0, conf, manager, True)
    try:
        yield environment
    finally:
        environment.shutdown()


def _endpoints(jvm: Any, environment: Any, master: str) -> Iterator[Any]:
    """Yields the masters that respond, including standbys. Raises if none responds."""
    urls = [f"spark://{each}" for each in master.removeprefix("spark://").split(",")]
    failures = []
    for url in urls:
        try:
            address = jvm.org.apache.spark.rpc.RpcAddress.fromSparkURL(url)
            yield environment.setupEndpointRef(address, "Master")
        except Py4JError as error:
            failures.append(error)
    if len(failures) == len(urls):
        raise failures[0]


def _state(jvm: Any, environment: Any, master: str) -> ClusterState:
    request = getattr(getattr(jvm, f"{_MESSAGES}RequestMasterState$"), "MODULE$")
    response = jvm.java.lang.Class.forName(f"{_MESSAGES}MasterStateResponse")
    cores, applications = 0, dict[str, str]()
    for endpoint in _endpoints(jvm, environment, master):
        state = endpoint.askSync(request, jvm.scala.reflect.ClassTag.apply(response))
        cores += sum(worker.cores() for worker in state.workers() if worker.state().toString() == "ALIVE")
        applications |= {each.id(): each.desc().name() for each in state.activeApps()}
    return ClusterState(cores, applications)
