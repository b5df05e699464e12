"""Runs the work of landing and maintenance as Spark jobs.

A task returns its result and its store calls. Prometheus does not scrape Spark's workers, so the driver
counts the store calls.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, cast

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from frazil.errors import JobFailed, Refused
from frazil.storage import metrics as store_metrics

T = TypeVar("T")
R = TypeVar("R")
Batches = Iterable[pa.RecordBatch]
Pool = Literal["land", "derive", "sample", "maintain"]
"""Spark's scheduler pools (fairscheduler.xml), most urgent first."""

_COLUMNS = "result binary, calls binary"
_SCHEMA = pa.schema([("result", pa.binary()), ("calls", pa.binary())])
_SQL_SETTINGS = {
    # An expression that fails on one row of one tenant is NULL, and does not stop the query.
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.variable.substitute": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    # Few tasks write: each writes its own files for each tenant and day.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
_SQL_NODES = re.compile(
    r"[\s:+\-]*(Aggregate|Project|Filter|SubqueryAlias|View|MapInArrow|Range|LogicalRDD|LocalRelation)\b"
)
"""The steps of a plan that reads one table and groups its rows."""
_PLACE = re.compile(r"\s*SQLSTATE:.*|; line [0-9]+ pos [0-9]+;?")
_REASON_CHARACTERS_MAX = 600
_PYTHON = "Traceback (most recent call last):"

# PySpark logs refused queries with two stack traces.
logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


class Runner(Protocol):
    """Runs functions on Spark. Functions, items and results are pickled. All methods are thread-safe, and
    raise JobFailed if a job fails.
    """

    @property
    def is_stopped(self) -> bool: ...

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Run one job per item, several in parallel. Yield results in the order of completion. The first
        failure cancels the other jobs.
        """
        ...

    def run_job(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run one job with a task per item. Return the results in the order of the items."""
        ...

    def run_frame(self, read: Callable[[SparkSession], DataFrame], work: Callable[[Batches], R]) -> list[R]:
        """Run one job with a task per partition of the frame that `read` returns."""
        ...

    def run_sql(
        self,
        read: Callable[[T], Batches],
        items: Sequence[T],
        schema: pa.Schema,
        query: Callable[[str], str],
        work: Callable[[Batches], R],
    ) -> list[R]:
        """Run one job: `read` yields the rows of each item, in a task per item. `query` makes a SELECT for
        the name of the table with these rows. `work` gets the result's rows, in a task per partition.
        """
        ...

    def schema_of(self, schema: pa.Schema, query: Callable[[str], str]) -> pa.Schema:
        """Return the schema of a query's result, without a job. The query reads a table with this schema.
        Raises Refused if the query is not valid.
        """
        ...

    def stop(self) -> None:
        """Cancel running jobs and refuse new ones. May be called from any thread."""
        ...


class SparkRunner:
    """Runs jobs in the scheduler pool `pool`. The first job calls `start_spark`: an idle pipeline starts no
    session. `parallel` limits the jobs of one call of `results`; 0 is half of the cores.
    """

    def __init__(self, start_spark: Callable[[], SparkSession], pool: Pool, parallel: int = 0) -> None:
        self._start_spark = start_spark
        self._pool = pool
        self._parallel = parallel
        self._stopped = threading.Event()
        self._groups: dict[str, SparkSession] = {}
        """Job groups of running calls. Each call cancels only its own jobs."""
        self._sql: tuple[SparkSession, SparkSession] | None = None
        """The session for SQL of users, and the session that it was made from."""

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        if not items:
            return
        with self._group() as (spark, group):
            parallel = self._parallel or max(1, spark.sparkContext.defaultParallelism // 2)
            with ThreadPoolExecutor(parallel, thread_name_prefix=f"frazil-{self._pool}") as threads:
                waiting = iter(items)
                running: set[Future[list[R]]] = set()
                try:
                    while True:
                        for item in waiting:
                            running.add(threads.submit(self._run_items, spark, group, work, [item]))
                            if len(running) >= parallel:
                                break
                        if not running:
                            return
                        done, running = wait(running, return_when=FIRST_COMPLETED)
                        for future in done:
                            yield from future.result()
                except BaseException:
                    _cancel(spark, group)
                    raise

    def run_job(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if not items:
            return []
        with self._group() as (spark, group):
            return self._run_items(spark, group, work, items)

    def run_frame(self, read: Callable[[SparkSession], DataFrame], work: Callable[[Batches], R]) -> list[R]:
        def task(batches: Batches) -> Batches:
            yield packed(partial(work, batches))

        with self._group() as (spark, group):
            return self._collect(spark, group, lambda: read(spark).mapInArrow(task, _COLUMNS))

    def run_sql(
        self,
        read: Callable[[T], Batches],
        items: Sequence[T],
        schema: pa.Schema,
        query: Callable[[str], str],
        work: Callable[[Batches], R],
    ) -> list[R]:
        def rows(batches: Batches) -> Batches:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read(items[number])

        def task(batches: Batches) -> Batches:
            yield packed(partial(work, batches))

        if not items:
            return []
        with self._group() as (spark, group):
            session, name, count = self._sql_session(spark), f"rows_{uuid.uuid4().hex}", len(items)

            def frame() -> DataFrame:
                found = session.range(0, count, 1, count).mapInArrow(rows, _spark_schema(schema))
                found.createOrReplaceTempView(name)
                return _checked(session.sql(query(name))).mapInArrow(task, _COLUMNS)

            try:
                return self._collect(session, group, frame)
            finally:
                _drop(session, name)

    def schema_of(self, schema: pa.Schema, query: Callable[[str], str]) -> pa.Schema:
        session, name = self._sql_session(self._start_spark()), f"rows_{uuid.uuid4().hex}"
        with job_errors():
            try:
                session.createDataFrame([], _spark_schema(schema)).createOrReplaceTempView(name)
                return to_arrow_schema(_checked(session.sql(query(name))).schema)
            except (AnalysisException, ParseException) as error:
                raise Refused(f"Spark refuses the query: {_PLACE.sub('', reason(error))}") from None
            finally:
                _drop(session, name)

    def _sql_session(self, spark: SparkSession) -> SparkSession:
        """Return a session with temporary views and settings of its own."""
        if self._sql is None or self._sql[1] is not spark:
            session = spark.newSession()
            for key, value in _SQL_SETTINGS.items():
                session.conf.set(key, value)
            self._sql = session, spark
        return self._sql[0]

    def stop(self) -> None:
        self._stopped.set()
        for group, spark in list(self._groups.items()):
            _cancel(spark, group)

    @contextlib.contextmanager
    def _group(self) -> Iterator[tuple[SparkSession, str]]:
        spark, group = self._start_spark(), f"frazil-{self._pool}-{uuid.uuid4().hex}"
        self._groups[group] = spark
        try:
            yield spark, group
        finally:
            del self._groups[group]

    def _run_items(
        self, spark: SparkSession, group: str, work: Callable[[T], R], items: Sequence[T]
    ) -> list[R]:
        def task(batches: Batches) -> Batches:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield packed(partial(work, items[number]))

        count = len(items)
        return self._collect(spark, group, lambda: spark.range(0, count, 1, count).mapInArrow(task, _COLUMNS))

    def _collect(self, spark: SparkSession, group: str, frame: Callable[[], DataFrame]) -> list[Any]:
        if self._stopped.is_set():
            raise JobFailed("the Spark job was not started: the pipeline is stopping")
        # Pool and job group are properties of the calling thread.
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        spark.sparkContext.setJobGroup(group, self._pool, interruptOnCancel=True)
        with job_errors():
            rows = frame().toArrow()
        return unpacked(rows)


def _spark_schema(schema: pa.Schema) -> StructType:
    fields = [field.with_nullable(True) for field in schema]
    return from_arrow_schema(pa.schema(fields))


def _checked(frame: DataFrame) -> DataFrame:
    """Refuse a plan with steps that the check of the text should have refused."""
    plan = cast(Any, frame)._jdf.queryExecution().analyzed()
    others = [line for line in plan.toString().splitlines() if line.strip() and not _SQL_NODES.match(line)]
    if others or not plan.subqueriesAll().isEmpty() or not plan.deterministic():
        found = others[0].strip()[:200] if others else "it has subqueries, or its result is random"
        raise Refused(f"the query must read one table row by row, and group its rows: {found}")
    return frame


def _drop(session: SparkSession, name: str) -> None:
    with contextlib.suppress(Exception):  # PySpark raises many types of errors if the JVM has died
        session.catalog.dropTempView(name)


def _cancel(spark: SparkSession, group: str) -> None:
    with contextlib.suppress(Exception):  # PySpark raises many types of errors if the JVM has died
        spark.sparkContext.cancelJobGroup(group)


def packed(work: Callable[[], object]) -> pa.RecordBatch:
    """Run the work in the worker. Return its result and store calls as one row."""
    with store_metrics.gathering() as calls:
        result = work()
    columns = [pa.array([pickle.dumps(each)], pa.binary()) for each in (result, calls)]
    return pa.record_batch(columns, schema=_SCHEMA)


def unpacked(table: pa.Table) -> list[Any]:
    """Return the results. Count the store calls in the driver's metrics."""
    for calls in table.column("calls").to_pylist():
        store_metrics.replay(pickle.loads(calls))  # noqa: S301
    return [pickle.loads(result) for result in table.column("result").to_pylist()]  # noqa: S301


@contextlib.contextmanager
def job_errors() -> Iterator[None]:
    """Turn Spark's errors into JobFailed with one line of reason. The stack traces stay in its cause."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise JobFailed(f"a Spark job failed: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Return the last line of a Python worker's traceback, else the innermost Java cause."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if _PYTHON in text:
        lines = text.rpartition(_PYTHON)[2].splitlines()
        messages = [line for line in lines if line and not line[0].isspace()]
        text = messages[0] if messages else text
    elif "Caused by: " in text:
        text = text.rpartition("Caused by: ")[2]
    return (text.strip().splitlines() or [type(error).__name__])[0][:_REASON_CHARACTERS_MAX]


def batched(pieces: Iterable[T], bytes_of: Callable[[T], int], bytes_max: int) -> list[list[T]]:
    """Group pieces, in order, into batches of at most `bytes_max` bytes. A larger piece is its own batch."""
    groups: list[list[T]] = []
    size = 0
    for piece in pieces:
        if not groups or size + bytes_of(piece) > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += bytes_of(piece)
    return groups
