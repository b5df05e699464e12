"""A runner of tasks in this process, in place of Spark. Work, items and results are pickled, as for
Spark. SQL runs in DuckDB, translated from Spark's dialect: tests of the SQL itself use Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import duckdb
import pyarrow as pa
import sqlglot
from pyspark import cloudpickle

from frazil.errors import Refused

T = TypeVar("T")
R = TypeVar("R")
Batches = Iterable[pa.RecordBatch]
_MACROS = (
    "SET TimeZone = 'UTC'",
    "CREATE MACRO try_sum(x) AS sum(x)",
    "CREATE MACRO unix_date(d) AS (epoch(d) // 86400)::INTEGER",
)
_RESULT_ROWS = 1000


class LocalRunner:
    def __init__(self) -> None:
        self.is_stopped = False
        self.items = 0

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for item in items:
            self.items += 1
            there, given = cloudpickle.loads(cloudpickle.dumps((work, item)))
            result: R = cloudpickle.loads(cloudpickle.dumps(there(given)))
            yield result

    def run_job(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return list(LocalRunner.results(self, work, items))

    def run_sql(
        self,
        read: Callable[[T], Batches],
        items: Sequence[T],
        schema: pa.Schema,
        query: Callable[[str], str],
        work: Callable[[Batches], R],
    ) -> list[R]:
        if not items:
            return []
        there = cloudpickle.loads(cloudpickle.dumps(read))
        batches = [batch for item in items for batch in list(there(item))]
        found = _result(pa.Table.from_batches(batches, schema), query)
        write = cloudpickle.loads(cloudpickle.dumps(work))
        return [write(found.to_batches(max_chunksize=_RESULT_ROWS))]

    def schema_of(self, schema: pa.Schema, query: Callable[[str], str]) -> pa.Schema:
        try:
            return _result(schema.empty_table(), query).schema
        except duckdb.Error as error:
            raise Refused(str(error).splitlines()[0]) from None

    def stop(self) -> None:
        self.is_stopped = True


def _result(rows: pa.Table, query: Callable[[str], str]) -> pa.Table:
    """Sums of integers are HUGEINT in DuckDB, and counts never NULL."""
    (sql,) = sqlglot.transpile(query("source_rows"), read="spark", write="duckdb")
    with duckdb.connect() as engine:
        for macro in _MACROS:
            engine.execute(macro)
        engine.register("source_rows", rows)
        found = engine.execute(sql).to_arrow_table()
    wide = [pa.types.is_decimal(field.type) for field in found.schema]
    fields = [
        field.with_type(pa.int64()) if is_wide else field
        for field, is_wide in zip(found.schema, wide, strict=True)
    ]
    return found.cast(pa.schema(fields))
