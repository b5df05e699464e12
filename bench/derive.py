"""Derivation of a backlog of each signal, on a local Spark, compared with landing the same rows."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from bench.app_traffic import AppMetrics
from bench.backlog import Source, make_backlog
from bench.cost import Cost, watched
from bench.derive_functions import app_source
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
from bench.table import Bench, Row
from frazil.config import Config
from frazil.config.derive import CARDINALITY_TABLE
from frazil.lake.catalog import open_catalog
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.runner import SparkRunner
from frazil.tables import SIGNALS, Signal, TableSpec, derived_specs
from frazil.tables.derived.log_patterns import LOG_PATTERNS

TARGET, TARGET_WITH_PATTERNS = 1.0, 1.7
OFTEN_SECONDS = 15
"""Besides once a minute, as OpenTelemetry's SDKs send metrics by default: a row of one minute then stands for
four points and not for one.
"""


def derivation(bench: Bench, records: int | None = None) -> None:
    records = records or (QUICK_RECORDS if bench.quick else RECORDS)
    with (
        tempfile.TemporaryDirectory(prefix="frazil-bench-derive-") as place,
        running_spark(local_config(Path(place) / "spark")) as spark,
    ):
        for signal in SIGNALS:
            _of_source(bench, Path(place) / signal, spark, app_source(signal, records), records, signal)
        often = AppMetrics(interval_seconds=OFTEN_SECONDS)
        named = f"metrics, one point per series in {OFTEN_SECONDS} s"
        _of_source(bench, Path(place) / "often", spark, often, records, named)


def _of_source(
    bench: Bench, folder: Path, spark: SparkSession, source: Source, records: int, named: str
) -> None:
    signal = source.signal
    every = [spec for spec in derived_specs(signal) if spec.name != CARDINALITY_TABLE]  # off
    config, warm = local_config(folder / "data"), local_config(folder / "warm", **WARM_UP_SECTIONS)
    backlog = make_backlog(config, records, source=source, distinct_records_max=records)
    warming = make_backlog(warm, QUICK_WARM_UP_RECORDS, first_seed=WARM_UP_SEED, source=source)
    land_all(warm, spark, [jvm_pid()], warming.records, signal)
    derive_all(warm, spark, signal, every)
    landed = land_all(config, spark, [jvm_pid()], backlog.records, signal)
    without_patterns = [spec for spec in every if spec is not LOG_PATTERNS]
    for specs, target in ((without_patterns, TARGET), (every, TARGET_WITH_PATTERNS)):
        if specs is without_patterns or specs != without_patterns:
            _drop(config, every)
            _add(bench, named, specs, derive_all(config, spark, signal, specs), landed, target)
    shutil.rmtree(folder)


def derive_all(config: Config, spark: SparkSession, signal: Signal, specs: Sequence[TableSpec]) -> Cost:
    """All that has landed, as the pipeline's step does it."""
    metrics = DeriveMetrics(CollectorRegistry())
    with contextlib.closing(open_catalog(config)) as catalog:
        runner = SparkRunner(lambda: spark, "derive")
        deriver = Deriver(config, signal, catalog, runner, metrics, specs=specs)
        with watched([jvm_pid()]) as cost:
            while deriver.round() == "more" or deriver.day():
                pass
    assert not deriver.problems, deriver.problems
    return cost


def _drop(config: Config, specs: Sequence[TableSpec]) -> None:
    with contextlib.closing(open_catalog(config)) as catalog:
        for spec in specs:
            name = f"{config.lake.namespace}.{spec.name}"
            if catalog.table_exists(name):
                location = catalog.load_table(name).location()
                catalog.drop_table(name)
                shutil.rmtree(location)


def _add(
    bench: Bench, named: str, specs: Sequence[TableSpec], cost: Cost, landed: Landed, target: float
) -> None:
    speed = landed.records / cost.cpu_seconds
    ratio = landed.records_per_cpu_second / speed
    bench.add(
        Row(
            f"derive {', '.join(spec.name for spec in specs)} from {landed.records:,} {named}",
            f"{speed:,.0f}",
            f"{cost.wall_seconds:.1f} s",
            f"{ratio:.2f} × the CPU of landing ({landed.records_per_cpu_second:,.0f}); {cost.text}",
            f"≤ {target} ×",
            ratio <= target,
        )
    )
