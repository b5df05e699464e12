"""The program that `Driver` starts: a Spark session that does what the words on standard input say."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.pipeline.session import spark_session, stop

interrupts: list[int] = []


def facts_of_a_job(spark: SparkSession) -> dict[str, Any]:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pylist([{"python": sys.executable, "folder": os.getcwd(), "rows": rows}])

    frame = spark.range(0, 1000, 1, 2).mapInArrow(where, "python string, folder string, rows long")
    tasks = [row.asDict() for row in frame.collect()]
    return {"tasks": tasks, "interrupts": len(interrupts)}


def facts_of_a_failure(spark: SparkSession) -> dict[str, Any]:
    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("raised in a Python worker")
        yield from batches

    try:
        spark.range(10).mapInArrow(fail, "id long").collect()
    except Exception as error:
        return {"error": str(error)}
    return {}


def facts_of_a_table(spark: SparkSession) -> dict[str, Any]:
    """Written and read by executors, which need the jars for it."""
    spark.sql("CREATE NAMESPACE frazil.tests")
    spark.range(0, 1000, 1, 2).writeTo("frazil.tests.numbers").create()
    return {"rows": spark.table("frazil.tests.numbers").count()}


def main() -> None:
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    config = Config.model_validate(json.loads(sys.argv[1]))
    spark = spark_session(config)
    gateway = SparkContext._gateway
    assert gateway is not None
    answer({"jvm": gateway.proc.pid})
    for line in sys.stdin:
        match line.strip():
            case "job":
                answer(facts_of_a_job(spark))
            case "fail":
                answer(facts_of_a_failure(spark))
            case "iceberg":
                answer(facts_of_a_table(spark))
            case "java":
                answer({"java": spark._jvm.java.lang.System.getProperty("java.home")})
            case "restart":
                stop(spark)
                spark = spark_session(config)
                answer(facts_of_a_job(spark))
            case "stop":
                stop(spark)
                answer({"stopped": True})


def answer(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
