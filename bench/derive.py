"""Derivation: the tables of a backlog of logs, on a local Spark, compared with landing the same rows."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from bench.backlog import AppLogs, make_backlog
from bench.cost import Cost, watched
from bench.land import (
    QUICK_RECORDS,
    QUICK_WARM_UP_RECORDS,
    RECORDS,
    WARM_UP_SECTIONS,
    WARM_UP_SEED,
    Landed,
    jvm_pid,
    land_all,
    local_config,
    running_spark,
)
from bench.payloads import BASE_UNIX_NANO
from bench.table import Bench, Row
from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.runner import SparkRunner
from frazil.tables import TableSpec, derived_specs
from frazil.tables.derived.log_patterns import LOG_PATTERNS

TARGET, TARGET_WITH_PATTERNS = 1.0, 1.7


def derivation(bench: Bench) -> None:
    records = QUICK_RECORDS if bench.quick else RECORDS
    every = derived_specs("logs")
    with tempfile.TemporaryDirectory(prefix="frazil-bench-derive-") as place:
        folder = Path(place)
        config, warm = local_config(folder / "data"), local_config(folder / "warm", **WARM_UP_SECTIONS)
        # Lines as applications write them: random words would all be templates of their own.
        source = AppLogs.around(BASE_UNIX_NANO, 3600 * 10**9, records)
        backlog = make_backlog(config, records, source=source)
        warming = make_backlog(warm, QUICK_WARM_UP_RECORDS, first_seed=WARM_UP_SEED)
        with running_spark(config) as spark:
            land_all(warm, spark, [jvm_pid()], warming.records)
            derive_all(warm, spark, every)
            landed = land_all(config, spark, [jvm_pid()], backlog.records)
            for specs, target in (
                ([spec for spec in every if spec is not LOG_PATTERNS], TARGET),
                (every, TARGET_WITH_PATTERNS),
            ):
                _drop(config, every)
                _add(bench, specs, derive_all(config, spark, specs), landed, target)


def derive_all(config: Config, spark: SparkSession, specs: Sequence[TableSpec]) -> Cost:
    """All that has landed, as the pipeline's step does it."""
    metrics = DeriveMetrics(CollectorRegistry())
    with contextlib.closing(open_catalog(config)) as catalog:
        runner = SparkRunner(lambda: spark, "derive")
        deriver = Deriver(config, "logs", catalog, runner, metrics, specs=specs)
        with watched([jvm_pid()]) as cost:
            while deriver.round() == "more" or deriver.day():
                pass
    return cost


def _drop(config: Config, specs: Sequence[TableSpec]) -> None:
    with contextlib.closing(open_catalog(config)) as catalog:
        for spec in specs:
            name = f"{config.lake.namespace}.{spec.name}"
            if catalog.table_exists(name):
                location = catalog.load_table(name).location()
                catalog.drop_table(name)
                shutil.rmtree(location)


def _add(bench: Bench, specs: Sequence[TableSpec], cost: Cost, landed: Landed, target: float) -> None:
    speed = landed.records / cost.cpu_seconds
    ratio = landed.records_per_cpu_second / speed
    bench.add(
        Row(
            f"derive {', '.join(spec.name for spec in specs)} from {landed.records:,} logs",
            f"{speed:,.0f}",
            f"{cost.wall_seconds:.1f} s",
            f"{ratio:.2f} × the CPU of landing ({landed.records_per_cpu_second:,.0f}); {cost.text}",
            f"≤ {target} ×",
            ratio <= target,
        )
    )
