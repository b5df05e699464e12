"""The Spark tasks of a view: rows of the source into Spark SQL, and rows of the result into durable data
files.

The rows of the tasks that read are followed by one row of facts: which files were missing, and how many rows
were read. It passes the query in a group of its own, so the tasks that write get the facts of exactly those
attempts whose rows were used.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from frazil.pipeline.datafile import Layout
from frazil.pipeline.derive.source import SourceFile
from frazil.pipeline.derive.task import Derivation, TableWriter, Work, source_rows
from frazil.pipeline.runner import Runner
from frazil.storage import metrics as store_metrics
from frazil.tables import SEGMENT, TableSpec
from frazil.tables.columns import TENANT, TIME
from frazil.tables.derived.combine import completed
from frazil.tables.derived.view import ViewColumn, ViewQuery

FACTS, DAY = "_frazil_facts", "_frazil_day"
_BATCH_ROWS = 65_536
_DAY_MICROS = 86_400_000_000


def run_view(
    runner: Runner, work: Work, files: Sequence[Sequence[SourceFile]], groups_max: int
) -> list[Derivation]:
    """Runs the query of the one view in `work` over the files, a task for each list of them."""
    ((_, layout),) = work.tables.items()
    assert layout.spec.derived is not None and layout.spec.derived.view is not None  # noqa: S101, PT018
    work = replace(work, source=_plain(work.source), with_maps=_plain(work.with_maps))
    return runner.run_sql(
        partial(read_rows, work),
        files,
        rows_schema(work.source.spec),
        sql_of(layout.spec.derived.view),
        partial(write_rows, work, groups_max),
    )


def _plain(layout: Layout) -> Layout:
    """Returns the layout with text that is not dictionary-encoded: Spark decodes it."""
    return replace(layout, coded=layout.spec.arrow_schema)


def rows_schema(source: TableSpec) -> pa.Schema:
    """Returns the schema of the rows that the query reads. `source` has the columns that it needs."""
    fields = [pa.field(each.name, each.type) for each in source.columns if each.name != SEGMENT.name]
    return pa.schema([*fields, pa.field(FACTS, pa.binary())])


def sql_of(query: ViewQuery) -> Callable[[str], str]:
    """Returns a function that makes the statement for the name of a temporary view with the source's rows."""
    inner = [f"`{TENANT}`", FACTS, f"unix_date(CAST(`{TIME}` AS DATE)) AS {DAY}"]
    outer, keys = [f"`{TENANT}`", FACTS, DAY], [f"`{TENANT}`", FACTS, DAY]
    for number, column in enumerate(query.columns):
        if column.rule == "key":
            inner.append(f"({column.expression}) AS _key{number}")
            keys.append(f"_key{number}")
            outer.append(f"_key{number} AS `{column.name}`")
            continue
        if column.argument != "*":
            inner.append(f"({column.argument}) AS _argument{number}")
        if column.filter:
            inner.append(f"({column.filter}) AS _filter{number}")
        outer.append(f"{_aggregate(column, number)} AS `{column.name}`")
    where = f" WHERE {FACTS} IS NOT NULL OR ({query.where})" if query.where else ""

    def statement(rows: str) -> str:
        source = f"SELECT {', '.join(inner)} FROM {rows} AS `{query.alias}`{where}"  # noqa: S608
        return f"SELECT {', '.join(outer)} FROM ({source}) AS found GROUP BY {', '.join(keys)}"  # noqa: S608

    return statement


def _aggregate(column: ViewColumn, number: int) -> str:
    argument = "1" if column.argument == "*" else f"_argument{number}"
    condition = f"_filter{number}" if column.filter else ""
    # NULL on overflow: one impossible value must not stop the view for all tenants.
    function = "try_sum" if column.function == "sum" else column.function
    found = _filtered(f"{function}({argument})", condition)
    if function != "max" or column.type != "DOUBLE":
        return found
    # NaN counts only if there is no other number, as when partial rows merge. To Spark it is the largest
    # number.
    numbers = f"NOT isnan({argument})" + (f" AND {condition}" if condition else "")
    return f"coalesce({_filtered(f'max({argument})', numbers)}, {found})"


def _filtered(call: str, condition: str) -> str:
    return f"{call} FILTER (WHERE {condition})" if condition else call


def read_rows(work: Work, files: Sequence[SourceFile]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the files, then a row of facts."""
    begin, result = time.process_time(), Derivation()
    schema = rows_schema(work.source.spec)
    with store_metrics.gathering() as calls:
        for table in source_rows(work, files, result):
            result.rows += table.num_rows
            rows = table.select([name for name in schema.names if name != FACTS])
            rows = rows.append_column(FACTS, pa.nulls(rows.num_rows, pa.binary()))
            yield from rows.cast(schema).to_batches(max_chunksize=_BATCH_ROWS)
    result.calls = [*calls]
    result.cpu_seconds = time.process_time() - begin
    columns = [pa.nulls(1, field.type) for field in schema]
    columns[-1] = pa.array([pickle.dumps(result)], pa.binary())
    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def write_rows(work: Work, groups_max: int, batches: Iterable[pa.RecordBatch]) -> Derivation:
    """Writes rows of the result. Stops when there are more than `groups_max`."""
    begin, result = time.process_time(), Derivation()
    ((name, layout),) = work.tables.items()
    writer = TableWriter(layout, None, None, None, [])
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        is_fact = pc.is_valid(rows.column(FACTS))
        for facts in rows.column(FACTS).filter(is_fact).to_pylist():
            _add_facts(result, pickle.loads(facts))  # noqa: S301
        rows = rows.filter(pc.invert(is_fact))
        result.groups += rows.num_rows
        if result.groups > groups_max:
            break
        if reason := _misplaced(rows):
            result.failed[name] = reason
            break
        if rows.num_rows:
            writer.add_partial(completed(rows, layout.spec))
    else:
        writer.flush()
    result.files[name], result.partial_rows[name] = writer.files, writer.rows
    result.cpu_seconds += time.process_time() - begin
    return result


def _add_facts(result: Derivation, facts: Derivation) -> None:
    result.rows += facts.rows
    result.vanished += facts.vanished
    result.unreadable |= facts.unreadable
    result.calls += facts.calls
    result.cpu_seconds += facts.cpu_seconds


def _misplaced(rows: pa.Table) -> str:
    """Returns why a row cannot be kept: its day is not that of its source rows, so it would stay when that
    day is derived again.
    """
    times = rows.column(TIME)
    if times.null_count:
        return f"{TIME} is NULL in some rows: use date_trunc('minute', {TIME})"
    days = times.cast(pa.int64()).to_numpy() // _DAY_MICROS
    if (days != rows.column(DAY).to_numpy()).any():
        return (
            f"{TIME} of some rows is not on the day (UTC) of their source: use date_trunc('minute', {TIME})"
        )
    return ""
