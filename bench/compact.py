"""Compaction: its speed compared with landing and with Iceberg's own, file sizes, and query times."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from bench.backlog import AppLogs, Backlog, Payloads, Source, make_backlog
from bench.cost import Cost, watched
from bench.lake import make_lake
from bench.land import WARM_UP_SEED, Landed, jvm_pid, land_all, local_config, running_spark
from bench.queries import DAYS, MeasuredQuery, a_trace, beside, planned_files, queries_of
from bench.serving import running_api
from bench.table import MEGABYTE, Bench, Row
from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.runner import SparkRunner
from frazil.position import LandingPosition
from frazil.tables import landed_spec

RECORDS, QUICK_RECORDS = 2_400_000, 600_000
"""All distinct: adjacent copies of a record would compress to nothing."""
WARM_UP_RECORDS, QUICK_WARM_UP_RECORDS = 400_000, 100_000
SIZE_RECORDS = 500_000
"""Of the kinds of records that are landed and merged for their size alone."""
LAKE_FILES, LAKE_RECORDS_PER_FILE = 500, 10_000
QUICK_LAKE_FILES, QUICK_LAKE_RECORDS_PER_FILE = 40, 6_000
STOCK_SHARE, STOCK_ROUNDS = 0.15, 3
SPEED_TARGET = 0.5
"""Of landing's."""
SMALLER_TARGET = 5.0
ROUNDS, QUICK_ROUNDS = 7, 3
_DAY_SECONDS = 86_400
_LATER_SECONDS = 7 * _DAY_SECONDS
"""Maintenance comes when all days are closed."""
_LENGTH_NANOS = 1200 * 10**9
_SMALL_FILES = {"wal": {"segment_bytes_max": "4MiB"}, "land": {"task_bytes_max": "1MiB"}}
"""Several a day also of few records."""


@dataclass(frozen=True)
class Merged:
    rows: int
    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    cost: Cost
    bytes_per_row: float
    """Of the whole table, when it is done."""

    @property
    def rows_per_cpu_second(self) -> float:
        return self.rows / self.cost.cpu_seconds

    @property
    def text(self) -> str:
        return (
            f"{self.cost.text}; {self.files_in} files of {self.bytes_in / self.files_in / MEGABYTE:.1f} MB "
            f"became {self.files_out} of {self.bytes_out / self.files_out / MEGABYTE:.1f} MB"
        )


def compaction(bench: Bench, compared: Bench, records: int | None = None) -> None:
    """What waits is made before any clock starts; what starts up is warmed on other records."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-compact-") as place:
        folder = Path(place)
        config = local_config(folder / "data")
        with running_spark(config) as spark:
            _warm_up(bench, folder, spark)
            _speed(bench, config, spark, records or (QUICK_RECORDS if bench.quick else RECORDS))
            if not bench.quick:
                _sizes(bench, folder, spark)
            _answers(bench, compared, folder, spark)


def merge_all(config: Config, spark: SparkSession, expected: int | None = None) -> Merged:
    """As the pipeline does it when the days are closed, round by round until nothing is worth it."""
    reports = []
    with contextlib.closing(open_catalog(config)) as catalog:
        later = time.time() + _LATER_SECONDS
        maintainer = Maintainer(
            config,
            catalog,
            SparkRunner(lambda: spark, "maintain", config.maintain.compact.parallel_tasks),
            MaintainMetrics(CollectorRegistry()),
            clock=lambda: later,
        )
        with watched([jvm_pid()]) as cost:
            while (report := maintainer.run("compact", "logs")).files_in:
                reports.append(report)
        live = [each.file for each in live_files(_open(catalog, config))]
    rows = sum(report.rows for report in reports)
    assert reports, "nothing was merged"
    assert expected is None or rows >= expected, (rows, expected)
    return Merged(
        rows,
        sum(report.files_in for report in reports),
        sum(report.files_out for report in reports),
        sum(report.bytes_in for report in reports),
        sum(report.bytes_out for report in reports),
        cost,
        sum(file.file_size_in_bytes for file in live) / sum(file.record_count for file in live),
    )


def _open(catalog: Catalog, config: Config, name: str = "logs") -> Table:
    return catalog.load_table((*config.lake.namespace.split("."), name))


def _app_logs(records: int, **settings: Any) -> AppLogs:
    """Around a midnight of some days ago: files of two days, 2,500 records per second at 3 million."""
    midnight = (time.time_ns() // 10**9 // _DAY_SECONDS - 2) * _DAY_SECONDS * 10**9
    return AppLogs.around(midnight, _LENGTH_NANOS, records, **settings)


def _warm_up(bench: Bench, folder: Path, spark: SparkSession) -> None:
    records = QUICK_WARM_UP_RECORDS if bench.quick else WARM_UP_RECORDS
    config = local_config(folder / "warm", **_SMALL_FILES)
    made = make_backlog(config, records, first_seed=WARM_UP_SEED, source=_app_logs(records))
    land_all(config, spark, [jvm_pid()], made.records)
    merge_all(config, spark)


def _speed(bench: Bench, config: Config, spark: SparkSession, records: int) -> None:
    backlog = make_backlog(config, records, source=_app_logs(records))
    landed = land_all(config, spark, [jvm_pid()], backlog.records)
    bench.add(
        Row(
            f"landing {landed.records:,} logs as applications write them",
            f"{landed.records_per_cpu_second:,.0f}",
            f"{landed.cost.wall_seconds:.1f} s",
            f"{landed.cost.text}; {landed.files} files of {landed.bytes / landed.files / MEGABYTE:.1f} MB",
        )
    )
    stock = None if bench.quick else _stock(config, spark, STOCK_SHARE)
    merged = merge_all(config, spark, landed.records)
    ratio = merged.rows_per_cpu_second / landed.records_per_cpu_second
    bench.add(
        Row(
            "merging and sorting all of them",
            f"{merged.rows_per_cpu_second:,.0f}",
            f"{merged.cost.wall_seconds:.1f} s",
            f"{merged.text}; {ratio:.2f} × landing",
            f"≥ {SPEED_TARGET:g} × landing",
            ratio >= SPEED_TARGET,
        )
    )
    if stock is not None:
        bench.add(
            Row(
                f"{stock.rows:,} of them by Iceberg's `rewrite_data_files`, sorted",
                f"{stock.rows_per_cpu_second:,.0f}",
                f"{stock.cost.wall_seconds:.1f} s",
                f"{stock.text}; ours is {merged.rows_per_cpu_second / stock.rows_per_cpu_second:.1f} × that, "
                f"the best of {STOCK_ROUNDS} rounds",
            )
        )
    _add_size(bench, "logs as applications write them", backlog, landed, merged)


def _stock(config: Config, spark: SparkSession, share: float) -> Merged:
    """Iceberg's procedure on some of the same files, in tables that are made as ours is. The best counts: its
    code is in the JVM, which goes on getting faster.
    """
    with contextlib.closing(open_catalog(config)) as catalog:
        live = [each.file for each in live_files(_open(catalog, config))]
    files = live[: max(2, round(len(live) * share))]
    tried = [_rewritten(config, spark, files, f"logs_by_iceberg_{number}") for number in range(STOCK_ROUNDS)]
    return max(tried, key=lambda merged: merged.rows_per_cpu_second)


def _rewritten(config: Config, spark: SparkSession, files: Sequence[DataFile], name: str) -> Merged:
    spec = dataclasses.replace(landed_spec("logs"), name=name)
    options = {
        "rewrite-all": "true",
        "target-file-size-bytes": str(config.maintain.compact.target_bytes),
    }
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    with contextlib.closing(open_catalog(config)) as catalog:
        empty = open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
        Committer(catalog, deadline_seconds=60).append(empty, files, LandingPosition().to_text())
        within = config.lake.catalog.name
        table = f"{within}.{config.lake.namespace}.{name}"
        with watched([jvm_pid()]) as cost:
            answer = spark.sql(
                f"CALL {within}.system.rewrite_data_files(table => '{table}', "
                f"strategy => 'sort', options => map({listed}))"
            ).head()
        assert answer is not None
        size = sum(each.file.file_size_in_bytes for each in live_files(_open(catalog, config, name)))
    rows = sum(file.record_count for file in files)
    return Merged(
        rows,
        answer["rewritten_data_files_count"],
        answer["added_data_files_count"],
        sum(file.file_size_in_bytes for file in files),
        size,
        cost,
        size / rows,
    )


def _sizes(bench: Bench, folder: Path, spark: SparkSession) -> None:
    kinds: dict[str, Source] = {
        "the same with random ids on every record": _app_logs(SIZE_RECORDS, ids="all"),
        "random words, and random ids on every record": Payloads(),
    }
    for number, (name, source) in enumerate(kinds.items()):
        config = local_config(folder / f"size-{number}")
        backlog = make_backlog(config, SIZE_RECORDS, source=source)
        landed = land_all(config, spark, [jvm_pid()], backlog.records)
        _add_size(bench, name, backlog, landed, merge_all(config, spark, landed.records))


def _add_size(bench: Bench, name: str, backlog: Backlog, landed: Landed, merged: Merged) -> None:
    sizes = {
        "OTLP": backlog.request_bytes / backlog.records,
        "OTLP with gzip": backlog.gzip_bytes / backlog.gzip_records,
        "landed": landed.bytes / landed.records,
        "merged": merged.bytes_per_row,
    }
    text = ", ".join(f"{kind} {size:.1f}" for kind, size in sizes.items())
    ratio = sizes["OTLP"] / sizes["merged"]
    has_target = name.startswith("logs")
    bench.add(
        Row(
            f"bytes per record: {name}",
            "",
            "",
            f"{text}; merged {ratio:.1f} × smaller than OTLP, landed {sizes['OTLP'] / sizes['landed']:.1f} ×",
            f"≥ {SMALLER_TARGET:g} ×" if has_target else "",
            ratio >= SMALLER_TARGET if has_target else None,
        )
    )


def _answers(bench: Bench, compared: Bench, folder: Path, spark: SparkSession) -> None:
    """The queries of the query benchmark, before and after compaction, on a warm service."""
    files = QUICK_LAKE_FILES if bench.quick else LAKE_FILES
    records = QUICK_LAKE_RECORDS_PER_FILE if bench.quick else LAKE_RECORDS_PER_FILE
    config = local_config(folder / "asked")
    last = (time.time_ns() // 1000 // (_DAY_SECONDS * 10**6) - 1) * _DAY_SECONDS * 10**6
    make_lake(config, files, records, last - DAYS * _DAY_SECONDS * 10**6, last)
    everything = planned_files(config, "SELECT count(*) FROM logs")
    asked = queries_of(last - DAYS * _DAY_SECONDS * 10**6 // 2, a_trace(everything[len(everything) // 2]))
    rounds = QUICK_ROUNDS if bench.quick else ROUNDS
    before = _asked(config, asked, rounds)
    merged = merge_all(config, spark, files * records)
    bench.add(
        Row(
            f"merging {merged.rows:,} logs of small files",
            f"{merged.rows_per_cpu_second:,.0f}",
            f"{merged.cost.wall_seconds:.1f} s",
            merged.text,
        )
    )
    after = _asked(config, asked, rounds)
    for query in asked:
        (slow, many), (fast, few) = before[query.name], after[query.name]
        compared.add(
            Row(
                f"{query.name}, of {merged.rows:,} logs",
                f"{fast:.0f} ms",
                f"{slow:.0f} ms",
                f"{slow / fast:.1f} × as fast; {few}, before {many}",
            )
        )


def _asked(config: Config, asked: list[MeasuredQuery], rounds: int) -> dict[str, tuple[float, str]]:
    """Milliseconds over HTTP, and which files were needed."""
    found: dict[str, tuple[float, str]] = {}
    with (
        running_api(config.data_dir, query={"result_cache_bytes_max": 0}) as url,
        httpx.Client(timeout=120) as client,
    ):
        for query in asked:
            stats: dict[str, Any] = {}

            def ask(sql: str = query.sql, stats: dict[str, Any] = stats) -> None:
                answer = client.post(f"{url}/api/v1/sql", json={"sql": sql})
                answer.raise_for_status()
                stats.update(answer.json()["stats"])

            milliseconds, _ = beside(rounds, ask, lambda: None)
            found[query.name] = milliseconds, f"{stats['files']} of {stats['files_total']} files"
    return found
