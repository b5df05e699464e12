"""Pieces of work given to Spark one by one, a few at a time, each answer handed over as it comes.

Landing shares the cluster: maintenance never takes all of it, and what it has running can be called off.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from frazil.errors import JobFailed
from frazil.pipeline.spark_tasks import RESULT_COLUMNS, collected, packed

T = TypeVar("T")
R = TypeVar("R")

POOL = "maintain"


class Runner(Protocol):
    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """What `work` makes of each item, in any order. `work` and items are pickled to where they run.
        The first failure ends all of it.
        """
        ...


class StoppableRunner(Runner, Protocol):
    @property
    def is_stopped(self) -> bool: ...

    def stop(self) -> None:
        """From any thread: what runs is called off, and nothing new begins."""


class SparkRunner:
    """`start_spark` is called when there is work: an idle pipeline runs no job."""

    def __init__(self, start_spark: Callable[[], SparkSession], parallel: int = 0) -> None:
        self._start_spark = start_spark
        self._parallel = parallel
        self._stopped = threading.Event()
        self._spark: SparkSession | None = None
        self._group = f"frazil-{POOL}-{id(self)}"

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        if not items:
            return
        spark = self._spark = self._start_spark()
        with ThreadPoolExecutor(self.parallel(spark), thread_name_prefix="frazil-maintain") as threads:
            waiting = iter(items)
            running: set[Future[R]] = set()
            try:
                while True:
                    for item in waiting:
                        running.add(threads.submit(self._run, spark, work, item))
                        if len(running) >= self.parallel(spark):
                            break
                    if not running:
                        return
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        yield future.result()
            except BaseException:
                self._cancel()
                raise

    def parallel(self, spark: SparkSession) -> int:
        """Half of the cores, so that landing finds one."""
        return self._parallel or max(1, spark.sparkContext.defaultParallelism // 2)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """From any thread: what runs is called off, and nothing new begins."""
        self._stopped.set()
        self._cancel()

    def _cancel(self) -> None:
        if self._spark is not None:
            # A JVM that is gone runs nothing, and PySpark says so in many ways.
            with contextlib.suppress(Exception):
                self._spark.sparkContext.cancelJobGroup(self._group)

    def _run(self, spark: SparkSession, work: Callable[[T], R], item: T) -> R:
        if self._stopped.is_set():
            raise JobFailed("maintenance is stopping")
        context = spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(self._group, POOL, interruptOnCancel=True)

        def task(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            for _ in batches:
                yield packed(partial(work, item))

        results: list[R] = collected(spark.range(0, 1, 1, 1).mapInArrow(task, RESULT_COLUMNS))
        return results[0]
