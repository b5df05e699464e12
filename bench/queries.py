"""Queries on a table of 20 million logs in 500 files, compared with plain DuckDB and Spark SQL."""

from __future__ import annotations

import asyncio
import atexit
import functools
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import httpx

from bench.lake import make_lake
from bench.serving import running_api
from bench.table import MIB, Bench, Row
from frazil.config import Config
from frazil.query.lake import Lake
from frazil.query.model import Query
from frazil.query.plan import Plan, Planner
from frazil.query.service import QueryService
from frazil.sql.pushdown import Pushdown
from frazil.sql.sandbox import Sandbox, Settings, TableSource, serialized
from frazil.sql.statement import Statement
from frazil.sql.types import duckdb_type
from frazil.tables import SIGNALS, table_specs

FILES, RECORDS_PER_FILE = 500, 40_000
QUICK_FILES, QUICK_RECORDS_PER_FILE = 120, 5_000
DAYS = 5
ROUNDS, QUICK_ROUNDS = 7, 3
OVER_DUCKDB_MS = 60
PRUNING_TARGET = 10
SCAN_RATIO_TARGET = 1.3
TIME_TARGET = 5
TRACE_MS_TARGET = 300
CLIENTS, CLIENT_SECONDS = 8, 20
_MINUTE = 60_000_000


@dataclass(frozen=True)
class MeasuredQuery:
    name: str
    sql: str
    kind: str
    """`narrow`: compared with DuckDB over the same few files; `scan`: over all; `time`: over all, as a
    multiple of DuckDB's speed.
    """
    integers: str = ""
    """The same over integers, for a query of kind `time`."""


def queries(bench: Bench) -> None:
    files = QUICK_FILES if bench.quick else FILES
    records = QUICK_RECORDS_PER_FILE if bench.quick else RECORDS_PER_FILE
    with tempfile.TemporaryDirectory(prefix="frazil-bench-query-") as place:
        config = Config(data_dir=Path(place) / "data")
        last = time.time_ns() // 1000
        make_lake(config, files, records, last - DAYS * 86_400_000_000, last)
        everything = planned_files(config, "SELECT count(*) FROM logs")
        middle = last - DAYS * 43_200_000_000
        trace = a_trace(everything[len(everything) // 2])
        with running_api(config.data_dir, query={"result_cache_bytes_max": 0}) as url:
            for asked in queries_of(middle, trace):
                _ask(bench, config, url, asked, everything)
            _eight_clients(bench, url, middle)
        asyncio.run(_unpruned(bench, config, queries_of(middle, trace)[0]))
        if not bench.quick:
            _spark(bench, config, queries_of(middle, trace))


def queries_of(middle: int, trace: str) -> list[MeasuredQuery]:
    def at(micros: int) -> str:
        return f"make_timestamptz({micros})"

    def between(minutes: int) -> str:
        return f"time >= {at(middle)} AND time < {at(middle + minutes * _MINUTE)}"

    return [
        MeasuredQuery(
            "15 minutes of one service, by severity",
            "SELECT severity_text, count(*) FROM logs "
            f"WHERE service_name = 'cart' AND {between(15)} GROUP BY ALL",
            "narrow",
        ),
        MeasuredQuery("trace by id", f"SELECT time, body FROM logs WHERE trace_id = '{trace}'", "trace"),
        MeasuredQuery(
            "text search, one hour",
            f"SELECT time, body FROM logs WHERE search(body, 'payment timeout') AND {between(60)} "
            "ORDER BY time DESC LIMIT 100",
            "narrow",
        ),
        MeasuredQuery("count of all", "SELECT count(*) FROM logs", "scan"),
        MeasuredQuery("all by service", "SELECT service_name, count(*) FROM logs GROUP BY ALL", "scan"),
        MeasuredQuery(
            "all by hour and severity",
            "SELECT date_trunc('hour', time), severity_text, count(*) FROM logs GROUP BY ALL",
            "scan",
        ),
        *(
            MeasuredQuery(f"all by {name}", _grouped(bucket), "time", _grouped(integers))
            for name, bucket, integers in (
                (
                    "date_trunc('hour', …)",
                    "date_trunc('hour', time)",
                    "epoch_us(time) // 3600000000 * 3600000000",
                ),
                ("date_part('hour', …)", "date_part('hour', time)", "epoch_us(time) // 3600000000 % 24"),
                (
                    "time_bucket('5 minutes', …)",
                    "time_bucket(INTERVAL '5 minutes', time)",
                    "epoch_us(time) // 300000000 * 300000000",
                ),
            )
        ),
    ]


def _grouped(bucket: str) -> str:
    return f"SELECT {bucket} AS bucket, count(*) FROM logs GROUP BY ALL"


def _ask(bench: Bench, config: Config, url: str, asked: MeasuredQuery, everything: list[str]) -> None:
    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    needed = planned_files(config, asked.sql)
    stats: dict[str, Any] = {}
    with httpx.Client(timeout=120) as client:

        def over_api() -> None:
            answer = client.post(f"{url}/api/v1/sql", json={"sql": asked.sql})
            answer.raise_for_status()
            stats.update(answer.json()["stats"])

        api, bare = beside(rounds, over_api, lambda: _bare(asked.sql, needed))
    touched = f"{stats['files']} of {stats['files_total']} files"
    if asked.kind == "scan":
        target, met = f"≤ {SCAN_RATIO_TARGET} × DuckDB", api / bare <= SCAN_RATIO_TARGET
        more = f"{api / bare:.2f} ×, {touched}"
    elif asked.kind == "time":
        target, met = f"≥ {TIME_TARGET} × as fast as DuckDB", bare / api >= TIME_TARGET
        _, integers = beside(rounds, lambda: None, lambda: _bare(asked.integers, needed))
        more = f"{bare / api:.1f} × as fast; integers in DuckDB {integers:.0f} ms; {touched}"
    elif asked.kind == "trace":
        _, whole = beside(rounds, lambda: None, lambda: _bare(asked.sql, everything))
        target, met = f"< {TRACE_MS_TARGET} ms", api < TRACE_MS_TARGET
        more = f"{touched}; DuckDB over all of them {whole:.0f} ms"
    else:
        _, whole = beside(rounds, lambda: None, lambda: _bare(asked.sql, everything))
        target, met = f"≤ {OVER_DUCKDB_MS} ms more than DuckDB", api - bare <= OVER_DUCKDB_MS
        more = f"{touched}; DuckDB over all of them {whole:.0f} ms"
    bench.add(Row(asked.name, f"{api:.0f} ms", f"{bare:.0f} ms", more, target, met))


async def _unpruned(bench: Bench, config: Config, asked: MeasuredQuery) -> None:
    """The same query on the same service, with and without file pruning."""
    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    query = config.query.model_copy(update={"result_cache_bytes_max": 0})
    queries = QueryService(config.model_copy(update={"query": query}))
    await queries.start()
    plan = queries._planner.plan
    times: dict[bool, list[float]] = {True: [], False: []}
    try:
        for number in range(2 * (rounds + 1)):
            pruned = number % 2 == 0
            queries._planner.plan = plan if pruned else lambda asked, query, _: plan(asked, query)
            begin = time.perf_counter()
            answer = await queries.execute(Query(asked.sql, "default"))
            async for _ in answer.content:
                pass
            if number > 1:
                times[pruned].append((time.perf_counter() - begin) * 1000)
    finally:
        await queries.close()
    fast, slow = statistics.median(times[True]), statistics.median(times[False])
    bench.add(
        Row(
            f"{asked.name}: without file pruning",
            f"{slow:.0f} ms",
            "",
            f"with: {fast:.0f} ms, {slow / fast:.1f} × as fast; both inside the service, without HTTP",
            f"≥ {PRUNING_TARGET} ×",
            slow / fast >= PRUNING_TARGET,
        )
    )


def beside(rounds: int, one: Callable[[], None], other: Callable[[], None]) -> tuple[float, float]:
    """Medians in milliseconds, in turns, so that both run under the same load. The first of each warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for run, found in zip((one, other), times, strict=True):
            begin = time.perf_counter()
            run()
            if number:
                found.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times[0]), statistics.median(times[1])


def _bare(sql: str, files: list[str]) -> None:
    """A person's DuckDB: one process that stays, no sandbox, exactly these files."""
    connection = bare_duckdb()
    connection.execute(f"CREATE OR REPLACE VIEW logs AS SELECT * FROM read_parquet({files!r})")
    connection.execute(sql).fetchall()


_connection: duckdb.DuckDBPyConnection | None = None


def bare_duckdb() -> duckdb.DuckDBPyConnection:
    global _connection
    if _connection is None:
        from frazil.sql.functions import FUNCTIONS

        _connection = duckdb.connect(config={"autoload_known_extensions": "false"})
        _connection.execute("SET TimeZone='UTC'")
        for function in FUNCTIONS:
            _connection.execute(function.sql)
    return _connection


def planned_files(config: Config, sql: str) -> list[str]:
    """Those that the planner chooses."""
    return [path for table in planned(config, sql).tables for path in TableSource(**table).paths]


def planned(config: Config, sql: str) -> Plan:
    """By a planner that knows nothing yet, and of what has landed alone."""
    lake = Lake(config)
    planner = Planner(config, lake, None)
    try:
        tree = serialized(bare_duckdb(), sql)
        statement = Statement(tree, config.lake.namespace, SIGNALS)
        uses = _pushdown(config.lake.namespace).uses(sql, now=time.time_ns() // 1000)
        return planner.plan(statement, Query(sql, "default"), uses)
    finally:
        planner.close()
        lake.close()


@functools.cache
def _pushdown(namespace: str) -> Pushdown:
    """As a worker has it: made once, not for each query."""
    folder = tempfile.mkdtemp(prefix="frazil-bench-plan-")
    sandbox = Sandbox(Settings(1, 256 * MIB, 256 * MIB, folder, namespace))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    specs = [spec for spec in table_specs().values() if spec.queried]
    columns = [
        [(column.name, duckdb_type(column.type), at) for at, column in enumerate(spec.sql_columns)]
        for spec in specs
    ]
    tables = [TableSource(spec.name, each, (), ()) for spec, each in zip(specs, columns, strict=True)]
    return Pushdown(sandbox, tables)


def a_trace(file: str) -> str:
    found = duckdb.execute(f"SELECT trace_id FROM read_parquet({file!r}) LIMIT 1").fetchone()
    assert found is not None
    return str(found[0])


def _eight_clients(bench: Bench, url: str, middle: int) -> None:
    """Each client runs one query after the other; every fourth is a full scan."""
    seconds = CLIENT_SECONDS / 4 if bench.quick else CLIENT_SECONDS
    counts = [0] * CLIENTS
    times: list[float] = []
    asked = [query.sql for query in queries_of(middle, "0" * 32)]
    stop = time.monotonic() + seconds

    def client(number: int) -> None:
        with httpx.Client(timeout=120) as http:
            while time.monotonic() < stop:
                sql = asked[4] if counts[number] % 4 == 3 else asked[counts[number] % 3]
                begin = time.perf_counter()
                http.post(f"{url}/api/v1/sql", json={"sql": sql}).raise_for_status()
                times.append((time.perf_counter() - begin) * 1000)
                counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    bench.add(
        Row(
            f"{CLIENTS} clients at once, a scan in four",
            f"p50 {statistics.median(times):.0f} ms",
            "",
            f"slowest {times[-1]:.0f} ms; {min(counts)} to {max(counts)} results per client in {seconds:g} s",
            "no client starves",
            min(counts) * 2 >= max(counts),
        )
    )


def _spark(bench: Bench, config: Config, asked: list[MeasuredQuery]) -> None:
    from frazil.pipeline.session import spark_session, stop

    spark = spark_session(config)
    name = f"{config.lake.catalog.name}.{config.lake.namespace}.logs"
    try:
        for query in asked:
            if "search(" in query.sql or query.kind == "time":
                continue
            sql = query.sql.replace("FROM logs", f"FROM {name}")
            sql = sql.replace("make_timestamptz", "timestamp_micros")
            found, _ = beside(3, lambda sql=sql: spark.sql(sql).collect(), lambda: None)
            bench.add(Row(f"Spark SQL, warm: {query.name}", f"{found:.0f} ms", "", ""))
    finally:
        stop(spark)
